#include "storage/access/coalesce.h"

#include <algorithm>

namespace zarrfeed {

std::vector<size_t> runs_together(std::span<const Extent> extents, Coalesce coalesce) {
  std::vector<size_t> ends;
  size_t first = 0;
  uint64_t end = 0;  // of the run that begins at `first`
  for (size_t i = 0; i < extents.size(); ++i) {
    const Extent& next = extents[i];
    const bool is_near = next.begin <= end || next.begin - end <= coalesce.gap;
    const bool fits = std::max(end, next.end) - extents[first].begin <= coalesce.limit;
    if (i > first && !(is_near && fits)) {
      ends.push_back(i);
      first = i;
      end = 0;
    }
    end = std::max(end, next.end);
  }
  if (!extents.empty()) ends.push_back(extents.size());
  return ends;
}

}  // namespace zarrfeed
