#pragma once
// What crosses the boundary between Python and the engine: specifications, in the words of docs/design.md section 2.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

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
  size_t axes = SIZE_MAX;  ///< axes beyond so many lie inside of an item as stored, and have no place in the name
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
  size_t swap_bytes = 0;      ///< 0: native byte order; else the width of the unit to reverse
  std::vector<uint8_t> fill;  ///< one item, or as many as repeat along a sample in C order
  std::vector<CodecSpec> codecs;
  std::string root;          ///< directory of the array; empty if it is fed
  std::string metadata_key;  ///< file below `root` that must exist as long as the array does
  KeySpec key;
  ShardSpec shard;
  bool fed = false;  ///< not in a local directory: its chunks are asked for through the engine's exchange
};

/// What an item is. `kBool` is a byte, true unless 0.
enum class ItemType {
  kBool,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64
};

/// What becomes of the items of a field:
///
///     x = item                              in float32 or float64, see `decode_in_double`
///     x = NaN where x is one of `fills`
///     x = x * scale + offset                two roundings, never fused
///     x = (x - mean) / std                  of the item's channel
///     item of type `to` = x                 rounded to nearest, ties to even; NaN stays NaN, too large is infinite
///
/// The arithmetic is that of float64 if float32 cannot hold every stored value, or `to` is float64; else of float32. A mere
/// cast is rounded once, whatever the types. Integers become other integers only where nothing is lost.
struct ConversionSpec {
  ItemType from = ItemType::kFloat32;
  ItemType to = ItemType::kFloat32;
  bool decode_in_double = false;  ///< calculate in float64 in any case
  std::vector<double> fills;
  std::optional<double> scale;
  std::optional<double> offset;
  std::vector<double> mean;  ///< one for all items, or one a channel; empty: not normalised
  std::vector<double> std;   ///< as many
  size_t channel_items = 1;  ///< items of a sample that follow each other in one channel, in C order
};

/// What those who take a batch see of a field: numbers, by DLPack's code and width, of this shape behind the rows.
struct TensorSpec {
  uint8_t code = 1;  ///< unsigned integers
  uint8_t bits = 8;
  std::vector<int64_t> sample_shape;
};

/// Rows that could not be had when they were loaded: those of a chunk.
struct BadRows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t chunk = 0;  ///< its index along the sample axis
  std::string key;
  Error error;
};

/// One field of the dataset: a stored array, rows that lie in memory, or the global sample index itself.
struct FieldSpec {
  enum class Kind { kStored, kResident, kIndex };
  Kind kind = Kind::kStored;
  ArraySpec array;                ///< kStored
  const uint8_t* rows = nullptr;  ///< kResident: row i lies at rows + i * sample_bytes; borrowed, never written
  size_t sample_bytes = 0;        ///< kResident: bytes of one row
  std::vector<BadRows> bad_rows;  ///< kResident: ascending; with EngineOptions::skip_bad, samples of them are skipped
  std::optional<ConversionSpec> conversion;  ///< kStored, kResident: what the items become; none: they stay as they are
  /// kStored, kResident: a sample consists of the rows at these distances from its own, one after another, in a
  /// window. Empty: of its own row.
  std::vector<int64_t> offsets;
  std::optional<TensorSpec> tensor;  ///< none: bytes
};

/// One row of one sample: which sample, and where it goes.
struct Placement {
  int64_t sample;  ///< global sample index
  int64_t step;    ///< position in this consumer's stream: batch = step / batch_size, slot = step % batch_size
};

}  // namespace zarrfeed
