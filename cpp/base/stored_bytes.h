#pragma once
// The stored bytes of a chunk, or those parts of them that were read.
//
// A task that wants few rows of a chunk reads only the parts of its stored bytes that have them. What holds, from the store to
// the decoder:
//   * Whoever wants something of a chunk says so as a ChunkParts, before the chunk is read. A store may read these parts, or
//     all of the chunk: the reader of the bytes looks which it was.
//   * All parts of a chunk come from one version of its object. An object that changes between two reads of its parts is
//     another version, which the store reads anew, or refuses.
//   * Memory is that of the bytes that were read, which lie one behind the other; there is no buffer of the size of the chunk.
//   * Bytes that were not read are an error for those who ask for them, and never zeros or bytes of another chunk.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"

namespace zarrfeed {

/// Bytes [begin, end) of a stored chunk.
struct StoredRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const StoredRange&) const = default;
};

/// When parts of a chunk are cheaper to read than all of it: a matter of the store.
struct PartCosts {
  size_t least_chunk = std::numeric_limits<size_t>::max();  ///< chunks with less stored bytes are read whole
  size_t max_gap = 0;      ///< as many bytes between two parts are read with them: another read would take longer
  size_t first_bytes = 0;  ///< read of a chunk before it is known where its parts lie
};

/// Which parts of a chunk have what is wanted of it. Thread-safe. It owns all that it uses, since storage may hold up the
/// thread that asks.
class ChunkParts {
 public:
  /// An answer of find().
  struct Found {
    size_t first = 0;  ///< more than find() got: so many bytes of the beginning tell where the parts lie
    std::vector<StoredRange>
        ranges{};  ///< the parts, ascending and disjoint; none, and `first` is 0: read all of the chunk
  };

  ChunkParts() = default;
  virtual ~ChunkParts() = default;
  ChunkParts(const ChunkParts&) = delete;
  ChunkParts& operator=(const ChunkParts&) = delete;

  /// Finds the parts of a chunk of `stored_bytes` bytes, which begins with `first`: no bytes, or as many as find() asked for.
  /// Never throws because of these bytes: a chunk that is damaged is read whole, and whoever decodes it says what is wrong.
  [[nodiscard]] virtual Found find(Bytes first, size_t stored_bytes) const = 0;
};

/// Which parts of a chunk were read, and where they lie in memory.
struct StoredParts {
  struct Part {
    StoredRange range;  ///< of the chunk
    size_t at = 0;      ///< where it begins in memory
  };

  size_t chunk_bytes = 0;   ///< of the whole chunk, as it is stored
  std::vector<Part> parts;  ///< ascending; no two overlap or touch each other
};

/// A view of what was read of a chunk. The memory is borrowed.
class StoredBytes {
 public:
  StoredBytes() = default;
  /// All of a chunk.
  template <std::convertible_to<Bytes> Whole>
  StoredBytes(const Whole& whole) : memory_(whole) {}  // NOLINT(google-explicit-constructor): mostly, all of it is read
  /// `parts` of a chunk; null: all of it.
  StoredBytes(Bytes memory, std::shared_ptr<const StoredParts> parts) : memory_(memory), parts_(std::move(parts)) {}

  [[nodiscard]] bool is_whole() const { return parts_ == nullptr; }
  /// Bytes of the chunk as it is stored, read or not.
  [[nodiscard]] size_t size() const { return parts_ == nullptr ? memory_.size() : parts_->chunk_bytes; }
  [[nodiscard]] size_t bytes_read() const { return memory_.size(); }
  /// All bytes. Throws Error(kConfig) if some were not read.
  [[nodiscard]] Bytes whole() const {
    if (parts_ != nullptr) throw Error(ErrorKind::kConfig, "all of a chunk is needed, and parts of it were read");
    return memory_;
  }
  /// The bytes from `begin` on, as far as they were read; none if the one at `begin` was not.
  [[nodiscard]] Bytes from(size_t begin) const {
    if (parts_ == nullptr) return begin < memory_.size() ? memory_.subspan(begin) : Bytes{};
    const auto& parts = parts_->parts;
    auto part = std::ranges::upper_bound(parts, begin, {}, [](const auto& one) { return one.range.begin; });
    if (part == parts.begin() || begin >= (--part)->range.end) return {};
    return memory_.subspan(part->at + begin - part->range.begin, part->range.end - begin);
  }

 private:
  Bytes memory_;
  std::shared_ptr<const StoredParts> parts_;
};

}  // namespace zarrfeed
