#include "engine/engine.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/division.h"
#include "base/error.h"
#include "base/process.h"
#include "codecs/blosc_writer.h"
#include "engine/task_builder.h"
#include "plan/unfolding.h"
#include "spec/field_spec.h"

namespace zarrfeed {
namespace {

/// With more memory than this in open batches, rows have left the cache when their batch is delivered.
constexpr size_t kStreamingBytes = size_t{32} << 20;

/// To decode this much, or to copy this much, a consumer that works takes less time than other threads to start.
constexpr size_t kAloneDecodedBytes = size_t{512} << 10;
constexpr size_t kAloneCopiedBytes = size_t{4} << 20;

/// Chunks of a group of patches, roughly.
constexpr size_t kCellsOfPatches = 8;

/// The time that stop() waits for threads that wait for storage. An interrupt has to take effect within a second.
constexpr std::chrono::milliseconds kStopTimeout{500};
constexpr std::chrono::milliseconds kPollInterval{20};

/// Groups that are unfolded at once, under the mutex: this takes about as long as decoding a small chunk.
constexpr size_t kGroupsAtOnce = 128;

std::shared_ptr<WorkerScratch> make_scratch(const EngineOptions& options) {
  auto scratch = std::make_shared<WorkerScratch>();
  scratch->codecs.max_block_bytes = std::max(options.max_block_bytes, kWrittenBlockBytes);
  return scratch;
}

/// Decoded bytes of a group of one segment.
size_t bytes_of_group(const OutputTable& outputs) {
  size_t bytes = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ArraySource* const source = outputs.source(i);
    if (source == nullptr) continue;
    bytes += source->decoded_bytes() * (outputs[i].patches() != nullptr ? kCellsOfPatches : source->num_cells());
  }
  return bytes;
}

/// Throws Error(kConfig) unless all outputs have what the plan takes of them.
void check_outputs(const OutputTable& outputs, const EpochPlan& plan) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].patches() != nullptr) {
      if (plan.patches == nullptr) throw Error(ErrorKind::kConfig, "plan: it does not say where patches begin");
      for (const Orientation& one : plan.patches->orientations) outputs[i].patches()->check(one);
      continue;
    }
    const std::optional<int64_t> rows = outputs[i].num_own_rows();
    if (!rows || plan.num_samples <= *rows) continue;
    throw Error(ErrorKind::kConfig, "plan: is of " + std::to_string(plan.num_samples) + " samples, field " +
                                        std::to_string(i) + " has " + std::to_string(*rows) + " rows");
  }
}

/// Blocks that a plan reads, and pieces of blocks, at most.
size_t count_segments(const OwnedPlan& plan) {
  if (plan.block_order == nullptr) return plan.segment_block.size();
  return static_cast<size_t>(std::min(plan.plan.steps, plan.block_order->table().num_blocks() + plan.plan.lanes));
}

}  // namespace

Engine::Engine(std::vector<FieldSpec> fields, EngineOptions options, std::shared_ptr<Stores> stores)
    : options_(options),
      owner_(process_id()),
      outputs_(std::move(fields)),
      memory_(outputs_, options.batch_size, options.provided_memory),
      fetcher_(outputs_,
               stores ? std::move(stores)
                      : std::make_shared<Stores>(options.num_fetch_threads, options.max_requests, options.coalesce),
               {options.max_retries, options.timeout}, mutex_, stats_, [this] { work_cv_.notify_one(); }),
      cache_(options.cache_bytes > 0 ? std::make_unique<ChunkCache>(options.cache_bytes) : nullptr),
      writer_(
          outputs_, memory_.tensor_of_output(), cache_.get(), options.missing_is_error, stats_,
          [this](std::vector<Task> waiting) { queue(resumed_, waiting); },
          [this](int64_t batch) { on_complete(batch); }),
      pieces_per_sample_(TaskBuilder::pieces_per_sample(outputs_)),
      group_bytes_(bytes_of_group(outputs_)),
      admission_(options.batch_size, options.provided_memory),
      group_chunks_(outputs_, options.carry_bytes),
      skip_log_(options.batch_size) {
  for (size_t i = 0; i < options_.num_threads; ++i) scratch_.push_back(make_scratch(options_));
}

