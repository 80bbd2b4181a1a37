#pragma once
// The chunks of one array: the engine, `verify` and the yardsticks ask for a chunk and get its stored bytes or an
// error.
//
// Here, and nowhere else, is what lies between a chunk and a ByteStore: keys, indices of shards, retries after
// transient errors, timeouts, and the text of errors. Invariants:
//   * A read ends exactly once: in bytes, in "the store lacks the chunk", or in an error that names the array and the
//     chunk's key. It is dropped without a word only by stop().
//   * A read is retried after a transient error (is_transient()), up to `max_retries` times, each after pause_after(),
//     as long as all attempts together stay below `timeout`. The error of the last attempt is reported.
//   * Reads are overdue if storage has answered none of them for `timeout`: then find_overdue() returns an error, and
//     nobody may wait for the storage any more. A read that waits for its turn behind others, which are answered one by
//     one, is not overdue: a slow store is no dead store. Only so many reads are asked for at once, so a read that is
//     never answered is soon the only one. The caller polls find_overdue(); there is no timer.
//   * No more bytes are handed over than a chunk of this array may have. Where parts of a chunk are enough for the
//     caller, a store may hand over these alone (base/stored_bytes.h); a retry reads all of them anew.
// Threads: any thread may read. A completion runs on a thread of the store's, or on the one that
// calls.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/stored_bytes.h"
#include "spec/array_spec.h"
#include "spec/chunk_grid.h"
#include "storage/access/byte_store.h"
#include "storage/access/io_threads.h"
#include "storage/access/stall_watch.h"
#include "storage/shard_reader.h"

namespace zarrfeed {

struct ReadPolicy {
  size_t max_retries = 6;
  std::chrono::milliseconds timeout = std::chrono::hours(1);
};

/// The location of a read chunk.
struct ChunkLocation {
  std::string key;                      ///< below the array: of its object, or of the shard that it lies in
  std::optional<size_t> inner_chunk{};  ///< its position in the shard, in C order
  std::optional<size_t> part{};  ///< the store that it lies in, of an array of several; `key` begins with its prefix
};

/// A chunk that is wanted.
struct ChunkRequest {
  ChunkLocation at;
  Buffer* room = nullptr;  ///< memory for stores without memory of their own; `done` keeps it alive
  Completion done;
  std::shared_ptr<const ChunkParts> parts{};  ///< those that are enough; null: all of the chunk
};

class ChunkReader : public std::enable_shared_from_this<ChunkReader> {
 public:
  using Clock = std::chrono::steady_clock;

  /// `max_chunk_bytes`: more are no chunk of this array. `io` is the clock of retries, which `retries` counts.
  ChunkReader(ArraySpec array, std::shared_ptr<ByteStore> store, std::shared_ptr<IoThreads> io, size_t max_chunk_bytes,
              ReadPolicy policy, std::atomic<uint64_t>* retries = nullptr);

  /// Begins an epoch. Throws Error(kIo) if the array is gone. Indices of shards are read anew, unless they are cached:
  /// of shards that change they are in any case, of those that come to be they are not.
  void open(bool keep_indices = false);
  /// Begins nothing any more, and ends pauses between tries. Never waits.
  void cancel() { io_->cancel(); }
  /// Ends the epoch, see ByteStore::stop(). After false, this is not used again.
  bool stop(Clock::time_point deadline);
  void close() { store_->close(); }

  [[nodiscard]] ChunkLocation locate(int64_t chunk, size_t cell) const;
  /// The key, and which inner chunk it is where there are such: what messages call the chunk.
  [[nodiscard]] std::string label(const ChunkLocation& at) const;
  [[nodiscard]] std::string label(int64_t chunk, size_t cell) const { return label(locate(chunk, cell)); }
  /// The name of the array in messages; with several stores, of the one that the chunk lies in.
  [[nodiscard]] const std::string& name(const ChunkLocation& at) const {
    return at.part ? array_.parts->name[*at.part] : array_.name;
  }
  /// Adds the array and the chunk to the text of an error.
  [[nodiscard]] Error at_chunk(const Error& error, int64_t chunk, size_t cell) const {
    const ChunkLocation at = locate(chunk, cell);
    return error.at(name(at), label(at));
  }
  /// True if there are chunks that it is of use to ask for at once.
  [[nodiscard]] bool may_read_together() const {
    return limits_.coalesce.limit > 0 && (array_.shard.is_sharded() || store_->has_neighbours());
  }
  /// True if it is of use to ask for these two at once: they lie in one shard, or near each other in a file, of a store
  /// that reads neighbours together.
  [[nodiscard]] bool reads_together(int64_t chunk, size_t cell, int64_t other_chunk, size_t other_cell) const {
    return may_read_together() && store_->are_near(locate(chunk, cell).key, locate(other_chunk, other_cell).key);
  }

