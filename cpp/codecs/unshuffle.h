#pragma once
// Undoing Blosc's byte shuffle for a part of a block, straight to where it is wanted.

#include <cstddef>
#include <cstdint>

namespace zarrfeed {

/// Writes elements [first, first + count) of a byte-shuffled block to `dest`, which need not be aligned.
/// Byte k of element i lies at planes[k * plane_bytes + i]. With `streaming`, stores bypass the cache where they can:
/// faster if `dest` is not read again before it would be evicted. fence_streaming_stores() must follow.
using UnshuffleRange = void (*)(const uint8_t* planes, size_t plane_bytes, size_t first, size_t count, uint8_t* dest,
                                bool streaming);

/// The kernel for elements of `typesize` bytes that is at least as fast as unshuffling a whole block, or nullptr if this
/// processor has none.
UnshuffleRange find_unshuffle_range(size_t typesize);

}  // namespace zarrfeed
