#pragma once
// All outputs of a dataset, and which arrays they draw from.
//
// A source is known by a number: that of the first output that draws from it. Outputs that are not stored have a number
// of their own, so that every output has one, and no array is called by two. Invariants:
//   * source_of(i) <= i, and source_of(source_of(i)) == source_of(i).
//   * All stored outputs of one source number share one ArraySource.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/field_spec.h"
#include "transform/output.h"

namespace zarrfeed {

class OutputTable {
 public:
  /// Throws Error(kConfig) if a field names a source that is not there, or whose array is another one.
  explicit OutputTable(std::vector<FieldSpec> fields);

  [[nodiscard]] size_t size() const { return outputs_.size(); }
  [[nodiscard]] const Output& operator[](size_t output) const { return outputs_[output]; }
  [[nodiscard]] auto begin() const { return outputs_.begin(); }
  [[nodiscard]] auto end() const { return outputs_.end(); }

  /// The number of the source of an output.
  [[nodiscard]] size_t source_of(size_t output) const { return source_of_[output]; }
  /// The array of a source; null if no stored output has this number.
  [[nodiscard]] const ArraySource* source(size_t number) const {
    return source_of_[number] == number ? outputs_[number].source() : nullptr;
  }
  /// The outputs that draw from a source, ascending; none if this is the number of no source.
  [[nodiscard]] std::span<const size_t> outputs_of(size_t source) const { return outputs_of_[source]; }
  /// Decoded bytes of a chunk of each source; 0 for numbers without an array.
  [[nodiscard]] std::vector<size_t> chunk_bytes() const;

 private:
  std::vector<Output> outputs_;
  std::vector<size_t> source_of_;
  std::vector<std::vector<size_t>> outputs_of_;
};

}  // namespace zarrfeed
