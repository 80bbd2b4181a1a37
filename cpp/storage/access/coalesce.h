#pragma once
// The ranges of one object that are read together: chosen here, for the engine as well as for readers in Python.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zarrfeed {

/// At most `gap` bytes lie unused between two neighbours, and all of them span at most `limit` bytes.
struct Coalesce {
  size_t gap = 0;
  size_t limit = 0;  ///< 0: each range is read by itself
};

/// Bytes [begin, end) of an object.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// Divides extents, of which each begins where the one before it begins or later, into runs that are read together; returns
/// where each run ends. No two runs could have been one. Extents may overlap, and may be of any size.
std::vector<size_t> runs_together(std::span<const Extent> extents, Coalesce coalesce);

}  // namespace zarrfeed
