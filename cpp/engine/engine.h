#pragma once
// The engine: fetch -> decode -> scatter -> ready batches, on threads that never touch Python.
//
// Decode threads live only while an epoch is read. A decode thread admits groups of the plan, makes their tasks, and
// runs tasks: it reads the chunk itself or queues it to be fetched, decodes it, and writes its rows to their batch
// slots.
//
// The pieces, each with its own contract: Admission (which batches are open), TaskBuilder (a group becomes tasks),
// FetchQueue (which chunks are being fetched), CarriedChunk and CarryTable (chunks that tasks share), ChunkCache,
// SkipLog (batch slots without a sample), BatchRing (where rows go, and when a batch is complete), BufferPool (batch
// memory). Threads, queues and the first error stay in this one class because one mutex guards them: whether a thread
// has work, waits, or has done the last task of the epoch depends on all of them at one instant.
//
// Invariants, under `mutex_` unless said otherwise:
//   * Every step of a group is claimed in the ring before a task of the group runs. So a plan that serves a step twice
//     is an error before a row is written twice. If no work is left and a batch is not complete, the plan left out a
//     step.
//   * Writes to slots are disjoint: a (field, cell, sample) belongs to one task, and no two samples have the same slot.
//   * A batch is ready when the ring says that it is complete. Nothing else orders the writes before the delivery.
//   * The first error wins. It reaches the first call of next() that finds no ready batch.
//   * Backpressure: a decode thread admits no group while a task waits in the FetchQueue.
//   * Without I/O threads, a decode thread waits for storage itself, with its own buffer.
//   * Requests for several read chunks of one group are made in one call, so that the store bridge can see which chunks
//     are neighbours in a shard.
//   * Decode threads admit groups before they decode fetched chunks, as long as the FetchQueue has room. Otherwise they
//     would decode a burst of answers while no request is in flight, and each burst would cost a round trip.
//   * With `caller_runs`, the consumer is decode thread 0 while it is in next(), and stop() waits until the consumer
//     has left its task. Other threads are started only for much work: starting a thread takes longer than copying rows
//     of cached chunks.
//   * A thread that waits for storage owns all memory that it uses meanwhile (storage/access/stall_watch.h). So stop()
//     leaves the thread behind if the storage does not answer, and the next epoch is read with new stores and new
//     memory.
//   * With `skip_bad`, rows of a chunk that cannot be read or decoded count as finished. Their slots are in the SkipLog
//     before the batch is complete.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <limits>
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
#include "engine/chunks/buffer_pool.h"
#include "engine/chunks/carried_chunk.h"
#include "engine/chunks/chunk_cache.h"
#include "engine/chunks/planned_cache.h"
#include "engine/chunks/task.h"
#include "engine/fetch_queue.h"
#include "engine/skip_log.h"
#include "plan/owned_plan.h"
#include "plan/placement.h"
#include "plan/row_order.h"
#include "plan/unfolding.h"
#include "spec/field_spec.h"
#include "storage/access/stall_watch.h"
#include "storage/access/watched_threads.h"
#include "storage/chunk_reader.h"
#include "storage/stores.h"
#include "transform/field_decoder.h"

