#include "transform/patches/chunk_crop.h"

#include <algorithm>
#include <cstring>

namespace zarrfeed {

bool ChunkCrop::holds(const ChunkCrop& other) const {
  for (size_t a = 0; a < kMaxAxes; ++a) {
    if (other.begin[a] < begin[a] || other.end[a] > end[a]) return false;
  }
  return true;
}

void ChunkCrop::join(const ChunkCrop& other) {
  for (size_t a = 0; a < kMaxAxes; ++a) {
    begin[a] = std::min(begin[a], other.begin[a]);
    end[a] = std::max(end[a], other.end[a]);
  }
}

ChunkCrop whole_chunk(const ArraySpec& array) {
  ChunkCrop whole;
  std::ranges::copy(array.chunk_shape, whole.end.begin());
  return whole;
}

size_t crop_bytes(const ArraySpec& array, const ChunkCrop& crop) {
  size_t bytes = array.item_bytes;
  for (size_t a = 0; a < array.shape.size(); ++a) bytes *= static_cast<size_t>(crop.end[a] - crop.begin[a]);
  return bytes;
}

PerAxis crop_strides(const ArraySpec& array, const ChunkCrop& crop) {
  PerAxis strides{};
  auto stride = static_cast<int64_t>(array.item_bytes);
  for (size_t i = array.shape.size(); i-- > 0;) {
    const auto axis = static_cast<size_t>(array.storage_order[i]);
    strides[axis] = stride;
    stride *= crop.end[axis] - crop.begin[axis];
  }
  return strides;
}

void copy_crop(const ArraySpec& array, const ChunkCrop& crop, const uint8_t* chunk, uint8_t* out) {
  const PerAxis strides = crop_strides(array, whole_chunk(array));
  const auto extent = [&](size_t axis) { return crop.end[axis] - crop.begin[axis]; };
  const auto axis_at = [&](size_t stored) { return static_cast<size_t>(array.storage_order[stored]); };
  // The innermost axes that the crop has whole, and the axis around them, are one run of bytes.
  auto run = static_cast<int64_t>(array.item_bytes);
  size_t outer = array.shape.size();
  for (bool is_whole = true; is_whole && outer > 0;) {
    const size_t axis = axis_at(--outer);
    run *= extent(axis);
    is_whole = extent(axis) == array.chunk_shape[axis];
  }
  const uint8_t* source = chunk;
  for (size_t a = 0; a < array.shape.size(); ++a) source += crop.begin[a] * strides[a];
  PerAxis at{};
  for (const uint8_t* const end = out + crop_bytes(array, crop); out < end; out += run) {
    std::memcpy(out, source, static_cast<size_t>(run));
    for (size_t i = outer; i-- > 0;) {
      const size_t axis = axis_at(i);
      source += strides[axis];
      if (++at[axis] < extent(axis)) break;
      source -= extent(axis) * strides[axis];
      at[axis] = 0;
    }
  }
}

}  // namespace zarrfeed
