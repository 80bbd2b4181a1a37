// How the engine's threads wait for bytes: reads by fetch threads, requests to the Python store, tries after errors, and how long
// any of that may take.

#include <algorithm>
#include <cerrno>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "engine/engine.h"
#include "storage/retry.h"

namespace zarrfeed {
namespace {

uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
}

}  // namespace

template <typename Read>
ReadStatus Engine::read_watched(const Task& task, StallWatch& watch, Clock::time_point since, const Read& read) {
  watch.enter({task.field, task.chunk, task.cell, since});
  ReadStatus status = ReadStatus::kWouldBlock;
  try {
    status = read();
  } catch (...) {
    if (!watch.leave()) throw LeftBehind{};
    throw;
  }
  if (!watch.leave()) throw LeftBehind{};
  return status;
}

void Engine::read_cached(Task& task, Buffer& out, StallWatch& watch) {
  const auto begin = Clock::now();
  const FieldReader& field = field_of(task);
  try {
    task.status =
        read_watched(task, watch, begin, [&] { return field.read_cached(task.chunk, task.cell, out, task.pending); });
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kIo || !is_transient(error.errno_value())) throw;
    task.pending.close();
    task.status = ReadStatus::kWouldBlock;  // tried again where it may take time
  }
  stats_.fetch_ns.fetch_add(nanoseconds_since(begin), std::memory_order_relaxed);
}

void Engine::read_patiently(Task& task, Buffer& out, StallWatch& watch, std::atomic<uint64_t>& time) {
  const auto begin = Clock::now();
  const FieldReader& field = field_of(task);
  for (size_t tries = 0;; ++tries) {
    try {
      task.status = read_watched(task, watch, begin,
                                 [&] { return field.read_blocking(task.chunk, task.cell, out, task.pending); });
      break;
    } catch (const Error& error) {
      const bool may_pass = error.kind() == ErrorKind::kIo && is_transient(error.errno_value());
      if (!may_pass || tries == options_.max_retries || !pause(tries, begin)) throw;
    }
    task.pending.close();
    stats_.retries.fetch_add(1, std::memory_order_relaxed);
  }
  time.fetch_add(nanoseconds_since(begin), std::memory_order_relaxed);
}

bool Engine::pause(size_t tries, Clock::time_point since) {
  const auto until = Clock::now() + pause_after(tries);
  if (until - since >= options_.timeout) return false;
  std::unique_lock lock(mutex_);
  return !pause_cv_.wait_until(lock, until, [this] { return stopping_; });
}

void Engine::check_waits() {
  if (stopping_) return;
  const auto now = Clock::now();
  const auto check = [&](size_t field, int64_t chunk, size_t cell, Clock::time_point since) {
    if (now - since < options_.timeout) return;
    const FieldReader& reader = (*fields_)[field];
    const auto seconds = std::chrono::duration_cast<std::chrono::duration<double>>(options_.timeout).count();
    std::ostringstream text;
    text << "the store did not answer within " << seconds << " s (timeout)";
    fail_locked(std::make_exception_ptr(
        Error::io(text.str(), ETIMEDOUT).at(reader.spec().array.name, reader.label(chunk, cell))));
  };
  for (const Worker& worker : workers_) {
    if (const auto wait = worker.watch->waiting()) check(wait->field, wait->chunk, wait->cell, wait->since);
  }
  if (awaited_.empty()) return;
  const Task& oldest = awaited_.begin()->second;
  check(oldest.field, oldest.chunk, oldest.cell, oldest.asked);
}

Error Engine::at_chunk(const Task& task, const Error& error) const {
  const FieldReader& field = field_of(task);
  return error.at(field.spec().array.name, field.key(task.chunk, task.cell));
}

void Engine::request_fed(std::vector<Task>& tasks) {
  std::erase_if(tasks, [this](Task& task) { return field_of(task).is_fed() && waits_for_carried(task); });
  const auto fed = std::stable_partition(tasks.begin(), tasks.end(), [this](const Task& task) {
    if (task.carried != nullptr && !task.decodes_carried) return true;
    return !field_of(task).is_fed() || (cache_ != nullptr && cache_->contains({task.field, task.chunk, task.cell}));
  });
  if (fed == tasks.end()) return;
  fetch_later({fed, tasks.end()});
  tasks.erase(fed, tasks.end());
}

