// How the engine gets the stored bytes of chunks: decode threads read what the page cache has, and other chunks are
// requested from the chunk readers, as far as the FetchQueue allows. Checks that no read takes longer than the timeout.

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/engine.h"

namespace zarrfeed {
namespace {

/// After a read that would have blocked, this many chunks are requested without trying the page cache first.
constexpr int kColdCredit = 16;

uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace

bool Engine::read_on_this_thread(Task& task, Buffer& room, StallWatch& watch) {
  ChunkReader& reader = reader_of(task);
  const bool waits_here = reader.limits().requests == 0;
  if (!reader.limits().can_try) return false;
  if (!waits_here && cold_credit_.load(std::memory_order_relaxed) > 0) {
    cold_credit_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  const ChunkLocation at = reader.locate(task.chunk, task.cell);
  const auto begin = Clock::now();
  const StallWatch::Wait wait{task.field, task.chunk, task.cell, begin};
  ReadResult result = watch_storage(watch, wait, [&] { return reader.try_read(at, room); });
  stats_.fetch_ns.fetch_add(nanoseconds_since(begin), std::memory_order_relaxed);
  if (result.status == ReadStatus::kWouldBlock) {
    if (!waits_here) {
      cold_credit_.store(kColdCredit, std::memory_order_relaxed);
      return false;
    }
    stats_.chunks_waited.fetch_add(1, std::memory_order_relaxed);
    const auto waits_since = Clock::now();
    result = reader.read_here(at, room, watch, wait);  // LeftBehind: the engine may be gone, its counters too
    stats_.idle_storage_ns.fetch_add(nanoseconds_since(waits_since), std::memory_order_relaxed);
  }
  task.status = result.status;
  task.stored = result.bytes;
  task.hold = std::move(result.hold);
  return true;
}

void Engine::ask_ahead(std::vector<Task>& tasks) {
  for (Task& task : tasks) {
    if (!field_of(task).is_stored() || task.pads) continue;
    ChunkReader& reader = reader_of(task);
    const ByteStore::Limits& limits = reader.limits();
    task.asks_first =
        limits.has_some_at_hand ? !reader.is_at_hand(reader.locate(task.chunk, task.cell)) : !limits.can_try;
  }
  std::erase_if(tasks, [&](Task& task) { return task.asks_first && CarriedChunk::defer(task); });
  const auto first = std::stable_partition(tasks.begin(), tasks.end(), [&](const Task& task) {
    if (task.carried != nullptr && !task.decodes_carried) return true;
    return !task.asks_first || (cache_ != nullptr && cache_->contains({task.field, task.chunk, task.cell}));
  });
  if (first == tasks.end()) return;
  fetch_later({first, tasks.end()});
  tasks.erase(first, tasks.end());
}

void Engine::fetch_later(std::span<Task> tasks) {
  stats_.chunks_waited.fetch_add(tasks.size(), std::memory_order_relaxed);
  FetchQueue::Tasks fetches;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    for (Task& task : tasks) fetch_queue_.add(std::move(task), fetches);
  }
  fetch(std::move(fetches));
}

void Engine::fetch(FetchQueue::Tasks fetches) {
  if (fetches.empty()) return;
  // A reader can merge the requests for one array that it gets in one call.
  std::stable_sort(fetches.begin(), fetches.end(), [](const auto& a, const auto& b) { return a->field < b->field; });
  for (auto from = fetches.begin(); from != fetches.end();) {
    ChunkReader& reader = reader_of(**from);
    std::vector<ChunkRequest> requests;
    const size_t field = (*from)->field;
    for (; from != fetches.end() && (*from)->field == field; ++from) {
      const std::shared_ptr<Task> task = std::move(*from);
      requests.push_back({reader.locate(task->chunk, task->cell), task->room.get(),
                          [this, task](ReadResult result) { end_read(*task, std::move(result)); }});
    }
    reader.read(std::move(requests));
  }
}

void Engine::end_read(Task& task, ReadResult result) {
  stats_.fetch_ns.fetch_add(nanoseconds_since(task.asked), std::memory_order_relaxed);
  if (result.error && !skips(*result.error)) {
    fail(std::make_exception_ptr(*result.error));
    return;
  }
  task.error = std::move(result.error);
  task.status = result.status;
  task.stored = result.bytes;
  task.hold = std::move(result.hold);
  {
    const std::lock_guard lock(mutex_);
    fetched_.push_back(std::move(task));
  }
  work_cv_.notify_one();
}

void Engine::end_fetch(Task& task) {
  task.hold.reset();
  FetchQueue::Tasks fetches;
  {
    const std::lock_guard lock(mutex_);
    fetch_queue_.finish(task);
    if (stopping_) return;
    fetch_queue_.next(
        task.field, [this](const Task& one, const Task& other) { return reads_together(one, other); }, fetches);
  }
  fetch(std::move(fetches));
}

bool Engine::reads_together(const Task& one, const Task& other) const {
  return one.field == other.field && reader_of(one).reads_together(one.chunk, one.cell, other.chunk, other.cell);
}

void Engine::check_waits() {
  if (stopping_) return;
  const auto now = Clock::now();
  const auto check = [this](const std::optional<Error>& overdue) {
    if (overdue) fail_locked(std::make_exception_ptr(*overdue));
  };
  threads_.for_each_wait([&](const StallWatch::Wait& wait) {
    check((*readers_)[wait.field]->find_overdue(wait.chunk, wait.cell, wait.since, now));
  });
  for (const auto& reader : *readers_) {
    if (reader != nullptr) check(reader->find_overdue(now));
  }
}

}  // namespace zarrfeed