Engine::~Engine() {
  stop();
  memory_.retire();
}

bool Engine::is_owner() const {
  return process_id() == owner_;
}

void Engine::start(std::shared_ptr<const OwnedPlan> plan, int64_t max_open_batches, bool short_of_memory,
                   size_t keep_bytes) {
  const std::lock_guard lifecycle(lifecycle_mutex_);
  stop_locked();
  Admission::More more;
  if (plan->block_order != nullptr) {
    more = [unfolding = std::make_shared<Unfolding>(plan)] { return unfolding->next(kGroupsAtOnce); };
  }
  Admission::check(plan->plan);
  const int64_t required = required_open_batches(plan->plan, options_.batch_size);
  if (required > max_open_batches) Admission::throw_needs_more(required, max_open_batches);
  check_outputs(outputs_, plan->plan);
  if (lost_threads_) {
    fetcher_.renew();
    for (auto& scratch : scratch_) scratch = make_scratch(options_);
    lost_threads_ = false;
  }
  fetcher_.begin_epoch(options_.caller_runs);
  group_chunks_.begin_epoch(plan->plan, keep_bytes);
  plan_ = std::move(plan);
  short_of_memory_ = short_of_memory;
  const int64_t steps = plan_->plan.steps;
  const int64_t max_open = std::min(max_open_batches, std::max<int64_t>(ceil_div(steps, options_.batch_size), 1));
  // Steps of a lane are as far apart as this consumer has lanes.
  const int64_t period = plan_->plan.lanes / std::gcd(plan_->plan.lanes, plan_->plan.stride);
  ring_.emplace(steps, options_.batch_size, max_open, period, num_tensors());
  writer_.begin_epoch(plan_->plan, *ring_, static_cast<size_t>(max_open) * memory_.batch_bytes() > kStreamingBytes);
  stopping_ = false;
  error_ = nullptr;
  admission_.begin_epoch(plan_, max_open, std::move(more));
  taken_at_.reset();
  busy_threads_ = 0;
  held_back_ = 0;
  running_ = true;
  // No more threads than there is work for: small plans are read often, and starting one takes longer than a small
  // chunk.
  const size_t segments = count_segments(*plan_);
  const size_t max_tasks = segments * static_cast<size_t>(pieces_per_sample_.value_or(1));
  const size_t num_threads = std::min(options_.num_threads, std::max<size_t>(1, max_tasks));
  const auto first_samples = static_cast<size_t>(std::min(steps, options_.batch_size));
  try {
    if (!options_.caller_runs) {
      start_decode_threads(num_threads);
    } else if (first_samples * memory_.sample_bytes() > kAloneCopiedBytes) {
      start_decode_threads(num_threads - 1);
    } else if (segments * group_bytes_ > kAloneDecodedBytes) {
      held_back_ = num_threads - 1;
    }
  } catch (const std::system_error& error) {
    stop_locked();
    throw Error::io("cannot start " + std::to_string(num_threads) + " decode threads: " + error.what(),
                    error.code().value());
  }
}

void Engine::start_decode_threads(size_t count) {
  // Decode threads that run already may start the fetch threads, hence the lock.
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  for (size_t i = options_.caller_runs ? 1 : 0; count > 0; ++i, --count) {
    threads_.start([this, i](StallWatch& watch) { work(watch, i); });
  }
}

void Engine::ask_for_help() {
  if (held_back_.load(std::memory_order_relaxed) == 0) return;
  const size_t count = held_back_.exchange(0);
  try {
    start_decode_threads(count);
  } catch (const std::system_error&) {
    return;  // fewer do, too
  }
}

void Engine::stop() {
  if (!is_owner()) return;
  const std::lock_guard lifecycle(lifecycle_mutex_);
  stop_locked();
}