void Engine::fetch_later(std::span<Task> tasks) {
  stats_.chunks_waited.fetch_add(tasks.size(), std::memory_order_relaxed);
  std::vector<FetchRequest> requests;
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  for (Task& task : tasks) {
    task.pending.close();  // what was read so far is in the decode thread's buffer: begin again
    InFlight& kind = in_flight(task);
    if (kind.has_room()) {
      begin_fetch(std::move(task), requests);
    } else {
      kind.waiting.push_back(std::move(task));
    }
  }
  if (python_store_) python_store_->post(std::move(requests));
}

void Engine::begin_fetch(Task task, std::vector<FetchRequest>& requests) {
  ++in_flight(task).count;
  const FieldReader& field = field_of(task);
  if (field.is_fed()) {
    const uint64_t request_id = ++last_request_id_;
    requests.push_back(
        {request_id, task.field, field.key(task.chunk, task.cell), field.position(task.chunk, task.cell)});
    task.request_id = request_id;
    task.asked = Clock::now();
    awaited_.emplace(request_id, std::move(task));
    return;
  }
  if (!fetchers_started_) start_fetch_threads();
  if (spare_buffers_.empty()) {
    task.stored = std::make_unique<Buffer>();
  } else {
    task.stored = std::move(spare_buffers_.back());
    spare_buffers_.pop_back();
  }
  to_fetch_.push_back(std::move(task));
  fetch_cv_.notify_one();
}

void Engine::end_fetch(Task& task) {
  const std::lock_guard lock(mutex_);
  if (task.stored != nullptr) spare_buffers_.push_back(std::move(task.stored));
  if (task.request_id != 0) python_store_->finish(task.request_id);
  InFlight& kind = in_flight(task);
  --kind.count;
  if (kind.waiting.empty() || stopping_) return;
  const bool half_is_free = kind.count <= kind.limit / 2;
  std::vector<FetchRequest> requests;
  while (!kind.waiting.empty() && kind.count < kind.limit && (half_is_free || !has_neighbour(kind.waiting))) {
    Task next = std::move(kind.waiting.front());
    kind.waiting.pop_front();
    begin_fetch(std::move(next), requests);
  }
  if (python_store_) python_store_->post(std::move(requests));
}

bool Engine::has_neighbour(const std::deque<Task>& waiting) const {
  const Task& first = waiting.front();
  const FieldReader& field = (*fields_)[first.field];
  if (waiting.size() < 2 || !field.is_fed() || !field.spec().array.shard.is_sharded()) return false;
  const Task& second = waiting[1];
  return first.field == second.field && field.key(first.chunk, first.cell) == field.key(second.chunk, second.cell);
}

void Engine::start_fetch_threads() {
  fetchers_started_ = true;
  for (size_t i = 0; i < std::min(options_.num_fetch_threads, max_tasks_); ++i) {
    try {
      start_thread([this](Worker& self) { fetch(self); });
    } catch (const std::system_error& error) {
      if (i > 0) return;  // fewer do, too
      throw Error::io(std::string("cannot start a fetch thread: ") + error.what(), error.code().value());
    }
  }
}

void Engine::fetch(Worker& self) {
  // Held here, since the engine lets go of them when it leaves this thread behind.
  const auto watch = self.watch;
  const auto fields = fields_;
  try {
    for (;;) {
      Task task;
      {
        std::unique_lock lock(mutex_);
        fetch_cv_.wait(lock, [this] { return stopping_ || !to_fetch_.empty(); });
        if (stopping_) break;
        task = std::move(to_fetch_.front());
        to_fetch_.pop_front();
      }
      try {
        read_patiently(task, *task.stored, *watch, stats_.fetch_ns);
      } catch (const Error& error) {
        if (!skips(error)) throw;
        task.error = error;
      }
      {
        const std::lock_guard lock(mutex_);
        fetched_.push_back(std::move(task));
      }
      work_cv_.notify_one();
    }
  } catch (const LeftBehind&) {
    return;
  } catch (...) {
    fail(std::current_exception());
  }
  end_thread(self);
}

}  // namespace zarrfeed
