#include "engine.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "error.h"

namespace zarrfeed {
namespace {

/// Small chunks are claimed many at a time, so that the lock is taken once for about this much decoding.
constexpr size_t kClaimBytes = size_t{256} << 10;
constexpr size_t kMaxClaim = 64;
/// After a read that would have blocked, so many chunks go to the fetch threads before the cache is tried again.
constexpr int kColdCredit = 16;
/// With more memory than this in open batches, rows have left the cache when their batch is delivered.
constexpr size_t kPastCacheBytes = size_t{32} << 20;

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
  plan.segment_block = segment_block;
  plan.segment_start = segment_start;
  plan.segment_length = segment_length;
}

Engine::Engine(std::vector<FieldSpec> fields, EngineOptions options) : options_(options), owner_(getpid()) {
  fields_.reserve(fields.size());
  for (FieldSpec& field : fields) {
    const FieldReader& reader = fields_.emplace_back(std::move(field));
    const size_t bytes = reader.sample_bytes() * static_cast<size_t>(options_.batch_size);
    memory_.push_back(std::make_shared<BatchMemory>(bytes, options_.lent_memory));
    pieces_per_row_ += static_cast<int64_t>(std::max<size_t>(1, reader.num_cells()));
    group_bytes_ += reader.decoded_bytes() * reader.num_cells();
  }
  for (size_t i = 0; i < options_.num_threads; ++i) scratch_.push_back(std::make_unique<WorkerScratch>());
}

Engine::~Engine() {
  stop();
  for (const auto& memory : memory_) memory->retire();
}

bool Engine::is_owner() const {
  return getpid() == owner_;
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

void Engine::start(std::unique_ptr<OwnedPlan> plan, int64_t max_open_batches) {
  const std::lock_guard lifecycle(lifecycle_mutex_);
  stop_locked();
  const int64_t required = required_open_batches(plan->plan, options_.batch_size);
  if (required > max_open_batches) {
    throw Error(ErrorKind::kBudget, "this epoch needs " + std::to_string(required) +
                                        " batches open at once, the memory " + "budget has room for " +
                                        std::to_string(max_open_batches));
  }
  for (FieldReader& field : fields_) field.open();
  plan_ = std::move(plan);
  num_batches_ = (plan_->plan.steps + options_.batch_size - 1) / options_.batch_size;
  max_open_ = std::min(max_open_batches, std::max<int64_t>(num_batches_, 1));
  ring_size_ = max_open_;
  size_t batch_bytes = 0;
  for (const auto& memory : memory_) batch_bytes += memory->buffer_bytes();
  past_cache_ = static_cast<size_t>(max_open_) * batch_bytes > kPastCacheBytes;
  ring_ = std::make_unique<Batch[]>(static_cast<size_t>(ring_size_));
  stopping_ = fetchers_started_ = false;
  error_ = nullptr;
  next_group_ = 0;
  opened_ = delivered_ = lent_sets_ = 0;
  in_flight_ = 0;
  cold_credit_ = 0;
  running_ = true;
  try {
    // Decode threads that run already may start the fetch threads, hence the lock.
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < options_.num_threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::system_error& error) {
    stop_locked();
    throw Error::io("cannot start " + std::to_string(options_.num_threads) + " decode threads: " + error.what(),
                    error.code().value());
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
  // `threads_` grows under the lock and only while not stopping, so it is final now.
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  {
    // The consumer may be waiting in next() on another thread.
    const std::lock_guard lock(mutex_);
    tasks_.clear();
    to_fetch_.clear();
    fetched_.clear();
    for (int64_t b = delivered_; b < opened_; ++b) {
      Batch& batch = batch_at(b);
      for (size_t f = 0; f < fields_.size(); ++f) memory_[f]->release(batch.buffers[f]);
    }
    ring_.reset();
    running_ = false;
  }
  ready_cv_.notify_all();
  if (options_.lent_memory) {
    for (const auto& memory : memory_) memory->retire();  // every epoch is lent its memory anew
  }
  for (FieldReader& field : fields_) field.close();
}

void Engine::lend(const std::vector<uint8_t*>& buffers) {
  for (size_t f = 0; f < fields_.size(); ++f) memory_[f]->lend(buffers[f]);
  {
    const std::lock_guard lock(mutex_);
    ++lent_sets_;
  }
  work_cv_.notify_one();
}

NextStatus Engine::next(ReadyBatch& out, std::chrono::milliseconds timeout) {
  if (!is_owner()) throw Error(ErrorKind::kClosed, "this epoch is read by the process that forked this one");
  const StageTimer timer(stats_.consumer_wait_ns);
  std::unique_lock lock(mutex_);
  if (!running_) throw Error(ErrorKind::kClosed, "no epoch is being read");
  if (delivered_ == num_batches_) return NextStatus::kEnd;
  const auto is_ready = [this] {
    return delivered_ < opened_ && batch_at(delivered_).remaining.load(std::memory_order_acquire) == 0;
  };
  ready_cv_.wait_for(lock, timeout, [&] { return !running_ || error_ || is_ready(); });
  if (!running_) throw Error(ErrorKind::kClosed, "reading was stopped while a batch was awaited");
  if (!is_ready()) {
    if (error_) std::rethrow_exception(error_);
    return NextStatus::kTimeout;
  }
  Batch& batch = batch_at(delivered_);
  out.buffers = std::move(batch.buffers);
  batch.buffers.clear();
  out.rows = batch.rows;
  ++delivered_;
  const bool wake = can_admit();
  lock.unlock();
  stats_.batches.fetch_add(1, std::memory_order_relaxed);
  stats_.samples.fetch_add(static_cast<uint64_t>(out.rows), std::memory_order_relaxed);
  if (wake) work_cv_.notify_all();
  return NextStatus::kBatch;
}

bool Engine::can_admit() const {
  const EpochPlan& plan = plan_->plan;
  if (next_group_ >= plan.num_groups() || in_flight_ >= options_.num_fetch_threads) return false;
  const int64_t last_batch = plan.last_step[next_group_] / options_.batch_size;
  if (last_batch - delivered_ >= max_open_) return false;
  return !options_.lent_memory || last_batch - opened_ < lent_sets_;
}

void Engine::admit_groups(std::vector<size_t>& claimed) {
  size_t bytes = 0;
  while (claimed.size() < kMaxClaim && (claimed.empty() || bytes + group_bytes_ <= kClaimBytes) && can_admit()) {
    open_batches_until(plan_->plan.last_step[next_group_] / options_.batch_size);
    claimed.push_back(next_group_++);
    bytes += group_bytes_;
  }
}

void Engine::open_batches_until(int64_t last) {
  for (; opened_ <= last; ++opened_) {
    Batch& batch = batch_at(opened_);
    batch.rows = std::min(options_.batch_size, plan_->plan.steps - opened_ * options_.batch_size);
    batch.buffers.resize(fields_.size());
    for (size_t f = 0; f < fields_.size(); ++f) batch.buffers[f] = memory_[f]->acquire();
    batch.remaining.store(batch.rows * pieces_per_row_, std::memory_order_relaxed);
    if (options_.lent_memory) --lent_sets_;
  }
}

void Engine::make_tasks(size_t group, ShuffleScratch& scratch, std::vector<Task>& out) const {
  GroupPlacements placements;
  expand_group(plan_->plan, group, scratch, placements);
  const auto rows = std::make_shared<const std::vector<Placement>>(std::move(placements.rows));
  for (size_t s = 0; s + 1 < placements.begin.size(); ++s) {
    if (placements.begin[s] == placements.begin[s + 1]) continue;
    for (size_t f = 0; f < fields_.size(); ++f) {
      add_field_tasks(f, rows, placements.begin[s], placements.begin[s + 1], out);
    }
  }
}

void Engine::add_field_tasks(size_t field, const std::shared_ptr<const std::vector<Placement>>& rows, size_t begin,
                             size_t end, std::vector<Task>& out) const {
  const FieldReader& reader = fields_[field];
  const auto add = [&](const std::shared_ptr<const std::vector<Placement>>& of, size_t from, size_t to) {
    const int64_t chunk = reader.is_stored() ? (*of)[from].sample / reader.rows_per_chunk() : 0;
    for (size_t cell = 0; cell < std::max<size_t>(1, reader.num_cells()); ++cell) {
      Task& task = out.emplace_back();
      task.field = field;
      task.cell = cell;
      task.chunk = chunk;
      task.rows = of;
      task.begin = from;
      task.end = to;
    }
  };
  const auto chunk_of = [&](const Placement& p) { return p.sample / reader.rows_per_chunk(); };
  const auto all = std::span(*rows).subspan(begin, end - begin);
  const bool one_chunk = !reader.is_stored() || std::all_of(all.begin(), all.end(), [&](const Placement& p) {
    return chunk_of(p) == chunk_of(all.front());
  });
  if (one_chunk) {
    add(rows, begin, end);
    return;
  }
  // The field's chunks are shorter than the block, or lie across its ends: one task per chunk, steps still ascending.
  std::vector<Placement> sorted(all.begin(), all.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Placement& a, const Placement& b) { return chunk_of(a) < chunk_of(b); });
  const auto shared = std::make_shared<const std::vector<Placement>>(std::move(sorted));
  for (size_t from = 0; from < shared->size();) {
    size_t to = from + 1;
    while (to < shared->size() && chunk_of((*shared)[to]) == chunk_of((*shared)[from])) ++to;
    add(shared, from, to);
    from = to;
  }
}

void Engine::share(std::vector<Task>& tasks) {
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 1; i < tasks.size(); ++i) tasks_.push_back(std::move(tasks[i]));
  }
  tasks.resize(1);
  work_cv_.notify_all();
}

