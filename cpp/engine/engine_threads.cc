// The work of decode threads: admit groups, make their tasks, and run tasks. The Fetcher reads and requests chunks, the
// SlotWriter decodes them, engine.cc is the consumer's side.

#include <algorithm>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/task_builder.h"
#include "plan/placement.h"
#include "spec/field_spec.h"
#include "storage/access/retry.h"

namespace zarrfeed {
namespace {

/// Small chunks are claimed many at a time, so that the lock is taken once for about this much decoding.
constexpr size_t kClaimBytes = size_t{256} << 10;
constexpr size_t kMaxClaim = 64;

}  // namespace

std::atomic<uint64_t>& Engine::idle_counter() {
  const bool may_fetch = !admission_.is_done() && fetcher_.has_room();
  if (may_fetch && short_of_memory_) return stats_.idle_memory_ns;
  return fetcher_.in_flight() > 0 ? stats_.idle_storage_ns : stats_.idle_other_ns;
}

void Engine::check_complete() {
  if (busy_threads_ > 0 || !tasks_.empty() || !resumed_.empty() || fetcher_.has_fetched() || fetcher_.in_flight() > 0)
    return;
  // Only another group could complete a batch now, and it is admitted no earlier than these batches are delivered.
  const int64_t end = admission_.needed_batches(ring_->num_batches());
  for (int64_t b = admission_.delivered(); b < end; ++b) {
    const bool is_open = b < admission_.opened();
    if (is_open && ring_->is_complete(b)) continue;
    const int64_t step = is_open ? ring_->first_unclaimed(b) : b * options_.batch_size;
    fail(std::make_exception_ptr(Error(ErrorKind::kConfig, "plan: nothing serves step " + std::to_string(step))));
    return;
  }
}

void Engine::check_waits() {
  if (stopping_) return;
  if (const auto overdue = fetcher_.find_overdue(threads_)) fail(std::make_exception_ptr(*overdue));
}

void Engine::work(StallWatch& watch, size_t thread) {
  // This thread shares the ownership, since the engine drops both when it leaves the thread behind.
  const auto readers = fetcher_.hold();
  const auto scratch = scratch_[thread];
  Claim claim;
  std::unique_lock lock(mutex_);
  try {
    for (;;) {
      if (!stopping_ && !has_work()) {
        check_complete();
        StageTimer timer(idle_counter());
        while (!stopping_ && !has_work()) {
          work_cv_.wait(lock);
          timer.lap(idle_counter());
        }
      }
      if (stopping_) return;
      do_work(lock, claim, *scratch, watch);
    }
  } catch (const LeftBehind&) {
    throw;
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    fail(std::current_exception());
  }
}

void Engine::work_until_ready(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  consumer_in_work_ = true;
  try {
    while (!stopping_ && !is_ready() && Clock::now() < deadline) {
      if (has_work()) {
        do_work(lock, consumer_claim_, *scratch_[0], consumer_watch_);
        continue;
      }
      check_complete();
      const StageTimer timer(idle_counter());
      work_cv_.wait_until(lock, deadline, [this] { return stopping_ || is_ready() || has_work(); });
    }
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    fail(std::current_exception());
  }
  consumer_in_work_ = false;
  if (stopping_) ready_cv_.notify_all();
}

void Engine::do_work(std::unique_lock<std::mutex>& lock, Claim& claim, WorkerScratch& scratch, StallWatch& watch) {
  ++busy_threads_;
  take_work(claim);
  lock.unlock();
  if (!claim.groups.empty()) make_tasks(claim);
  for (Task& task : claim.tasks) {
    run(task, scratch, watch);
    task.carried.reset();  // a claim has many groups of small chunks: what the first ones share is not needed any more
  }
  lock.lock();
  --busy_threads_;
}

void Engine::take_work(Claim& claim) {
  claim.groups.clear();
  claim.tasks.clear();
  const auto take_from = [&claim](std::deque<Task>& tasks) {
    claim.tasks.push_back(std::move(tasks.front()));
    tasks.pop_front();
  };
  // Resumed tasks copy rows, and free the memory of the decoded chunk. Then requests: fetched chunks are decoded while
  // storage answers. Then the tasks that are nearest to completion.
  if (!resumed_.empty()) {
    take_from(resumed_);
  } else if (fetcher_.asks_first() && can_admit()) {
    admit_groups(claim);
  } else if (fetcher_.has_fetched()) {
    claim.tasks.push_back(fetcher_.take_fetched());
  } else if (!tasks_.empty()) {
    take_from(tasks_);
  } else {
    admit_groups(claim);
  }
}

void Engine::admit_groups(Claim& claim) {
  const auto open_batch = [this](int64_t batch) {
    memory_.acquire(ring_->buffers(batch));
    ring_->open(batch, pieces_per_sample_.value_or(1));
  };
  std::vector<Claim::Group>& groups = claim.groups;
  for (size_t bytes = 0; groups.size() < kMaxClaim && can_admit(); bytes += group_bytes_) {
    if (!groups.empty() && bytes + group_bytes_ > kClaimBytes) break;
    auto group = admission_.admit(open_batch);
    auto chunks = group_chunks_.take(group.number);
    groups.push_back({std::move(group), std::move(chunks)});
  }
  if (!groups.empty()) claim.turn = fetcher_.take_turn();
}

void Engine::make_tasks(Claim& claim) {
  std::vector<Task>& tasks = claim.tasks;
  const size_t num_groups = claim.groups.size();
  {
    const StageTimer timer(stats_.order_ns);
    for (const auto& [group, chunks] : claim.groups) {
      const size_t first = tasks.size();
      const TaskBuilder builder(outputs_, group.part->plan);
      const TaskBuilder::Rows samples = builder.build(group.number, claim.shuffle, tasks);
      const auto of_group = std::span(tasks).subspan(first);
      ring_->claim(*samples);
      if (!pieces_per_sample_) writer_.count_rows(*samples, of_group);
      share_chunks(chunks, of_group);
    }
    claim.groups.clear();
    fetcher_.fetch_ahead(tasks, claim.turn, [this](const Task& task) { return writer_.is_decoded(task); });
  }
  if (num_groups == 1 && tasks.size() > 1 && group_bytes_ > kClaimBytes) {  // large tasks are for all threads
    queue(tasks_, std::span(tasks).subspan(1));
    tasks.resize(1);
  }
}

void Engine::queue(std::deque<Task>& to, std::span<Task> tasks) {
  if (tasks.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    to.insert(to.end(), std::make_move_iterator(tasks.begin()), std::make_move_iterator(tasks.end()));
  }
  work_cv_.notify_all();
}

void Engine::run(Task& task, WorkerScratch& scratch, StallWatch& watch) {
  if (!task.has_chunk) {
    writer_.write_without_chunk(task, scratch);
    skip_bad_rows(task);
    writer_.finish(task);
    return;
  }
  if (!task.is_fetched) {
    if (CarriedChunk::defer(task)) return;
    const bool is_carried = task.carried != nullptr && !task.decodes_carried;
    if (is_carried) writer_.write_carried(task, scratch);
    if (is_carried || writer_.write_cached(task, scratch)) {
      writer_.finish(task);
      return;
    }
    task.parts = writer_.find_parts(task, fetcher_.reader(task.source), scratch);
    if (!fetcher_.read(task, scratch.stored, watch)) {
      fetcher_.fetch({&task, 1});
      return;
    }
  }
  const bool is_done = decode_or_skip(task, scratch);
  fetcher_.finish(task);
  if (!is_done) read_whole(task);
}

bool Engine::decode_or_skip(Task& task, WorkerScratch& scratch) {
  try {
    if (task.error) throw Error(*task.error);
    ask_for_help();
    writer_.write(task, fetcher_.reader(task.source), scratch);
    writer_.finish(task);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCorrupt && !task.stored.is_whole()) return false;
    if (!options_.skip_bad || !is_of_chunk(error)) throw;
    skip(task, error);
  }
  return true;
}

