#pragma once
// Threads that may have to be left behind: storage that does not answer cannot be interrupted (stall_watch.h).

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "storage/access/stall_watch.h"

namespace zarrfeed {

/// Thread-safe. Whoever starts threads stops them before this is destroyed.
class WatchedThreads {
 public:
  /// The work of a thread. It ends by LeftBehind if it was left behind, and by no other exception.
  using Body = std::function<void(StallWatch&)>;

  /// Starts a thread, and returns its watch, by which it can be left behind. Throws std::system_error if the system gives
  /// none. Not while stop() is under way.
  std::shared_ptr<StallWatch> start(Body body);
  /// Waits for all threads to end, at most until `deadline` for those that are in storage; these are left behind, and
  /// nothing here knows of them any more. True if there were none. The caller has told the threads to end.
  bool stop(std::chrono::steady_clock::time_point deadline);
  /// Calls visit(wait) for each thread that is in storage.
  template <typename Visit>
  void for_each_wait(const Visit& visit) const {
    const std::lock_guard lock(shared_->mutex);
    for (const auto& worker : workers_) {
      if (const auto wait = worker->watch.waiting()) visit(*wait);
    }
  }

 private:
  struct Worker {
    std::thread thread;
    StallWatch watch;
    bool ended = false;
  };
  /// Threads that end hold it, so that they may do so at any time.
  struct Shared {
    std::mutex mutex;  ///< of `workers_` and of what they say
    std::condition_variable ended;
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::list<std::shared_ptr<Worker>> workers_;
};

}  // namespace zarrfeed