void Engine::stop_locked() {
  if (!running_) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    fetcher_.cancel();
  }
  work_cv_.notify_all();
  const auto deadline = Clock::now() + kStopTimeout;
  if (!threads_.stop(deadline)) lost_threads_ = true;
  {
    // The consumer may be waiting in next() on another thread.
    std::unique_lock lock(mutex_);
    ready_cv_.wait(lock, [this] { return !consumer_in_work_; });
  }
  if (!fetcher_.stop(deadline)) lost_threads_ = true;
  if (!lost_threads_) fetcher_.close();  // else a thread may be using what the stores have open
  {
    const std::lock_guard lock(mutex_);
    consumer_claim_.groups.clear();
    consumer_claim_.tasks.clear();
    group_chunks_.clear();
    tasks_.clear();
    resumed_.clear();
    fetcher_.clear();
    skip_log_.clear();
    for (int64_t b = admission_.delivered(); b < admission_.opened(); ++b) memory_.release(ring_->buffers(b));
    ring_.reset();
    if (!lost_threads_) {
      size_t scratch_bytes = fetcher_.spare_bytes() + group_chunks_.mapped_bytes();
      for (const auto& scratch : scratch_) scratch_bytes += scratch->bytes();
      scratch_bytes_ = std::max<size_t>(scratch_bytes_, scratch_bytes);
    }
    running_ = false;
  }
  ready_cv_.notify_all();
  if (options_.provided_memory) memory_.retire();  // every epoch gets its memory anew
}

void Engine::provide_buffers(const std::vector<uint8_t*>& buffers) {
  memory_.provide(buffers);
  {
    const std::lock_guard lock(mutex_);
    admission_.provide();
  }
  work_cv_.notify_one();
}

NextStatus Engine::next(ReadyBatch& out, std::chrono::milliseconds timeout) {
  if (!is_owner()) throw Error(ErrorKind::kClosed, "this epoch is read by the process that forked this one");
  const auto deadline = Clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (!running_) throw Error(ErrorKind::kClosed, "no epoch is being read");
  end_busy_time();
  if (admission_.delivered() == ring_->num_batches()) return NextStatus::kEnd;
  {
    const StageTimer timer(stats_.consumer_wait_ns);
    const auto is_over = [this] { return !running_ || error_ || is_ready(); };
    const auto interval = std::max<Clock::duration>(kPollInterval, options_.timeout / 8);
    while (!is_over() && Clock::now() < deadline) {
      const auto until = std::min(deadline, Clock::now() + interval);
      if (options_.caller_runs) work_until_ready(lock, until);
      if (!ready_cv_.wait_until(lock, until, is_over)) check_waits();
    }
  }
  if (!running_) throw Error(ErrorKind::kClosed, "reading was stopped while a batch was awaited");
  if (!is_ready()) {
    if (error_) std::rethrow_exception(error_);
    return NextStatus::kTimeout;
  }
  deliver(out, lock);
  return NextStatus::kBatch;
}

bool Engine::take_ready(ReadyBatch& out) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !is_owner() || !running_ || !is_ready()) return false;
  end_busy_time();
  deliver(out, lock);
  return true;
}

void Engine::end_busy_time() {
  if (!taken_at_) return;
  const auto busy = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - *taken_at_).count();
  stats_.consumer_busy_ns.fetch_add(static_cast<uint64_t>(busy), std::memory_order_relaxed);
  taken_at_.reset();
}

void Engine::deliver(ReadyBatch& out, std::unique_lock<std::mutex>& lock) {
  const int64_t batch = admission_.delivered();
  const auto buffers = ring_->buffers(batch);
  out.buffers.assign(buffers.begin(), buffers.end());
  out.rows = ring_->rows(batch);
  out.skipped = skip_log_.take(batch);
  admission_.deliver();
  taken_at_ = Clock::now();
  const bool wake = can_admit();
  lock.unlock();
  stats_.batches.fetch_add(1, std::memory_order_relaxed);
  stats_.samples.fetch_add(static_cast<uint64_t>(out.rows), std::memory_order_relaxed);
  if (wake) work_cv_.notify_all();
}

bool Engine::is_ready() const {
  const int64_t next = admission_.delivered();
  return next < admission_.opened() && ring_->is_complete(next);
}

void Engine::fail(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  stopping_ = true;
  fetcher_.cancel();
  work_cv_.notify_all();
  ready_cv_.notify_all();
}

}  // namespace zarrfeed
