#include "engine/fetcher.h"

#include <iterator>
#include <utility>

namespace zarrfeed {
namespace {

/// After a read that would have blocked, this many chunks are requested without trying the page cache first.
constexpr int kColdCredit = 16;

uint64_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
}

void set_result(Task& task, ReadResult result) {
  task.error = std::move(result.error);
  task.status = result.status;
  task.stored = {result.bytes, std::move(result.parts)};
  task.hold = std::move(result.hold);
  task.undecoded = std::move(result.undecoded);
}

}  // namespace

Fetcher::Fetcher(const OutputTable& outputs, std::shared_ptr<Stores> stores, ReadPolicy policy, std::mutex& mutex,
                 Stats& stats, std::function<void()> on_fetched)
    : outputs_(outputs),
      stores_(std::move(stores)),
      policy_(policy),
      mutex_(mutex),
      stats_(stats),
      on_fetched_(std::move(on_fetched)) {
  make_readers();
}

void Fetcher::make_readers() {
  readers_ = std::make_shared<Readers>();
  std::vector<FetchQueue::Source> sources(outputs_.size());
  std::vector<const void*> pools;
  std::vector<size_t> limits_of_pools;
  for (size_t number = 0; number < outputs_.size(); ++number) {
    auto& reader = readers_->emplace_back();
    const ArraySource* const source = outputs_.source(number);
    if (source == nullptr) continue;
    const ArraySpec& array = source->array();
    const size_t max_bytes = source->max_stored_bytes();
    reader = std::make_shared<ChunkReader>(array, stores_->make(number, array, max_bytes), stores_->io(), max_bytes,
                                           policy_, &stats_.retries);
    const ByteStore::Limits& limits = reader->limits();
    if (!limits.can_try || limits.has_some_at_hand) asks_first_ = true;
    const void* const pool = limits.pool != nullptr ? limits.pool : reader.get();
    sources[number] = {static_cast<size_t>(std::find(pools.begin(), pools.end(), pool) - pools.begin()),
                       limits.needs_room};
    if (sources[number].pool < pools.size()) continue;
    pools.push_back(pool);
    limits_of_pools.push_back(limits.requests);
  }
  queue_.set_sources(std::move(sources), limits_of_pools);
}

void Fetcher::begin_epoch(bool keep_indices) {
  for (const auto& reader : *readers_) {
    if (reader != nullptr) reader->open(keep_indices);
  }
  queue_.begin_epoch();
  turns_taken_ = turn_ = 0;
  is_requesting_ = false;
  cold_credit_ = 0;
  is_cancelled_ = false;
}

bool Fetcher::stop(Clock::time_point deadline) {
  bool all_ended = true;
  for (const auto& reader : *readers_) {
    if (reader != nullptr && !reader->stop(deadline)) all_ended = false;
  }
  return all_ended;
}

void Fetcher::close() {
  for (const auto& reader : *readers_) {
    if (reader != nullptr) reader->close();
  }
}

void Fetcher::renew() {
  past_indices_ = indices_read();
  stores_->renew();
  make_readers();
}

uint64_t Fetcher::indices_read() const {
  uint64_t indices = past_indices_;
  for (const auto& reader : *readers_) {
    if (reader != nullptr) indices += reader->indices_read();
  }
  return indices;
}

