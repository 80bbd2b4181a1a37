#include "engine/engine.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "spec/field_spec.h"

namespace zarrfeed {
namespace {

/// With more memory than this in open batches, rows have left the cache when their batch is delivered.
constexpr size_t kStreamingBytes = size_t{32} << 20;

/// To decode this much, or to copy this much, a consumer that works takes less time than other threads to start.
constexpr size_t kAloneDecodedBytes = size_t{512} << 10;
constexpr size_t kAloneCopiedBytes = size_t{4} << 20;

/// How long stop() waits for threads that wait for storage. An interrupt has to take effect within a second.
constexpr std::chrono::milliseconds kStopTimeout{500};
constexpr std::chrono::milliseconds kPollInterval{20};

std::shared_ptr<WorkerScratch> make_scratch(const EngineOptions& options) {
  auto scratch = std::make_shared<WorkerScratch>();
  scratch->codecs.max_block_bytes = options.max_block_bytes;
  return scratch;
}

}  // namespace

void OwnedPlan::bind() {
  plan.group_begin = group_begin;
  plan.group_lane = group_lane;
  plan.group_offset = group_offset;
  plan.group_number = group_number;
  plan.group_turn = group_turn;
  plan.extra_position = extra_position;
  plan.extra_step = extra_step;
  plan.first_step = first_step;
  plan.last_step = last_step;
  plan.selected = selected;
  plan.segment_block = segment_block;
  plan.segment_first = segment_first;
  plan.segment_rows = segment_rows;
  plan.segment_start = segment_start;
  plan.segment_length = segment_length;
  plan.next_group = next_group;
  plan.carry_begin = carry_begin;
  plan.carry_field = carry_field;
  plan.carry_chunk = carry_chunk;
  plan.carry_on = carry_on;
}

Engine::Engine(std::vector<FieldSpec> fields, EngineOptions options) : options_(options), owner_(process_id()) {
  fields_ = std::make_shared<std::vector<FieldReader>>();
  fields_->reserve(fields.size());
  for (FieldSpec& field : fields) {
    const FieldReader& reader = fields_->emplace_back(std::move(field));
    const size_t bytes = reader.sample_bytes() * static_cast<size_t>(options_.batch_size);
    memory_.push_back(std::make_shared<BufferPool>(bytes, options_.provided_memory));
    pieces_per_sample_ += static_cast<int64_t>(std::max<size_t>(1, reader.num_cells()) * reader.num_offsets());
    group_bytes_ += reader.decoded_bytes() * reader.num_cells();
    if (reader.is_fed() && python_store_ == nullptr) python_store_ = std::make_unique<PythonStore>();
  }
  reads_.limit = std::max<size_t>(1, options_.num_fetch_threads);
  requests_.limit = std::max<size_t>(1, options_.max_requests);
  if (options_.carry_bytes > 0) {
    std::vector<size_t> sizes;
    for (const FieldReader& reader : *fields_) sizes.push_back(reader.decoded_bytes());
    carry_memory_ = std::make_shared<CarryMemory>(sizes, options_.carry_bytes);
  }
  if (options_.cache_bytes > 0) cache_ = std::make_unique<ChunkCache>(options_.cache_bytes);
  for (size_t i = 0; i < options_.num_threads; ++i) scratch_.push_back(make_scratch(options_));
}

Engine::~Engine() {
  stop();
  for (const auto& memory : memory_) memory->retire();
}

bool Engine::is_owner() const {
  return process_id() == owner_;
}

int64_t Engine::required_open_batches(const EpochPlan& plan, int64_t batch_size) {
  int64_t required = 1;
  int64_t last_batch = 0;
  for (size_t g = 0; g < plan.num_groups(); ++g) {
    last_batch = std::max(last_batch, plan.last_step[g] / batch_size);
    required = std::max(required, last_batch - plan.first_step[g] / batch_size + 1);
  }
  return required;
}

void Engine::start(std::shared_ptr<const OwnedPlan> plan, int64_t max_open_batches, bool short_of_memory) {
  const std::lock_guard lifecycle(lifecycle_mutex_);
  stop_locked();
  const int64_t required = required_open_batches(plan->plan, options_.batch_size);
  if (required > max_open_batches) {
    throw Error(ErrorKind::kBudget, "this epoch needs " + std::to_string(required) +
                                        " batches open at once, the memory " + "budget has room for " +
                                        std::to_string(max_open_batches));
  }
  if (lost_threads_) renew_sources();
  for (FieldReader& field : *fields_) field.open(options_.caller_runs);
  plan_ = std::move(plan);
  const int64_t num_batches = (plan_->plan.steps + options_.batch_size - 1) / options_.batch_size;
  max_open_ = std::min(max_open_batches, std::max<int64_t>(num_batches, 1));
  short_of_memory_ = short_of_memory;
  size_t batch_bytes = 0;
  for (const auto& memory : memory_) batch_bytes += memory->buffer_bytes();
  size_t sample_bytes = 0;
  for (const FieldReader& field : *fields_) sample_bytes += field.sample_bytes();
  streaming_ = static_cast<size_t>(max_open_) * batch_bytes > kStreamingBytes;
  // Steps of a lane are as far apart as this consumer has lanes.
  const int64_t period = plan_->plan.lanes / std::gcd(plan_->plan.lanes, plan_->plan.stride);
  ring_.emplace(plan_->plan.steps, options_.batch_size, max_open_, period, fields_->size());
  stopping_ = fetchers_started_ = false;
  error_ = nullptr;
  next_group_ = 0;
  opened_ = delivered_ = provided_sets_ = 0;
  taken_at_.reset();
  reads_.count = requests_.count = 0;
  // No more threads than there is work for: small plans are read often, and starting one takes longer than a small chunk.
  max_tasks_ = std::max<size_t>(1, plan_->segment_block.size() * static_cast<size_t>(pieces_per_sample_));
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
    } else if (plan_->plan.num_groups() * group_bytes_ > kAloneDecodedBytes) {
      helpers_ = num_threads - 1;
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
    start_thread([this, i](Worker& self) { work(self, i); });
    ++busy_threads_;
  }
}

