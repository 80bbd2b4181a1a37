#pragma once
// A stored array: its shape, its chunks, how they are encoded and where they lie.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "spec/array_parts.h"
#include "spec/chunk_table.h"
#include "spec/codec_spec.h"
#include "spec/shard_spec.h"

namespace zarrfeed {

/// The file name of a chunk below the array's directory.
struct KeySpec {
  std::string prefix;  ///< "c" for the v3 default encoding, "" for v2's
  char separator = '/';
  size_t axes = SIZE_MAX;  ///< axes beyond so many lie inside of an item as stored, and have no place in the name
  /// An index in the name, where the sample axis stands for several stored axes: index / step % count along `axis`.
  struct Index {
    size_t axis = 0;
    int64_t step = 1;
    int64_t count = INT64_MAX;
  };
  std::vector<Index> indices{};  ///< of the stored axes, in their order; empty: the axes are those of the array
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
  bool is_transcoded = false;  ///< the node cache undoes `codecs`, and hands out Blosc chunks
  std::string root;            ///< directory of the array; empty if it is in Python
  std::string metadata_key;    ///< file below `root` that must exist as long as the array does
  KeySpec key;
  ShardSpec shard;
  bool in_python = false;       ///< its chunks are in a store that only Python can read
  size_t max_stored_bytes = 0;  ///< of a chunk that Python decodes, too; 0: as `codecs` say
  /// The stores that the rows lie in, one after another; `root` is empty then. Null: one store has all rows.
  std::shared_ptr<const ArrayParts> parts;
  /// Tables of its chunks in files of another format: of each part, or of the whole array. Empty: they are objects.
  std::vector<std::shared_ptr<const ChunkTable>> tables;
  /// For each axis, the indices of the items that samples have, in their order; an axis without entries is whole. Empty:
  /// samples have all items. The engine reads no chunk without a chosen item, and leaves the other items of a decoded
  /// chunk undefined.
  std::vector<std::vector<int64_t>> chosen;

  /// True if samples have all items of an axis.
  [[nodiscard]] bool has_all(size_t axis) const { return chosen.empty() || chosen[axis].empty(); }
  /// Items of a sample along an axis other than the sample axis.
  [[nodiscard]] int64_t extent(size_t axis) const {
    return has_all(axis) ? shape[axis] : static_cast<int64_t>(chosen[axis].size());
  }
};

}  // namespace zarrfeed
