#pragma once
// The items of one chunk that samples have along one axis: all that it has of the array, or those that are chosen. Pure.

#include <cstdint>
#include <utility>
#include <vector>

#include "spec/array_spec.h"

namespace zarrfeed {

/// Items along an axis other than the sample axis. Item i stands in the chunk at `source + i * source_step`, counted from
/// its first item, and in the sample at `dest + i * dest_step`.
struct AxisItems {
  int64_t count = 0;
  int64_t source = 0;
  int64_t source_step = 1;
  int64_t dest = 0;
  int64_t dest_step = 1;
  /// If they are not evenly spaced on both sides: of each item how far it is from `source` and `dest`, in the order of the
  /// sample. Empty: the steps say it.
  std::vector<std::pair<int64_t, int64_t>> at = {};

  /// Returns the items of the chunk with this index along the axis; at least one.
  static AxisItems of(const ArraySpec& array, size_t axis, int64_t chunk);
};

/// Items [begin, end) of a chunk along an axis.
struct ChunkItems {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Returns the items of a chunk that samples have along an axis other than the sample axis, ascending, in as few ranges as
/// there can be.
std::vector<ChunkItems> wanted_items(const ArraySpec& array, size_t axis, int64_t chunk);

/// Returns items, or rows, which may come in any order and twice, as ranges that ascend and do not touch.
std::vector<ChunkItems> join_items(std::vector<int64_t> items);

}  // namespace zarrfeed
