#include "storage/cache/cache_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/process.h"

namespace zarrfeed {
namespace {

namespace fs = std::filesystem;

/// Says that a directory is a cache, and of which format. The first file in a directory; its content says nothing.
constexpr const char* kMarker = "ZARRFEED-CACHE-1";
constexpr std::string_view kMarkerOfAnyFormat = "ZARRFEED-CACHE-";
constexpr const char* kLeftovers = "tmp";
constexpr const char* kState = "state";
/// In the folder of a store's entries: the name of the store.
constexpr const char* kStoreName = "store";
constexpr size_t kMaxStoreName = 4096;

constexpr const char* kOrShare =
    ": name another directory, or share this one with cache_group=, the name of a group of all its users";
constexpr const char* kNotWritten = "cannot be written, so nothing is added";

/// "<process>-<number>-<random>", in decimal digits.
bool is_leftover_name(const std::string& name) {
  size_t parts = 1;
  char before = '-';
  for (const char c : name) {
    if (c == '-') {
      if (before == '-') return false;
      ++parts;
    } else if (c < '0' || c > '9') {
      return false;
    }
    before = c;
  }
  return parts == 3 && before != '-';
}

std::optional<struct stat> look_at(int folder, const std::string& name) {
  struct stat info{};
  if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return info;
}

/// Makes the folders above a path, in which nobody else can replace the next one. 0, or the errno.
int make_parents(const std::string& path) {
  int error = 0;
  for (size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
    const std::string parent = path.substr(0, slash);
    struct stat info{};
    const bool is_there = stat(parent.c_str(), &info) == 0 || mkdir(parent.c_str(), 0755) == 0 || errno == EEXIST;
    error = is_there ? 0 : errno;
  }
  return error;
}

/// True if all users are meant to write to a folder, as to /tmp and /dev/shm; none can rename what another one made
/// there.
bool is_public(const struct stat& info) {
  return (info.st_mode & S_ISVTX) != 0 && (info.st_mode & S_IWOTH) != 0;
}

std::string octal(mode_t mode) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "0%o", static_cast<unsigned>(mode & 07777));
  return text.data();
}

}  // namespace

CacheFolder::CacheFolder(std::string path, std::optional<gid_t> group)
    : path_(std::move(path)), owners_(FileOwners::of_process(group)) {}

void CacheFolder::refuse(const std::string& why) const {
  throw Error(ErrorKind::kConfig, here() + why);
}

CacheFolder::Trouble CacheFolder::open() {
  Trouble trouble = open_root();
  if (!trouble) {
    struct stat info{};
    if (fstat(root_.get(), &info) != 0) return {"cannot be opened", errno};
    check_owner(info);
    try {
      const bool is_cache = check_content();
      if (is_cache) check_group(info);
      trouble = close_to_others(info, is_cache);
    } catch (const std::system_error& unreadable) {
      trouble = {"cannot be listed", unreadable.code().value()};
    }
  }
  if (trouble) {
    root_ = File();
    return trouble;
  }
  return make_inside();
}

CacheFolder::Trouble CacheFolder::open_root() {
  const int no_parents = make_parents(path_);
  const int unmade = mkdir(path_.c_str(), 0700) == 0 ? 0 : errno;
  struct stat link{};
  struct stat info{};
  if (lstat(path_.c_str(), &link) != 0) return {"cannot be made", no_parents != 0 ? no_parents : unmade};
  if (stat(path_.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && !owners_.made(info)) {
    const File folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder && user_in(folder.get()) == info.st_uid) owners_.user = info.st_uid;
  }
  if (S_ISLNK(link.st_mode) && !owners_.made(link)) {
    refuse("is a link that " + name_of_user(link.st_uid) + " made; name another directory");
  }
  if (!S_ISDIR(info.st_mode)) refuse("is not a directory");
  check_owner(info);  // before it is opened, which another user's folder may forbid
  const int through_link = S_ISLNK(link.st_mode) ? 0 : O_NOFOLLOW;
  root_ = File(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | through_link));
  return root_ ? Trouble{} : Trouble{"cannot be opened", errno};
}

