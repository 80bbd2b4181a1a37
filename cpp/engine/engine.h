#pragma once
// The engine: fetch -> decode -> scatter -> ready batches, on threads that never touch Python.
//
// Decode threads live only while an epoch is read. A decode thread admits groups of the plan, makes their tasks, and
// runs tasks: it reads the chunk itself or queues it to be fetched, decodes it, and writes its rows to their batch
// slots.
//
// The pieces, each with its own contract: Admission (counts open batches), TaskBuilder (makes the tasks of a group),
// GroupChunks (decoded chunks that groups share), Fetcher (stored bytes of chunks), SlotWriter (decodes chunks and
// writes rows, without a mutex), ChunkCache, SkipLog (batch slots without a sample), BatchRing (addresses of rows, and
// complete batches), BatchMemory. The order in which threads take work, their life and the first error stay in this one
// class, because one mutex guards them: all of them together, at one instant, tell if a thread has work, waits, or has
// done the last task of the epoch.
//
// Invariants, under `mutex_` unless said otherwise:
//   * Every step of a group is claimed in the ring before a task of the group runs. So a plan that serves a step twice
//     is an error before a row is written twice. If no work is left and a batch is not complete, the plan left out a
//     step.
//   * A task is in one place: with the thread that runs it, in `tasks_` or `resumed_`, in the Fetcher, or in a CarriedChunk that
//     another task decodes. `busy_threads_` counts the threads that run tasks or make them of groups. So the epoch has
//     no work left if the first is zero, and the queues of tasks and the Fetcher are empty.
//   * Writes to slots are disjoint: an (output, cell, sample) belongs to one task, and no two samples have the same
//     slot.
//   * Everything that outputs take of one source is keyed by the number of the source (output_table.h): tasks, chunk
//     readers, requests, carried and cached chunks, skipped chunks. So a chunk is fetched and decoded once for all
//     outputs.
//   * A batch is ready when the ring says that it is complete. Nothing else orders the writes before the delivery.
//   * The first error wins. It reaches the first call of next() that finds no ready batch.
//   * Chunks are requested in the order in which their groups were admitted (fetcher.h).
//   * Backpressure: a decode thread admits no group while a task waits in the Fetcher.
//   * Decode threads admit groups before they decode fetched chunks, as long as the Fetcher has room. Otherwise they
//     would decode a burst of answers while no request is in flight, and each burst would cost a round trip.
//   * Resumed tasks come first of all: they hold the memory of decoded chunks, and where that is short, each task decodes
//     its chunk itself.
//   * With `caller_runs`, the consumer is decode thread 0 while it is in next(), and stop() waits until the consumer
//     has left its task. Other threads are started only for much work: starting a thread takes longer than copying rows
//     of cached chunks.
//   * A thread that waits for storage owns all memory that it uses meanwhile (storage/access/stall_watch.h). So stop()
//     leaves the thread behind if the storage does not answer, and the next epoch is read with new stores and new
//     memory.
//   * A chunk of which parts were read is bad only if it is bad as a whole: if the parts do not decode, the task is run
//     again, and reads all of the chunk. So errors, and their rows, do not depend on the parts that were read.
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
#include "engine/batch_memory.h"
#include "engine/batch_ring.h"
#include "engine/chunks/carried_chunk.h"
#include "engine/chunks/chunk_cache.h"
#include "engine/chunks/group_chunks.h"
#include "engine/chunks/task.h"
#include "engine/fetcher.h"
#include "engine/skip_log.h"
#include "engine/slot_writer.h"
#include "plan/owned_plan.h"
#include "plan/placement.h"
#include "plan/row_order.h"
#include "spec/field_spec.h"
#include "storage/access/stall_watch.h"
#include "storage/access/watched_threads.h"
#include "storage/stores.h"
#include "transform/output_table.h"

namespace zarrfeed {

struct EngineOptions {
  size_t num_threads = 1;  ///< decode threads
  /// I/O threads, which wait for storage; started when the first chunk is not in the page cache. 0: decode threads
  /// wait.
  size_t num_fetch_threads = 16;
  size_t max_requests = 64;  ///< chunks that are requested from the Python store at once
  Coalesce coalesce{};       ///< the rule by which inner chunks of a shard share a request
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
  /// `stores` makes the store of each source; null: the engine makes the stores that the array specs name.
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
  [[nodiscard]] Stores& stores() { return fetcher_.stores(); }
  /// The chunk reader of a source; valid until start() is called.
  [[nodiscard]] const ChunkReader& reader(size_t source) const { return fetcher_.reader(source); }

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
  [[nodiscard]] size_t num_tensors() const { return memory_.num_tensors(); }
  [[nodiscard]] const std::shared_ptr<BufferPool>& memory(size_t tensor) const { return memory_.pool(tensor); }
  /// The first output that writes to a tensor.
  [[nodiscard]] const Output& output_of_tensor(size_t tensor) const { return memory_.output_of(tensor); }
  /// Number of shard indices that the engine read; the store bridge counts those that it reads.
  [[nodiscard]] uint64_t indices_read() const { return fetcher_.indices_read(); }
  [[nodiscard]] const OutputTable& outputs() const { return outputs_; }
  [[nodiscard]] bool uses_provided_memory() const { return options_.provided_memory; }

 private:
  using Clock = std::chrono::steady_clock;

