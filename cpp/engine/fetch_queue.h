#pragma once
// The fetch queue: the tasks whose chunks are being fetched, and the tasks that wait for their turn.
//
// Chunks that have to be fetched, by I/O threads or through the Python store, count against the limit of the pool of
// stores that their source belongs to. Invariants:
//   * A task is in flight from the call of add() or next() that hands it out to be fetched until finish(), which the
//     engine calls when the chunk is decoded. No more tasks of a pool are in flight than its limit. So the memory for
//     stored bytes that were fetched and not yet decoded is bounded, too.
//   * Tasks of a pool are fetched in the order of add(). While a task waits, no later task gets ahead of it: has_room()
//     is false, so no group is admitted either.
//   * A task that waits has no buffer.
//   * Tasks that wait for inner chunks of one shard are handed out once half of the pool is free, so that the store can
//     read several of them with one request.
// Not thread-safe: the engine calls everything under its mutex, together with its other queues.

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "engine/chunks/task.h"

namespace zarrfeed {

class FetchQueue {
 public:
  using Tasks = std::vector<std::shared_ptr<Task>>;

  /// The rules for fetching the chunks of one source.
  struct Source {
    size_t pool = 0;            ///< sources with the same pool share one limit
    bool needs_buffer = false;  ///< the store has no memory of its own: a task brings a buffer
  };

  /// Sets the rules of each source and the limit of each pool; nothing is in flight afterwards.
  void set_sources(std::vector<Source> sources, const std::vector<size_t>& limits);
  /// Begins an epoch, after clear(): nothing is in flight.
  void begin_epoch();
  /// Drops the tasks that wait.
  void clear();

  /// True if every pool takes another task at once.
  [[nodiscard]] bool has_room() const {
    return std::all_of(pools_.begin(), pools_.end(), [](const Pool& pool) { return pool.has_room(); });
  }
  /// Tasks in flight, over all pools.
  [[nodiscard]] size_t in_flight() const;

  /// Takes a task whose chunk has to be fetched. Appends it to `fetches` if it may be fetched now; else it waits.
  void add(Task task, Tasks& fetches);
  /// Ends the flight of a task, whose chunk was decoded, and takes its buffer back.
  void finish(Task& task);
  /// Appends to `fetches` the waiting tasks of the pool of `source` that may be fetched now. `reads_together(a, b)` is
  /// true if the store reads the chunks of these two tasks with one request.
  template <typename ReadsTogether>
  void next(size_t source, const ReadsTogether& reads_together, Tasks& fetches) {
    Pool& pool = pools_[sources_[source].pool];
    const bool half_is_free = pool.in_flight <= pool.limit / 2;
    const auto has_neighbour = [&] {
      return pool.waiting.size() > 1 && reads_together(pool.waiting[0], pool.waiting[1]);
    };
    while (!pool.waiting.empty() && pool.in_flight < pool.limit && (half_is_free || !has_neighbour())) {
      Task task = std::move(pool.waiting.front());
      pool.waiting.pop_front();
      begin(std::move(task), pool, fetches);
    }
  }

  /// Bytes of the buffers that no task has.
  [[nodiscard]] size_t spare_bytes() const;

 private:
  /// Stores that share one limit.
  struct Pool {
    size_t limit = 1;
    size_t in_flight = 0;
    std::deque<Task> waiting;

    [[nodiscard]] bool has_room() const { return in_flight < limit && waiting.empty(); }
  };

  void begin(Task task, Pool& pool, Tasks& fetches);

  std::vector<Source> sources_;  ///< by number
  std::deque<Pool> pools_;
  std::vector<std::unique_ptr<Buffer>> spare_buffers_;
};

}  // namespace zarrfeed