void Engine::work(size_t thread) {
  WorkerScratch& scratch = *scratch_[thread];
  ShuffleScratch shuffle;
  std::vector<size_t> claimed;
  std::vector<Task> local;
  try {
    for (;;) {
      local.clear();
      claimed.clear();
      {
        std::unique_lock lock(mutex_);
        const auto has_work = [this] { return stopping_ || !fetched_.empty() || !tasks_.empty() || can_admit(); };
        if (!has_work()) {
          const StageTimer timer(stats_.worker_idle_ns);
          work_cv_.wait(lock, has_work);
        }
        if (stopping_) return;
        // What is nearest to completion first.
        std::deque<Task>* queue = !fetched_.empty() ? &fetched_ : !tasks_.empty() ? &tasks_ : nullptr;
        if (queue != nullptr) {
          local.push_back(std::move(queue->front()));
          queue->pop_front();
        } else {
          admit_groups(claimed);
        }
      }
      if (!claimed.empty()) {
        const StageTimer timer(stats_.order_ns);
        for (const size_t group : claimed) make_tasks(group, shuffle, local);
        if (claimed.size() == 1 && local.size() > 1 && group_bytes_ > kClaimBytes) share(local);
      }
      for (Task& task : local) run(task, scratch);
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void Engine::run(Task& task, WorkerScratch& scratch) {
  const FieldReader& field = fields_[task.field];
  if (!field.is_stored()) {
    scatter(task, scratch, {});
    return;
  }
  if (task.stored != nullptr) {  // comes back from a fetch thread
    scatter(task, scratch, {task.stored->data(), task.pending.size});
    const std::lock_guard lock(mutex_);
    spare_buffers_.push_back(std::move(task.stored));
    --in_flight_;
    return;
  }
  if (cold_credit_.load(std::memory_order_relaxed) > 0) {
    cold_credit_.fetch_sub(1, std::memory_order_relaxed);
    hand_to_fetchers(task);
    return;
  }
  {
    const StageTimer timer(stats_.fetch_ns);
    task.status = field.read_cached(task.chunk, task.cell, scratch.stored, task.pending);
  }
  if (task.status == ReadStatus::kWouldBlock) {
    cold_credit_.store(kColdCredit, std::memory_order_relaxed);
    hand_to_fetchers(task);
    return;
  }
  scatter(task, scratch, {scratch.stored.data(), task.pending.size});
}

void Engine::hand_to_fetchers(Task& task) {
  stats_.chunks_waited.fetch_add(1, std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (!fetchers_started_) start_fetch_threads();
    if (spare_buffers_.empty()) {
      task.stored = std::make_unique<Buffer>();
    } else {
      task.stored = std::move(spare_buffers_.back());
      spare_buffers_.pop_back();
    }
    task.pending.close();  // what was read so far is in the decode thread's buffer: begin again
    ++in_flight_;
    to_fetch_.push_back(std::move(task));
  }
  fetch_cv_.notify_one();
}

void Engine::start_fetch_threads() {
  fetchers_started_ = true;
  for (size_t i = 0; i < options_.num_fetch_threads; ++i) {
    try {
      threads_.emplace_back([this] { fetch(); });
    } catch (const std::system_error& error) {
      if (i > 0) return;  // fewer do, too
      throw Error::io(std::string("cannot start a fetch thread: ") + error.what(), error.code().value());
    }
  }
}

void Engine::fetch() {
  try {
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        fetch_cv_.wait(lock, [this] { return stopping_ || !to_fetch_.empty(); });
        if (stopping_) return;
        task = std::move(to_fetch_.front());
        to_fetch_.pop_front();
      }
      {
        const StageTimer timer(stats_.fetch_ns);
        task.status = fields_[task.field].read_blocking(task.chunk, task.cell, *task.stored, task.pending);
      }
      {
        const std::lock_guard lock(mutex_);
        fetched_.push_back(std::move(task));
      }
      work_cv_.notify_one();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void Engine::scatter(Task& task, WorkerScratch& scratch, Bytes stored) {
  const FieldReader& field = fields_[task.field];
  const auto rows = std::span(*task.rows).subspan(task.begin, task.end - task.begin);
  scratch.targets.clear();
  for (const Placement& p : rows) {
    const int64_t batch = p.step / options_.batch_size;
    const auto slot = static_cast<size_t>(p.step - batch * options_.batch_size);
    scratch.targets.push_back({p.sample, batch_at(batch).buffers[task.field] + slot * field.sample_bytes()});
  }
  if (!field.is_stored()) {
    const StageTimer timer(stats_.scatter_ns);
    field.scatter_resident(scratch.targets);
  } else if (task.status == ReadStatus::kMissing) {
    const StageTimer timer(stats_.scatter_ns);
    field.scatter_fill(task.cell, scratch.targets);
    stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
  } else {
    field.decode_and_scatter(task.chunk, task.cell, stored, scratch.targets, past_cache_, scratch, stats_);
  }
  publish(task);
}

void Engine::publish(const Task& task) {
  const std::vector<Placement>& rows = *task.rows;
  for (size_t i = task.begin; i < task.end;) {
    const int64_t batch = rows[i].step / options_.batch_size;
    const size_t first = i;
    while (i < task.end && rows[i].step / options_.batch_size == batch) ++i;
    const auto done = static_cast<int64_t>(i - first);
    if (batch_at(batch).remaining.fetch_sub(done, std::memory_order_acq_rel) == done) {
      const std::lock_guard lock(mutex_);  // orders the count before the consumer's check
      if (batch == delivered_) ready_cv_.notify_one();
    }
  }
}

void Engine::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    stopping_ = true;
  }
  work_cv_.notify_all();
  fetch_cv_.notify_all();
  ready_cv_.notify_all();
}

}  // namespace zarrfeed