/// Refuses a folder that another user can change.
void CacheFolder::check_owner(const struct stat& info) const {
  const std::string owner = name_of_user(info.st_uid);
  const bool is_own = info.st_uid == owners_.user;
  if (is_own || info.st_uid == 0) return;
  if (!owners_.group) {
    refuse("belongs to " + owner + ", and this process runs as " + name_of_user(owners_.user) + kOrShare);
  }
  const bool is_shared = owners_.shares(info) && (info.st_mode & S_IRWXG) == S_IRWXG;
  if (!is_shared || !owners_.is_closed(info)) {
    refuse("belongs to " + owner + ", who does not share it with the group " + name_of_group(*owners_.group) +
           " alone (it has mode " + octal(info.st_mode) + ", group " + name_of_group(info.st_gid) + "): " + owner +
           " has to open it with the same cache_group= first");
  }
}

/// Refuses a cache that is shared with a group which the user did not name.
void CacheFolder::check_group(const struct stat& info) const {
  if (info.st_uid != owners_.user || owners_.group || (info.st_mode & 07777) != 02770) return;
  refuse("is shared with the group " + name_of_group(info.st_gid) +
         ": give cache_group=, or make the directory yours alone (chmod 0700)");
}

/// Refuses a folder with files of something else. Whether it is a cache already; it may be empty.
bool CacheFolder::check_content() const {
  std::string foreign;
  const int error = for_each_name(root_.get(), [&](const std::string& name) {
    if (name != kMarker && name.starts_with(kMarkerOfAnyFormat)) {
      refuse("was made by another version of zarrfeed (" + name + "); delete it");
    }
    if (name != kMarker && name != "lost+found") foreign = name;  // of a file system of its own
  });
  if (error != 0) throw std::system_error(error, std::generic_category());
  // After the listing: a process that makes the cache meanwhile makes the marker first.
  const auto marker = look_at(root_.get(), kMarker);
  if (marker && (!S_ISREG(marker->st_mode) || !owners_.made(*marker))) refuse(foreign_inside(kMarker, *marker));
  if (!marker && !foreign.empty()) {
    refuse("has files of something else, such as " + foreign + ", must be empty, missing or a cache of zarrfeed");
  }
  return marker.has_value();
}

std::string CacheFolder::foreign_inside(const std::string& name, const struct stat& info) const {
  const bool is_file = name == kMarker;
  if (is_file ? !S_ISREG(info.st_mode) : !S_ISDIR(info.st_mode)) {
    return "has " + name + ", which is no " + (is_file ? "file" : "folder") + "; delete it, or name another directory";
  }
  return "has " + name + ", which belongs to " + name_of_user(info.st_uid) +
         (owners_.group
              ? ", who does not share it with the group " + name_of_group(*owners_.group) + ": name another directory"
              : kOrShare);
}

/// Takes the access of others away from a folder of this user's own, and from all of this user's that is in it.
CacheFolder::Trouble CacheFolder::close_to_others(struct stat info, bool is_cache) {
  const auto is_right = [this](const struct stat& found) {
    if (!owners_.group) return (found.st_mode & 0077) == 0;
    return owners_.shares(found) && (found.st_mode & 07777) == owners_.folder_mode();
  };
  const mode_t had = info.st_mode;
  const bool stays_open = is_public(info) && (info.st_uid == 0 || !owners_.group);
  const bool changes = info.st_uid == owners_.user && !is_right(info) && !stays_open;
  if (changes) {
    const int error = set_access(root_.get(), owners_, owners_.group || !is_cache ? owners_.folder_mode() : had & 0700);
    if (error == EROFS) return {};  // nobody writes there
    if (error == EPERM && owners_.group && !owners_.shares(info)) {
      refuse("this user is not in the group " + name_of_group(*owners_.group) + " of cache_group=");
    }
    if (error != 0 || fstat(root_.get(), &info) != 0 || !is_right(info)) {
      return {"stays open to other users, so it is not used: access rights cannot be changed",
              error != 0 ? error : EPERM};
    }
  }
  const auto entries = look_at(root_.get(), kCacheEntries);
  const bool is_inside_right = !entries || entries->st_uid != owners_.user || is_right(*entries);
  if (!changes && is_inside_right) return {};
  size_t dropped = 0;
  // In a folder that anybody could write to, the group of a file does not say who wrote it.
  close_inside(root_.get(), true, (had & S_IWOTH) == 0, dropped);
  if (!is_cache && (had & S_IWOTH) == 0) return {};  // there was nothing in it yet
  notice_ = here() + "had mode " + octal(had) + ", and is now " +
            (owners_.group && (had & 0077) == 0 ? "open to " : "closed to all but ") +
            (owners_.group ? "the group " + name_of_group(*owners_.group) : name_of_user(owners_.user));
  if (dropped != 0) {
    notice_ += "; " + std::to_string(dropped) + " files that others made, or could have changed, were deleted";
  }
  return {};
}

