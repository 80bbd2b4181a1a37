#pragma once
// Sequence packing: which packed sample has which sequences. There is no other code for it.
//
// Sequences are packed pool by pool, the longest of a pool first: each goes to the sample of the pool with the least room
// that is enough for it (best fit), or begins a new one. Of equally long sequences the first comes first, and of samples
// with the same room the first takes it.
//
// Invariant: every sequence is in one sample, whole, and no sample has more rows than there is room for. Samples are
// numbered from 0 without a gap, those of a pool side by side, in the order of the pools.

#include <cstdint>
#include <span>

namespace zarrfeed {

/// Sets `sample_of` to the sample of each sequence. `pool_begin` has the first sequence of each pool, ascending from 0.
/// Throws Error(kConfig) if a sequence is longer than `room`, or the arrays do not fit together.
void pack_sequences(std::span<const int64_t> lengths, std::span<const int64_t> pool_begin, int64_t room,
                    std::span<int64_t> sample_of);

}  // namespace zarrfeed
