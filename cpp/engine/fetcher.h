#pragma once
// The fetcher: gets the stored bytes of chunks. A decode thread reads a chunk itself if that takes no wait, and hands
// its task to the fetcher if it does. The fetcher requests the chunk and keeps the task until a decode thread takes it
// back with the result.
//
// Invariants:
//   * A task is in one place at a time: with a decode thread, waiting or in flight in the FetchQueue, or fetched. Each
//     task that fetch() takes comes back once from take_fetched(), unless the epoch ends before.
//   * A read ends in its task: stored bytes, "the store lacks the chunk", or Task::error. The fetcher fails nothing;
//     the decode thread that runs the task decides whether an error ends the epoch.
//   * Chunks are requested in the order of need: groups take turns as they are admitted, and the chunks of a turn are
//     requested behind those of all turns before it, whichever thread is the first to know its chunks. No thread waits for
//     that: whoever has the turn that is due hands on what later turns left. Requests are made by one thread at a time, which
//     also makes those that others find meanwhile. (A chunk that could not be tried in the page cache is requested at once.)
//   * Chunks of one source that are next to each other in that order, or lie in one shard, are requested in one call, so
//     that the store can see which chunks are neighbours in a shard.
//   * Without fetch threads, a decode thread waits for storage itself, with its own buffer.
//   * After cancel() no chunk is requested.
//   * A thread that waits for storage uses only what it owns itself: its buffer, and the readers that it holds by
//     hold(). So the engine may leave it behind and renew() the fetcher.
//
// The mutex is the engine's, because "is there work?" depends on fetched tasks, queues and open batches at one instant.
// Functions below "the caller holds the mutex" do not lock. All others lock it themselves where they have to, and wait
// for storage without it.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "base/stats.h"
#include "engine/chunks/carried_chunk.h"
#include "engine/chunks/task.h"
#include "engine/fetch_queue.h"
#include "storage/access/stall_watch.h"
#include "storage/access/watched_threads.h"
#include "storage/chunk_reader.h"
#include "storage/stores.h"
#include "transform/output_table.h"

namespace zarrfeed {

class Fetcher {
 public:
  using Clock = std::chrono::steady_clock;

  /// Borrows `outputs`, `mutex` and `stats`. Calls `on_fetched` without the mutex, on any thread, after a task was
  /// fetched.
  Fetcher(const OutputTable& outputs, std::shared_ptr<Stores> stores, ReadPolicy policy, std::mutex& mutex,
          Stats& stats, std::function<void()> on_fetched);
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  // Between epochs: no other thread uses the fetcher.

  /// Begins an epoch. Throws Error(kIo) if an array is gone. `keep_indices`: shard indices stay cached from the epoch
  /// before.
  void begin_epoch(bool keep_indices);
  /// Drops the requests under way, which hold their readers; comes before the fetcher is destroyed. Returns false if
  /// storage holds one of them up after `deadline`.
  bool stop(Clock::time_point deadline);
  /// Closes the stores, which no thread uses any more.
  void close();
  /// Makes new stores and readers, since a thread that hung, and was given up, uses the old ones.
  void renew();

  [[nodiscard]] Stores& stores() const { return *stores_; }
  /// The chunk reader of a source.
  [[nodiscard]] ChunkReader& reader(size_t source) const { return *(*readers_)[source]; }
  /// Keeps the readers alive that a thread uses while it waits for storage.
  [[nodiscard]] std::shared_ptr<const void> hold() const { return readers_; }
  /// True if some store cannot be read on a decode thread, so that groups are admitted before fetched chunks are
  /// decoded.
  [[nodiscard]] bool asks_first() const { return asks_first_; }
  /// Shard indices that all readers read so far.
  [[nodiscard]] uint64_t indices_read() const;

  // By decode threads, without the mutex.

