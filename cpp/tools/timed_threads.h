#pragma once
// Threads that are timed together: all are ready before the clock starts, and all have ended when it stops.

#include <cstddef>
#include <functional>

namespace zarrfeed {

/// Runs `work` on threads of its own, and returns the seconds from the moment when all of them are ready to the end of
/// the last one. Each calls the function that it is given once, after its set-up: it returns when the clock starts.
/// Throws what any of them throws, when all have ended.
double run_timed(size_t num_threads, const std::function<void(const std::function<void()>& await_start)>& work);

}  // namespace zarrfeed
