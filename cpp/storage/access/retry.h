#pragma once
// The meaning of an I/O error: whether a retry may succeed and when, and whether the error is about the chunk at all.

#include <chrono>
#include <cstddef>

#include "base/error.h"

namespace zarrfeed {

/// True for errors that may be gone a moment later: of a device or a network, or of a machine that has too little of
/// something. False for what the store says of itself, such as that an object is not there or may not be read.
[[nodiscard]] bool is_transient(int errno_value);

/// Returns how long to wait after a try that failed, the first of them with `tries` = 0: twice as long each time, up to
/// ten seconds. At random from half of that on: what failed together must not come back together.
[[nodiscard]] std::chrono::milliseconds pause_after(size_t tries);

/// True for an I/O error that says something of the chunk; false for storage that does not answer, and for what this
/// process lacks to read any.
[[nodiscard]] bool is_of_chunk(int errno_value);
/// True if an error of any kind is about the chunk, as one of decoding is, and one of a plan that does not work is not.
[[nodiscard]] bool is_of_chunk(const Error& error);

}  // namespace zarrfeed
