// What decode threads do: admit groups, make their tasks, and run tasks. fetcher.cc reads and requests chunks,
// engine_carry.cc decodes chunks that tasks share, engine.cc is the consumer's side.

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "engine/engine.h"
#include "engine/task_builder.h"
#include "engine/window_rows.h"
#include "plan/placement.h"
#include "spec/field_spec.h"
#include "storage/access/retry.h"

namespace zarrfeed {
namespace {

/// Small chunks are claimed many at a time, so that the lock is taken once for about this much decoding.
constexpr size_t kClaimBytes = size_t{256} << 10;
constexpr size_t kMaxClaim = 64;
/// Rows of a task that names its samples alone are found so many at a time.
constexpr size_t kRowsAtOnce = size_t{1} << 13;

}  // namespace

bool Engine::can_admit() const {
  return admission_.can_admit() && fetch_queue_.has_room();
}

std::atomic<uint64_t>& Engine::idle_counter() {
  const bool may_fetch = !admission_.is_done() && fetch_queue_.has_room();
  if (may_fetch && short_of_memory_) return stats_.idle_memory_ns;
  return fetch_queue_.in_flight() > 0 ? stats_.idle_storage_ns : stats_.idle_other_ns;
}

void Engine::admit_groups(Claim& claim) {
  std::vector<Claim::Group>& claimed = claim.groups;
  size_t bytes = 0;
  while (claimed.size() < kMaxClaim && (claimed.empty() || bytes + group_bytes_ <= kClaimBytes) && can_admit()) {
    auto window = window_;  // admit() may unfold the next one
    const size_t group = admission_.admit([this](int64_t batch) { open_batch(batch); });
    claimed.push_back({std::move(window), group});
    claim.carried.push_back(take_carried(group));
    bytes += group_bytes_;
  }
}

CarriedChunks Engine::take_carried(size_t group) {
  const EpochPlan& plan = plan_->plan;
  if (!carry_table_ || plan.next_group.empty()) return {};
  return carry_table_->take(group, plan.next_group[group], find_shared(plan, fields_, group),
                            planned_cache_ ? planned_cache_->take(group) : CarriedChunks{});
}

void Engine::open_batch(int64_t batch) {
  const auto buffers = ring_->buffers(batch);
  size_t acquired = 0;
  try {
    for (; acquired < num_tensors(); ++acquired) buffers[acquired] = memory_[acquired]->acquire();
  } catch (...) {
    // The batch is not open, so nobody else would give these back.
    while (acquired-- > 0) memory_[acquired]->release(buffers[acquired]);
    throw;
  }
  ring_->open(batch, pieces_per_sample_.value_or(1));
}

int64_t Engine::rows_per_sample(size_t field) const {
  return static_cast<int64_t>(fields_[field].num_offsets());
}

void Engine::share(std::vector<Task>& tasks) {
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 1; i < tasks.size(); ++i) tasks_.push_back(std::move(tasks[i]));
  }
  tasks.resize(1);
  work_cv_.notify_all();
}

void Engine::work(StallWatch& watch, size_t thread) {
  // This thread shares the ownership, since the engine drops both when it leaves the thread behind.
  const auto readers = readers_;
  const auto scratch = scratch_[thread];
  Claim claim;
  try {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        --busy_threads_;
        if (!stopping_ && !has_work()) {
          if (is_exhausted()) check_complete();
          StageTimer timer(idle_counter());
          while (!stopping_ && !has_work()) {
            work_cv_.wait(lock);
            timer.lap(idle_counter());
          }
        }
        if (stopping_) break;
        ++busy_threads_;
        take_work(claim);
      }
      run_work(claim, *scratch, watch);
    }
  } catch (const LeftBehind&) {
    throw;
  } catch (...) {
    fail(std::current_exception());
  }
}

