#pragma once
// Inner chunks of the shards of one array below a local directory. The index of a shard is read once and kept.
//
// Who waits for whom, so that nobody waits in a circle and no decode thread waits for a device:
//   * read_cached() waits for the lock of an index only, which is held while an index is read from the page cache and
//     parsed, never while a device is waited for. If the index is not in the cache, or someone reads it from the device,
//     it returns kWouldBlock.
//   * read_blocking() of an index that another thread reads from the device waits for that thread. The thread that reads
//     waits for the device alone. If it fails, the next one tries anew, so that each has an error of its own.
//   * An index belongs to one version of the shard's file (inode, size, time of change). A read of another version drops
//     the index and begins again, so that a shard which is replaced is never read by the old one's index.

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/buffer.h"
#include "spec/shard_spec.h"
#include "storage/file_store.h"
#include "storage/shard_index.h"

namespace zarrfeed {

/// Thread-safe but for clear().
class ShardReader {
 public:
  /// `source` outlives this; `max_chunk_bytes`: a larger inner chunk is refused.
  ShardReader(const FileStore& source, ShardSpec spec, size_t max_chunk_bytes);

  /// Forgets all indices.
  void clear();

  /// As those of FileStore, for the inner chunk at `position` (C order) of the shard `key`. A shard that does not exist
  /// and one that lacks the inner chunk are both kMissing.
  ReadStatus read_cached(const std::string& key, size_t position, Buffer& out, PendingRead& pending);
  ReadStatus read_blocking(const std::string& key, size_t position, Buffer& out, PendingRead& pending);

  /// Whether there is such a shard: reads its index, unless that is kept. Throws what is wrong with it.
  bool exists(const std::string& key);

  /// Indices that were read, from the beginning.
  [[nodiscard]] uint64_t indices_read() const { return indices_read_.load(std::memory_order_relaxed); }

 private:
  /// A shard as it was when its index was read; without an index if there was no shard.
  struct Shard {
    std::optional<ShardIndex> index;
    ObjectVersion version;
  };
  using ShardPtr = std::shared_ptr<const Shard>;

  struct Slot {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_read = false;  ///< someone waits for the device
    ShardPtr shard;        ///< null until it was read
  };
  using SlotPtr = std::shared_ptr<Slot>;

  template <bool kBlocking>
  ReadStatus read(const std::string& key, size_t position, Buffer& out, PendingRead& pending);
  SlotPtr slot(const std::string& key);
  void drop(const std::string& key, const SlotPtr& slot);
  ShardPtr find_cached(const std::string& key, Slot& slot);
  ShardPtr find_blocking(const std::string& key, Slot& slot);
  template <bool kBlocking>
  ShardPtr load(const std::string& key);

  const FileStore* source_;
  const ShardSpec spec_;
  const size_t max_chunk_bytes_;
  const size_t capacity_;  ///< slots that are kept
  std::atomic<uint64_t> indices_read_{0};

  std::mutex mutex_;  ///< of the table of slots; never held together with that of a slot
  std::list<std::pair<std::string, SlotPtr>> recent_;  ///< the one used last comes first
  std::unordered_map<std::string, decltype(recent_)::iterator> slots_;
};

/// Place of an inner chunk in its shard, such as "3/0", from its position in C order.
std::string inner_chunk_name(const ShardSpec& spec, size_t position);

}  // namespace zarrfeed
