#pragma once
// What an I/O error says: whether another try may succeed, and whether it is about the chunk at all.

#include "error.h"

namespace zarrfeed {

/// True for errors that may be gone a moment later: of a device or a network, or of a machine that has too little of
/// something. False for what the store says of itself, such as that an object is not there or may not be read.
[[nodiscard]] bool is_transient(int errno_value);

/// True for an I/O error that says something of the chunk; false for storage that does not answer, and for what this
/// process lacks to read any.
[[nodiscard]] bool is_of_chunk(int errno_value);
/// The same for any error: a chunk that does not decode is bad, a plan that does not work is not the chunk's fault.
[[nodiscard]] bool is_of_chunk(const Error& error);

}  // namespace zarrfeed
