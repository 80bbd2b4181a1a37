#pragma once
// The directory of the node cache: stored bytes of objects and of their ranges, shared by all processes of a machine.
//
// One file an entry. Invariants:
//   * A file in `entries/` is a whole entry: it was written below `tmp/` and renamed. A process that is killed while it
//     writes leaves a file in `tmp/` that no reader looks at; the next process that opens the directory deletes it.
//   * An entry names what it holds: store, object, range and version of the object. An entry of another version is a miss
//     and never an answer. The name of the file comes from store, object and range, so a new version replaces the old one.
//   * A process checks the crc32c of an entry when it reads the entry for the first time, unless it wrote the entry itself.
//     An entry that is damaged, after a power failure for example (nothing calls fsync), is deleted, and is a miss.
//   * A new entry is admitted while the counter of used bytes stays within the limit. No other entry is evicted.
//   * The counter is kept in `state`, under a lock. Bytes are reserved before they are written, so a killed process can
//     leave the counter too high, never too low. `state` also counts the processes that have the directory open. If the
//     first process to open it finds that another one did not close it, it counts the bytes anew.
//   * Locks are open file description locks (F_OFD_SETLK) of single bytes of `state`: one byte for the counter, one for
//     the processes, and for each entry the byte at the hash of its name. The kernel frees the locks of a dead process.
//   * cache_folder.h says who can read and write the directory, and which files count. A file that others made or could
//     have changed is no entry: it is deleted when it is met, and is a miss.
//   * Only open() throws. Whatever goes wrong afterwards makes a miss, or an entry less; trouble() says why.
// Thread-safe. A process that was forked from the one that opened the directory opens it anew.

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "storage/cache/cache_entry.h"
#include "storage/cache/cache_folder.h"

namespace zarrfeed {

class CacheDirectory : public std::enable_shared_from_this<CacheDirectory> {
 public:
  using Found = CacheEntryFile::Found;
  enum class Admitted {
    kYes,
    kFull,    ///< the limit leaves no room for it
    kFailed,  ///< it could not be written: see trouble()
  };

  /// The right to fetch one entry, while it lives.
  class Claim {
   public:
    Claim(std::shared_ptr<CacheDirectory> directory, uint64_t hash) : directory_(std::move(directory)), hash_(hash) {}
    ~Claim() { directory_->release(hash_); }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;

   private:
    const std::shared_ptr<CacheDirectory> directory_;
    const uint64_t hash_;
  };
  using ClaimPtr = std::shared_ptr<const Claim>;

  /// Opens the directory, and makes it if there is none. At most `limit` bytes are used: of whole blocks of 4 KiB, headers
  /// included. `group`: the group whose members share it. Throws Error(kConfig) if `path` is no directory, is a directory that
  /// has files and is no cache, or is another user's. Any other problem is trouble() and no error.
  static std::shared_ptr<CacheDirectory> open(const std::string& path, uint64_t limit,
                                              std::optional<gid_t> group = std::nullopt);
  ~CacheDirectory();
  CacheDirectory(const CacheDirectory&) = delete;
  CacheDirectory& operator=(const CacheDirectory&) = delete;

  /// Says that this process does not use the directory any more. Called by the destructor, too.
  void close();

  /// Reads an entry of at most `max_bytes` into `room`. `may_wait`: also from the device, not from the page cache alone.
  /// `parts`, if not null, are enough: they are read once this process has checked the whole entry.
  Found read(const CacheEntry& entry, Buffer& room, size_t max_bytes, bool may_wait, PartsRead& out,
             const ChunkParts* parts = nullptr);
  /// True if there is a file for the entry, of whatever version, or was when this process read it. Never waits for the
  /// payload.
  [[nodiscard]] bool contains(const CacheEntry& entry) const;
  /// Writes an entry, over the one of another version of the object.
  Admitted admit(const CacheEntry& entry, Bytes payload);

  /// Claims an entry: null while another thread or process has it. Where the file system has no locks, only threads of this
  /// process exclude each other.
  [[nodiscard]] ClaimPtr try_claim(const CacheEntry& entry);
  /// True if an entry may be admitted at all now. False for a second after one found no room.
  [[nodiscard]] bool admits() const;