void CacheFolder::close_inside(int folder, bool is_top, bool believes_group, size_t& dropped) {
  for_each_name(folder, [&](const std::string& name) {
    const bool is_known = name == kMarker || name == kState || name == kCacheEntries || name == kLeftovers;
    const auto found = look_at(folder, name);
    if (!found || (is_top && !is_known)) return;
    const bool is_folder = S_ISDIR(found->st_mode);
    const bool is_own = found->st_uid == owners_.user || found->st_uid == 0;
    const bool is_entry = !is_top && !is_folder;
    if (!(is_own || (believes_group && owners_.made(*found))) || S_ISLNK(found->st_mode) ||
        (is_entry && !owners_.is_closed(*found))) {
      if (is_top) return;  // refused, or made anew, when it is opened
      ++dropped;
      if (is_folder) {
        const File inner = open_beneath(folder, name, O_RDONLY | O_DIRECTORY);
        if (inner) remove_contents(inner.get());
      }
      remove_beneath(folder, name, is_folder ? AT_REMOVEDIR : 0);
      return;
    }
    const File item = open_beneath(folder, name, O_RDONLY | O_NONBLOCK | (is_folder ? O_DIRECTORY : 0));
    if (!item) return;
    if (found->st_uid == owners_.user && (is_folder || S_ISREG(found->st_mode)) &&
        (is_folder || found->st_nlink == 1)) {
      set_access(item.get(), owners_, is_folder ? owners_.folder_mode() : owners_.file_mode());
    }
    if (is_folder) close_inside(item.get(), false, believes_group, dropped);
  });
}

/// Makes what a cache has, if it is not there.
CacheFolder::Trouble CacheFolder::make_inside() {
  const File made = make_file(root_.get(), kMarker, owners_);
  if (!made && errno != EEXIST) return {kNotWritten, errno};
  for (const char* name : {kCacheEntries, kLeftovers}) {
    const int error = make_folder(root_.get(), name, owners_);
    const auto info = look_at(root_.get(), name);
    if (info && (!S_ISDIR(info->st_mode) || !owners_.made(*info))) refuse(foreign_inside(name, *info));
    if (error != 0) return {kNotWritten, error};
  }
  return {};
}

File CacheFolder::open_state() {
  for (int tries = 0; tries < 3; ++tries) {
    File state = open_beneath(root_.get(), kState, O_RDWR | O_NONBLOCK);
    if (!state && errno == ENOENT) {
      state = make_file(root_.get(), kState, owners_);
      if (!state && errno == EEXIST) continue;  // another process was faster
    }
    struct stat info{};
    if (!state && errno != ELOOP && errno != ENXIO && errno != EACCES) return state;
    const bool is_own = state && fstat(state.get(), &info) == 0 && S_ISREG(info.st_mode) && info.st_nlink == 1;
    if (is_own && owners_.believe(info)) return state;
    // A link, a pipe, another user's file or one that has another name elsewhere: this name of it goes.
    if (const int error = remove(kState); error != 0 && error != ENOENT) {
      errno = error;
      return {};
    }
  }
  errno = EEXIST;
  return {};
}

bool CacheFolder::is_writable() const {
  return faccessat(root_.get(), kLeftovers, W_OK, 0) == 0;
}

File CacheFolder::open_entry(const std::string& path, struct stat& info) const {
  File file = open_beneath(root_.get(), path, O_RDONLY | O_NONBLOCK);
  return file && fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode) ? std::move(file) : File();
}

