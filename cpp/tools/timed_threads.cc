#include "tools/timed_threads.h"

#include <time.h>

#include <chrono>
#include <exception>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

namespace zarrfeed {

namespace {

double thread_cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

Elapsed run_timed(size_t num_threads, const std::function<void(const std::function<void()>& await_start)>& work) {
  std::mutex mutex;
  std::exception_ptr error;
  double cpu_seconds = 0;
  std::latch ready(static_cast<std::ptrdiff_t>(num_threads));
  std::latch go(1);
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  for (size_t t = 0; t < num_threads; ++t) {
    threads.emplace_back([&] {
      bool is_ready = false;
      double cpu_start = 0;
      try {
        work([&] {
          is_ready = true;
          ready.count_down();
          go.wait();
          cpu_start = thread_cpu_seconds();
        });
        const std::lock_guard lock(mutex);
        cpu_seconds += thread_cpu_seconds() - cpu_start;
      } catch (...) {
        const std::lock_guard lock(mutex);
        error = std::current_exception();
      }
      if (!is_ready) ready.count_down();  // nobody waits for a thread that failed
    });
  }
  ready.wait();
  const auto start = std::chrono::steady_clock::now();
  go.count_down();
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (error) std::rethrow_exception(error);
  return {elapsed.count(), cpu_seconds};
}

}  // namespace zarrfeed