  [[nodiscard]] const std::string& path() const { return folder_.path(); }
  /// One line if open() changed access rights; else empty.
  [[nodiscard]] const std::string& notice() const { return folder_.notice(); }
  [[nodiscard]] uint64_t limit() const { return limit_; }
  /// Bytes that all entries use; 0 if the directory cannot be written.
  [[nodiscard]] uint64_t used_bytes();
  /// Why the cache admits no entries, or holds none; empty if it works.
  [[nodiscard]] std::string trouble() const;

  /// True if new entries are written at all.
  [[nodiscard]] bool is_writable() const { return writes_.load(std::memory_order_relaxed); }

  /// Entries of some objects, as their headers say.
  struct Listing {
    struct One {
      CacheEntryInfo info;
      uint64_t counted_bytes = 0;  ///< against the limit
    };
    std::vector<One> entries;
    double share = 1;  ///< the part of the cache that was looked through: names are hashes, so it is a random sample
  };
  /// Lists the entries of the objects of a store whose keys begin with `prefix`, of all versions. Looks at no more folders
  /// once it has looked at `most` entries.
  [[nodiscard]] Listing list(const std::string& store, const std::string& prefix, size_t most) const;

  /// The file of an entry: its path below the directory, and its size.
  struct StoredFile {
    std::string path;
    uint64_t bytes = 0;
  };
  /// All entries, of which none was opened.
  [[nodiscard]] std::vector<StoredFile> files() const;
  /// The header of an entry's file. Nothing if the file is no entry.
  [[nodiscard]] std::optional<CacheEntryInfo> read_info(const std::string& path) const;
  /// Checks the file of an entry. Nothing if it is gone. Throws Error(kCorrupt) if it is damaged, or Error(kIo).
  [[nodiscard]] std::optional<CacheEntryInfo> check(const std::string& path) const;
  /// Deletes the file of an entry, and returns its bytes. The counter stays as it is. Throws Error(kIo).
  uint64_t remove(const std::string& path);
  /// The name of the store whose entries are in a folder such as "entries/0123456789abcdef"; empty if it is not known.
  [[nodiscard]] std::string store_name(const std::string& folder) const { return folder_.store_name(folder); }

  /// Counts the used bytes anew, from the sizes of all files, and deletes what dead processes left. Returns the bytes.
  uint64_t recount();
  /// Deletes the entries of one store, or of all for an empty name. Returns their bytes.
  uint64_t clear(const std::string& store);
  /// Bytes of `size` that count against the limit.
  static uint64_t counted_bytes(uint64_t size) { return (size + 4095) / 4096 * 4096; }

 private:
  CacheDirectory(std::string path, uint64_t limit, std::optional<gid_t> group);

  struct State;
  class StateLock;

  void open_state();
  void enter(bool may_recount);
  [[nodiscard]] bool reserve(uint64_t bytes);
  void give_back(uint64_t bytes);
  Found read_file(const CacheEntry& entry, Buffer& room, size_t max_bytes, bool may_wait, PartsRead& out,
                  const ChunkParts* parts);
  void release(uint64_t hash);
  void drop(const CacheEntry& entry);
  void fail(const std::string& what, int errno_value);
  [[nodiscard]] uint64_t count_entries() const;
  void sweep_leftovers() const;
  [[nodiscard]] int write_whole(std::string& path, const CacheEntry& entry, Bytes payload);

  CacheFolder folder_;  ///< if it is not open, every read is a miss
  const uint64_t limit_;
  std::atomic<bool> writes_{false};
  std::atomic<bool> has_locks_{true};
  std::atomic<bool> is_closed_{false};
  std::atomic<int64_t> full_until_ns_{0};  ///< of the steady clock
  /// Hashes of entries that were checked, each in the slot `hash % size`. An entry whose hash lost its slot to another
  /// one is checked again.
  std::vector<std::atomic<uint64_t>> checked_;

  /// Hashes of entries that this process read last, each in the slot `hash % size`: these entries exist.
  std::vector<std::atomic<uint64_t>> present_;

  mutable std::mutex mutex_;  ///< of what follows, and of the counter in this process
  File state_;
  pid_t owner_ = 0;
  std::unordered_set<uint64_t> claimed_;
  std::string trouble_;
};

}  // namespace zarrfeed
