#pragma once
// Which read chunks an array consists of. Pure arithmetic of its specification.
//
// A read chunk is named by its index along the sample axis, `chunk`, and its cell: the index in the grid over the other
// axes. One row of the array lies in all cells of one such index.

#include <cstddef>
#include <cstdint>
#include <utility>
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
  explicit CellGrid(const ArraySpec& array) : counts_(array.shape.size(), 1), strides_(array.shape.size(), 1) {
    for (size_t axis = array.shape.size(); axis-- > 0;) {
      if (static_cast<int>(axis) == array.sample_axis) continue;
      strides_[axis] = num_cells_;
      counts_[axis] = static_cast<size_t>((array.shape[axis] - 1) / array.chunk_shape[axis] + 1);
      num_cells_ *= counts_[axis];
    }
  }

  [[nodiscard]] size_t num_cells() const { return num_cells_; }
  /// What one step along an axis other than the sample axis adds to the number of a cell.
  [[nodiscard]] size_t stride(size_t axis) const { return strides_[axis]; }
  /// Cells are numbered in C order; along the sample axis it is 0.
  [[nodiscard]] int64_t index(size_t cell, size_t axis) const {
    return static_cast<int64_t>(cell / strides_[axis] % counts_[axis]);
  }

 private:
  size_t num_cells_ = 1;
  std::vector<size_t> counts_;
  std::vector<size_t> strides_;
};

/// All grid indices over the axes other than the sample axis, in C order; the entry of the sample axis is 0.
inline std::vector<std::vector<int64_t>> list_cells(const ArraySpec& array) {
  const CellGrid grid(array);
  std::vector<std::vector<int64_t>> cells(grid.num_cells(), std::vector<int64_t>(array.shape.size(), 0));
  for (size_t cell = 0; cell < cells.size(); ++cell) {
    for (size_t axis = 0; axis < array.shape.size(); ++axis) cells[cell][axis] = grid.index(cell, axis);
  }
  return cells;
}

}  // namespace zarrfeed
