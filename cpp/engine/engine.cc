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
#include "engine/task_builder.h"
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

/// How long stop() waits for threads that wait for storage. An interrupt has to take effect within a second.
constexpr std::chrono::milliseconds kStopTimeout{500};
constexpr std::chrono::milliseconds kPollInterval{20};

/// Groups that are unfolded at once, under the mutex: this takes about as long as decoding a small chunk.
constexpr size_t kGroupsAtOnce = 128;

std::shared_ptr<WorkerScratch> make_scratch(const EngineOptions& options) {
  auto scratch = std::make_shared<WorkerScratch>();
  scratch->codecs.max_block_bytes = options.max_block_bytes;
  return scratch;
}

}  // namespace

Engine::Engine(std::vector<FieldSpec> fields, EngineOptions options, std::shared_ptr<Stores> stores)
    : options_(options),
      owner_(process_id()),
      stores_(stores ? std::move(stores)
                     : std::make_shared<Stores>(options.num_fetch_threads, options.max_requests, options.coalesce)),
      admission_(options.batch_size, options.provided_memory),
      skip_log_(options.batch_size) {
  fields_.reserve(fields.size());
  for (FieldSpec& field : fields) {
    const FieldDecoder& decoder = fields_.emplace_back(std::move(field));
    add_tensor(fields_.size() - 1);
    group_bytes_ += decoder.decoded_bytes() * (decoder.patches() != nullptr ? kCellsOfPatches : decoder.num_cells());
  }
  pieces_per_sample_ = TaskBuilder::pieces_per_sample(fields_);
  make_readers();
  if (options_.carry_bytes > 0) {
    std::vector<size_t> chunk_bytes;
    for (const FieldDecoder& field : fields_) chunk_bytes.push_back(field.decoded_bytes());
    carry_table_.emplace(std::make_shared<CarryMemory>(chunk_bytes, options_.carry_bytes));
  }
  if (options_.cache_bytes > 0) cache_ = std::make_unique<ChunkCache>(options_.cache_bytes);
  for (size_t i = 0; i < options_.num_threads; ++i) scratch_.push_back(make_scratch(options_));
}

void Engine::add_tensor(size_t field) {
  const FieldDecoder& decoder = fields_[field];
  const auto& slot = decoder.spec().slot;
  const size_t tensor = slot ? slot->tensor : memory_.size();
  tensor_of_field_.push_back(tensor);
  const size_t bytes = decoder.sample_bytes() * static_cast<size_t>(options_.batch_size);
  if (slot && slot->offset + decoder.row_bytes() > slot->row_bytes) {
    throw Error(ErrorKind::kConfig, "field " + std::to_string(field) + " does not fit into a row of its tensor");
  }
  if (tensor == memory_.size()) {
    field_of_tensor_.push_back(field);
    memory_.push_back(std::make_shared<BufferPool>(bytes, options_.provided_memory));
  } else if (tensor > memory_.size() || field_of_tensor(tensor).sample_bytes() != decoder.sample_bytes() ||
             field_of_tensor(tensor).num_offsets() != decoder.num_offsets()) {
    throw Error(ErrorKind::kConfig, "field " + std::to_string(field) + " does not fit into its tensor");
  }
}

void Engine::make_readers() {
  readers_ = std::make_shared<Readers>();
  std::vector<FetchQueue::Source> sources(fields_.size());
  std::vector<const void*> pools;
  std::vector<size_t> limits_of_pools;
  for (size_t f = 0; f < fields_.size(); ++f) {
    const FieldDecoder& field = fields_[f];
    auto& reader = readers_->emplace_back();
    if (!field.is_stored()) continue;
    const ArraySpec& array = field.spec().array;
    const size_t max_bytes = field.max_stored_bytes();
    reader = std::make_shared<ChunkReader>(array, stores_->make(f, array, max_bytes), stores_->io(), max_bytes,
                                           ReadPolicy{options_.max_retries, options_.timeout}, &stats_.retries);
    const ByteStore::Limits& limits = reader->limits();
    if (!limits.can_try || limits.has_some_at_hand) asks_first_ = true;
    const void* const pool = limits.pool != nullptr ? limits.pool : reader.get();
    sources[f] = {static_cast<size_t>(std::find(pools.begin(), pools.end(), pool) - pools.begin()), limits.needs_room};
    if (sources[f].pool < pools.size()) continue;
    pools.push_back(pool);
    limits_of_pools.push_back(limits.requests);
  }
  fetch_queue_.set_sources(std::move(sources), limits_of_pools);
}

