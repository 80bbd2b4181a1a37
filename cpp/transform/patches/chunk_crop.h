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

  /// Whether all of another box lies in this one.
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
/// Copies a crop of a decoded chunk to `out`, which has room for crop_bytes().
void copy_crop(const ArraySpec& array, const ChunkCrop& crop, const uint8_t* chunk, uint8_t* out);

}  // namespace zarrfeed
