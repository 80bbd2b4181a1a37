#pragma once
// Inner chunks of the shards of one array, over the ByteStore that holds the shards. It is a ByteStore itself, which takes
// requests with `inner_chunk`. The index of a shard is read once and cached.
//
// Who waits for whom, so that nobody waits in a circle and no decode thread waits for a device:
//   * try_read() waits for the lock of an index only, which is held while an index is tried and parsed, never while a
//     device is waited for. If the index is not to be had without waiting, or is being read, it returns kWouldBlock.
//   * read() of an index that another request reads waits for that one: without a thread, in a list, where the store
//     reads on threads of its own; else on the thread that calls, as the store does. The request that reads waits for the
//     store alone. If it fails, the next one reads anew, so that each has an error of its own; but where the store itself
//     retries, its error is that of all who waited.
//   * An index belongs to one version of the shard, where the store tells versions apart. A read of another version drops
//     the index and begins again, so that a shard which is replaced is never read by the old one's index.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/stored_bytes.h"
#include "spec/shard_spec.h"
#include "storage/access/byte_store.h"
#include "storage/shard_index.h"

namespace zarrfeed {

class ShardReader : public ByteStore, public std::enable_shared_from_this<ShardReader> {
 public:
  /// `max_chunk_bytes`: a larger inner chunk is refused.
  ShardReader(std::shared_ptr<ByteStore> store, ShardSpec spec, size_t max_chunk_bytes);

  /// Forgets all indices. No other call is under way.
  void clear();

  /// As those of any ByteStore, for inner chunks, of which `parts` may be enough. A shard that does not exist and one that
  /// lacks the inner chunk are both kMissing.
  ReadResult try_read(const std::string& key, size_t inner_chunk, Buffer& room,
                      std::shared_ptr<const ChunkParts> parts = nullptr);
  /// True if try_read() is worthwhile: the index is cached, and the store says so of the range.
  [[nodiscard]] bool is_at_hand(const std::string& key, size_t inner_chunk);
  void read(std::vector<ReadRequest> requests) override;
  /// True if there is such a shard: reads its index, unless that is cached. `bytes` are empty.
  void find(const std::string& key, Completion done);

  void open() override { store_->open(); }
  void close() override { store_->close(); }
  ReadResult try_read(const std::string& key, const ByteRange& range, Buffer& room) override {
    return store_->try_read(key, range, room);
  }
  [[nodiscard]] bool is_at_hand(const std::string& key, const ByteRange& range) const override {
    return store_->is_at_hand(key, range);
  }
  [[nodiscard]] std::optional<Asked> oldest() const override { return store_->oldest(); }
  [[nodiscard]] Limits limits() const override;
  bool stop(std::chrono::steady_clock::time_point deadline) override;

  /// Indices that were read, from the beginning.
  [[nodiscard]] uint64_t indices_read() const { return indices_read_.load(std::memory_order_relaxed); }

 private:
  /// A shard as it was when its index was read; without an index if there was no shard.
  struct Shard {
    std::optional<ShardIndex> index;
    std::optional<ObjectVersion> version;
  };
  using ShardPtr = std::shared_ptr<const Shard>;
  /// Takes a shard, or the error with which the read of its index ended.
  using UseShard = std::function<void(ShardPtr, const std::optional<Error>&)>;

  struct Slot {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_read = false;            ///< someone waits for the store
    ShardPtr shard;                  ///< null until it was read
    std::deque<UseShard> waiting{};  ///< for whoever reads it
  };
  using SlotPtr = std::shared_ptr<Slot>;

  /// Requests for inner chunks of one shard that are read together where that pays, and how many versions of the shard
  /// they have seen.
  struct Wanted {
    std::vector<ReadRequest> requests;  ///< at least one
    int versions = 0;

    [[nodiscard]] const std::string& key() const { return requests.front().key; }
    void fail(const Error& error) const;
  };
  using WantedPtr = std::shared_ptr<Wanted>;

  SlotPtr slot(const std::string& key);
  void drop(const std::string& key, const SlotPtr& slot);
  [[nodiscard]] ByteRange index_range() const;
  ShardPtr parse(const ReadResult& stored);
  ShardPtr try_find(const std::string& key, Slot& slot);
  void find(const std::string& key, const SlotPtr& slot, UseShard use);
  void load(const std::string& key, const SlotPtr& slot, UseShard use);
  void read_inner(WantedPtr wanted);
  void read_ranges(Wanted& wanted, const SlotPtr& slot, const Shard& shard);
  void read_together(std::vector<ReadRequest> requests);
  ReadRequest request_for(ReadRequest inner, ByteRange range, int versions, const SlotPtr& slot);

  const std::shared_ptr<ByteStore> store_;
  const ShardSpec spec_;
  const size_t max_chunk_bytes_;
  const size_t capacity_;  ///< slots that are cached
  const Limits limits_;    ///< of the store
  std::atomic<uint64_t> indices_read_{0};

  std::mutex mutex_;  ///< of the table of slots; never held together with that of a slot
  std::list<std::pair<std::string, SlotPtr>> recent_;  ///< the one used last comes first
  std::unordered_map<std::string, decltype(recent_)::iterator> slots_;
};

/// Name of an inner chunk, its grid index in the shard such as "3/0", from its position in C order.
std::string inner_chunk_name(const ShardSpec& spec, size_t position);

}  // namespace zarrfeed
