#pragma once
// The pipeline: fetch -> decode -> scatter -> ready batches, on threads that never touch Python.
//
// Threads live only while an epoch is read. What holds at any moment (all under `mutex_`, unless said):
//   * Groups are admitted in the order of the first step that they serve. A group is admitted only when every batch that
//     it serves is open, and at most `max_open_batches` batches are open or ready and not yet delivered.
//   * No deadlock: a group that the oldest unfinished batch needs, and that is not admitted, is the next to be admitted,
//     since all before it begin no later; its batches fit, because start() refuses a plan in which they would not.
//   * Writes to slots are disjoint: a (field, cell, sample) belongs to one task, and no two samples have one slot.
//   * A batch is ready when the ring has it complete, which is the only thing that orders scatter before delivery.
//   * The first error wins; it reaches the next call of next() that finds no ready batch.
//   * A chunk that has to be fetched, by a fetch thread or through the Python store, counts against the limit of its kind
//     from then until it is decoded; what finds no room waits without memory of its own.
//   * Without fetch threads a decode thread waits for storage itself, with the buffer that it has.
//   * Requests for several read chunks of one group are posted at once, so that the reader behind the Python store can see which of them lie side
//     by side in a shard. For the same reason requests for inner chunks of one shard that waited for room are posted
//     once half of it is free. What waits is served before what comes later: while anything waits, there is no room for
//     another.
//   * While there is room for requests, decode threads admit groups before they decode answers: else a burst of answers
//     would be decoded with nothing under way, and each burst would cost a round trip.
//   * With `caller_runs` the consumer is decode thread 0 while it is in next(), and stop() waits until it has left the
//     work. Others are started when there is much to do: starting one takes longer than to copy what is in the cache.
//   * Every step is claimed in its batch before rows are made tasks, so a plan that serves a step twice is an error
//     before anything is written; when nothing is left to do and a batch is not complete, the plan left a step out.
//   * A thread that waits for storage holds all that it uses meanwhile (read_watch.h). So stop() need not wait for storage
//     that does not answer: it leaves the thread behind, and the next epoch is read with new sources and memory.
//   * With `skip_bad`, rows of a chunk that cannot be read or decoded count as finished. They are listed with their batch,
//     which was not written where they belong, or in part. All of them are listed before the batch is complete.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/stats.h"
#include "engine/admission.h"
#include "engine/batch_ring.h"
#include "engine/buffer_pool.h"
#include "engine/carried_chunk.h"
#include "engine/chunk_cache.h"
#include "engine/fetch_queue.h"
#include "engine/skip_log.h"
#include "engine/task.h"
#include "plan/placement.h"
#include "plan/row_order.h"
#include "spec/field_spec.h"
#include "storage/chunk_reader.h"
#include "storage/stall_watch.h"
#include "storage/stores.h"
#include "storage/watched_threads.h"
#include "transform/field_decoder.h"

namespace zarrfeed {

struct EngineOptions {
  size_t num_threads = 1;  ///< decode threads
  /// Threads that wait for storage, started when the first chunk is not in the cache. 0: decode threads wait themselves.
  size_t num_fetch_threads = 16;
  size_t max_requests = 64;  ///< chunks asked of the Python store at once
  int64_t batch_size = 1;
  bool provided_memory = false;  ///< batches are written to memory that provide_buffers() provides
  size_t cache_bytes = 0;        ///< decoded chunks that are kept, over epochs; 0: none
  size_t carry_bytes = 0;        ///< decoded chunks that are kept from a group to the next one of its lane; 0: none
  /// For plans that are small and many: next() decodes, too, and indices of shards are kept between them.
  bool caller_runs = false;
  /// Larger Blosc blocks are errors, as there is no memory for them.
  size_t max_block_bytes = std::numeric_limits<size_t>::max();
  size_t max_retries = 6;  ///< further tries after a read that failed with an error that may pass
  /// A read that takes longer, all tries included, is an error. Looked at whenever next() has waited in vain.
  std::chrono::milliseconds timeout = std::chrono::hours(1);
  bool missing_is_error = false;  ///< chunks that the store lacks are not the fill value
  bool skip_bad = false;          ///< chunks that cannot be read or decoded end nothing; see ReadyBatch
};

/// The arrays of an EpochPlan, owned.
struct OwnedPlan {
  EpochPlan plan;  ///< its spans are set by bind()
  std::vector<int64_t> group_begin, group_lane, group_offset, group_number, group_turn, first_step, last_step;
  std::vector<int64_t> segment_block, segment_first, segment_rows, segment_start, segment_length;
  std::vector<int64_t> extra_position, extra_step, selected;
  std::vector<int64_t> next_group, carry_begin, carry_field, carry_chunk, carry_on;

