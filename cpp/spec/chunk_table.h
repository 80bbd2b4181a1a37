#pragma once
// The chunks of one array in files that are no chunks, such as those of HDF5 or zip: which bytes of a file each of them is.
//
// Invariants, which the bindings check:
//   * `numbers` ascend, and are less than the chunks of the grid; without them, all chunks of the grid have an entry.
//   * No entry lies outside of its file, or of `in_memory`.
// Pure arithmetic.

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
};

}  // namespace zarrfeed
