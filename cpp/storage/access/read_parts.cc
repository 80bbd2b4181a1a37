#include "storage/access/read_parts.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace zarrfeed {

bool read_parts(const ChunkParts& wanted, size_t stored_bytes, Buffer& room, const ReadAt& read_at, PartsRead& out) {
  std::vector<uint8_t> first;
  ChunkParts::Found found = wanted.find(first, stored_bytes);
  while (found.first > first.size() && first.size() < stored_bytes) {
    const size_t have = first.size();
    first.resize(std::min(found.first, stored_bytes));
    if (!read_at(have, MutableBytes(first).subspan(have))) return false;
    found = wanted.find(first, stored_bytes);
  }
  if (found.ranges.empty()) found.ranges.push_back({0, stored_bytes});

  StoredParts read{stored_bytes, {}};
  if (!first.empty()) read.parts.push_back({{0, first.size()}, 0});
  size_t size = first.size();
  for (StoredRange range : found.ranges) {
    range = {std::max(range.begin, first.size()), std::min(range.end, stored_bytes)};
    if (range.begin >= range.end) continue;
    if (!read.parts.empty() && read.parts.back().range.end == range.begin) {
      read.parts.back().range.end = range.end;
    } else {
      read.parts.push_back({range, size});
    }
    size += range.end - range.begin;
  }
  const MutableBytes memory = room.reserve(size);
  std::ranges::copy(first, memory.begin());
  for (const StoredParts::Part& part : read.parts) {
    // The first bytes are here; a part that begins with them goes on behind them.
    const size_t have = part.range.begin == 0 ? first.size() : 0;
    const size_t left = part.range.end - part.range.begin - have;
    if (left > 0 && !read_at(part.range.begin + have, memory.subspan(part.at + have, left))) return false;
  }
  out.bytes = memory;
  out.parts = size == stored_bytes ? nullptr : std::make_shared<const StoredParts>(std::move(read));
  return true;
}

}  // namespace zarrfeed
