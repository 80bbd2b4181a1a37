#pragma once
// The chunks that a group of the plan shares with the next one of its lane, and the crops of them that are carried.
// Pure.
//
// A chunk of rows is carried whole, or as the runs that the plan cuts it into (row_runs.h). A chunk of patches is
// carried as the crop that the column of the group needs: across the sweep axis the items that the group needs, along
// it all items in the volume. A group needs the items of a source that any output needs which draws from it, such as
// patches and their wider contexts.
//
// Invariants:
//   * Each patch of a group finds in the crop of the group every item that it needs of the chunk.
//   * A group shares a chunk with the next one only if the crop of the next one lies in its own. For groups of one run,
//     both are the same.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "plan/row_order.h"
#include "transform/output_table.h"
#include "transform/patches/chunk_crop.h"

namespace zarrfeed {

/// A chunk that tasks share.
struct SharedChunk {
  size_t source = 0;
  int64_t run = 0;  ///< number of the run; for patches, and where chunks are not cut, of the chunk
  size_t cell = 0;
  bool next = false;  ///< the next group of the lane shares it; otherwise several segments of this group do
  std::optional<ChunkCrop> crop = {};  ///< the part of it that is carried; none: the whole chunk
  size_t crop_room = 0;                ///< the memory for the crop; 0: that of a chunk of the source
};

/// A chunk, or a run of its rows: source, run, cell.
using ChunkKey = std::tuple<size_t, int64_t, size_t>;

/// Returns the chunks that the patches of a group need, ascending, each once, the group being taken to have whole
/// blocks. Throws Error(kConfig) if the plan contradicts itself.
std::vector<ChunkKey> find_needed(const EpochPlan& plan, const OutputTable& outputs, size_t group);

/// Returns the chunks that a group shares. The plan lists shared chunks of rows. Those of patches are the chunks that
/// patches of two segments, or of the group and of the next one, have items in, unless the next one needs other parts
/// of them. Both groups are taken to have whole blocks, so there may be chunks that one of them does not need. Throws
/// Error(kConfig) if the plan contradicts itself.
std::vector<SharedChunk> find_shared(const EpochPlan& plan, const OutputTable& outputs, size_t group);

}  // namespace zarrfeed
