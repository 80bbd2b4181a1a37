#include "storage/cache/owned_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

namespace zarrfeed {
namespace {

template <typename Call>
int retried(const Call& call) {
  int result = -1;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

File open_plain(int folder, const std::string& path, int flags, mode_t mode) {
  return File(retried([&] { return openat(folder, path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode); }));
}

/// Folder and name of a path: the folder is opened, unless it is the given one.
struct OpenedPath {
  OpenedPath(int folder, const std::string& path) : at(folder), name(path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return;
    name = path.substr(slash + 1);
    opened = open_beneath(folder, path.substr(0, slash), O_RDONLY | O_DIRECTORY);
    at = opened.get();
  }

  File opened;
  int at;  ///< -1: errno tells why it cannot be opened
  std::string name;
};

#ifdef __linux__
/// The system call that walks a path without following links; kernels before 5.6 and some sandboxes lack it.
File open_resolved(int folder, const std::string& path, int flags, mode_t mode) {
  constexpr long kOpenat2 = 437;
  constexpr uint64_t kNoSymlinks = 0x04;  // RESOLVE_NO_SYMLINKS; paths here have no ..
  struct {
    uint64_t flags, mode, resolve;
  } how{static_cast<uint64_t>(flags | O_NOFOLLOW | O_CLOEXEC), (flags & O_CREAT) != 0 ? mode : 0, kNoSymlinks};
  return File(retried([&] { return static_cast<int>(syscall(kOpenat2, folder, path.c_str(), &how, sizeof(how))); }));
}

bool has_resolved_open() {
  static const bool has = [] {
    const File here(open(".", O_PATH | O_CLOEXEC));
    return open_resolved(here ? here.get() : AT_FDCWD, ".", O_PATH, 0) || (errno != ENOSYS && errno != EPERM);
  }();
  return has;
}
#endif

}  // namespace

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

FileOwners FileOwners::of_process(std::optional<gid_t> group) {
  return {.user = geteuid(), .group = group};
}

File open_stepwise(int folder, const std::string& path, int flags, mode_t mode) {
  File at;
  size_t begin = 0;
  for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', begin)) {
    at = open_plain(at ? at.get() : folder, path.substr(begin, slash - begin), O_RDONLY | O_DIRECTORY, 0);
    if (!at) return at;
    begin = slash + 1;
  }
  return open_plain(at ? at.get() : folder, path.substr(begin), flags, mode);
}

File open_beneath(int folder, const std::string& path, int flags, mode_t mode) {
#ifdef __linux__
  if (path.find('/') != std::string::npos && has_resolved_open()) return open_resolved(folder, path, flags, mode);
#endif
  return open_stepwise(folder, path, flags, mode);
}

int set_access(int fd, const FileOwners& owners, mode_t mode) {
  struct stat info{};
  if (fstat(fd, &info) != 0) return errno;
  if (owners.group && info.st_gid != *owners.group && fchown(fd, static_cast<uid_t>(-1), *owners.group) != 0) {
    return errno;
  }
  if ((info.st_mode & 07777) == mode && (!owners.group || info.st_gid == *owners.group)) return 0;
  return fchmod(fd, mode) == 0 ? 0 : errno;
}

File make_file(int folder, const std::string& path, const FileOwners& owners) {
  File made = open_beneath(folder, path, O_RDWR | O_CREAT | O_EXCL, owners.file_mode());
  if (!made) return made;
  const int error = set_access(made.get(), owners, owners.file_mode());
  if (error == 0) return made;
  remove_beneath(folder, path);
  errno = error;
  return {};
}

int make_folder(int folder, const std::string& path, const FileOwners& owners) {
  const OpenedPath opened(folder, path);
  if (opened.at < 0) return errno;
  if (mkdirat(opened.at, opened.name.c_str(), owners.folder_mode() & 0777) != 0) return errno == EEXIST ? 0 : errno;
  const File made = open_plain(opened.at, opened.name, O_RDONLY | O_DIRECTORY, 0);
  return made ? set_access(made.get(), owners, owners.folder_mode()) : errno;
}

int remove_beneath(int folder, const std::string& path, int flags) {
  const OpenedPath opened(folder, path);
  if (opened.at < 0) return errno;
  return unlinkat(opened.at, opened.name.c_str(), flags) == 0 ? 0 : errno;
}

int remove_contents(int folder) {
  int first_error = 0;
  const int unread = for_each_name(folder, [&](const std::string& name) {
    int error = remove_beneath(folder, name);
    if (error == EISDIR || error == EPERM) {  // POSIX says EPERM of a folder
      const File inner = open_plain(folder, name, O_RDONLY | O_DIRECTORY, 0);
      const int inside = inner ? remove_contents(inner.get()) : errno;
      error = remove_beneath(folder, name, AT_REMOVEDIR);
      if (error != 0 && inside != 0) error = inside;
    }
    if (error != ENOENT && first_error == 0) first_error = error;
  });
  return first_error != 0 ? first_error : unread;
}

std::optional<uid_t> user_in(int folder) {
  std::random_device random;
  const std::string name = ".zarrfeed-" + std::to_string(random()) + "-" + std::to_string(random());
  const File probe = open_plain(folder, name, O_WRONLY | O_CREAT | O_EXCL, 0600);
  struct stat info{};
  const bool is_known = probe && fstat(probe.get(), &info) == 0;
  if (probe) remove_beneath(folder, name);
  return is_known ? std::optional(info.st_uid) : std::nullopt;
}

int for_each_name(int folder, const std::function<void(const std::string&)>& visit) {
  const int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return errno;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(copy), closedir);
  if (!listing) {
    const int error = errno;
    ::close(copy);
    return error;
  }
  std::vector<std::string> names;  // all of them first: `visit` may delete
  errno = 0;
  while (const dirent* item = readdir(listing.get())) {
    const std::string name(item->d_name);
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  for (const std::string& name : names) visit(name);
  return error;
}

std::string name_of_user(uid_t user) {
  std::array<char, 4096> room{};
  passwd entry{};
  passwd* found = nullptr;
  const std::string number = "uid " + std::to_string(user);
  const bool is_named = getpwuid_r(user, &entry, room.data(), room.size(), &found) == 0 && found != nullptr;
  return is_named ? std::string(entry.pw_name) + " (" + number + ")" : number;
}

std::string name_of_group(gid_t group) {
  std::array<char, 65536> room{};
  struct group entry{};
  struct group* found = nullptr;
  const std::string number = "gid " + std::to_string(group);
  const bool is_named = getgrgid_r(group, &entry, room.data(), room.size(), &found) == 0 && found != nullptr;
  return is_named ? std::string(entry.gr_name) + " (" + number + ")" : number;
}

}  // namespace zarrfeed
