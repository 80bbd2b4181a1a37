#pragma once
// The folder of a node cache and the files in it: whose they are, who can reach them, and every call that opens, makes,
// renames or deletes one. Knows no counter, no lock and no checksum, which cache_directory.h has.
//
// Invariants, on a machine that several users share:
//   * The folder is the effective user's or root's. With a group, it may also be a folder that its owner shares with that
//     group. Any other folder is refused. What lies above the folder may be anybody's: the folder itself is looked at
//     after it was opened.
//   * What the cache makes can be reached by the user alone (0700 and 0600), or by the group (2770 and 0660), whatever the
//     umask is. A folder of the user's own that was open to others is closed when it is opened, once, with a notice. A
//     folder with the access rights of /tmp (1777) stays as it is, since others use it; what is in it is closed.
//   * A file counts only if one of the owners made it and nobody else could write to it. Any other file is no entry.
//   * No link is followed below the folder. What is swept has a name that the cache gives. So no file outside of the
//     folder is made, changed or deleted, whatever somebody put into it.
// Thread-safe after open().

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "storage/cache/cache_entry.h"
#include "storage/cache/owned_files.h"

namespace zarrfeed {

class CacheFolder {
 public:
  /// `group`: the group that shares the cache; none: the user alone.
  CacheFolder(std::string path, std::optional<gid_t> group);

  /// Why something does not work, and the errno; 0: nothing is wrong.
  struct Trouble {
    std::string what{};
    int errno_value = 0;
    explicit operator bool() const { return !what.empty(); }
  };

  /// Makes the folder if there is none, looks at it and opens it. Throws Error(kConfig) if it is something else, or is
  /// another user's. Any other problem is returned: then there is no folder, or nothing can be written to it.
  Trouble open();
  [[nodiscard]] bool is_open() const { return static_cast<bool>(root_); }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// One line if access rights were changed; else empty.
  [[nodiscard]] const std::string& notice() const { return notice_; }

  /// Opens the file of the counter and the locks, and makes it anew if another user owns it. Without a file, errno tells
  /// why.
  File open_state();
  /// True if this process may write new entries.
  [[nodiscard]] bool is_writable() const;

  /// Opens a file to read it, and says what fstat() says of it. No file if it is not regular.
  File open_entry(const std::string& path, struct stat& info) const;
  /// True if the owners alone can have written a file.
  [[nodiscard]] bool believes(const struct stat& info) const { return owners_.believe(info); }
  /// Bytes of a file that counts; nothing if there is none.
  [[nodiscard]] std::optional<uint64_t> size_of(const std::string& path) const;
  [[nodiscard]] bool has(const std::string& path) const;

  /// Makes a new file for an entry that is being written, and tells its path.
  File make_leftover(std::string& path);
  /// Renames it to the file of the entry. 0, or the errno.
  int move_into_place(const std::string& leftover, const CacheEntry& entry);
  int remove(const std::string& path) const { return remove_beneath(root_.get(), path); }
  /// Deletes leftovers for which `is_left` says so.
  void sweep_leftovers(const std::function<bool(int)>& is_left) const;

  /// Calls `visit` with the path and the size of each file of an entry that counts, below a folder of entries.
  void visit_entries(const std::string& below, const std::function<void(const std::string&, uint64_t)>& visit) const;
  /// Deletes all that is in a folder of entries. 0, or the errno.
  int clear(const std::string& folder) const;
  /// The name of a store, by the folder of its entries; empty if it is not known.
  [[nodiscard]] std::string store_name(const std::string& folder) const;

 private:
  Trouble open_root();
  void check_owner(const struct stat& info) const;
  void check_group(const struct stat& info) const;
  [[nodiscard]] bool check_content() const;
  Trouble close_to_others(struct stat info, bool is_cache);
  void close_inside(int folder, bool is_top, bool believes_group, size_t& dropped);
  Trouble make_inside();
  [[nodiscard]] std::string foreign_inside(const std::string& name, const struct stat& info) const;
  [[noreturn]] void refuse(const std::string& why) const;
  [[nodiscard]] std::string here() const { return "cache " + path_ + ": "; }

  const std::string path_;
  FileOwners owners_;  ///< does not change after open()
  File root_;
  std::string notice_;
};

}  // namespace zarrfeed