void Engine::work_until_ready(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  consumer_in_work_ = true;
  try {
    while (!stopping_ && !is_ready() && Clock::now() < deadline) {
      if (!has_work()) {
        if (is_exhausted()) check_complete();
        const StageTimer timer(idle_counter());
        work_cv_.wait_until(lock, deadline, [this] { return stopping_ || is_ready() || has_work(); });
        continue;
      }
      ++busy_threads_;
      take_work(consumer_claim_);
      lock.unlock();
      run_work(consumer_claim_, *scratch_[0], consumer_watch_);
      lock.lock();
      --busy_threads_;
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    fail_locked(std::current_exception());
  }
  consumer_in_work_ = false;
  if (stopping_) ready_cv_.notify_all();
}

void Engine::take_work(Claim& claim) {
  claim.groups.clear();
  claim.carried.clear();
  claim.tasks.clear();
  // Requests first: fetched chunks are decoded while storage answers. Then the tasks that are nearest to completion.
  const bool asks = asks_first_ && can_admit();
  std::deque<Task>* queue = asks ? nullptr : !fetched_.empty() ? &fetched_ : !tasks_.empty() ? &tasks_ : nullptr;
  if (queue != nullptr) {
    claim.tasks.push_back(std::move(queue->front()));
    queue->pop_front();
  } else {
    admit_groups(claim);
  }
}

void Engine::run_work(Claim& claim, WorkerScratch& scratch, StallWatch& watch) {
  std::vector<Task>& tasks = claim.tasks;
  if (!claim.groups.empty()) {
    const StageTimer timer(stats_.order_ns);
    for (size_t i = 0; i < claim.groups.size(); ++i) {
      const size_t first = tasks.size();
      const TaskBuilder builder(fields_, claim.groups[i].of->plan);
      const TaskBuilder::Rows samples = builder.build(claim.groups[i].number, claim.shuffle, tasks);
      ring_->claim(*samples);
      if (!pieces_per_sample_) count_pieces(*samples, std::span(tasks).subspan(first));
      share_chunks(claim.carried[i], std::span(tasks).subspan(first));
    }
    claim.carried.clear();
    ask_ahead(tasks);
    if (claim.groups.size() == 1 && tasks.size() > 1 && group_bytes_ > kClaimBytes) share(tasks);
  }
  for (Task& task : tasks) {
    run(task, scratch, watch);
    task.carried.reset();  // a claim has many groups of small chunks: what the first ones share is not needed any more
  }
}

void Engine::run(Task& task, WorkerScratch& scratch, StallWatch& watch) {
  const FieldDecoder& field = field_of(task);
  if (!field.is_stored() || task.pads) {
    scatter(task, scratch);
    return;
  }
  if (task.is_fetched) {
    scatter_or_skip(task, scratch);
    end_fetch(task);
    return;
  }
  if (CarriedChunk::defer(task)) return;
  if (task.carried != nullptr && !task.decodes_carried) {
    scatter_carried(task, scratch);
    publish(task);
    return;
  }
  if (cache_ != nullptr) {
    if (const auto chunk = cache_->find({task.field, task.chunk, task.cell})) {
      resume(CarriedChunk::give_up(task));  // tasks that wait for this one find the chunk in the cache, too
      scatter_cached(task, scratch, *chunk);
      publish(task);
      return;
    }
  }
  try {
    if (!read_on_this_thread(task, scratch.stored, watch)) {
      fetch_later({&task, 1});
      return;
    }
  } catch (const Error& error) {
    if (!skips(error)) throw;
    task.error = error;
  }
  scatter_or_skip(task, scratch);
  task.hold.reset();
}

void Engine::scatter_or_skip(Task& task, WorkerScratch& scratch) {
  if (!task.error) {
    try {
      scatter(task, scratch);
      return;
    } catch (const Error& error) {
      if (!skips(error)) throw;
      task.error = error;
    }
  }
  skip(task, *task.error);
}

Error Engine::at_chunk(const Task& task, const Error& error) const {
  return reader_of(task).at_chunk(error, task.chunk, task.cell);
}

bool Engine::skips(const Error& error) const {
  return options_.skip_bad && is_of_chunk(error);
}

void Engine::skip(Task& task, const Error& error) {
  resume(CarriedChunk::give_up(task));
  const SkippedChunk chunk{task.field, task.chunk, reader_of(task).label(task.chunk, task.cell), error};
  for_each_sample(task, [&](const Placement&, const Placement& sample) { skip_log_.add(sample, chunk); });
  publish(task);
}

template <typename Take>
void Engine::for_each_sample(const Task& task, Take&& take) {
  std::vector<Placement> by_step = *task.samples;
  std::sort(by_step.begin(), by_step.end(), [](const Placement& a, const Placement& b) { return a.step < b.step; });
  const Placement* last = nullptr;
  for_rows(task, [&](std::span<const Placement> rows) {
    const std::lock_guard lock(mutex_);
    for (const Placement& row : rows) {
      const int64_t step = row.step / rows_per_sample(task.field);
      if (last == nullptr || last->step != step) {
        last = &*std::lower_bound(by_step.begin(), by_step.end(), step,
                                  [](const Placement& sample, int64_t s) { return sample.step < s; });
      }
      take(row, *last);
    }
  });
}

void Engine::skip_bad_rows(const Task& task) {
  const FieldSpec& spec = field_of(task).spec();
  for_each_sample(task, [&](const Placement& row, const Placement& sample) {
    const auto behind = std::upper_bound(spec.bad_rows.begin(), spec.bad_rows.end(), row.sample,
                                         [](int64_t r, const BadRows& rows) { return r < rows.begin; });
    if (behind == spec.bad_rows.begin()) return;
    const BadRows& rows = *std::prev(behind);
    if (row.sample >= rows.end) return;
    skip_log_.add(sample, {task.field, rows.chunk, rows.key, rows.error});
  });
}

void Engine::scatter(Task& task, WorkerScratch& scratch) {
  const FieldDecoder& field = field_of(task);
  if (task.pads) {
    if (task.cell == 0) {
      for_rows(task, [&](std::span<const Placement> rows) {
        find_targets(task, rows, scratch.targets);
        if (field.patches() != nullptr) {
          find_patches(scratch);
          field.patches()->pad(scratch.patches);
        } else {
          field.scatter_pad(scratch.targets);
        }
      });
    }
    publish(task);
    return;
  }
  if (field.is_stored()) ask_for_help();
  const ChunkCache::Key key{task.field, task.chunk, task.cell};
  const bool is_missing = task.status == ReadStatus::kMissing;
  if (is_missing && options_.missing_is_error) {
    const Error error = Error::io("is missing from the store", ENOENT);
    throw at_chunk(task, error);
  }
  if (decode_carried(task, scratch)) {
    publish(task);
    return;
  }
  if (cache_ != nullptr && field.is_stored() && cache_->admits(key, is_missing ? 0 : field.decoded_bytes())) {
    auto chunk = std::make_shared<DecodedChunk>();
    if (!is_missing) *chunk = name_errors(task, [&] { return field.decode(task.stored, scratch, stats_); });
    if (is_missing) stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
    cache_->insert(key, chunk);
    scatter_cached(task, scratch, *chunk);
    publish(task);
    return;
  }
  if (is_missing && field.is_stored()) {
    scatter_rows(task, nullptr, scratch, false);
    stats_.chunks_missing.fetch_add(1, std::memory_order_relaxed);
    publish(task);
    return;
  }
  if (!field.is_stored()) {
    const StageTimer timer(stats_.scatter_ns);
    for_rows(task, [&](std::span<const Placement> rows) {
      find_targets(task, rows, scratch.targets);
      number_patches(field, scratch);
      field.scatter_resident(scratch.targets);
    });
    if (options_.skip_bad && !field.spec().bad_rows.empty()) skip_bad_rows(task);
  } else if (task.rows == nullptr) {
    const Bytes decoded = name_errors(task, [&] { return field.decode_in_scratch(task.stored, scratch, stats_); });
    scatter_rows(task, decoded.data(), scratch, streaming_);
  } else if (field.patches() != nullptr) {
    find_targets(task, task.placements(), scratch.targets);
    find_patches(scratch);
    name_errors(task,
                [&] { field.decode_and_cut({task.chunk, task.cell}, task.stored, scratch.patches, scratch, stats_); });
  } else {
    find_targets(task, task.placements(), scratch.targets);
    name_errors(task, [&] {
      field.decode_and_scatter(task.chunk, task.cell, task.stored, scratch.targets, streaming_, scratch, stats_);
    });
  }
  publish(task);
}

void Engine::scatter_cached(Task& task, WorkerScratch& scratch, const DecodedChunk& chunk) {
  scatter_rows(task, chunk.bytes.get(), scratch, false);
}

void Engine::scatter_rows(const Task& task, const uint8_t* decoded, WorkerScratch& scratch, bool streaming,
                          const ChunkCrop* crop) {
  const StageTimer timer(stats_.scatter_ns);
  const FieldDecoder& field = field_of(task);
  for_rows(task, [&](std::span<const Placement> rows) {
    find_targets(task, rows, scratch.targets);
    if (field.patches() != nullptr) {
      find_patches(scratch);
      const size_t written = field.patches()->cut({task.chunk, task.cell}, decoded, scratch.patches, crop);
      if (decoded != nullptr) stats_.bytes_scattered.fetch_add(written, std::memory_order_relaxed);
    } else if (decoded == nullptr) {
      field.scatter_fill(task.cell, scratch.targets);
    } else {
      field.scatter_decoded(task.chunk, task.cell, decoded, scratch.targets, stats_, streaming);
    }
  });
}

void Engine::find_patches(WorkerScratch& scratch) const {
  scratch.patches.clear();
  for (const RowTarget& t : scratch.targets) {
    const EpochPlan& plan = plan_->plan;
    scratch.patches.push_back({plan.patches->start(t.row), t.dest, draw_orientation(plan, t.row)});
  }
}

void Engine::number_patches(const FieldDecoder& field, WorkerScratch& scratch) const {
  if (plan_->plan.patches == nullptr || field.spec().kind != FieldSpec::Kind::kIndex) return;
  for (RowTarget& t : scratch.targets) t.row = plan_->plan.patches->number(t.row);
}

template <typename Use>
void Engine::for_rows(const Task& task, Use&& use) const {
  if (task.rows != nullptr) {
    use(task.placements());
    return;
  }
  const FieldDecoder& field = field_of(task);
  const WindowRows windows(field, plan_->plan);
  const size_t at_once = std::max<size_t>(1, kRowsAtOnce / field.num_offsets());
  std::vector<Placement> rows;
  for (size_t begin = task.begin; begin < task.end; begin += at_once) {
    const auto samples = std::span(*task.samples).subspan(begin, std::min(at_once, task.end - begin));
    windows.find(samples, task.chunk, rows);
    if (!rows.empty()) use(std::span<const Placement>(rows));
  }
}

void Engine::find_targets(const Task& task, std::span<const Placement> rows, std::vector<RowTarget>& out) {
  const FieldDecoder& field = field_of(task);
  ring_->find_targets(rows, tensor_of_field_[task.field], rows_per_sample(task.field), field.slot_bytes(),
                      field.slot_offset(), out);
}

void Engine::publish(const Task& task) {
  for_rows(task, [&](std::span<const Placement> rows) {
    ring_->finish(rows, rows_per_sample(task.field), [this](int64_t batch) { on_complete(batch); });
  });
}

void Engine::count_pieces(std::span<const Placement> samples, std::span<const Task> tasks) {
  // A batch was opened with one piece a sample, which is finished here, once the others are counted.
  for (const Task& task : tasks) {
    for_rows(task, [&](std::span<const Placement> rows) { ring_->add(rows, rows_per_sample(task.field)); });
  }
  ring_->finish(samples, 1, [this](int64_t batch) { on_complete(batch); });
}

void Engine::on_complete(int64_t batch) {
  const std::lock_guard lock(mutex_);  // orders the count before the consumer's check
  if (batch == admission_.delivered()) ready_cv_.notify_one();
  if (options_.caller_runs) work_cv_.notify_all();
}

bool Engine::is_exhausted() const {
  return busy_threads_ == 0 && tasks_.empty() && fetched_.empty() && fetch_queue_.in_flight() == 0;
}

void Engine::check_complete() {
  // No work is left and no thread has any. Only another group could complete a batch, and it is admitted no earlier than
  // these batches are delivered.
  const int64_t end = admission_.needed_batches(ring_->num_batches());
  for (int64_t b = admission_.delivered(); b < end; ++b) {
    const bool is_open = b < admission_.opened();
    if (is_open && ring_->is_complete(b)) continue;
    const int64_t step = is_open ? ring_->first_unclaimed(b) : b * options_.batch_size;
    fail_locked(
        std::make_exception_ptr(Error(ErrorKind::kConfig, "plan: nothing serves step " + std::to_string(step))));
    return;
  }
}

}  // namespace zarrfeed
