#pragma once
// The index of a shard: where in the shard each inner chunk lies. Pure: bytes in, checked ranges out.
// Source: Zarr v3 specification, codec `sharding_indexed`, version 1.0.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "spec/shard_spec.h"

namespace zarrfeed {

/// Bytes [offset, offset + size) of a shard.
struct ShardRange {
  uint64_t offset = 0;
  uint64_t size = 0;

  [[nodiscard]] uint64_t end() const { return offset + size; }
};

/// Invariant of a parsed index: no range overflows, overlaps the index, or leaves the shard, as far as its size is
/// known. Two ranges are the same, as a writer may store the bytes of equal inner chunks once, or they do not overlap.
class ShardIndex {
 public:
  /// Parses an index as stored; `shard_bytes` is the size of the whole shard, where it is known.
  /// Throws Error(kCorrupt) if it has another size, a wrong checksum, or ranges that cannot be.
  ShardIndex(const ShardSpec& spec, Bytes stored, std::optional<uint64_t> shard_bytes);

  /// The byte range of an inner chunk, by its position in C order; nothing if the shard lacks it.
  [[nodiscard]] std::optional<ShardRange> find(size_t position) const;
  [[nodiscard]] size_t num_chunks() const { return ranges_.size(); }

 private:
  std::vector<ShardRange> ranges_;
};

/// Inner chunks of a full shard.
size_t chunks_per_shard(const ShardSpec& spec);
/// Size of an index as stored.
size_t stored_index_bytes(const ShardSpec& spec);

}  // namespace zarrfeed
