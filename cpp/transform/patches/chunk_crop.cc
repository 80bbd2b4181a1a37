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

bool is_one_run(const ArraySpec& array, const ChunkCrop& crop) {
  bool is_whole = true;  // the crop has all of the chunk along the axes looked at
  for (size_t i = array.shape.size(); i-- > 0;) {
    const auto axis = static_cast<size_t>(array.storage_order[i]);
    const int64_t extent = crop.end[axis] - crop.begin[axis];
    if (extent > 1 && !is_whole) return false;
    is_whole = is_whole && extent == array.chunk_shape[axis];
  }
  return true;
}

void copy_crop(const ArraySpec& array, const ChunkCrop& crop, const uint8_t* chunk, uint8_t* out) {
  for_each_run(array, crop, 0, [&](size_t offset, size_t bytes) {
    std::memcpy(out, chunk + offset, bytes);
    out += bytes;
  });
}

}  // namespace zarrfeed
