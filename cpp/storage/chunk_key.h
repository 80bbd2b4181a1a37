#pragma once
// The location of a read chunk: the key of its stored object, and its position in a shard. Pure.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "spec/array_spec.h"

namespace zarrfeed {

/// Key below the array's directory of a read chunk, or of the shard that it lies in.
/// `grid(axis)` is the index of the chunk in the grid of read chunks.
template <typename Grid>
std::string chunk_key(const ArraySpec& array, const Grid& grid) {
  std::string key = array.key.prefix;
  const size_t axes = std::min(array.key.axes, array.shape.size());
  for (size_t axis = 0; axis < axes; ++axis) {
    if (!key.empty()) key += array.key.separator;
    key += std::to_string(grid(axis) / (array.shard.is_sharded() ? array.shard.chunks[axis] : 1));
  }
  return key;
}

/// The number of names, divided by slashes, of an array's keys.
inline size_t parts_of_key(const ArraySpec& array) {
  const std::string key = chunk_key(array, [](size_t) { return 0; });
  return 1 + static_cast<size_t>(std::count(key.begin(), key.end(), '/'));
}

/// Position of a read chunk in its shard, in C order; nothing if the array is not sharded.
template <typename Grid>
std::optional<size_t> position_in_shard(const ArraySpec& array, const Grid& grid) {
  if (!array.shard.is_sharded()) return std::nullopt;
  int64_t position = 0;
  for (size_t axis = 0; axis < array.shard.chunks.size(); ++axis) {
    position = position * array.shard.chunks[axis] + grid(axis) % array.shard.chunks[axis];
  }
  return static_cast<size_t>(position);
}

}  // namespace zarrfeed
