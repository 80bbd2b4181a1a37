#pragma once
// Which chunks a group of the plan shares with the next one of its lane. Pure.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/row_order.h"
#include "transform/field_decoder.h"

namespace zarrfeed {

/// A chunk that tasks share.
struct SharedChunk {
  size_t field = 0;
  int64_t chunk = 0;
  size_t cell = 0;
  bool next = false;  ///< the next group of the lane needs it; otherwise several segments of this group do
};

/// Returns the chunks that a group shares. Of rows, the plan lists them. Of patches, they are the chunks that patches of
/// two segments, or of the group and of the next one, have places in; both groups are taken to have whole blocks, so
/// there may be chunks that one of them does not need. Throws Error(kConfig) if the plan contradicts itself.
std::vector<SharedChunk> find_shared(const EpochPlan& plan, const std::vector<FieldDecoder>& fields, size_t group);

}  // namespace zarrfeed