  void bind();
};

enum class NextStatus { kBatch, kEnd, kTimeout };

/// A finished batch: one buffer a field, owned by the receiver.
struct ReadyBatch {
  std::vector<uint8_t*> buffers;
  int64_t rows = 0;
  Skipped skipped;
};

class Engine {
 public:
  /// `stores` make the store of each field; null: as the specifications say.
  Engine(std::vector<FieldSpec> fields, EngineOptions options, std::shared_ptr<Stores> stores = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Begins to read an epoch, with at most `max_open_batches` batches open or waiting to be taken.
  /// `short_of_memory` says that more would be of use, and memory does not allow it: for the statistics alone.
  /// Throws Error(kBudget) if the plan needs more than that at once, Error(kIo) if an array is gone.
  void start(std::shared_ptr<const OwnedPlan> plan, int64_t max_open_batches, bool short_of_memory = false);
  /// Waits at most `timeout` for the next batch. Throws the epoch's first error. One consumer thread.
  NextStatus next(ReadyBatch& out, std::chrono::milliseconds timeout);
  /// Takes the next batch if it is ready. Never waits, not for the lock either, so that a caller may hold locks.
  bool take_ready(ReadyBatch& out);
  /// Ends the epoch: threads finish the chunk they are at and are joined; batches not taken are recycled.
  void stop();
  /// Provides one buffer a field. For engines with provided memory.
  void provide_buffers(const std::vector<uint8_t*>& buffers);

  /// Where the chunks come from.
  [[nodiscard]] Stores& stores() { return *stores_; }
  /// The reader of a stored field, until start() is called.
  [[nodiscard]] const ChunkReader& reader(size_t field) const { return *(*readers_)[field]; }

  /// False in a process forked from the one that made the engine: its threads do not exist there.
  [[nodiscard]] bool is_owner() const;
  /// True while an epoch is being read.
  [[nodiscard]] bool is_running() const { return running_; }

  /// Fewest batches that must be open at once to read `plan`.
  static int64_t required_open_batches(const EpochPlan& plan, int64_t batch_size) {
    return Admission::required_open_batches(plan, batch_size);
  }

  [[nodiscard]] const Stats& stats() const { return stats_; }
  /// Temporary memory of all threads, bytes read and not decoded included, at the end of the last epoch: the most that
  /// there ever was, since it only grows.
  [[nodiscard]] size_t scratch_bytes() const { return scratch_bytes_; }
  [[nodiscard]] const std::shared_ptr<BufferPool>& memory(size_t field) const { return memory_[field]; }
  /// Shard indices that the engine itself read.
  [[nodiscard]] uint64_t indices_read() const;
  [[nodiscard]] const std::vector<FieldDecoder>& fields() const { return fields_; }
  [[nodiscard]] bool uses_provided_memory() const { return options_.provided_memory; }

 private:
  using Clock = std::chrono::steady_clock;

  /// What a decode thread took to do.
  struct Claim {
    std::vector<size_t> groups;
    std::vector<CarriedChunks> carried;  ///< of each of the groups
    std::vector<Task> tasks;
    ShuffleScratch shuffle;
  };

  using Readers = std::vector<std::shared_ptr<ChunkReader>>;

  void stop_locked();
  void stop_stores(Clock::time_point deadline);
  void make_readers();
  void work(StallWatch& watch, size_t thread);
  void work_until_ready(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  [[nodiscard]] bool has_work() const { return !fetched_.empty() || !tasks_.empty() || can_admit(); }
  [[nodiscard]] bool is_ready();
  void end_of_busy_time();
  void deliver(ReadyBatch& out, std::unique_lock<std::mutex>& lock);
  void take_work(Claim& claim);
  void run_work(Claim& claim, WorkerScratch& scratch, StallWatch& watch);
  void start_decode_threads(size_t count);
  void ask_for_help();
  /// Reads the chunk to `room` or from memory of the store's; false if it has to be fetched. Throws Error.
  bool read_on_this_thread(Task& task, Buffer& room, StallWatch& watch);
  void check_waits();

  [[nodiscard]] bool can_admit() const;
  /// What counts the time of a decode thread that has nothing to do. Under `mutex_`.
  std::atomic<uint64_t>& idle_counter();
  void admit_groups(Claim& claim);
  void open_batch(int64_t batch);
  [[nodiscard]] int64_t rows_per_sample(size_t field) const;
  void share(std::vector<Task>& tasks);
  void run(Task& task, WorkerScratch& scratch, StallWatch& watch);
  void scatter_or_skip(Task& task, WorkerScratch& scratch);
  [[nodiscard]] const FieldDecoder& field_of(const Task& task) const { return fields_[task.field]; }
  [[nodiscard]] ChunkReader& reader_of(const Task& task) const { return *(*readers_)[task.field]; }
  [[nodiscard]] Error at_chunk(const Task& task, const Error& error) const;
  /// Calls decode(), whose errors get the array and the chunk.
  template <typename Decode>
  auto name_errors(const Task& task, const Decode& decode) const {
    try {
      return decode();
    } catch (const Error& error) {
      throw at_chunk(task, error);
    }
  }
  [[nodiscard]] bool skips(const Error& error) const;
  void skip(Task& task, const Error& error);
  void skip_bad_rows(const Task& task);
  /// Asks for the chunks of those stores from which nothing can be had at once; the others stay in `tasks`.
  void ask_ahead(std::vector<Task>& tasks);
  void fetch_later(std::span<Task> tasks);
  /// Asks for chunks: without the lock, since answers may be there before it returns.
  void fetch(FetchQueue::Tasks fetches);
  void end_read(Task& task, ReadResult result);
  void end_fetch(Task& task);
  [[nodiscard]] bool reads_together(const Task& one, const Task& other) const;
  void scatter(Task& task, WorkerScratch& scratch);
  void scatter_cached(Task& task, WorkerScratch& scratch, const DecodedChunk& chunk);
  /// Decodes the chunk for all that share it and copies this task's rows. False if it is not this task's to decode, or there
  /// is no room.
  bool decode_carried(Task& task, WorkerScratch& scratch);
  void scatter_carried(Task& task, WorkerScratch& scratch);
  /// Queues tasks that waited for a carried chunk: they copy their rows, or decode the chunk themselves.
  void resume(std::vector<Task> waiting);
  void find_targets(const Task& task, std::vector<RowTarget>& out);
  void publish(const Task& task);
  [[nodiscard]] bool is_exhausted() const;
  void check_complete();
  void fail(std::exception_ptr error);
  void fail_locked(std::exception_ptr error);

  const EngineOptions options_;
  const pid_t owner_;
  std::vector<FieldDecoder> fields_;
  const std::shared_ptr<Stores> stores_;
  std::shared_ptr<Readers> readers_;  ///< null for fields that are not stored; threads hold them while they read
  bool asks_first_ = false;           ///< of some store nothing can be had at once
  std::vector<std::shared_ptr<BufferPool>> memory_;
  std::unique_ptr<ChunkCache> cache_;                    ///< null: nothing is kept
  std::vector<std::shared_ptr<WorkerScratch>> scratch_;  ///< one a decode thread; kept between epochs
  Claim consumer_claim_;                                 ///< of the consumer's work
  StallWatch consumer_watch_;
  bool lost_threads_ = false;      ///< since the readers were made, a thread was left behind with them
  uint64_t past_indices_ = 0;      ///< read by readers that were given up
  int64_t pieces_per_sample_ = 0;  ///< rows of chunks that one sample needs
  size_t group_bytes_ = 0;         ///< decoded bytes of a one-segment group: how much to claim
  Stats stats_;
  std::atomic<size_t> scratch_bytes_{0};

  // One epoch. Written by start() before threads exist.
  std::shared_ptr<const OwnedPlan> plan_;
  bool short_of_memory_ = false;
  bool streaming_ = false;  ///< open batches are more than the cache holds
  std::optional<BatchRing> ring_;

  std::mutex lifecycle_mutex_;  ///< start() and stop(), from whatever threads; taken before mutex_
  std::mutex mutex_;
  std::condition_variable work_cv_;   ///< decode threads, and a consumer that works: something to do
  std::condition_variable ready_cv_;  ///< consumer: the next batch is ready
  WatchedThreads threads_;            ///< decode threads; more only while not stopping
  bool stopping_ = false;
  std::atomic<bool> running_{false};
  bool consumer_in_work_ = false;
  std::atomic<size_t> helpers_{0};  ///< decode threads to start once the consumer has much to do
  std::exception_ptr error_;
  Admission admission_;
  std::optional<Clock::time_point> taken_at_;  ///< when the consumer took a batch, until it asks for the next one
  size_t max_tasks_ = 0;                       ///< there are no more in the epoch
  size_t busy_threads_ = 0;                    ///< decode threads that hold tasks or claimed groups
  FetchQueue fetch_queue_;
  SkipLog skip_log_;
  std::optional<CarryTable> carry_table_;  ///< none: nothing is carried from group to group
  std::deque<Task> tasks_;
  std::deque<Task> fetched_;
  std::atomic<int> cold_credit_{0};  ///< tasks to ask for without trying the cache first
};

}  // namespace zarrfeed
