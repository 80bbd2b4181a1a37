#pragma once
// The stored bytes of a chunk, or those parts of them that were read.
//
// A task that wants few rows of a chunk reads only the parts of its stored bytes that have them. Invariants, from the
// store to the decoder:
//   * A task names the parts that it wants of a chunk as a ChunkParts, before the chunk is read. A store may read these
//     parts, or all of the chunk: the StoredBytes tell which of the two it read.
//   * All parts of a chunk come from one version of its object. An object that changes between two reads of its parts
//     is another version, which the store reads anew, or refuses.
//   * The bytes that were read lie one behind the other and take no more memory than their size; there is no buffer of
//     the size of the chunk.
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

/// The costs by which a store decides to read parts of a chunk instead of all of it.
struct PartCosts {
  size_t least_chunk = std::numeric_limits<size_t>::max();  ///< chunks with less stored bytes are read whole
  size_t max_gap = 0;      ///< a gap of at most these bytes is read with its neighbours: another read would take longer
  size_t first_bytes = 0;  ///< bytes that are read first, to find out where the parts of the chunk lie
};

/// Finds the parts of a chunk that hold the wanted rows. Thread-safe. It owns all that it uses, since storage may hold
/// up the thread that asks.
class ChunkParts {
 public:
  /// An answer of find().
  struct Found {
    size_t first = 0;  ///< larger than the `first` that find() got: it needs these first bytes to find the parts
    std::vector<StoredRange>
        ranges{};  ///< the parts, ascending and disjoint; none, and `first` is 0: read all of the chunk
  };

  ChunkParts() = default;
  virtual ~ChunkParts() = default;
  ChunkParts(const ChunkParts&) = delete;
  ChunkParts& operator=(const ChunkParts&) = delete;

  /// Finds the parts of a chunk of `stored_bytes` bytes, which begins with `first`: no bytes, or as many as find()
  /// asked for. Never throws because of these bytes: a damaged chunk is read whole, and its decoder reports
  /// the fault.
  [[nodiscard]] virtual Found find(Bytes first, size_t stored_bytes) const = 0;
};

/// The parts of a chunk that were read, and their positions in memory.
struct StoredParts {
  struct Part {
    StoredRange range;  ///< the bytes of the chunk
    size_t at = 0;      ///< offset of the first byte in memory
  };

  size_t chunk_bytes = 0;   ///< stored size of the whole chunk
  std::vector<Part> parts;  ///< ascending; no two overlap or touch each other
};

/// A view of the bytes of a chunk that were read. The memory is borrowed.
class StoredBytes {
 public:
  StoredBytes() = default;
  /// A view of all of a chunk.
  template <std::convertible_to<Bytes> Whole>
  StoredBytes(const Whole& whole) : memory_(whole) {}  // NOLINT(google-explicit-constructor): mostly, all of it is read
  /// A view of `parts` of a chunk; null: of all of it.
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
