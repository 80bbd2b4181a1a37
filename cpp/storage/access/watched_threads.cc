#include "storage/access/watched_threads.h"

#include <algorithm>
#include <utility>

namespace zarrfeed {
namespace {

/// The pause between two looks at a thread that is in storage when the time is up.
constexpr std::chrono::milliseconds kPollInterval{20};

}  // namespace

std::shared_ptr<StallWatch> WatchedThreads::start(Body body) {
  const auto worker = std::make_shared<Worker>();
  const std::lock_guard lock(shared_->mutex);
  workers_.push_back(worker);
  try {
    worker->thread = std::thread([shared = shared_, worker, run = std::move(body)] {
      try {
        run(worker->watch);
      } catch (const LeftBehind&) {
        return;
      }
      const std::lock_guard end(shared->mutex);
      worker->ended = true;
      shared->ended.notify_all();
    });
  } catch (...) {
    workers_.pop_back();
    throw;
  }
  return {worker, &worker->watch};
}

bool WatchedThreads::stop(std::chrono::steady_clock::time_point deadline) {
  bool all_ended = true;
  std::unique_lock lock(shared_->mutex);
  for (const auto& worker : workers_) {
    while (!worker->ended) {
      const auto until = std::max(deadline, std::chrono::steady_clock::now() + kPollInterval);
      if (shared_->ended.wait_until(lock, until, [&] { return worker->ended; })) break;
      if (worker->watch.abandon()) break;
    }
    if (worker->ended) {
      worker->thread.join();  // it wants no lock any more
    } else {
      worker->thread.detach();
      all_ended = false;
    }
  }
  workers_.clear();
  return all_ended;
}

}  // namespace zarrfeed