Engine::~Engine() {
  stop();
  for (const auto& memory : memory_) memory->retire();
}

bool Engine::is_owner() const {
  return process_id() == owner_;
}

void Engine::start(std::shared_ptr<const OwnedPlan> plan, int64_t max_open_batches, bool short_of_memory,
                   size_t keep_bytes) {
  const std::lock_guard lifecycle(lifecycle_mutex_);
  stop_locked();
  // Each window of a plan that is unfolded is checked when it is made.
  auto unfolding = plan->block_order == nullptr ? nullptr : std::make_unique<Unfolding>(plan);
  Admission::check(plan->plan);
  const int64_t required = required_open_batches(plan->plan, options_.batch_size);
  if (required > max_open_batches) Admission::throw_needs_more(required, max_open_batches);
  for (size_t f = 0; f < fields_.size(); ++f) {
    if (fields_[f].patches() != nullptr) {
      if (plan->plan.patches == nullptr) {
        throw Error(ErrorKind::kConfig, "plan: it does not say where patches begin");
      }
      for (const Orientation& one : plan->plan.patches->orientations) fields_[f].patches()->check(one);
      continue;
    }
    const std::optional<int64_t> rows = fields_[f].num_own_rows();
    if (!rows || plan->plan.num_samples <= *rows) continue;
    throw Error(ErrorKind::kConfig, "plan: is of " + std::to_string(plan->plan.num_samples) + " samples, field " +
                                        std::to_string(f) + " has " + std::to_string(*rows) + " rows");
  }
  if (lost_threads_) {
    past_indices_ = indices_read();
    stores_->renew();
    make_readers();
    for (auto& scratch : scratch_) scratch = make_scratch(options_);
    lost_threads_ = false;
  }
  for (const auto& reader : *readers_) {
    if (reader != nullptr) reader->open(options_.caller_runs);
  }
  open_planned_cache(plan->plan, carry_table_ ? keep_bytes : 0);
  plan_ = std::move(plan);
  unfolding_ = std::move(unfolding);
  const int64_t num_batches = ceil_div(plan_->plan.steps, options_.batch_size);
  const int64_t max_open = std::min(max_open_batches, std::max<int64_t>(num_batches, 1));
  short_of_memory_ = short_of_memory;
  size_t batch_bytes = 0;
  for (const auto& memory : memory_) batch_bytes += memory->buffer_bytes();
  size_t sample_bytes = 0;
  for (size_t t = 0; t < num_tensors(); ++t) sample_bytes += field_of_tensor(t).sample_bytes();
  streaming_ = static_cast<size_t>(max_open) * batch_bytes > kStreamingBytes;
  // Steps of a lane are as far apart as this consumer has lanes.
  const int64_t period = plan_->plan.lanes / std::gcd(plan_->plan.lanes, plan_->plan.stride);
  ring_.emplace(plan_->plan.steps, options_.batch_size, max_open, period, num_tensors());
  stopping_ = false;
  error_ = nullptr;
  window_ = plan_;
  Admission::More more;
  if (unfolding_ != nullptr) {
    unfold_more();
    more = [this] { return unfold_more(); };
  }
  admission_.begin_epoch(window_->plan, max_open, std::move(more));
  taken_at_.reset();
  fetch_queue_.begin_epoch();
  // No more threads than there is work for: small plans are read often, and starting one takes longer than a small
  // chunk.
  size_t segments = plan_->segment_block.size();
  if (unfolding_ != nullptr) {
    const int64_t pieces = plan_->block_order->table().num_blocks() + plan_->plan.lanes;
    segments = static_cast<size_t>(std::min(plan_->plan.steps, pieces));
  }
  max_tasks_ = std::max<size_t>(1, segments * static_cast<size_t>(pieces_per_sample_.value_or(1)));
  const size_t num_threads = std::min(options_.num_threads, max_tasks_);
  busy_threads_ = 0;
  helpers_ = 0;
  cold_credit_ = 0;
  running_ = true;
  try {
    if (!options_.caller_runs) {
      start_decode_threads(num_threads);
    } else if (static_cast<size_t>(std::min(plan_->plan.steps, options_.batch_size)) * sample_bytes >
               kAloneCopiedBytes) {
      start_decode_threads(num_threads - 1);
    } else if (segments * group_bytes_ > kAloneDecodedBytes) {
      helpers_ = num_threads - 1;
    }
  } catch (const std::system_error& error) {
    stop_locked();
    throw Error::io("cannot start " + std::to_string(num_threads) + " decode threads: " + error.what(),
                    error.code().value());
  }
}

