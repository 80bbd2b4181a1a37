#pragma once
// Files in a folder whose other files may be anybody's: who may have written a file, and opening one by its folder.
//
// Invariants:
//   * No symbolic link is followed below a folder, at no component of a path. So what is opened, made or deleted lies in
//     the folder, whoever puts links there.
//   * A file or folder that is made has the access rights of its FileOwners, whatever the umask of the process is.
// Thread-safe.

#include <sys/stat.h>
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace zarrfeed {

/// An open file, which is closed with this object; false if there is none.
class File {
 public:
  File() = default;
  explicit File(int fd) : fd_(fd) {}
  File(File&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// The users whose files a process believes: its effective user, root, and the members of a group that shares the files.
struct FileOwners {
  uid_t user = 0;
  std::optional<gid_t> group{};

  static FileOwners of_process(std::optional<gid_t> group);

  [[nodiscard]] mode_t folder_mode() const { return group ? 02770 : 0700; }
  [[nodiscard]] mode_t file_mode() const { return group ? 0660 : 0600; }
  /// True if a file or folder is of the group that shares.
  [[nodiscard]] bool shares(const struct stat& info) const { return group && info.st_gid == *group; }
  /// True if one of these users made a file or folder.
  [[nodiscard]] bool made(const struct stat& info) const {
    return info.st_uid == user || info.st_uid == 0 || shares(info);
  }
  /// True if nobody else can write to a file or folder.
  [[nodiscard]] bool is_closed(const struct stat& info) const {
    return (info.st_mode & (shares(info) ? S_IWOTH : S_IWGRP | S_IWOTH)) == 0;
  }
  /// True if one of these users made it, and nobody else could write to it since.
  [[nodiscard]] bool believe(const struct stat& info) const { return made(info) && is_closed(info); }
};

/// Opens a file or folder by its path below a folder. Without a file, errno tells why; ELOOP or ENOTDIR: there is a link.
File open_beneath(int folder, const std::string& path, int flags, mode_t mode = 0);
/// Opens a file one component of its path after the other, on systems whose calls cannot refuse links on a path.
File open_stepwise(int folder, const std::string& path, int flags, mode_t mode = 0);
/// Makes a new file. Without one, errno tells why; EEXIST: there is something of that name.
File make_file(int folder, const std::string& path, const FileOwners& owners);
/// Makes a folder, if there is nothing of that name. 0, or the errno.
int make_folder(int folder, const std::string& path, const FileOwners& owners);
/// Gives an open file or folder the group and the access rights of `owners`. 0, or the errno.
int set_access(int fd, const FileOwners& owners, mode_t mode);
/// Deletes a name, and not what a link leads to. 0, or the errno.
int remove_beneath(int folder, const std::string& path, int flags = 0);
/// Deletes all that is in a folder. 0, or the errno of what could not be deleted first.
int remove_contents(int folder);

/// The user whom a file system names as the owner of what this process makes in a folder. On a network file system that
/// shows all files as one user's, that is not the effective user. Nothing if nothing can be made there.
std::optional<uid_t> user_in(int folder);

/// Calls `visit` with the name of each item of a folder. 0, or the errno.
int for_each_name(int folder, const std::function<void(const std::string&)>& visit);

/// "alice (uid 1000)", or "uid 1000" without a name; "ml (gid 2000)".
std::string name_of_user(uid_t user);
std::string name_of_group(gid_t group);

}  // namespace zarrfeed