  /// Reads the chunk of a task, or those parts of it that are enough, into `room`, or borrows memory of the store.
  /// Returns false if the chunk has to be fetched. Throws LeftBehind.
  bool read(Task& task, Buffer& room, StallWatch& watch);
  /// Begins to fetch the chunks of tasks, which take_fetched() returns then. A task that finds no memory free waits for
  /// its turn.
  void fetch(std::span<Task> tasks);
  /// Removes from `tasks` those whose chunk cannot be read on a decode thread, and fetches their chunks when it is their
  /// `turn`. Each turn that was taken comes here once, unless the epoch ends. `is_decoded(task)` says that the task needs
  /// no stored bytes. Tasks that wait for a carried chunk are removed, too.
  template <typename IsDecoded>
  void fetch_ahead(std::vector<Task>& tasks, uint64_t turn, const IsDecoded& is_decoded) {
    if (!asks_first_) return;
    for (Task& task : tasks) task.asks_first = task.has_chunk && must_fetch(task);
    std::erase_if(tasks, [](Task& task) { return task.asks_first && CarriedChunk::defer(task); });
    const auto first = std::stable_partition(tasks.begin(), tasks.end(),
                                             [&](const Task& task) { return !task.asks_first || is_decoded(task); });
    fetch_in_turn({first, tasks.end()}, turn);
    tasks.erase(first, tasks.end());
  }
  /// Gives back the stored bytes of a task, which is decoded or skipped, and fetches chunks that waited for room.
  void finish(Task& task);

  // The caller holds the mutex.

  /// Takes the next turn, for groups that were admitted behind all others.
  [[nodiscard]] uint64_t take_turn() { return turns_taken_++; }
  /// True if a chunk could be requested at once.
  [[nodiscard]] bool has_room() const { return early_.empty() && queue_.has_room(); }
  /// Tasks that were requested and not finished.
  [[nodiscard]] size_t in_flight() const { return queue_.in_flight(); }
  [[nodiscard]] bool has_fetched() const { return !fetched_.empty(); }
  /// Returns the task that was fetched first; has_fetched() holds.
  [[nodiscard]] Task take_fetched();
  /// Returns the error of a read that takes longer than the timeout, by the fetcher or by one of `threads`.
  [[nodiscard]] std::optional<Error> find_overdue(const WatchedThreads& threads) const;
  /// Requests nothing any more in this epoch, and ends pauses between retries. Never waits.
  void cancel();
  /// Forgets the tasks that wait or were fetched.
  void clear();
  /// Bytes of buffers for stored bytes that no task has.
  [[nodiscard]] size_t spare_bytes() const { return queue_.spare_bytes(); }

 private:
  using Readers = std::vector<std::shared_ptr<ChunkReader>>;

  void make_readers();
  /// True if read() cannot read the chunk now.
  [[nodiscard]] bool must_fetch(const Task& task) const;
  void fetch_in_turn(std::span<Task> tasks, uint64_t turn);
  /// Requests the chunks of `to_request_`, unless another thread is about to. Unlocks meanwhile, since end_read() may run
  /// before a request returns.
  void request_all(std::unique_lock<std::mutex>& lock);
  void request(FetchQueue::Tasks tasks);
  void end_read(Task& task, ReadResult result);
  [[nodiscard]] bool reads_together(const Task& one, const Task& other) const;

  const OutputTable& outputs_;
  const std::shared_ptr<Stores> stores_;
  const ReadPolicy policy_;
  std::mutex& mutex_;
  Stats& stats_;
  const std::function<void()> on_fetched_;

  std::shared_ptr<Readers> readers_;  ///< by source, null where there is none; threads share them while they read
  bool asks_first_ = false;
  uint64_t past_indices_ = 0;        ///< shard indices that earlier readers read
  std::atomic<int> cold_credit_{0};  ///< chunks to fetch without trying the page cache first

  // Guarded by the mutex.
  FetchQueue queue_;
  FetchQueue::Tasks to_request_;  ///< in flight, but for the call to their store
  bool is_requesting_ = false;    ///< a thread makes requests
  uint64_t turns_taken_ = 0;
  uint64_t turn_ = 0;                            ///< the turn that is due
  std::map<uint64_t, std::vector<Task>> early_;  ///< chunks of later turns
  std::deque<Task> fetched_;
  bool is_cancelled_ = false;
};

}  // namespace zarrfeed
