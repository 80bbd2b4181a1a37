#pragma once
// The decoded chunks of groups: the chunks that an admitted group has in common with others, as the plan says. Groups
// of a lane hand chunks on (CarryTable), and several chains of groups get a chunk from the planned cache
// (PlannedCache).
//
// Invariants:
//   * Groups that share a chunk while it is kept get the same CarriedChunk, so that one task decodes it for all of
//     them.
//   * A group hands a chunk on only to the next group of its lane. Cached chunks have memory of their own, so that they
//     never take that of the lanes.
// Not thread-safe: the engine calls take() and clear() under its mutex, and begin_epoch() before there are threads.

#include <cstddef>
#include <optional>

#include "engine/chunks/carried_chunk.h"
#include "engine/chunks/planned_cache.h"
#include "plan/row_order.h"
#include "transform/output_table.h"

namespace zarrfeed {

class GroupChunks {
 public:
  /// Borrows `outputs`. `carry_bytes` is the memory for chunks that lanes hand on; 0: groups share no chunks.
  GroupChunks(const OutputTable& outputs, size_t carry_bytes);

  /// Begins an epoch, whose plan it borrows. `cache_bytes` is the memory for chunks that several chains of groups need.
  /// Throws Error(kConfig) if the plan contradicts itself.
  void begin_epoch(const EpochPlan& plan, size_t cache_bytes);
  /// Returns the chunks that a group shares. Called once for each group, in the order of admission.
  CarriedChunks take(size_t group);
  /// Lets go of all chunks.
  void clear();
  /// Bytes that were mapped, in use or free.
  [[nodiscard]] size_t mapped_bytes() const;

 private:
  const OutputTable& outputs_;
  const EpochPlan* plan_ = nullptr;
  std::optional<CarryTable> carried_;   ///< none: groups share no chunks
  std::optional<PlannedCache> cached_;  ///< none: no chunk is kept for other chains of groups
};

}  // namespace zarrfeed