void Engine::start_thread(const std::function<void(Worker&)>& body) {
  Worker& worker = workers_.emplace_back();
  try {
    worker.thread = std::thread([body, &worker] { body(worker); });
  } catch (...) {
    workers_.pop_back();
    throw;
  }
}

void Engine::end_thread(Worker& self) {
  const std::lock_guard lock(mutex_);
  self.ended = true;
  ended_cv_.notify_all();
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
  fetch_cv_.notify_all();
  pause_cv_.notify_all();
  {
    std::unique_lock lock(mutex_);
    end_threads(lock);
    // The consumer may be waiting in next() on another thread.
    ready_cv_.wait(lock, [this] { return !consumer_in_work_; });
    consumer_claim_.tasks.clear();
    consumer_claim_.carried.clear();
    carried_.clear();
    tasks_.clear();
    to_fetch_.clear();
    fetched_.clear();
    reads_.waiting.clear();
    requests_.waiting.clear();
    awaited_.clear();
    skipped_.clear();
    if (python_store_) python_store_->clear();
    for (int64_t b = delivered_; b < opened_; ++b) {
      for (size_t f = 0; f < fields_->size(); ++f) memory_[f]->release(ring_->buffers(b)[f]);
    }
    ring_.reset();
    if (!lost_threads_) {
      size_t scratch_bytes = 0;
      for (const auto& scratch : scratch_) scratch_bytes += scratch->bytes();
      for (const auto& buffer : spare_buffers_) scratch_bytes += buffer->capacity();
      if (carry_memory_) scratch_bytes += carry_memory_->mapped_bytes();
      scratch_bytes_ = std::max<size_t>(scratch_bytes_, scratch_bytes);
    }
    running_ = false;
  }
  ready_cv_.notify_all();
  if (options_.provided_memory) {
    for (const auto& memory : memory_) memory->retire();  // every epoch gets its memory anew
  }
  if (lost_threads_) return;  // they may be using the directories
  for (FieldReader& field : *fields_) field.close();
}

void Engine::end_threads(std::unique_lock<std::mutex>& lock) {
  const auto stop_deadline = Clock::now() + kStopTimeout;
  // `workers_` grows under the lock and only while not stopping, so it is final now.
  for (Worker& worker : workers_) {
    while (!worker.ended) {
      const auto until = std::max(stop_deadline, Clock::now() + kPollInterval);
      if (ended_cv_.wait_until(lock, until, [&] { return worker.ended; })) break;
      if (worker.watch->abandon()) break;
    }
    if (worker.ended) {
      worker.thread.join();  // it wants no lock any more
    } else {
      worker.thread.detach();
      lost_threads_ = true;
    }
  }
  workers_.clear();
}

