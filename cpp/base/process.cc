#include "base/process.h"

#include <pthread.h>

#include <atomic>

namespace zarrfeed {
namespace {

std::atomic<pid_t> current{0};

}  // namespace

pid_t process_id() {
  static const bool is_watched = [] {
    current = getpid();
    return pthread_atfork(nullptr, nullptr, [] { current = getpid(); }) == 0;
  }();
  return is_watched ? current.load(std::memory_order_relaxed) : getpid();
}

}  // namespace zarrfeed