const EpochPlan* Engine::unfold_more() {
  auto next = unfolding_->next(kGroupsAtOnce);
  if (next == nullptr) return nullptr;
  window_ = std::move(next);
  return &window_->plan;
}

void Engine::open_planned_cache(const EpochPlan& plan, size_t max_bytes) {
  if (max_bytes == 0) {
    planned_cache_.reset();
    return;
  }
  if (!planned_cache_ || planned_cache_->max_bytes() != max_bytes) {
    std::vector<size_t> chunk_bytes;
    for (const FieldDecoder& field : fields_) chunk_bytes.push_back(field.decoded_bytes());
    planned_cache_.emplace(std::move(chunk_bytes), max_bytes);
  }
  planned_cache_->open(plan, fields_);
}

void Engine::start_decode_threads(size_t count) {
  // Decode threads that run already may start the fetch threads, hence the lock.
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  for (size_t i = options_.caller_runs ? 1 : 0; count > 0; ++i, --count) {
    threads_.start([this, i](StallWatch& watch) { work(watch, i); });
    ++busy_threads_;
  }
}

void Engine::ask_for_help() {
  if (helpers_.load(std::memory_order_relaxed) == 0) return;
  const size_t count = helpers_.exchange(0);
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
  }
  work_cv_.notify_all();
  for (const auto& reader : *readers_) {
    if (reader != nullptr) reader->cancel();
  }
  const auto deadline = Clock::now() + kStopTimeout;
  if (!threads_.stop(deadline)) lost_threads_ = true;
  {
    // The consumer may be waiting in next() on another thread.
    std::unique_lock lock(mutex_);
    ready_cv_.wait(lock, [this] { return !consumer_in_work_; });
  }
  stop_stores(deadline);
  {
    const std::lock_guard lock(mutex_);
    consumer_claim_.tasks.clear();
    consumer_claim_.carried.clear();
    if (carry_table_) carry_table_->clear();
    if (planned_cache_) planned_cache_->clear();
    tasks_.clear();
    fetched_.clear();
    fetch_queue_.clear();
    skip_log_.clear();
    for (int64_t b = admission_.delivered(); b < admission_.opened(); ++b) {
      for (size_t t = 0; t < num_tensors(); ++t) memory_[t]->release(ring_->buffers(b)[t]);
    }
    ring_.reset();
    if (!lost_threads_) {
      size_t scratch_bytes = 0;
      for (const auto& scratch : scratch_) scratch_bytes += scratch->bytes();
      scratch_bytes += fetch_queue_.spare_bytes();
      if (carry_table_) scratch_bytes += carry_table_->memory().mapped_bytes();
      if (planned_cache_) scratch_bytes += planned_cache_->mapped_bytes();
      scratch_bytes_ = std::max<size_t>(scratch_bytes_, scratch_bytes);
    }
    running_ = false;
  }
  ready_cv_.notify_all();
  if (options_.provided_memory) {
    for (const auto& memory : memory_) memory->retire();  // every epoch gets its memory anew
  }
}

void Engine::stop_stores(Clock::time_point deadline) {
  for (const auto& reader : *readers_) {
    if (reader != nullptr && !reader->stop(deadline)) lost_threads_ = true;
  }
  if (lost_threads_) return;  // they may be using what the stores have open
  for (const auto& reader : *readers_) {
    if (reader != nullptr) reader->close();
  }
}

uint64_t Engine::indices_read() const {
  uint64_t indices = past_indices_;
  for (const auto& reader : *readers_) {
    if (reader != nullptr) indices += reader->indices_read();
  }
  return indices;
}

void Engine::provide_buffers(const std::vector<uint8_t*>& buffers) {
  for (size_t t = 0; t < num_tensors(); ++t) memory_[t]->provide(buffers[t]);
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
  end_of_busy_time();
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
  end_of_busy_time();
  deliver(out, lock);
  return true;
}

void Engine::end_of_busy_time() {
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

bool Engine::is_ready() {
  const int64_t next = admission_.delivered();
  return next < admission_.opened() && ring_->is_complete(next);
}

void Engine::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  fail_locked(std::move(error));
}

void Engine::fail_locked(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  stopping_ = true;
  for (const auto& reader : *readers_) {
    if (reader != nullptr) reader->cancel();
  }
  work_cv_.notify_all();
  ready_cv_.notify_all();
}

}  // namespace zarrfeed