void Engine::renew_sources() {
  auto fields = std::make_shared<std::vector<FieldReader>>();
  fields->reserve(fields_->size());
  for (const FieldReader& field : *fields_) fields->emplace_back(field.spec());
  past_indices_ = indices_read();
  fields_ = std::move(fields);
  for (auto& scratch : scratch_) scratch = make_scratch(options_);
  lost_threads_ = false;
}

uint64_t Engine::indices_read() const {
  uint64_t indices = past_indices_;
  for (const FieldReader& field : *fields_) indices += field.indices_read();
  return indices;
}

void Engine::provide_buffers(const std::vector<uint8_t*>& buffers) {
  for (size_t f = 0; f < fields_->size(); ++f) memory_[f]->provide(buffers[f]);
  {
    const std::lock_guard lock(mutex_);
    ++provided_sets_;
  }
  work_cv_.notify_one();
}

NextStatus Engine::next(ReadyBatch& out, std::chrono::milliseconds timeout) {
  if (!is_owner()) throw Error(ErrorKind::kClosed, "this epoch is read by the process that forked this one");
  const auto deadline = Clock::now() + timeout;
  std::unique_lock lock(mutex_);
  if (!running_) throw Error(ErrorKind::kClosed, "no epoch is being read");
  end_of_busy_time();
  if (delivered_ == ring_->num_batches()) return NextStatus::kEnd;
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
  const auto buffers = ring_->buffers(delivered_);
  out.buffers.assign(buffers.begin(), buffers.end());
  out.rows = ring_->rows(delivered_);
  out.skipped = {};
  if (!skipped_.empty()) {
    if (auto skipped = skipped_.extract(delivered_)) out.skipped = std::move(skipped.mapped());
    std::vector<SkippedSlot>& slots = out.skipped.slots;
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
  }
  ++delivered_;
  taken_at_ = Clock::now();
  const bool wake = can_admit();
  lock.unlock();
  stats_.batches.fetch_add(1, std::memory_order_relaxed);
  stats_.samples.fetch_add(static_cast<uint64_t>(out.rows), std::memory_order_relaxed);
  if (wake) work_cv_.notify_all();
}

bool Engine::is_ready() {
  return delivered_ < opened_ && ring_->is_complete(delivered_);
}

void Engine::answer(std::span<const FetchAnswer> answers) {
  size_t taken = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    for (const FetchAnswer& answer : answers) {
      const auto entry = awaited_.find(answer.request_id);
      if (entry == awaited_.end()) continue;
      Task& task = fetched_.emplace_back(std::move(entry->second));
      awaited_.erase(entry);
      task.status = answer.bytes ? ReadStatus::kOk : ReadStatus::kMissing;
      if (answer.bytes) task.answer = *answer.bytes;
      const auto waited = std::chrono::duration_cast<std::chrono::nanoseconds>(now - task.asked).count();
      stats_.fetch_ns.fetch_add(static_cast<uint64_t>(waited), std::memory_order_relaxed);
      ++taken;
    }
  }
  if (taken == 1) work_cv_.notify_one();
  if (taken > 1) work_cv_.notify_all();
}

void Engine::refuse(uint64_t request_id, const std::string& what, int errno_value) {
  fail_request(request_id, Error::io(what, errno_value));
}

void Engine::refuse_corrupt(uint64_t request_id, const std::string& what) {
  fail_request(request_id, Error(ErrorKind::kCorrupt, what));
}

void Engine::fail_request(uint64_t request_id, const Error& error) {
  const std::lock_guard lock(mutex_);
  const auto entry = awaited_.find(request_id);
  if (entry == awaited_.end()) return;
  const Error at = at_chunk(entry->second, error);
  if (!skips(at)) {
    fail_locked(std::make_exception_ptr(at));
    return;
  }
  Task& task = fetched_.emplace_back(std::move(entry->second));
  awaited_.erase(entry);
  task.error = at;
  work_cv_.notify_one();
}

void Engine::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  fail_locked(std::move(error));
}

void Engine::fail_locked(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
  stopping_ = true;
  work_cv_.notify_all();
  fetch_cv_.notify_all();
  pause_cv_.notify_all();
  ready_cv_.notify_all();
}

}  // namespace zarrfeed
