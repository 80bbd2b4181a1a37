#pragma once
// A field of the dataset: where its rows come from and what a sample takes of them. Several fields may draw from one
// array.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "spec/array_spec.h"
#include "spec/conversion_spec.h"
#include "spec/patch_spec.h"
#include "spec/sample_grid.h"

namespace zarrfeed {

/// The items of a field as the consumers of batches see them: numbers, by DLPack's code and width, of this shape behind
/// the rows.
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

/// The place of a field's rows, if they share a tensor of the batch with rows of other fields.
struct SlotSpec {
  size_t tensor = 0;     ///< number of the tensor; fields of one tensor have windows of the same length
  size_t row_bytes = 0;  ///< of the tensor: from one row to the next
  size_t offset = 0;     ///< where the row of this field begins in that of the tensor
};

/// The row of its array that a field has for a sample.
struct RowMapSpec {
  /// The row of sample s is `rows[s]`, -1 if there is none; borrowed. Null: it is `first + step * s`, none if the array
  /// has no such row.
  const int64_t* rows = nullptr;
  int64_t num_samples = 0;  ///< length of `rows`; with runs, the number of samples
  int64_t first = 0;
  int64_t step = 1;
  /// Above 0: `rows` has the first sample of each of so many runs, ascending from 0, and then the row of each of these.
  /// The row of sample s of run i is `rows[num_runs + i] + step * (s - rows[i])`; none if run i has the row -1.
  int64_t num_runs = 0;
  std::optional<SampleGrid> grid{};  ///< the row of sample s is `grid->row_of(s)`, and nothing else is said
};

/// The values of rows that a sample lacks.
struct PadSpec {
  enum class Mode {
    kNone,  ///< nothing: a sample without all of its rows is an error of the plan
    kEdge,  ///< at the ends of a segment: its first or last row. Rows that the row map lacks: as kFill
    kFill,  ///< `item`, in every item of the row
  };
  Mode mode = Mode::kNone;
  std::vector<uint8_t> item;  ///< as it stands in the batch; empty: zeros
  /// The borders of segments, which windows do not leave: ascending, from 0 to the number of samples. Null: there is
  /// one segment.
  std::shared_ptr<const std::vector<int64_t>> borders;
};

/// A distance that is drawn for each sample, uniformly from [low, high]: the same for all fields of the sample.
struct LeadSpec {
  int64_t low = 0;
  int64_t high = 0;
  std::vector<size_t> offset_indices;  ///< of the offsets that it stands for
};

/// One field of the dataset: a stored array, rows that lie in memory, the global sample index itself, or a mask: one byte
/// for each row of a window, 1 where the row is padded; or the distance that was drawn for the sample.
struct FieldSpec {
  enum class Kind { kStored, kResident, kIndex, kPadMask, kLead };
  Kind kind = Kind::kStored;
  ArraySpec array;  ///< kStored
  /// kStored, kResident: the number of the first field that draws from the same array; none: it is the only one, or the
  /// first. An array is opened, fetched and decoded once for all fields that draw from it, as the first one has it.
  std::optional<size_t> source;
  const uint8_t* rows = nullptr;  ///< kResident: row i lies at rows + i * sample_bytes; borrowed, never written
  size_t sample_bytes = 0;        ///< kResident: bytes of one row
  std::vector<BadRows> bad_rows;  ///< kResident: ascending; with EngineOptions::skip_bad, samples of them are skipped
  std::optional<ConversionSpec> conversion;  ///< kStored, kResident: what the items become; none: they stay as they are
  /// kStored, kResident, kIndex: a sample consists of the rows at these distances from its own, one after another, in a
  /// window. Empty: of its own row.
  std::vector<int64_t> offsets;
  std::optional<TensorSpec> tensor;   ///< none: bytes
  std::optional<SlotSpec> slot;       ///< none: the field has a tensor for itself
  std::optional<RowMapSpec> row_map;  ///< kStored, kResident, kIndex: none: the row of a sample has its index
  std::optional<LeadSpec> lead;       ///< kStored, kResident, kPadMask, kLead: which offsets are drawn
  PadSpec pad;                        ///< kStored, kResident, kPadMask
  std::optional<PatchSpec> patch;     ///< kStored: samples are boxes, and nothing is said of offsets, row map and pad
  int64_t num_rows = 0;               ///< kResident: rows that lie there; kIndex with a row map: more than any row
  bool is_variant =
      false;  ///< kStored: other fields of the same slot have the rows that `array.parts` lack; those that
              ///< nobody has are padded by the field that is no variant
};

}  // namespace zarrfeed