namespace zarrfeed {

struct EngineOptions {
  size_t num_threads = 1;  ///< decode threads
  /// I/O threads, which wait for storage; started when the first chunk is not in the page cache. 0: decode threads
  /// wait.
  size_t num_fetch_threads = 16;
  size_t max_requests = 64;  ///< chunks that are requested from the Python store at once
  Coalesce coalesce{};       ///< which inner chunks of a shard it reads together
  int64_t batch_size = 1;
  bool provided_memory = false;  ///< batches are written to memory that provide_buffers() provides
  size_t cache_bytes = 0;        ///< memory for cached decoded chunks, also between epochs; 0: no cache
  size_t carry_bytes = 0;        ///< memory for decoded chunks that are carried from group to group; 0: none
  /// For many small plans: next() decodes, too, and shard indices stay cached between plans.
  bool caller_runs = false;
  /// A larger Blosc block is an error: the memory budget has no room for it.
  size_t max_block_bytes = std::numeric_limits<size_t>::max();
  size_t max_retries = 6;  ///< retries of a read that failed with a transient error
  /// A read that takes longer than this, retries included, is an error. next() checks it while it waits.
  std::chrono::milliseconds timeout = std::chrono::hours(1);
  bool missing_is_error = false;  ///< a chunk that the store lacks is an error; otherwise it is the fill value
  bool skip_bad = false;          ///< a chunk that cannot be read or decoded is no error: see Skipped
};

enum class NextStatus { kBatch, kEnd, kTimeout };

/// A complete batch: one buffer for each tensor, owned by the receiver.
struct ReadyBatch {
  std::vector<uint8_t*> buffers;
  int64_t rows = 0;
  Skipped skipped;
};

class Engine {
 public:
  /// `stores` makes the store of each field; null: the engine makes the stores that the array specs name.
  Engine(std::vector<FieldSpec> fields, EngineOptions options, std::shared_ptr<Stores> stores = nullptr);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Begins to read an epoch, with at most `max_open_batches` batches that are open or ready and not delivered.
  /// `short_of_memory` says that more open batches would help but the memory budget forbids them; only the statistics
  /// use it. `keep_bytes` is memory for decoded chunks of patches that several chains of groups need (planned_cache.h),
  /// if chunks are carried at all. Throws Error(kBudget) if the plan needs more open batches at once, Error(kIo) if an
  /// array is gone, Error(kConfig) if the plan has more samples than a field has rows.
  void start(std::shared_ptr<const OwnedPlan> plan, int64_t max_open_batches, bool short_of_memory = false,
             size_t keep_bytes = 0);
  /// Waits at most `timeout` for the next batch. Throws the first error of the epoch. Only one thread may call it.
  NextStatus next(ReadyBatch& out, std::chrono::milliseconds timeout);
  /// Takes the next batch if it is ready. Never waits, not even for the mutex, so that the caller may hold the GIL.
  bool take_ready(ReadyBatch& out);
  /// Ends the epoch. Threads finish the chunk that they decode and are joined; the memory of batches that were not
  /// taken is recycled. A thread that storage holds up is left behind after a timeout.
  void stop();
  /// Provides one buffer for each tensor. Only for engines with provided memory.
  void provide_buffers(const std::vector<uint8_t*>& buffers);

  /// The stores that the chunks come from.
  [[nodiscard]] Stores& stores() { return *stores_; }
  /// The chunk reader of a stored field; valid until start() is called.
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
  /// Temporary memory of all threads at the end of the last epoch, in bytes, including fetched bytes that were not
  /// decoded. It only grows, so this is also the peak.
  [[nodiscard]] size_t scratch_bytes() const { return scratch_bytes_; }
  /// Tensors of a batch: one for each field, but for fields that share one.
  [[nodiscard]] size_t num_tensors() const { return memory_.size(); }
  [[nodiscard]] const std::shared_ptr<BufferPool>& memory(size_t tensor) const { return memory_[tensor]; }
  /// The first field that writes to a tensor.
  [[nodiscard]] const FieldDecoder& field_of_tensor(size_t tensor) const { return fields_[field_of_tensor_[tensor]]; }
  /// Number of shard indices that the engine read; the store bridge counts those that it reads.
  [[nodiscard]] uint64_t indices_read() const;
  [[nodiscard]] const std::vector<FieldDecoder>& fields() const { return fields_; }
  [[nodiscard]] bool uses_provided_memory() const { return options_.provided_memory; }

 private:
  using Clock = std::chrono::steady_clock;

