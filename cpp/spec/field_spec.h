#pragma once
// A field of the dataset: where its rows come from and what a sample takes of them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "spec/array_spec.h"
#include "spec/conversion_spec.h"

namespace zarrfeed {

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

}  // namespace zarrfeed
