#pragma once
// Stores that bypass the cache: faster if the written bytes are not read again before they would be evicted.

#include <cstddef>
#include <cstdint>

namespace zarrfeed {

/// Copies bytes, with such stores where this processor has them. fence_streaming_stores() must follow.
void copy_streaming(uint8_t* dest, const uint8_t* source, size_t bytes);

/// Orders this thread's stores past the cache before its later ones: a release operation alone does not.
void fence_streaming_stores();

}  // namespace zarrfeed