  /// The work that a thread has taken: groups that it admitted, or tasks.
  struct Claim {
    struct Group {
      Admission::Group group;
      CarriedChunks chunks;  ///< the chunks that the group shares
    };
    std::vector<Group> groups;
    uint64_t turn = 0;  ///< of the groups, see Fetcher
    std::vector<Task> tasks;
    ShuffleScratch shuffle;
  };

  // The caller holds `mutex_`.

  [[nodiscard]] bool can_admit() const { return admission_.can_admit() && fetcher_.has_room(); }
  [[nodiscard]] bool has_work() const {
    return fetcher_.has_fetched() || !tasks_.empty() || !resumed_.empty() || can_admit();
  }
  [[nodiscard]] bool is_ready() const;
  /// The counter for the time of a thread without work, by the reason.
  [[nodiscard]] std::atomic<uint64_t>& idle_counter();
  /// Fails if no thread has work or will get any from the groups that were admitted, and these left a batch incomplete.
  void check_complete();
  /// Fails if a read takes longer than the timeout.
  void check_waits();
  /// Keeps the first error and ends the epoch.
  void fail(std::exception_ptr error);
  void take_work(Claim& claim);
  void admit_groups(Claim& claim);
  void end_busy_time();
  /// Takes work and does it, without the mutex, which `lock` holds before and after. An exception may leave it
  /// unlocked.
  void do_work(std::unique_lock<std::mutex>& lock, Claim& claim, WorkerScratch& scratch, StallWatch& watch);
  /// Does work on the consumer's thread until the next batch is ready, or until `deadline`.
  void work_until_ready(std::unique_lock<std::mutex>& lock, Clock::time_point deadline);
  /// Hands the next batch over, and unlocks.
  void deliver(ReadyBatch& out, std::unique_lock<std::mutex>& lock);

  // The caller does not hold `mutex_`.

  /// The body of a decode thread.
  void work(StallWatch& watch, size_t thread);
  /// Makes the tasks of claimed groups.
  void make_tasks(Claim& claim);
  /// Queues tasks for any thread, in `tasks_` or `resumed_`.
  void queue(std::deque<Task>& to, std::span<Task> tasks);
  void run(Task& task, WorkerScratch& scratch, StallWatch& watch);
  /// Returns false if parts of the chunk were read and do not decode, so that all of it has to be read.
  [[nodiscard]] bool decode_or_skip(Task& task, WorkerScratch& scratch);
  /// Runs a task again, which reads all of its chunk.
  void read_whole(Task& task);
  /// Adds all samples of a task to the skip log.
  void skip(Task& task, const Error& error);
  /// Adds the samples of a task to the skip log whose rows in memory could not be read before.
  void skip_bad_rows(const Task& task);
  /// Tells the consumer that a batch is complete.
  void on_complete(int64_t batch);
  void start_decode_threads(size_t count);
  /// Starts the decode threads that were held back until the consumer has much work.
  void ask_for_help();
  /// stop() under `lifecycle_mutex_`.
  void stop_locked();

  const EngineOptions options_;
  const pid_t owner_;
  const OutputTable outputs_;
  Stats stats_;

  std::mutex lifecycle_mutex_;  ///< serialises start() and stop(); locked before mutex_
  std::mutex mutex_;
  std::condition_variable work_cv_;   ///< signals work to decode threads and to a consumer that runs tasks
  std::condition_variable ready_cv_;  ///< signals to the consumer that the next batch is ready

  BatchMemory memory_;
  Fetcher fetcher_;
  const std::unique_ptr<ChunkCache> cache_;  ///< null: no cache
  SlotWriter writer_;
  std::vector<std::shared_ptr<WorkerScratch>> scratch_;  ///< scratch of each decode thread; reused in the next epoch
  Claim consumer_claim_;                                 ///< work that the consumer has taken
  StallWatch consumer_watch_;
  bool lost_threads_ = false;  ///< a thread was left behind, and still uses the readers
  /// See TaskBuilder; none: rows of tasks are counted as tasks are made.
  const std::optional<int64_t> pieces_per_sample_;
  const size_t group_bytes_;  ///< decoded bytes of a group of one segment: decides how many groups a thread claims
  std::atomic<size_t> scratch_bytes_{0};

  // One epoch. Written by start() before threads exist.
  std::shared_ptr<const OwnedPlan> plan_;
  bool short_of_memory_ = false;
  std::optional<BatchRing> ring_;

  WatchedThreads threads_;  ///< decode threads; none is started while stopping_
  std::atomic<bool> running_{false};
  std::atomic<size_t> held_back_{0};  ///< decode threads to start once the consumer has much work

  // Guarded by `mutex_`, as the Fetcher is where it says so.
  bool stopping_ = false;
  bool consumer_in_work_ = false;
  std::exception_ptr error_;
  Admission admission_;
  GroupChunks group_chunks_;
  SkipLog skip_log_;
  std::deque<Task> tasks_;                     ///< tasks whose chunk is not read yet
  std::deque<Task> resumed_;                   ///< tasks that waited for a shared chunk, or whose chunk is read again
  size_t busy_threads_ = 0;                    ///< threads that hold tasks or claimed groups
  std::optional<Clock::time_point> taken_at_;  ///< time at which the consumer took its last batch; none while it waits
};

}  // namespace zarrfeed