  /// The work that a decode thread has taken: groups that it admitted, or tasks.
  struct Claim {
    /// A group, with the listed groups that it is of: the plan, or a window of a plan that is unfolded.
    struct Group {
      std::shared_ptr<const OwnedPlan> of;
      size_t number = 0;
    };
    std::vector<Group> groups;
    std::vector<CarriedChunks> carried;  ///< the shared chunks of each group
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
  /// Reads the chunk into `room`, or borrows memory of the store. Returns false if the chunk has to be fetched. Throws
  /// Error.
  bool read_on_this_thread(Task& task, Buffer& room, StallWatch& watch);
  void check_waits();

  [[nodiscard]] bool can_admit() const;
  /// The counter for the time of a decode thread without work, by the reason. The caller holds `mutex_`.
  std::atomic<uint64_t>& idle_counter();
  void admit_groups(Claim& claim);
  /// The chunks that a group shares with others.
  CarriedChunks take_carried(size_t group);
  /// Finds the chunks of an epoch that are cached for other chains of groups, in so much memory.
  void open_planned_cache(const EpochPlan& plan, size_t max_bytes);
  void open_batch(int64_t batch);
  /// Unfolds more groups of the plan; null at its end. The caller holds `mutex_`.
  const EpochPlan* unfold_more();
  [[nodiscard]] int64_t rows_per_sample(size_t field) const;
  void share(std::vector<Task>& tasks);
  void run(Task& task, WorkerScratch& scratch, StallWatch& watch);
  void scatter_or_skip(Task& task, WorkerScratch& scratch);
  [[nodiscard]] const FieldDecoder& field_of(const Task& task) const { return fields_[task.field]; }
  [[nodiscard]] ChunkReader& reader_of(const Task& task) const { return *(*readers_)[task.field]; }
  [[nodiscard]] Error at_chunk(const Task& task, const Error& error) const;
  /// Calls decode(), and adds the array and the chunk to its errors.
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
  /// Calls `take` with each row of a task and the sample that it belongs to, under `mutex_`.
  template <typename Take>
  void for_each_sample(const Task& task, Take&& take);
  /// Calls `use` with the rows of a task: all at once, or some after others if the task names its samples alone.
  template <typename Use>
  void for_rows(const Task& task, Use&& use) const;
  void count_pieces(std::span<const Placement> samples, std::span<const Task> tasks);
  void on_complete(int64_t batch);
  void add_tensor(size_t field);
  /// Removes from `tasks` those whose store cannot be read on this thread, and requests their chunks.
  void ask_ahead(std::vector<Task>& tasks);
  void fetch_later(std::span<Task> tasks);
  /// Requests chunks. The caller does not hold `mutex_`, since end_read() may run before fetch() returns.
  void fetch(FetchQueue::Tasks fetches);
  void end_read(Task& task, ReadResult result);
  void end_fetch(Task& task);
  [[nodiscard]] bool reads_together(const Task& one, const Task& other) const;
  void scatter(Task& task, WorkerScratch& scratch);
  void scatter_cached(Task& task, WorkerScratch& scratch, const DecodedChunk& chunk);
  /// Copies the rows of a task from its decoded chunk, or of patches from a crop; null: the chunk does not exist.
  void scatter_rows(const Task& task, const uint8_t* decoded, WorkerScratch& scratch, bool streaming,
                    const ChunkCrop* crop = nullptr);
  /// Sets `patches` from `targets`, which name samples.
  void find_patches(WorkerScratch& scratch) const;
  /// If samples are patches, lets the targets of the index have what the user calls each.
  void number_patches(const FieldDecoder& field, WorkerScratch& scratch) const;
  /// Decodes a carried chunk for all tasks that share it, and copies the rows of this task. Returns false if this task
  /// does not decode a carried chunk, or if there is no memory for it.
  bool decode_carried(Task& task, WorkerScratch& scratch);
  /// Decodes a carried chunk, and writes what is carried of it. Returns all of it, in memory of the thread, if it is
  /// cropped.
  Bytes decode_to(const Task& task, uint8_t* out, WorkerScratch& scratch);
  void scatter_carried(Task& task, WorkerScratch& scratch);
  /// Queues tasks that waited for a carried chunk: they copy their rows, or decode the chunk themselves.
  void resume(std::vector<Task> waiting);
  void find_targets(const Task& task, std::span<const Placement> rows, std::vector<RowTarget>& out);
  void publish(const Task& task);
  [[nodiscard]] bool is_exhausted() const;
  void check_complete();
  void fail(std::exception_ptr error);
  void fail_locked(std::exception_ptr error);

