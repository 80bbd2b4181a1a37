#pragma once
// The block order: all blocks that are read, in the order of an epoch, laid end to end. Lanes are cut from it.
//
// An order is unfolded block by block, from any position on. Three orders:
//   natural  blocks keep their order, from some block on
//   listed   a table of held indices: shuffled orders of version 1
//   combs    shuffled orders of version 2, which need 24 bytes for each 1024 blocks
//
// Rotated combs. The n held indices are cut into S strata of m = ceil(n / S) consecutive ones. Superblock j < m has one
// block of each stratum:
//     index(i, j) = i m + (j + h_i) mod m      unless that is n or more;  h_i = hash(seed, epoch, rotation, i) below m
// Superblocks come in random order, and so do the blocks of one: permutations by Fisher and Yates, with keys of their
// own. So each index comes once: i = index div m, j = (index - i m - h_i) mod m. Neighbours of the array come in
// superblocks far apart, and each superblock has blocks of all of the array. It is not uniform over all permutations:
// two blocks of a stratum are never in one superblock.
//
// Pure. All functions are const, and may be called from several threads.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plan/block_table.h"

namespace zarrfeed {

class BlockOrder {
 public:
  /// A block: its ordinal, the number in the order of blocks, and the position at which it begins.
  struct Seat {
    int64_t ordinal = 0;
    int64_t begin = 0;
  };

  virtual ~BlockOrder() = default;
  BlockOrder(const BlockOrder&) = delete;
  BlockOrder& operator=(const BlockOrder&) = delete;

  /// The order that begins at the held index `first`; the blocks before it come last. `short_last`: the last block
  /// comes last in any case.
  static std::shared_ptr<const BlockOrder> natural(std::shared_ptr<const BlockTable> table, int64_t first,
                                                   bool short_last);
  /// The order of blocks with listed held indices.
  static std::shared_ptr<const BlockOrder> listed(std::shared_ptr<const BlockTable> table,
                                                  std::span<const int64_t> held_indices);
  /// The order of rotated combs with so many strata. All three throw Error(kConfig) if the arguments contradict each
  /// other.
  static std::shared_ptr<const BlockOrder> combs(std::shared_ptr<const BlockTable> table, uint64_t seed, uint64_t epoch,
                                                 int64_t strata);

  [[nodiscard]] const BlockTable& table() const { return *table_; }
  /// The block that has a position of [0, table().length()).
  [[nodiscard]] virtual Seat find(int64_t position) const = 0;
  /// The block with an ordinal of [0, table().num_blocks()).
  [[nodiscard]] virtual Seat at(int64_t ordinal) const = 0;
  /// Sets `held_indices` to those of the blocks from an ordinal on, as far as they are found at once: one at least.
  virtual void unfold(int64_t ordinal, std::vector<uint32_t>& held_indices) const = 0;
  /// The ordinal of the block with a held index.
  [[nodiscard]] virtual int64_t ordinal_of(int64_t held_index) const = 0;

 protected:
  /// Throws Error(kConfig) if there are more blocks than an order may have, 2^32.
  explicit BlockOrder(std::shared_ptr<const BlockTable> table);
  const std::shared_ptr<const BlockTable> table_;
};

}  // namespace zarrfeed
