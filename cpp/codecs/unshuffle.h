#pragma once
// Undoing the byte shuffle of Blosc and of HDF5, for a part of a block, straight to where it is wanted, or for all of it.

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace zarrfeed {

/// Writes elements [first, first + count) of a byte-shuffled block to `dest`, which need not be aligned.
/// Byte k of element i lies at planes[k * plane_bytes + i]. With `streaming`, stores bypass the cache where they can:
/// faster if `dest` is not read again before it would be evicted. fence_streaming_stores() must follow.
using UnshuffleRange = void (*)(const uint8_t* planes, size_t plane_bytes, size_t first, size_t count, uint8_t* dest,
                                bool streaming);

/// The kernel for elements of `typesize` bytes that is at least as fast as unshuffling a whole block, or nullptr if this
/// processor has none.
UnshuffleRange find_unshuffle_range(size_t typesize);

/// Writes all elements of `in` to `out`, of in.size() bytes. Bytes behind the last whole element stay where they are.
void unshuffle(size_t typesize, Bytes in, uint8_t* out);
/// Undoes the byte shuffle byte by byte, for whole elements of any size and number.
void unshuffle_portably(size_t typesize, Bytes in, uint8_t* out);

/// blosc2 picks its kernels for this processor at first use, without a lock. This must come before its first use.
void warm_up_shuffle();

}  // namespace zarrfeed
