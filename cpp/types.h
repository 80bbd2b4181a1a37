#pragma once
// What crosses the boundary between Python and the engine: specifications, in the words of docs/design.md section 2.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zarrfeed {

using Bytes = std::span<const uint8_t>;
using MutableBytes = std::span<uint8_t>;

/// One bytes-to-bytes codec, in the order of decoding.
struct CodecSpec {
  enum class Kind { kBlosc, kZstd, kGzip, kZlib, kLz4, kCrc32c };
  Kind kind;
  bool checksum_at_start = false;  ///< crc32c only: the four bytes stand in front of the payload
};

/// How the chunk of an array becomes a file name below the array's directory.
struct KeySpec {
  std::string prefix;  ///< "c" for the v3 default encoding, "" for v2's
  char separator = '/';
};

/// How the read chunks of an array lie in stored objects of several: the codec `sharding_indexed`.
struct ShardSpec {
  std::vector<int64_t> chunks;  ///< inner chunks of a shard along each axis; empty: the array is not sharded
  bool index_at_start = false;
  bool index_big_endian = false;
  bool index_has_crc32c = false;
  size_t cache_bytes = size_t{64} << 20;  ///< memory for parsed indices

  [[nodiscard]] bool is_sharded() const { return !chunks.empty(); }
};

/// A stored array. `shape`, `chunk_shape` and `storage_order` have one entry per axis.
struct ArraySpec {
  std::string name;  ///< what error messages call the array
  std::vector<int64_t> shape;
  std::vector<int64_t> chunk_shape;  ///< shape of the read chunk
  std::vector<int> storage_order;    ///< axes as stored, outermost first
  int sample_axis = 0;
  size_t item_bytes = 0;
  size_t swap_bytes = 0;  ///< 0: native byte order; else the width of the unit to reverse
  std::vector<uint8_t> fill;
  std::vector<CodecSpec> codecs;
  std::string root;          ///< directory of the array; empty if it is fed
  std::string metadata_key;  ///< file below `root` that must exist as long as the array does
  KeySpec key;
  ShardSpec shard;
  bool fed = false;  ///< not in a local directory: its chunks are asked for through the engine's exchange
};

/// One field of the dataset: a stored array, rows that lie in memory, or the global sample index itself.
struct FieldSpec {
  enum class Kind { kStored, kResident, kIndex };
  Kind kind = Kind::kStored;
  ArraySpec array;                ///< kStored
  const uint8_t* rows = nullptr;  ///< kResident: row i lies at rows + i * sample_bytes; borrowed, never written
  size_t sample_bytes = 0;        ///< kResident: bytes of one row
};

/// One row of one sample: which sample, and where it goes.
struct Placement {
  int64_t sample;  ///< global sample index
  int64_t step;    ///< position in this consumer's stream: batch = step / batch_size, slot = step % batch_size
};

}  // namespace zarrfeed
