#pragma once
// Weighted counts: how often each row comes in an epoch whose rows are weighted. There is no other code for it.
//
// This is permuted systematic sampling. A *pool* is a block with 64 rows or more; or blocks with fewer, in the order of
// the array, until they have 64 rows and 2 samples are expected of them; what is left is the last pool. Pools are
// permuted (key: purpose, seed, epoch), and the rows of each (key: purpose, seed, epoch, number of the pool), as
// row_order.h permutes rows. The rows are laid end to end, each as long as the count that is expected of it, and cut at
// a phase in [0, 1) of the epoch (key: purpose, seed, epoch) and at each whole number behind it. A row comes once for
// each cut in it. An expected count is a whole number of shares, of which 2^bits are one sample.
//
// Invariant: a row comes floor or ceil of what is expected of it, and so does each pool; the sum of all counts is that
// of all expected counts, if this is a whole number. A row of which a whole number is expected has that count in each
// epoch, and a row without shares never comes.

#include <cstdint>
#include <span>

namespace zarrfeed {

/// Blocks of rows, and what is expected of each row. All arrays are borrowed.
struct WeightedRows {
  std::span<const int64_t> expected;  ///< shares of each row, block by block
  unsigned bits = 0;                  ///< 2^bits shares are one sample
  std::span<const int64_t> rows;      ///< rows of each block
};

/// Sets `counts` to how often each row comes in an epoch. Throws Error(kConfig) if the arrays do not fit together, or
/// shares are negative, or more than 2^62 together.
void draw_counts(const WeightedRows& of, uint64_t seed, uint64_t epoch, std::span<int64_t> counts);

}  // namespace zarrfeed
