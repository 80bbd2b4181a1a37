#pragma once
// Threads that are timed together: all are ready before the clock starts, and all have ended when it stops.

#include <cstddef>
#include <functional>

namespace zarrfeed {

struct Elapsed {
  double seconds = 0;      ///< from the moment when all threads are ready to the end of the last one
  double cpu_seconds = 0;  ///< of all threads, after their set-up
};

/// Runs `work` on threads of its own, and returns how long they took. Each calls the function that it is given once, after its set-up: it returns when the clock starts.
/// Throws what any of them throws, when all have ended.
Elapsed run_timed(size_t num_threads, const std::function<void(const std::function<void()>& await_start)>& work);

}  // namespace zarrfeed
