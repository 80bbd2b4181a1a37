// Copying runs of items, such as the rows of a sparse matrix, one after another.

#pragma once

#include <cstdint>
#include <span>

namespace zarrfeed {

/// Copies items [begin[i], begin[i] + count[i]) of `source` for each i, in order, to the start of `out`.
///
/// On success, returns how many bytes were written. Throws Error(kConfig) if a run is not inside of `source`, or if
/// `out` has no room for all of them; then `out` holds anything. Thread-safe: nothing is shared.
size_t copy_runs(std::span<const uint8_t> source, std::span<const int64_t> begin, std::span<const int64_t> count,
                 size_t item_bytes, std::span<uint8_t> out);

}  // namespace zarrfeed
