#pragma once
// The block table: which blocks are read, with the first row and the number of rows of each. A block that is read has a
// held index, its number among the blocks that are read. Nothing is stored for each block where rows follow a rule.
//
// Pure. All functions are const, and may be called from several threads.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace zarrfeed {

/// Blocks that follow a rule: block i of the run has the held index `held_index + i`, is block `block + i` of the
/// array, begins at `first + i * stride`, and has `rows` rows.
struct BlockRun {
  int64_t held_index = 0;
  int64_t block = 0;
  int64_t first = 0;
  int64_t stride = 0;
  int64_t rows = 0;
};

/// A block: its number in the array, its first row in the form that the engine takes, and its number of rows.
struct BlockRows {
  int64_t block = 0;
  int64_t first = 0;
  int64_t rows = 0;
};

/// Blocks in a row that have as many rows each.
struct Stretch {
  int64_t count = 0;
  int64_t rows = 0;
};

class BlockTable {
 public:
  virtual ~BlockTable() = default;
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  /// The table of some runs, which follow each other from the held index 0 on, with `num_blocks` blocks.
  static std::shared_ptr<const BlockTable> of_runs(std::vector<BlockRun> runs, int64_t num_blocks);
  /// The table of `count` samples start, start + step, ... of an array with blocks of so many rows.
  static std::shared_ptr<const BlockTable> of_steps(int64_t start, int64_t step, int64_t count, int64_t block_rows);
  /// The table of blocks that are listed, stored in as few bytes each as the largest number needs.
  /// All three throw Error(kConfig) if the numbers do not fit together.
  static std::shared_ptr<const BlockTable> of_list(std::span<const int64_t> block, std::span<const int64_t> first,
                                                   std::span<const int64_t> rows);

  [[nodiscard]] int64_t num_blocks() const { return num_blocks_; }
  /// Rows of all blocks.
  [[nodiscard]] int64_t length() const { return length_; }
  /// The block with a held index of [0, num_blocks()).
  [[nodiscard]] virtual BlockRows at(int64_t held_index) const = 0;
  /// Rows of all blocks before a held index of [0, num_blocks()].
  [[nodiscard]] virtual int64_t rows_before(int64_t held_index) const = 0;
  /// The held index of the block that has row `row` of all, counted in the order of held indices; 0 <= row < length().
  [[nodiscard]] virtual int64_t index_of(int64_t row) const = 0;
  /// True if blocks in a row mostly have as many rows each.
  [[nodiscard]] virtual bool has_stretches() const = 0;
  /// Blocks from `held_index` on that have as many rows each, up to the held index `end`, which is behind it. If there
  /// are stretches, this is all of them.
  [[nodiscard]] virtual Stretch stretch(int64_t held_index, int64_t end) const = 0;
  /// Sets `rows` to those of the blocks from `held_index` on.
  virtual void list_rows(int64_t held_index, std::span<int64_t> rows) const = 0;

 protected:
  BlockTable() = default;
  int64_t num_blocks_ = 0;
  int64_t length_ = 0;
};

}  // namespace zarrfeed
