#pragma once
// The read chunks of an array. Pure arithmetic of its specification.
//
// A read chunk is named by its index along the sample axis, `chunk`, and its cell: the index in the grid over the other
// axes. One row of the array lies in all cells of one such index. Where samples have chosen items alone
// (ArraySpec::chosen), the chunks without one are no cells.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "spec/array_spec.h"

namespace zarrfeed {

/// Bytes of a decoded read chunk, the padding of edge chunks included.
inline size_t chunk_bytes(const ArraySpec& array) {
  size_t n = array.item_bytes;
  for (const int64_t extent : array.chunk_shape) n *= static_cast<size_t>(extent);
  return n;
}

/// Finds the grid index of a cell along an axis other than the sample axis. It has no memory a cell: there may be 2**40.
class CellGrid {
 public:
  explicit CellGrid(const ArraySpec& array)
      : counts_(array.shape.size(), 1), strides_(array.shape.size(), 1), chunks_(array.shape.size()) {
    for (size_t axis = array.shape.size(); axis-- > 0;) {
      if (static_cast<int>(axis) == array.sample_axis) continue;
      strides_[axis] = num_cells_;
      counts_[axis] = static_cast<size_t>((array.shape[axis] - 1) / array.chunk_shape[axis] + 1);
      if (!array.has_all(axis)) {
        std::vector<int64_t>& chunks = chunks_[axis];
        for (const int64_t item : array.chosen[axis]) chunks.push_back(item / array.chunk_shape[axis]);
        std::ranges::sort(chunks);
        const auto again = std::ranges::unique(chunks);
        chunks.erase(again.begin(), again.end());
        counts_[axis] = chunks.size();
      }
      num_cells_ *= counts_[axis];
    }
  }

  [[nodiscard]] size_t num_cells() const { return num_cells_; }
  /// The difference of the numbers of two cells that are neighbours along an axis other than the sample axis.
  [[nodiscard]] size_t stride(size_t axis) const { return strides_[axis]; }
  /// Cells are numbered in C order; along the sample axis it is 0.
  [[nodiscard]] int64_t index(size_t cell, size_t axis) const {
    const size_t ordinal = cell / strides_[axis] % counts_[axis];
    return chunks_[axis].empty() ? static_cast<int64_t>(ordinal) : chunks_[axis][ordinal];
  }
  /// The position of `index` among the indices that cells have along an axis; the inverse of index().
  [[nodiscard]] size_t ordinal(int64_t index, size_t axis) const {
    const std::vector<int64_t>& chunks = chunks_[axis];
    if (chunks.empty()) return static_cast<size_t>(index);
    return static_cast<size_t>(std::ranges::lower_bound(chunks, index) - chunks.begin());
  }
  /// The indices along an axis that cells have, ascending.
  [[nodiscard]] std::vector<int64_t> chunks_along(size_t axis) const {
    if (!chunks_[axis].empty()) return chunks_[axis];
    std::vector<int64_t> all(counts_[axis]);
    std::iota(all.begin(), all.end(), int64_t{0});
    return all;
  }

 private:
  size_t num_cells_ = 1;
  std::vector<size_t> counts_;
  std::vector<size_t> strides_;
  std::vector<std::vector<int64_t>> chunks_;  ///< by axis, those with chosen items, ascending; empty: all
};

}  // namespace zarrfeed