  const EngineOptions options_;
  const pid_t owner_;
  std::vector<FieldDecoder> fields_;
  const std::shared_ptr<Stores> stores_;
  std::shared_ptr<Readers> readers_;  ///< null for fields that are not stored; threads share them while they read
  bool asks_first_ = false;           ///< some store cannot be read on a decode thread, so requests come first
  std::vector<size_t> tensor_of_field_;
  std::vector<size_t> field_of_tensor_;                  ///< the first of each
  std::vector<std::shared_ptr<BufferPool>> memory_;      ///< of each tensor
  std::unique_ptr<ChunkCache> cache_;                    ///< null: no cache
  std::vector<std::shared_ptr<WorkerScratch>> scratch_;  ///< of each decode thread; reused in the next epoch
  Claim consumer_claim_;                                 ///< work that the consumer has taken
  StallWatch consumer_watch_;
  bool lost_threads_ = false;                 ///< a thread was left behind, and still uses the readers
  uint64_t past_indices_ = 0;                 ///< shard indices that earlier readers read
  std::optional<int64_t> pieces_per_sample_;  ///< see TaskBuilder; none: rows of tasks are counted as tasks are made
  size_t group_bytes_ = 0;  ///< decoded bytes of a group of one segment: decides how many groups a thread claims
  Stats stats_;
  std::atomic<size_t> scratch_bytes_{0};

  // One epoch. Written by start() before threads exist.
  std::shared_ptr<const OwnedPlan> plan_;
  std::unique_ptr<Unfolding> unfolding_;     ///< null: all groups of the plan are listed
  std::shared_ptr<const OwnedPlan> window_;  ///< the groups that are admitted next; guarded by `mutex_`
  bool short_of_memory_ = false;
  bool streaming_ = false;  ///< the open batches are larger than the processor's cache
  std::optional<BatchRing> ring_;

  std::mutex lifecycle_mutex_;  ///< serialises start() and stop(); locked before mutex_
  std::mutex mutex_;
  std::condition_variable work_cv_;   ///< signals work to decode threads and to a consumer that runs tasks
  std::condition_variable ready_cv_;  ///< signals to the consumer that the next batch is ready
  WatchedThreads threads_;            ///< decode threads; none is started while stopping_
  bool stopping_ = false;
  std::atomic<bool> running_{false};
  bool consumer_in_work_ = false;
  std::atomic<size_t> helpers_{0};  ///< decode threads to start once the consumer has much work
  std::exception_ptr error_;
  Admission admission_;
  std::optional<Clock::time_point> taken_at_;  ///< when the consumer took its last batch; none while it waits
  size_t max_tasks_ = 0;                       ///< upper bound of the tasks of the epoch
  size_t busy_threads_ = 0;                    ///< decode threads that hold tasks or claimed groups
  FetchQueue fetch_queue_;
  SkipLog skip_log_;
  std::optional<CarryTable> carry_table_;      ///< none: no chunk is carried from group to group
  std::deque<Task> tasks_;                     ///< tasks whose chunk is not read yet
  std::deque<Task> fetched_;                   ///< tasks whose chunk was fetched
  std::atomic<int> cold_credit_{0};            ///< tasks to fetch without trying the page cache first
  std::optional<PlannedCache> planned_cache_;  ///< none: no chunk is cached for other chains of groups
};

}  // namespace zarrfeed
