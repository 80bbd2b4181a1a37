#pragma once
// A shard, as the metadata of an array describe it.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace zarrfeed {

/// The shards of an array, stored objects of several read chunks each: the codec `sharding_indexed`.
struct ShardSpec {
  std::vector<int64_t> chunks;  ///< inner chunks of a shard along each axis; empty: the array is not sharded
  bool index_at_start = false;
  bool index_big_endian = false;
  bool index_has_crc32c = false;
  size_t cache_bytes = size_t{64} << 20;  ///< memory for parsed indices

  [[nodiscard]] bool is_sharded() const { return !chunks.empty(); }
};

}  // namespace zarrfeed
