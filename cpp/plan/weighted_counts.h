#pragma once
// Weighted counts: how often each row comes in an epoch whose rows are weighted. There is no other code for it.
//
// Permuted systematic sampling; docs/design/order.md, Weights, defines it. Pools of rows are permuted by a key of (seed,
// epoch), and the rows of each pool by a key of (seed, epoch, pool). All rows are laid end to end, each as long as the
// count that is expected of it. The line is cut at a phase in [0, 1) of the epoch, and at every whole number behind it.
// A row comes once for each cut in it.
//   pool    the rows of a block that has 64 or more; or of several smaller blocks, until they have 64 rows together, and
//           2 samples are expected of them
//   unit    a part of a count: expected counts are whole numbers of units, of which 2^bits are one sample
//
// Invariant: a row comes floor or ceil of what is expected of it, and so does each pool; the sum of all counts is that
// of all expected counts, if this is a whole number. A row of which a whole number is expected has that count in each
// epoch, and a row of no units never comes.

#include <cstdint>
#include <span>

namespace zarrfeed {

/// Blocks of rows, and what is expected of each row. All arrays are borrowed.
struct WeightedRows {
  std::span<const int64_t> expected;  ///< units of each row, block by block
  unsigned bits = 0;                  ///< 2^bits units are one sample
  std::span<const int64_t> rows;      ///< rows of each block
};

/// Sets `counts` to how often each row comes in an epoch. Throws Error(kConfig) if the arrays do not fit together, or
/// units are negative, or more than 2^62 together.
void draw_counts(const WeightedRows& of, uint64_t seed, uint64_t epoch, std::span<int64_t> counts);

}  // namespace zarrfeed
