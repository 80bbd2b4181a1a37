#include "transform/axis_items.h"

#include <algorithm>
#include <utility>

namespace zarrfeed {

AxisItems AxisItems::of(const ArraySpec& array, size_t axis, int64_t chunk) {
  const int64_t length = array.chunk_shape[axis];
  const int64_t begin = chunk * length;
  if (array.has_all(axis)) {
    return {.count = std::min(length, array.shape[axis] - begin), .dest = begin};
  }
  const std::vector<int64_t>& chosen = array.chosen[axis];
  AxisItems items;
  bool is_even = true;
  for (int64_t dest = 0; dest < static_cast<int64_t>(chosen.size()); ++dest) {
    const int64_t source = chosen[static_cast<size_t>(dest)] - begin;
    if (source < 0 || source >= length) continue;
    if (items.count == 0) {
      items.source = source;
      items.dest = dest;
    } else if (items.count == 1) {
      items.source_step = source - items.source;
      items.dest_step = dest - items.dest;
    }
    is_even = is_even && source == items.source + items.count * items.source_step &&
              dest == items.dest + items.count * items.dest_step;
    items.at.emplace_back(source - items.source, dest - items.dest);
    ++items.count;
  }
  if (is_even) items.at.clear();
  return items;
}

std::vector<ChunkItems> wanted_items(const ArraySpec& array, size_t axis, int64_t chunk) {
  const AxisItems items = AxisItems::of(array, axis, chunk);
  if (items.at.empty() && (items.source_step == 1 || items.count == 1)) {
    return {{items.source, items.source + items.count}};
  }
  std::vector<int64_t> sources;
  for (int64_t i = 0; i < items.count; ++i) {
    sources.push_back(items.source +
                      (items.at.empty() ? i * items.source_step : items.at[static_cast<size_t>(i)].first));
  }
  return join_items(std::move(sources));
}

std::vector<ChunkItems> join_items(std::vector<int64_t> items) {
  std::ranges::sort(items);
  std::vector<ChunkItems> ranges;
  for (const int64_t item : items) {
    if (!ranges.empty() && item <= ranges.back().end) {
      ranges.back().end = item + 1;
    } else {
      ranges.push_back({item, item + 1});
    }
  }
  return ranges;
}

}  // namespace zarrfeed
