#pragma once
// A crop of a decoded chunk: a box of its items, copied out of the chunk. Pure: memory in, memory out.
//
// Invariant: a crop has the items of its box one after another, in the storage order of the array, and each as it
// stands in the chunk: in its byte order, and not converted.

#include <array>
#include <cstddef>
#include <cstdint>

#include "spec/array_spec.h"

namespace zarrfeed {

/// Axes of an array whose chunks are cut, at most.
inline constexpr size_t kMaxAxes = 16;
using PerAxis = std::array<int64_t, kMaxAxes>;

/// A box of a chunk: along each axis the items [begin, end), counted from the first item of the chunk.
struct ChunkCrop {
  PerAxis begin{};
  PerAxis end{};

  /// True if all of another box lies in this one.
  [[nodiscard]] bool holds(const ChunkCrop& other) const;
  /// Grows the box to the smallest one that holds another one, too.
  void join(const ChunkCrop& other);
};

/// The box that is all of a chunk.
ChunkCrop whole_chunk(const ArraySpec& array);
/// Bytes of a crop.
size_t crop_bytes(const ArraySpec& array, const ChunkCrop& crop);
/// Bytes from one item of a crop to the next one, along each axis.
PerAxis crop_strides(const ArraySpec& array, const ChunkCrop& crop);
/// Calls use(offset, bytes) for each run of bytes of a crop in a decoded chunk, ascending. Runs with at most `max_gap` bytes
/// between them are one run, gaps included.
template <typename Use>
void for_each_run(const ArraySpec& array, const ChunkCrop& crop, size_t max_gap, const Use& use) {
  const PerAxis strides = crop_strides(array, whole_chunk(array));
  const auto extent = [&](size_t axis) { return crop.end[axis] - crop.begin[axis]; };
  auto run = static_cast<int64_t>(array.item_bytes);
  int64_t offset = 0;
  PerAxis outer{};  // the axes around the runs, the outermost last
  size_t num_outer = 0;
  for (size_t i = array.shape.size(); i-- > 0;) {
    const auto axis = static_cast<size_t>(array.storage_order[i]);
    if (extent(axis) < 1) return;
    offset += crop.begin[axis] * strides[axis];
    if (extent(axis) == 1) continue;
    if (num_outer == 0 && static_cast<size_t>(strides[axis] - run) <= max_gap) {
      run += (extent(axis) - 1) * strides[axis];
    } else {
      outer[num_outer++] = static_cast<int64_t>(axis);
    }
  }
  PerAxis at{};
  for (bool is_done = false; !is_done;) {
    use(static_cast<size_t>(offset), static_cast<size_t>(run));
    is_done = true;
    for (size_t i = 0; i < num_outer && is_done; ++i) {
      const auto axis = static_cast<size_t>(outer[i]);
      offset += strides[axis];
      is_done = ++at[i] == extent(axis);
      if (!is_done) continue;
      offset -= extent(axis) * strides[axis];
      at[i] = 0;
    }
  }
}

/// True if the items of a crop lie side by side in the chunk.
bool is_one_run(const ArraySpec& array, const ChunkCrop& crop);

/// Copies a crop of a decoded chunk to `out`, which has room for crop_bytes().
void copy_crop(const ArraySpec& array, const ChunkCrop& crop, const uint8_t* chunk, uint8_t* out);

}  // namespace zarrfeed
