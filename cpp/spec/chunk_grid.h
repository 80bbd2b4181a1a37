#pragma once
// Which read chunks an array consists of. Pure arithmetic of its specification.
//
// A read chunk is named by its index along the sample axis, `chunk`, and its cell: the place in the grid over the other
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
    size_t stride = 1;
    for (size_t axis = array.shape.size(); axis-- > 0;) {
      if (static_cast<int>(axis) == array.sample_axis) continue;
      strides_[axis] = stride;
      counts_[axis] = static_cast<size_t>((array.shape[axis] - 1) / array.chunk_shape[axis] + 1);
      stride *= counts_[axis];
    }
  }

  /// Cells are numbered in C order.
  [[nodiscard]] int64_t index(size_t cell, size_t axis) const {
    return static_cast<int64_t>(cell / strides_[axis] % counts_[axis]);
  }

 private:
  std::vector<size_t> counts_;
  std::vector<size_t> strides_;
};

/// All grid indices over the axes other than the sample axis, in C order; the entry of the sample axis is 0.
inline std::vector<std::vector<int64_t>> list_cells(const ArraySpec& array) {
  const size_t ndim = array.shape.size();
  std::vector<std::vector<int64_t>> cells(1, std::vector<int64_t>(ndim, 0));
  for (size_t axis = ndim; axis-- > 0;) {
    if (static_cast<int>(axis) == array.sample_axis) continue;
    const int64_t n = (array.shape[axis] + array.chunk_shape[axis] - 1) / array.chunk_shape[axis];
    std::vector<std::vector<int64_t>> more;
    more.reserve(cells.size() * static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      for (const auto& cell : cells) {
        more.push_back(cell);
        more.back()[axis] = i;
      }
    }
    cells = std::move(more);
  }
  return cells;
}

}  // namespace zarrfeed
