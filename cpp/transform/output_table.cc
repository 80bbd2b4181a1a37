#include "transform/output_table.h"

#include <memory>
#include <string>
#include <utility>

#include "base/error.h"

namespace zarrfeed {
namespace {

/// True if two descriptions can be of one array: their chunks have the same rows and as many bytes.
bool may_be_same(const ArraySpec& one, const ArraySpec& other) {
  return one.shape == other.shape && one.chunk_shape == other.chunk_shape && one.sample_axis == other.sample_axis &&
         one.storage_order == other.storage_order && one.item_bytes == other.item_bytes &&
         one.swap_bytes == other.swap_bytes && one.chosen == other.chosen &&
         (one.parts == nullptr) == (other.parts == nullptr);
}

}  // namespace

OutputTable::OutputTable(std::vector<FieldSpec> fields) : outputs_of_(fields.size()) {
  outputs_.reserve(fields.size());
  for (size_t i = 0; i < fields.size(); ++i) {
    FieldSpec& field = fields[i];
    const size_t source = field.source.value_or(i);
    std::shared_ptr<const ArraySource> shared;
    if (source != i) {
      const bool is_first = source < i && source_of_[source] == source;
      if (!is_first || outputs_[source].spec().kind != field.kind) {
        throw Error(ErrorKind::kConfig, "field " + std::to_string(i) + ": field " + std::to_string(source) +
                                            " is no source that it can draw from");
      }
      shared = outputs_[source].shared_source();
      if (shared != nullptr && !may_be_same(shared->array(), field.array)) {
        throw Error(ErrorKind::kConfig, "field " + std::to_string(i) + ": the array of field " +
                                            std::to_string(source) + ", " + shared->array().name + ", is another one");
      }
    }
    outputs_.emplace_back(std::move(field), std::move(shared));
    source_of_.push_back(source);
    outputs_of_[source].push_back(i);
  }
}

std::vector<size_t> OutputTable::chunk_bytes() const {
  std::vector<size_t> bytes;
  for (size_t i = 0; i < size(); ++i) bytes.push_back(source(i) == nullptr ? 0 : source(i)->decoded_bytes());
  return bytes;
}

}  // namespace zarrfeed
