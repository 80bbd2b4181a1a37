#pragma once
// An output: what one tensor, or a part of one, takes of an array: from decoded chunks, or from rows in memory, to rows in
// slots. Immutable while an epoch is read, hence shared by all threads; what a thread needs for itself is in
// WorkerScratch.
//
// Invariant: outputs that draw from one ArraySource agree on which chunk has a row, whatever else they do with it. So one
// decoded chunk serves all of them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/stats.h"
#include "base/stored_bytes.h"
#include "spec/field_spec.h"
#include "transform/array_source.h"
#include "transform/convert/convert.h"
#include "transform/patches/patch_copy.h"
#include "transform/scatter.h"

namespace zarrfeed {

/// Errors name neither the array nor the chunk: whoever knows the chunk adds them.
class Output {
 public:
  /// `source` is the array of a stored field. Null: it is made of `spec`, and nobody else draws from it.
  explicit Output(FieldSpec spec, std::shared_ptr<const ArraySource> source = nullptr);

  /// The array that the rows come from; null if the field is not stored.
  [[nodiscard]] const ArraySource* source() const { return source_.get(); }
  [[nodiscard]] const std::shared_ptr<const ArraySource>& shared_source() const { return source_; }
  [[nodiscard]] bool is_stored() const { return source_ != nullptr; }
  /// Bytes of a row of the array, as it comes into a batch.
  [[nodiscard]] size_t row_bytes() const { return row_bytes_; }
  /// Rows of a sample: the window.
  [[nodiscard]] size_t num_offsets() const { return std::max<size_t>(1, spec_.offsets.size()); }
  /// Bytes of a sample in the tensor of the batch, those of other outputs that share it included.
  [[nodiscard]] size_t sample_bytes() const { return slot_bytes() * num_offsets(); }
  /// Chunks that hold the parts of one row; 0 if the field is not stored, 1 for patches, each of which lies in chunks of
  /// its own.
  [[nodiscard]] size_t num_cells() const { return patches_ ? 1 : boxes_.size(); }
  /// The object that cuts patches out of chunks; null if samples are no patches.
  [[nodiscard]] const PatchCopy* patches() const { return patches_ ? &*patches_ : nullptr; }
  /// The object that copies the part of a row that a cell has, for outputs without patches.
  [[nodiscard]] const BoxCopy& box(size_t cell) const { return boxes_[cell]; }
  /// The converter of items; null: items are not converted.
  [[nodiscard]] const Converter* converter() const { return converter_.get(); }
  /// Bytes from one row to the next in the tensor of the batch, and where the row of this output begins in it.
  [[nodiscard]] size_t slot_bytes() const { return spec_.slot ? spec_.slot->row_bytes : row_bytes_; }
  [[nodiscard]] size_t slot_offset() const { return spec_.slot ? spec_.slot->offset : 0; }
  /// True if the row of a sample is the one with its index, without windows: nothing has to be looked up.
  [[nodiscard]] bool is_direct() const {
    return spec_.offsets.empty() && !spec_.row_map && !spec_.lead && !patches_ &&
           spec_.kind != FieldSpec::Kind::kPadMask;
  }
  /// Rows that there are, where samples have the row with their index; none if nothing bounds them.
  [[nodiscard]] std::optional<int64_t> num_own_rows() const;
  /// Returns the row that a sample has at a distance from its own, within the samples [begin, end) of its segment; -1
  /// for a row that is padded. Throws Error(kConfig) if there is no such row and nothing takes its place.
  [[nodiscard]] int64_t find_row(int64_t sample, int64_t offset, int64_t begin, int64_t end) const {
    int64_t run = 0;
    return find_rows(sample, offset, 1, begin, end, run).row;
  }
  /// Rows at distances that follow each other: row i of `count` is `row + i * row_step`; -1: all are padded.
  struct Rows {
    int64_t row;
    int64_t count;
    int64_t row_step;
  };
  /// The same for the distances from `offset` on: as many of these `most` as lie side by side, at least one. `run` is where
  /// to look first in a row map of runs, and becomes the run that was found.
  [[nodiscard]] Rows find_rows(int64_t sample, int64_t offset, int64_t most, int64_t begin, int64_t end,
                               int64_t& run) const;

  // Here `targets[i].dest` is where row i goes, and `targets[i].row` its index in the array, which these functions change.

  /// Writes what takes the place of a row.
  void scatter_pad(std::span<const RowTarget> targets) const;
  /// Copies rows of a decoded chunk, or of a run of its rows, which begins with the row `first_row` of the array.
  /// `streaming` says that the slots are more than the cache holds.
  void scatter_decoded(int64_t first_row, size_t cell, const uint8_t* decoded, std::span<RowTarget> targets,
                       Stats& stats, bool streaming = false) const;
  /// Writes the fill value to the slots of a chunk that does not exist.
  void scatter_fill(size_t cell, std::span<const RowTarget> targets) const;
  /// Copies the rows of a field in memory to their slots.
  void scatter_resident(std::span<const RowTarget> targets) const;

  // The same for stretches: rows that go side by side are written together.

  void scatter_pad(std::span<const StretchTarget> targets) const;
  void scatter_decoded(int64_t first_row, size_t cell, const uint8_t* decoded, std::span<StretchTarget> targets,
                       Stats& stats, bool streaming = false) const;
  void scatter_fill(size_t cell, std::span<const StretchTarget> targets) const;
  void scatter_resident(std::span<const StretchTarget> targets) const;

  /// The description of the field; the array is in source().
  [[nodiscard]] const FieldSpec& spec() const { return spec_; }

 private:
  /// The rows of stretches, one by one.
  [[nodiscard]] std::vector<RowTarget> rows_of(std::span<const StretchTarget> targets) const;
  /// Writes padding to rows side by side.
  void pad(uint8_t* dest, size_t bytes) const;
  /// Copies rows in memory to slots side by side.
  void copy_resident(uint8_t* dest, int64_t row, size_t count) const;

  FieldSpec spec_;
  std::shared_ptr<const ArraySource> source_;
  std::unique_ptr<Converter> converter_;
  size_t row_bytes_ = 0;
  std::vector<BoxCopy> boxes_;
  std::optional<PatchCopy> patches_;
};

/// Decodes a chunk once, and copies rows of it to the slots of all `outputs`, which draw from one source, without
/// patches. `targets` are as for Output::scatter_decoded(), those of one output after those of another. Where
/// scatters_blocks() holds, some of the decoded chunk may be written elsewhere, too.
void decode_and_scatter(int64_t chunk, size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                        std::span<RowTarget> targets, bool streaming, WorkerScratch& scratch, Stats& stats,
                        const DecodedCopy& copy = {});
/// True if decode_and_scatter() writes rows as it decodes, and not after it.
[[nodiscard]] bool scatters_blocks(size_t cell, std::span<const OutputRows> outputs);
/// decode_and_scatter() for outputs that all have patches.
void decode_and_cut(PatchCell from, const StoredBytes& stored, std::span<const OutputRows> outputs,
                    std::span<const PatchTarget> patches, WorkerScratch& scratch, Stats& stats);

}  // namespace zarrfeed
