#include "storage/access/io_threads.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace zarrfeed {

IoThreads::~IoThreads() {
  stop(Clock::now());
}

void IoThreads::post(Job job) {
  std::unique_lock lock(state_->mutex);
  if (state_->cancelled) return;
  state_->jobs.push_back(std::move(job));
  try {
    start_thread_for(lock, max_threads_);
  } catch (...) {
    state_->jobs.pop_back();
    throw;
  }
  state_->changed.notify_one();
}

void IoThreads::post_at(Clock::time_point time, std::function<void()> function) {
  std::unique_lock lock(state_->mutex);
  if (state_->cancelled) return;
  const auto entry = state_->later.emplace(time, std::move(function));
  try {
    start_thread_for(lock, std::max<size_t>(1, max_threads_));
  } catch (...) {
    state_->later.erase(entry);
    throw;
  }
  state_->changed.notify_one();
}

/// Starts a thread if all that there are have something to do, and there may be more.
void IoThreads::start_thread_for(std::unique_lock<std::mutex>& /*lock*/, size_t max_threads) {
  if (state_->idle >= state_->jobs.size() + state_->later.size() || state_->threads >= max_threads) return;
  try {
    threads_.start([state = state_](StallWatch& watch) { serve(*state, watch); });
    ++state_->threads;
    ++state_->idle;  // it is on its way to the queue
  } catch (const std::system_error& error) {
    if (state_->threads > 0) return;  // fewer do, too
    throw Error::io(std::string("cannot start a fetch thread: ") + error.what(), error.code().value());
  }
}

void IoThreads::serve(State& state, StallWatch& watch) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    if (state.cancelled) break;
    if (!state.later.empty() && state.later.begin()->first <= Clock::now()) {
      auto entry = state.later.extract(state.later.begin());
      --state.idle;
      lock.unlock();
      entry.mapped()();
      entry = {};
      lock.lock();
      ++state.idle;
    } else if (!state.jobs.empty()) {
      Job job = std::move(state.jobs.front());
      state.jobs.pop_front();
      --state.idle;
      lock.unlock();
      watch.enter({});
      job.in_storage();
      if (!watch.leave()) throw LeftBehind{};
      job.done();
      job = {};
      lock.lock();
      ++state.idle;
    } else if (state.later.empty()) {
      state.changed.wait(lock);
    } else {
      const auto time = state.later.begin()->first;  // the entry may be taken by another thread meanwhile
      state.changed.wait_until(lock, time);
    }
  }
  --state.idle;
  --state.threads;
}

bool IoThreads::sleep_until(Clock::time_point time) {
  std::unique_lock lock(state_->mutex);
  return !state_->cancelling.wait_until(lock, time, [this] { return state_->cancelled; });
}

void IoThreads::cancel() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->cancelled = true;
  }
  state_->changed.notify_all();
  state_->cancelling.notify_all();
}

bool IoThreads::stop(Clock::time_point deadline) {
  cancel();
  const bool all_ended = threads_.stop(deadline);
  // Jobs hold requests, and what those hold: dropped without the lock.
  std::deque<Job> jobs;
  std::multimap<Clock::time_point, std::function<void()>> later;
  {
    const std::lock_guard lock(state_->mutex);
    jobs.swap(state_->jobs);
    later.swap(state_->later);
    if (all_ended) state_->cancelled = false;
  }
  return all_ended;
}

}  // namespace zarrfeed