  /// Reads what is in memory or the page cache. Returns kWouldBlock where it would have to wait, and after an error that
  /// may pass. It may read only `parts` of the chunk. Throws Error, with the array and the key.
  ReadResult try_read(const ChunkLocation& at, Buffer& room, const std::shared_ptr<const ChunkParts>& parts = nullptr);
  /// True if try_read() is worthwhile for this chunk; read() is asked for others, many at once.
  [[nodiscard]] bool is_at_hand(const ChunkLocation& at) const {
    return shards_ ? shards_->is_at_hand(at.key, *at.inner_chunk) : store_->is_at_hand(at.key, {});
  }
  /// Reads chunks, with retries. The store may read chunks of one call together.
  void read(std::vector<ChunkRequest> requests);
  /// Reads a chunk on this thread, with retries, in stores without threads of their own (Limits::requests = 0). `watch`
  /// shows others where the thread waits. Throws Error; LeftBehind if the thread was left behind.
  ReadResult read_here(const ChunkLocation& at, Buffer& room, StallWatch& watch, StallWatch::Wait wait,
                       const std::shared_ptr<const ChunkParts>& parts = nullptr);
  /// Reads a chunk on this thread, with retries, where no other thread watches it.
  ReadResult read_here(const ChunkLocation& at, Buffer& room);
  /// True if there is the shard that a chunk lies in: reads its index, unless that is cached. As read_here().
  bool has_shard(const ChunkLocation& at, StallWatch& watch, StallWatch::Wait wait);

  /// The error of a chunk whose read took longer than it may.
  [[nodiscard]] Error overdue(const ChunkLocation& at) const;
  /// The error of the read()s that have been waiting for longer than they may, if there are any: of the one that
  /// storage was asked for first.
  [[nodiscard]] std::optional<Error> find_overdue(Clock::time_point now);
  /// Returns the error of a thread that has waited for a chunk since then, if that is longer than it may.
  [[nodiscard]] std::optional<Error> find_overdue(int64_t chunk, size_t cell, Clock::time_point since,
                                                  Clock::time_point now) const;

  [[nodiscard]] const ByteStore::Limits& limits() const { return limits_; }
  [[nodiscard]] const ArraySpec& array() const { return array_; }
  /// Indices of shards that were read, from the beginning.
  [[nodiscard]] uint64_t indices_read() const { return shards_ ? shards_->indices_read() : 0; }

 private:
  /// A read() that has not ended.
  struct Pending {
    uint64_t number = 0;
    ChunkRequest request;
    Clock::time_point since;
    size_t tries = 0;
  };
  using PendingPtr = std::shared_ptr<Pending>;

  [[nodiscard]] Error timed_out() const;
  /// The key below its array, without the prefix of a part.
  [[nodiscard]] std::string key_in_array(const ChunkLocation& at) const;
  [[nodiscard]] Error named(const Error& error, const ChunkLocation& at) const {
    return error.at(name(at), key_in_array(at));
  }
  [[nodiscard]] ReadRequest request_for(const PendingPtr& pending);
  void settle(const PendingPtr& pending, ReadResult result);
  void end(const PendingPtr& pending, ReadResult result);
  [[nodiscard]] std::optional<Clock::time_point> next_try(const Error& error, size_t tries,
                                                          Clock::time_point since) const;
  void count_retry() {
    if (retries_ != nullptr) retries_->fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] bool may_pass(const Error& error) const;
  void check_size(const ChunkLocation& at, const ReadResult& result) const;
  template <typename Begin>
  ReadResult wait_here(const Begin& begin, StallWatch& watch, StallWatch::Wait wait);

  const ArraySpec array_;
  const CellGrid cells_;
  const std::shared_ptr<IoThreads> io_;
  const size_t max_chunk_bytes_;
  const ReadPolicy policy_;
  std::shared_ptr<ShardReader> shards_;  ///< null: there are none
  std::shared_ptr<ByteStore> store_;     ///< over shards_, where these are
  const ByteStore::Limits limits_;
  std::atomic<uint64_t>* const retries_;

  mutable std::mutex mutex_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, PendingPtr> pending_;  ///< the oldest first
  Clock::time_point answered_{};            ///< when a read ended last, or an index of a shard was seen to have come
  uint64_t indices_seen_ = 0;
};

}  // namespace zarrfeed
