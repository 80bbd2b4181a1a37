#pragma once
// Threads that wait for storage, so that others need not; and the clock by which reads are retried.

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "storage/access/watched_threads.h"

namespace zarrfeed {

/// Thread-safe.
class IoThreads {
 public:
  using Clock = std::chrono::steady_clock;

  /// The work of a thread: go to storage, and then deliver the result. A thread that was left behind in storage says
  /// nothing. Both hold what they use, and neither throws.
  struct Job {
    std::function<void()> in_storage;
    std::function<void()> done;
  };

  /// At most `max_threads`, which are started when there is something to do for them.
  explicit IoThreads(size_t max_threads) : max_threads_(max_threads) {}
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  [[nodiscard]] size_t max_threads() const { return max_threads_; }

  /// Does a job on a thread. Drops it if there was a cancel(). Throws Error(kIo) if there is no thread to be had.
  void post(Job job);
  /// Calls a function at that time, on a thread; `max_threads` = 0 is one for this. Drops it if there was a cancel().
  void post_at(Clock::time_point time, std::function<void()> function);
  /// Waits on the calling thread. False if there was a cancel().
  bool sleep_until(Clock::time_point time);

  /// Begins nothing any more, and ends all sleep. Never waits.
  void cancel();
  /// Does that, and waits for the threads: at most until `deadline` for those in storage. After it has returned true, this
  /// may be used again; false: a thread was left behind.
  bool stop(Clock::time_point deadline);

 private:
  /// Threads hold it, since they may be left behind.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;     ///< threads: something to do
    std::condition_variable cancelling;  ///< those who sleep
    std::deque<Job> jobs;
    std::multimap<Clock::time_point, std::function<void()>> later;
    size_t threads = 0;
    size_t idle = 0;
    bool cancelled = false;
  };

  static void serve(State& state, StallWatch& watch);
  void start_thread_for(std::unique_lock<std::mutex>& lock, size_t max_threads);

  const size_t max_threads_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  WatchedThreads threads_;
};

}  // namespace zarrfeed