std::optional<uint64_t> CacheFolder::size_of(const std::string& path) const {
  const auto info = look_at(root_.get(), path);
  if (!info || !S_ISREG(info->st_mode) || !owners_.believe(*info)) return std::nullopt;
  return static_cast<uint64_t>(info->st_size);
}

bool CacheFolder::has(const std::string& path) const {
  return look_at(root_.get(), path).has_value();
}

File CacheFolder::make_leftover(std::string& path) {
  static std::atomic<uint64_t> last{0};
  std::random_device random;
  path = std::string(kLeftovers) + "/" + std::to_string(process_id()) + "-" + std::to_string(++last) + "-" +
         std::to_string(random());
  File made = make_file(root_.get(), path, owners_);
  if (!made && errno == ENOENT && make_folder(root_.get(), kLeftovers, owners_) == 0) {
    made = make_file(root_.get(), path, owners_);
  }
  return made;
}

int CacheFolder::move_into_place(const std::string& leftover, const CacheEntry& entry) {
  const size_t slash = entry.path.rfind('/');
  const std::string folder = entry.path.substr(0, slash), name = entry.path.substr(slash + 1);
  const File from = open_beneath(root_.get(), kLeftovers, O_RDONLY | O_DIRECTORY);
  if (!from) return errno;
  const std::string old_name = leftover.substr(leftover.rfind('/') + 1);
  const auto move = [&] {
    const File to = open_beneath(root_.get(), folder, O_RDONLY | O_DIRECTORY);
    return to && renameat(from.get(), old_name.c_str(), to.get(), name.c_str()) == 0 ? 0 : errno;
  };
  if (const int error = move(); error != ENOENT) return error;
  for (const std::string& part : {std::string(kCacheEntries), entry.folder, folder}) {
    if (const int error = make_folder(root_.get(), part, owners_); error != 0) return error;
  }
  const File store = make_file(root_.get(), entry.folder + "/" + kStoreName, owners_);
  if (store && ::write(store.get(), entry.store.data(), entry.store.size()) < 0) return errno;
  return move();
}

void CacheFolder::sweep_leftovers(const std::function<bool(int)>& is_left) const {
  const File folder = open_beneath(root_.get(), kLeftovers, O_RDONLY | O_DIRECTORY);
  if (!folder) return;
  for_each_name(folder.get(), [&](const std::string& name) {
    if (!is_leftover_name(name)) return;
    const File file = open_beneath(folder.get(), name, O_RDWR | O_NONBLOCK);
    struct stat info{};
    if (!file || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) return;
    if (is_left(file.get())) remove_beneath(folder.get(), name);
  });
}

void CacheFolder::visit_entries(const std::string& below,
                                const std::function<void(const std::string&, uint64_t)>& visit) const {
  const File folder = open_beneath(root_.get(), below, O_RDONLY | O_DIRECTORY);
  if (!folder) return;
  const auto depth = std::count(below.begin(), below.end(), '/');  // entries/<store>/<two digits>/<entry>
  for_each_name(folder.get(), [&](const std::string& name) {
    const auto info = look_at(folder.get(), name);
    if (!info) return;
    const std::string path = below + "/" + name;
    if (depth < 2 && S_ISDIR(info->st_mode)) visit_entries(path, visit);
    if (depth == 2 && S_ISREG(info->st_mode) && owners_.believe(*info)) {
      visit(path, static_cast<uint64_t>(info->st_size));
    }
  });
}

int CacheFolder::clear(const std::string& folder) const {
  const File opened = open_beneath(root_.get(), folder, O_RDONLY | O_DIRECTORY);
  if (!opened) return errno == ENOENT ? 0 : errno;
  return remove_contents(opened.get());
}

std::string CacheFolder::store_name(const std::string& folder) const {
  struct stat info{};
  const File file = open_entry(folder + "/" + kStoreName, info);
  if (!file || !believes(info)) return "";
  std::string text(kMaxStoreName, '\0');
  const ssize_t n = pread(file.get(), text.data(), text.size(), 0);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

}  // namespace zarrfeed