void Engine::read_whole(Task& task) {
  stats_.bytes_read.fetch_add(task.stored.bytes_read(), std::memory_order_relaxed);
  auto waiting = CarriedChunk::give_up(task);
  queue(resumed_, waiting);
  task.reads_whole = true;
  task.is_fetched = false;
  task.status = ReadStatus::kWouldBlock;
  task.stored = {};
  queue(resumed_, {&task, 1});
}

void Engine::skip(Task& task, const Error& error) {
  auto waiting = CarriedChunk::give_up(task);
  queue(resumed_, waiting);
  const SkippedChunk chunk{task.source, task.chunk, reader(task.source).label(task.chunk, task.cell), error};
  std::vector<Placement> samples;
  writer_.for_each_sample(task, [&](const Placement&, const Placement& sample) { samples.push_back(sample); });
  {
    const std::lock_guard lock(mutex_);
    for (const Placement& sample : samples) skip_log_.add(sample, chunk);
  }
  writer_.finish(task);
}

void Engine::skip_bad_rows(const Task& task) {
  const FieldSpec& spec = outputs_[task.of_outputs.front().output].spec();
  if (task.pads || !options_.skip_bad || spec.bad_rows.empty()) return;
  std::vector<std::pair<Placement, const BadRows*>> bad;
  writer_.for_each_sample(task, [&](const Placement& row, const Placement& sample) {
    const auto behind = std::ranges::upper_bound(spec.bad_rows, row.sample, {}, &BadRows::begin);
    if (behind == spec.bad_rows.begin()) return;
    const BadRows& rows = *std::prev(behind);
    if (row.sample < rows.end) bad.emplace_back(sample, &rows);
  });
  const std::lock_guard lock(mutex_);
  for (const auto& [sample, rows] : bad) skip_log_.add(sample, {task.source, rows->chunk, rows->key, rows->error});
}

void Engine::on_complete(int64_t batch) {
  const std::lock_guard lock(mutex_);  // orders the count before the consumer's check
  if (batch == admission_.delivered()) ready_cv_.notify_one();
  if (options_.caller_runs) work_cv_.notify_all();
}

}  // namespace zarrfeed
