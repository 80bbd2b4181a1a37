#pragma once
// The parts of an array whose rows lie in several stores: one array after another, each with chunks of its own.
//
// Invariants:
//   * Parts ascend and do not overlap: part p has the rows [begin[p], end[p]). Rows between two parts are in no part;
//     another array has them.
//   * Chunks are numbered through: part p has the chunks from first_chunk[p] on, row begin[p] being the first row of
//     the first of them. So a chunk has rows of one part.
// Pure arithmetic.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/division.h"

namespace zarrfeed {

struct ArrayParts {
  std::vector<int64_t> begin;
  std::vector<int64_t> end;
  std::vector<std::string> prefix;   ///< of the keys of each part: a directory, or what the store bridge knows
  std::vector<std::string> name;     ///< what error messages call each part
  int64_t rows_per_chunk = 1;        ///< of every part
  std::vector<int64_t> first_chunk;  ///< see above; set by number_chunks()

  void number_chunks() {
    first_chunk.clear();
    int64_t chunk = 0;
    for (size_t p = 0; p < begin.size(); ++p) {
      first_chunk.push_back(chunk);
      chunk += ceil_div(end[p] - begin[p], rows_per_chunk);
    }
  }

  /// The chunk that holds a row; -1 if no part has the row.
  [[nodiscard]] int64_t chunk_of(int64_t row) const {
    const auto behind = std::upper_bound(begin.begin(), begin.end(), row);
    if (behind == begin.begin()) return -1;
    const auto p = static_cast<size_t>(behind - begin.begin()) - 1;
    return row < end[p] ? first_chunk[p] + (row - begin[p]) / rows_per_chunk : -1;
  }

  /// Rows from one on, itself included, that lie in its chunk; of a row that no part has, those before the next part.
  [[nodiscard]] int64_t rows_left(int64_t row) const {
    const auto behind = std::upper_bound(begin.begin(), begin.end(), row);
    const int64_t next = behind == begin.end() ? std::numeric_limits<int64_t>::max() : *behind;
    if (behind == begin.begin()) return next - row;
    const auto p = static_cast<size_t>(behind - begin.begin()) - 1;
    if (row >= end[p]) return next - row;
    return std::min(end[p] - row, rows_per_chunk - (row - begin[p]) % rows_per_chunk);
  }

  /// The part of a chunk.
  [[nodiscard]] size_t part_of(int64_t chunk) const {
    return static_cast<size_t>(std::upper_bound(first_chunk.begin(), first_chunk.end(), chunk) - first_chunk.begin()) -
           1;
  }

  /// The part that a key with its prefix is of; of directories inside of each other, the innermost one.
  [[nodiscard]] std::optional<size_t> part_of_key(std::string_view key) const {
    std::optional<size_t> found;
    for (size_t p = 0; p < prefix.size(); ++p) {
      if (key.starts_with(prefix[p]) && (!found || prefix[p].size() > prefix[*found].size())) found = p;
    }
    return found;
  }

  /// The first row of a chunk.
  [[nodiscard]] int64_t first_row(int64_t chunk) const {
    const size_t p = part_of(chunk);
    return begin[p] + (chunk - first_chunk[p]) * rows_per_chunk;
  }
};

}  // namespace zarrfeed
