#pragma once
// A stored array, from the stored bytes of a chunk to the decoded chunk. All outputs that draw from the array share it.
// Immutable while an epoch is read, hence shared by all threads; what a thread needs for itself is in WorkerScratch.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/stats.h"
#include "base/stored_bytes.h"
#include "codecs/codec_pipeline.h"
#include "spec/array_spec.h"
#include "spec/chunk_grid.h"
#include "transform/axis_items.h"
#include "transform/patches/patch_copy.h"
#include "transform/worker_scratch.h"

namespace zarrfeed {

/// One decoded chunk, or the knowledge that it does not exist, so that its samples are the fill value.
struct DecodedChunk {
  std::unique_ptr<uint8_t[]> bytes;  ///< null: missing
  size_t size = 0;
};

/// Errors name neither the array nor the chunk: whoever knows the chunk adds them.
class ArraySource {
 public:
  explicit ArraySource(ArraySpec array);

  [[nodiscard]] const ArraySpec& array() const { return array_; }
  /// Rows of the array, along the sample axis.
  [[nodiscard]] int64_t num_rows() const { return array_.shape[static_cast<size_t>(array_.sample_axis)]; }
  /// Rows of a chunk along the sample axis.
  [[nodiscard]] int64_t rows_per_chunk() const { return rows_per_chunk_; }
  /// Chunks that hold the parts of one row: the number of grid cells over all axes but the sample axis.
  [[nodiscard]] size_t num_cells() const { return num_cells_; }
  /// The chunk along the sample axis that holds a row; -1 if no part of the array has the row.
  [[nodiscard]] int64_t chunk_of(int64_t row) const {
    return parts_ == nullptr ? row / rows_per_chunk_ : parts_->chunk_of(row);
  }
  /// Rows from one on, itself included, that lie in its chunk; see ArrayParts.
  [[nodiscard]] int64_t rows_left(int64_t row) const {
    return parts_ == nullptr ? rows_per_chunk_ - row % rows_per_chunk_ : parts_->rows_left(row);
  }
  /// The first row of a chunk.
  [[nodiscard]] int64_t first_row(int64_t chunk) const {
    return parts_ == nullptr ? chunk * rows_per_chunk_ : parts_->first_row(chunk);
  }
  [[nodiscard]] size_t decoded_bytes() const { return pipeline_.decoded_bytes(); }
  /// The longest stored chunk that is still plausible.
  [[nodiscard]] size_t max_stored_bytes() const { return max_stored_bytes_; }
  [[nodiscard]] const CodecPipeline& pipeline() const { return pipeline_; }

  /// True if samples have chosen items of the array alone. Then chunks are decoded as far as these items need it, and
  /// other bytes of a decoded chunk are undefined.
  [[nodiscard]] bool has_chosen() const { return !array_.chosen.empty(); }

  /// Decodes a chunk to memory of its own, for a cache.
  DecodedChunk decode(PatchCell at, const StoredBytes& stored, WorkerScratch& scratch, Stats& stats) const;
  /// Decodes a chunk to memory of the caller's, of decoded_bytes(); what is there if it throws is of no use.
  void decode_into(PatchCell at, const StoredBytes& stored, MutableBytes out, WorkerScratch& scratch,
                   Stats& stats) const;
  /// Decodes a chunk to memory of the thread. The bytes are valid as long as `stored`, and until the thread decodes
  /// again. Of a chunk without codecs, no more than the bytes that are `wanted` count as decoded.
  Bytes decode_in_scratch(PatchCell at, const StoredBytes& stored, WorkerScratch& scratch, Stats& stats,
                          size_t wanted = SIZE_MAX) const;
  /// Makes `touched` know the Blosc blocks that the chosen items of rows of a chunk lie in. `rows` are counted from
  /// its first one. False, and nothing is touched, where blocks cannot be told apart. Throws Error(kCorrupt).
  bool touch_chosen(size_t cell, const StoredBytes& stored, std::vector<ChunkItems> rows, TouchedBlocks& touched) const;
  /// The rows that a chunk has of the array.
  [[nodiscard]] std::vector<ChunkItems> all_rows(int64_t chunk) const {
    const int64_t rows = parts_ == nullptr ? std::min(rows_per_chunk_, num_rows() - first_row(chunk)) : rows_per_chunk_;
    return {{0, rows}};
  }
  /// Decodes the Blosc blocks that a crop of a chunk touches, and copies the crop to `out`, of crop_bytes(). False, and
  /// nothing is written, if the chunk is better decoded whole.
  bool decode_crop(const StoredBytes& stored, const ChunkCrop& crop, uint8_t* out, WorkerScratch& scratch,
                   Stats& stats) const;
  /// Begins with the Blosc blocks of a chunk, or with those that a chunk without codecs was read in. False: the chunk is
  /// decoded whole, or has no such blocks. Throws Error(kCorrupt).
  [[nodiscard]] bool begin_blocks(const StoredBytes& stored, TouchedBlocks& touched) const;
  /// Counts a chunk of which so many bytes were decoded.
  void count(const StoredBytes& stored, size_t decoded, Stats& stats) const;
  /// The bytes that were decoded of a chunk that was decoded whole, if so many of them were wanted: of chunks without
  /// codecs no others are looked at.
  [[nodiscard]] size_t decoded_of(size_t wanted) const {
    return pipeline_.is_raw() ? std::min(wanted, decoded_bytes()) : decoded_bytes();
  }

 private:
  /// True if a chunk is read from where it is stored, and decoded to nowhere.
  [[nodiscard]] bool is_view_of(const StoredBytes& stored) const { return pipeline_.is_view() && stored.is_whole(); }
  /// The common part of decode() and its siblings: decodes a chunk to `room`, as far as samples need it, and counts it.
  Bytes decode_needed(PatchCell at, const StoredBytes& stored, MutableBytes room, WorkerScratch& scratch, Stats& stats,
                      size_t wanted = SIZE_MAX) const;

  ArraySpec array_;
  int64_t rows_per_chunk_;
  size_t num_cells_;
  const ArrayParts* parts_;  ///< of array_
  CodecPipeline pipeline_;
  size_t max_stored_bytes_;
  CellGrid cells_;
  /// For an array with chosen items: by axis and by the index of a chunk along it, the items that samples have of the
  /// chunk.
  std::vector<std::map<int64_t, std::vector<ChunkItems>>> chosen_of_chunk_;
};

}  // namespace zarrfeed