bool Fetcher::read(Task& task, Buffer& room, StallWatch& watch) {
  ChunkReader& reader = this->reader(task.source);
  const bool waits_here = reader.limits().requests == 0;
  if (!reader.limits().can_try) return false;
  if (!waits_here && cold_credit_.load(std::memory_order_relaxed) > 0) {
    cold_credit_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  const ChunkLocation at = reader.locate(task.chunk, task.cell);
  const auto begin = Clock::now();
  const StallWatch::Wait wait{task.source, task.chunk, task.cell, begin};
  try {
    ReadResult result = watch_storage(watch, wait, [&] { return reader.try_read(at, room, task.parts); });
    stats_.fetch_ns.fetch_add(nanoseconds_since(begin), std::memory_order_relaxed);
    if (result.status == ReadStatus::kWouldBlock) {
      if (!waits_here) {
        cold_credit_.store(kColdCredit, std::memory_order_relaxed);
        return false;
      }
      stats_.chunks_waited.fetch_add(1, std::memory_order_relaxed);
      const auto waits_since = Clock::now();
      result =
          reader.read_here(at, room, watch, wait, task.parts);  // LeftBehind: the engine may be gone, its counters too
      stats_.idle_storage_ns.fetch_add(nanoseconds_since(waits_since), std::memory_order_relaxed);
    }
    set_result(task, std::move(result));
  } catch (const Error& error) {
    task.error = error;
  }
  return true;
}

bool Fetcher::must_fetch(const Task& task) const {
  ChunkReader& reader = this->reader(task.source);
  const ByteStore::Limits& limits = reader.limits();
  return limits.has_some_at_hand ? !reader.is_at_hand(reader.locate(task.chunk, task.cell)) : !limits.can_try;
}

void Fetcher::fetch(std::span<Task> tasks) {
  stats_.chunks_waited.fetch_add(tasks.size(), std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  if (is_cancelled_) return;
  for (Task& task : tasks) queue_.add(std::move(task), to_request_);
  request_all(lock);
}

void Fetcher::fetch_in_turn(std::span<Task> tasks, uint64_t turn) {
  stats_.chunks_waited.fetch_add(tasks.size(), std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  if (is_cancelled_) return;
  std::vector<Task>& of_turn = early_[turn];
  of_turn.assign(std::make_move_iterator(tasks.begin()), std::make_move_iterator(tasks.end()));
  for (; !early_.empty() && early_.begin()->first == turn_; ++turn_) {
    for (Task& task : early_.begin()->second) queue_.add(std::move(task), to_request_);
    early_.erase(early_.begin());
  }
  request_all(lock);
}

void Fetcher::request_all(std::unique_lock<std::mutex>& lock) {
  if (is_requesting_) return;
  is_requesting_ = true;
  while (!to_request_.empty() && !is_cancelled_) {
    FetchQueue::Tasks tasks;
    tasks.swap(to_request_);
    lock.unlock();
    request(std::move(tasks));
    lock.lock();
  }
  is_requesting_ = false;
}

void Fetcher::request(FetchQueue::Tasks tasks) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks[i] == nullptr) continue;
    const std::shared_ptr<Task> first = tasks[i];
    ChunkReader& reader = this->reader(first->source);
    std::vector<ChunkRequest> requests;
    bool are_apart = false;
    for (size_t k = i; k < tasks.size(); ++k) {
      if (tasks[k] == nullptr) continue;
      are_apart = are_apart || tasks[k]->source != first->source;
      if (are_apart && !reads_together(*first, *tasks[k])) {
        if (!reader.may_read_together()) break;
        continue;
      }
      const std::shared_ptr<Task> task = std::move(tasks[k]);
      requests.push_back({reader.locate(task->chunk, task->cell), task->room.get(),
                          [this, task](ReadResult result) { end_read(*task, std::move(result)); }, task->parts});
    }
    reader.read(std::move(requests));
  }
}

void Fetcher::end_read(Task& task, ReadResult result) {
  stats_.fetch_ns.fetch_add(nanoseconds_since(task.asked), std::memory_order_relaxed);
  set_result(task, std::move(result));
  {
    const std::lock_guard lock(mutex_);
    fetched_.push_back(std::move(task));
  }
  on_fetched_();
}

Task Fetcher::take_fetched() {
  Task task = std::move(fetched_.front());
  fetched_.pop_front();
  return task;
}

void Fetcher::finish(Task& task) {
  if (task.undecoded != nullptr) std::exchange(task.undecoded, nullptr)->keep();
  task.hold.reset();
  if (!task.is_fetched) return;
  std::unique_lock lock(mutex_);
  queue_.finish(task);
  if (is_cancelled_) return;
  queue_.next(
      task.source, [this](const Task& one, const Task& other) { return reads_together(one, other); }, to_request_);
  request_all(lock);
}

bool Fetcher::reads_together(const Task& one, const Task& other) const {
  return one.source == other.source && reader(one.source).reads_together(one.chunk, one.cell, other.chunk, other.cell);
}

std::optional<Error> Fetcher::find_overdue(const WatchedThreads& threads) const {
  const auto now = Clock::now();
  std::optional<Error> overdue;
  threads.for_each_wait([&](const StallWatch::Wait& wait) {
    if (!overdue) overdue = reader(wait.source).find_overdue(wait.chunk, wait.cell, wait.since, now);
  });
  for (const auto& reader : *readers_) {
    if (!overdue && reader != nullptr) overdue = reader->find_overdue(now);
  }
  return overdue;
}

void Fetcher::cancel() {
  is_cancelled_ = true;
  for (const auto& reader : *readers_) {
    if (reader != nullptr) reader->cancel();
  }
}

void Fetcher::clear() {
  queue_.clear();
  to_request_.clear();
  early_.clear();
  fetched_.clear();
}

}  // namespace zarrfeed
