#pragma once
// The chunks of one array in files that are no chunks, such as those of HDF5 or zip: which bytes of a file each of them is.
//
// Invariants of a table that is_valid():
//   * `numbers` ascend; a number that is no chunk of the grid is never found.
//   * No entry lies outside of its file, or of `in_memory`.
//   * The chunks of the grid can be counted, and so can the bytes of a chunk with zeros behind it.
// Pure arithmetic.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace zarrfeed {

struct ChunkTable {
  /// A file as it was when the table was made.
  struct File {
    std::string path;  ///< empty if only Python can read the file
    uint64_t bytes = 0;
    int64_t modified_ns = 0;  ///< time of its last change, since 1970
  };
  static constexpr int32_t kInMemory = -1;
  /// In place of a length: the chunk is all of a file that only Python can read.
  static constexpr int64_t kWhole = -1;

  std::vector<File> files;
  std::vector<uint8_t> in_memory;  ///< the bytes of chunks that lie in no file
  std::vector<int64_t> grid;       ///< chunks along each axis
  std::vector<int64_t> numbers;    ///< of the chunks that are stored, in C order of the grid; empty: all of them
  std::vector<int64_t> offsets;    ///< of each stored chunk in its file
  std::vector<int64_t> lengths;    ///< of each stored chunk in its file, in bytes
  std::vector<int32_t>
      file_indices;  ///< of each stored chunk: the number of its file, or kInMemory; empty: the first file
  uint64_t padded_bytes =
      0;  ///< bytes of every chunk for its readers, who get zeros behind those in the file; 0: as stored

  struct Extent {
    uint64_t offset = 0;
    uint64_t length = 0;
    int32_t file_index = 0;

    [[nodiscard]] bool is_whole() const { return length == static_cast<uint64_t>(kWhole); }
  };

  /// True if a table that comes from outside can be searched and read.
  [[nodiscard]] bool is_valid() const {
    int64_t chunks = 1;
    for (const int64_t along : grid) {
      if (along < 0 || (along > 0 && chunks > std::numeric_limits<int64_t>::max() / along)) return false;
      chunks *= std::max<int64_t>(along, 1);
    }
    const size_t count = offsets.size();
    const auto has_all = [count](const auto& column) { return column.empty() || column.size() == count; };
    if (lengths.size() != count || !has_all(numbers) || !has_all(file_indices)) return false;
    if (padded_bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    for (size_t entry = 0; entry < count; ++entry) {
      if (!lies_inside(entry)) return false;
    }
    return std::ranges::is_sorted(numbers);
  }

  /// The bytes of a chunk; nothing if it was never written, or the array has no such chunk.
  [[nodiscard]] std::optional<Extent> find(std::span<const int64_t> index) const {
    if (index.size() != grid.size()) return std::nullopt;
    int64_t number = 0;
    for (size_t axis = 0; axis < grid.size(); ++axis) {
      if (index[axis] < 0 || index[axis] >= grid[axis]) return std::nullopt;
      number = number * grid[axis] + index[axis];
    }
    auto entry = static_cast<size_t>(number);
    if (!numbers.empty()) {
      const auto found = std::lower_bound(numbers.begin(), numbers.end(), number);
      if (found == numbers.end() || *found != number) return std::nullopt;
      entry = static_cast<size_t>(found - numbers.begin());
    }
    if (entry >= offsets.size()) return std::nullopt;
    return Extent{static_cast<uint64_t>(offsets[entry]), static_cast<uint64_t>(lengths[entry]),
                  file_indices.empty() ? 0 : file_indices[entry]};
  }

 private:
  [[nodiscard]] bool lies_inside(size_t entry) const {
    const int32_t file_index = file_indices.empty() ? 0 : file_indices[entry];
    const bool is_file = file_index >= 0 && static_cast<size_t>(file_index) < files.size();
    if (!is_file && file_index != kInMemory) return false;
    const int64_t offset = offsets[entry];
    const int64_t length = lengths[entry];
    const bool is_far = is_file && files[static_cast<size_t>(file_index)].path.empty();
    if (is_far && length == kWhole) return offset == 0;
    const uint64_t bytes = is_file ? files[static_cast<size_t>(file_index)].bytes : in_memory.size();
    return offset >= 0 && length >= 0 && static_cast<uint64_t>(offset) + static_cast<uint64_t>(length) <= bytes;
  }
};

}  // namespace zarrfeed
