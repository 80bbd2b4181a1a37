#pragma once
// One field of the dataset: from the stored bytes of a chunk to rows in slots. Immutable while an epoch is read, hence
// shared by all threads; what a thread needs for itself is in WorkerScratch.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/stats.h"
#include "codecs/codec_pipeline.h"
#include "spec/field_spec.h"
#include "transform/blosc_scatter.h"
#include "transform/convert/convert.h"
#include "transform/patches/patch_copy.h"
#include "transform/scatter.h"

namespace zarrfeed {

/// Temporary memory of one decode thread.
struct WorkerScratch {
  DecodeScratch codecs;
  Buffer stored;   ///< chunk as read, when read by the decode thread itself
  Buffer decoded;  ///< chunk after decoding: small enough to stay in cache
  std::vector<RowTarget> targets;
  std::vector<PatchTarget> patches;
  BloscScatterScratch blosc;

  /// What the buffers take, in bytes.
  [[nodiscard]] size_t bytes() const {
    return stored.capacity() + decoded.capacity() + blosc.block.capacity() + codecs.block.capacity() +
           codecs.intermediate[0].capacity() + codecs.intermediate[1].capacity();
  }
};

/// One decoded chunk, or the knowledge that it does not exist, so that its samples are the fill value.
struct DecodedChunk {
  std::unique_ptr<uint8_t[]> bytes;  ///< null: missing
  size_t size = 0;
};

/// Errors name neither the array nor the chunk: whoever knows the chunk adds them.
class FieldDecoder {
 public:
  explicit FieldDecoder(FieldSpec spec);

  /// Bytes of a row of the array, as it comes into a batch.
  [[nodiscard]] size_t row_bytes() const { return row_bytes_; }
  /// Rows of a sample: the window.
  [[nodiscard]] size_t num_offsets() const { return std::max<size_t>(1, spec_.offsets.size()); }
  /// Bytes of a sample in the tensor of the batch, those of other fields that share it included.
  [[nodiscard]] size_t sample_bytes() const { return slot_bytes() * num_offsets(); }
  /// Chunks that hold the parts of one row: the number of grid cells over all axes but the sample axis.
  /// 1 for patches, each of which lies in chunks of its own.
  [[nodiscard]] size_t num_cells() const { return patches_ ? 1 : boxes_.size(); }
  /// What cuts patches out of chunks; null if samples are no patches.
  [[nodiscard]] const PatchCopy* patches() const { return patches_ ? &*patches_ : nullptr; }
  /// Rows of a chunk along the sample axis; 0 if any run of samples can be taken together.
  [[nodiscard]] int64_t rows_per_chunk() const { return rows_per_chunk_; }
  /// The chunk along the sample axis that holds a row of a stored field; -1 if a part of it lacks the row.
  [[nodiscard]] int64_t chunk_of(int64_t row) const {
    return parts_ == nullptr ? row / rows_per_chunk_ : parts_->chunk_of(row);
  }
  /// Bytes from one row to the next in the tensor of the batch, and where the row of this field begins in it.
  [[nodiscard]] size_t slot_bytes() const { return spec_.slot ? spec_.slot->row_bytes : row_bytes_; }
  [[nodiscard]] size_t slot_offset() const { return spec_.slot ? spec_.slot->offset : 0; }
  /// Whether the row of a sample is the one with its index, without windows: nothing has to be looked up.
  [[nodiscard]] bool is_direct() const {
    return spec_.offsets.empty() && !spec_.row_map && !spec_.lead && !patches_ &&
           spec_.kind != FieldSpec::Kind::kPadMask;
  }
  /// Rows that there are, where samples have the row with their index; none if nothing bounds them.
  [[nodiscard]] std::optional<int64_t> num_own_rows() const;
  /// Returns the row that a sample has at a distance from its own, within the samples [begin, end) of its segment; -1
  /// for a row that is padded. Throws Error(kConfig) if there is no such row and nothing takes its place.
  [[nodiscard]] int64_t find_row(int64_t sample, int64_t offset, int64_t begin, int64_t end) const;
  /// Writes what takes the place of a row.
  void scatter_pad(std::span<RowTarget> targets) const;
  [[nodiscard]] size_t decoded_bytes() const { return pipeline_ ? pipeline_->decoded_bytes() : 0; }
  [[nodiscard]] bool is_stored() const { return spec_.kind == FieldSpec::Kind::kStored; }
  /// The longest stored chunk that is still plausible; 0 if the field is not stored.
  [[nodiscard]] size_t max_stored_bytes() const { return pipeline_ ? pipeline_->max_stored_bytes() : 0; }

  /// Decodes `stored` and copies the rows that `placements` name to their slots.
  /// `streaming` says that the slots are more than the cache holds.
  /// `targets[i].dest` is where the row of placement i goes; targets[i].row is the global sample index and becomes the
  /// row.
  void decode_and_scatter(int64_t chunk, size_t cell, Bytes stored, std::span<RowTarget> targets, bool streaming,
                          WorkerScratch& scratch, Stats& stats) const;
  /// The same for patches.
  void decode_and_cut(PatchCell cell, Bytes stored, std::span<const PatchTarget> targets, WorkerScratch& scratch,
                      Stats& stats) const;
  /// The two halves of this apart, for chunks that are cached or carried: all of the chunk, and rows of one that was
  /// decoded.
  DecodedChunk decode(Bytes stored, WorkerScratch& scratch, Stats& stats) const;
  /// The same to memory of the caller's, of decoded_bytes(); what is there if it throws is of no use.
  void decode_into(Bytes stored, MutableBytes out, WorkerScratch& scratch, Stats& stats) const;
  /// The same to memory of the thread; the bytes are valid as long as `stored`, and until the thread decodes again.
  Bytes decode_in_scratch(Bytes stored, WorkerScratch& scratch, Stats& stats) const;
  void scatter_decoded(int64_t chunk, size_t cell, const uint8_t* decoded, std::span<RowTarget> targets, Stats& stats,
                       bool streaming = false) const;
  /// The same for a chunk that does not exist: the fill value.
  void scatter_fill(size_t cell, std::span<RowTarget> targets) const;
  /// The same for fields that are not stored.
  void scatter_resident(std::span<RowTarget> targets) const;

  [[nodiscard]] const FieldSpec& spec() const { return spec_; }

 private:
  FieldSpec spec_;
  std::unique_ptr<Converter> converter_;
  size_t row_bytes_ = 0;
  int64_t rows_per_chunk_ = 0;
  const ArrayParts* parts_ = nullptr;  ///< of spec_
  std::vector<BoxCopy> boxes_;
  std::optional<PatchCopy> patches_;
  std::unique_ptr<CodecPipeline> pipeline_;
};

}  // namespace zarrfeed
