#include "engine/shared_chunks.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>

#include "base/error.h"
#include "plan/patch_table.h"
#include "transform/patch_copy.h"

namespace zarrfeed {
namespace {

using Cells = std::vector<PatchCell>;

/// Adds the chunks of all patches of a block of tiles. They are a grid: along each axis, what any of its tiles needs.
void add_tiles(const PatchTable& table, size_t block, const PatchCopy& patches, Cells& out) {
  const int64_t volume = table.block_volume[block];
  if (!patches.has(volume)) return;
  std::vector<std::vector<int64_t>> chunks(patches.num_axes());
  for (size_t a = 0; a < patches.num_axes(); ++a) {
    PatchStart start{volume, {}};
    const int dim = patches.axis(a).dim;
    if (dim < 0) {
      patches.add_chunks(a, start, chunks[a]);
      continue;
    }
    const auto d = static_cast<size_t>(dim);
    const int64_t begin = table.block_begin[block * table.num_dims + d];
    for (int64_t tile = begin; tile < begin + table.block_count[block * table.num_dims + d]; ++tile) {
      start.at[d] = table.tile_start(volume, d, tile);
      patches.add_chunks(a, start, chunks[a]);
    }
  }
  patches.add_cells(volume, chunks, out);
}

/// The chunks that the blocks of a group need, ascending; those of several segments as often as there are.
Cells cells_of(const EpochPlan& plan, size_t group, const PatchCopy& patches) {
  const PatchTable& table = *plan.patches;
  Cells found;
  for (auto s = static_cast<size_t>(plan.group_begin[group]); s < static_cast<size_t>(plan.group_begin[group + 1]);
       ++s) {
    const int64_t first = plan.segment_first[s];
    const int64_t rows = plan.segment_rows[s];
    if (first < 0 || rows < 1 || first > table.num_samples() - rows) {
      throw Error(ErrorKind::kConfig, "plan: there are no patches " + std::to_string(first) + " and on");
    }
    Cells of_segment;
    const size_t block = table.is_listed() ? 0 : table.block_of(first);
    if (!table.is_listed() && table.block_first[block] == first && table.block_first[block + 1] == first + rows) {
      add_tiles(table, block, patches, of_segment);
    } else {
      for (int64_t sample = first; sample < first + rows; ++sample) {
        const PatchStart start = table.start(sample);
        if (patches.has(start.volume)) patches.find_cells(start, of_segment);
      }
    }
    std::ranges::sort(of_segment);
    of_segment.erase(std::unique(of_segment.begin(), of_segment.end()), of_segment.end());
    found.insert(found.end(), of_segment.begin(), of_segment.end());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::vector<SharedChunk> find_shared(const EpochPlan& plan, const std::vector<FieldDecoder>& fields, size_t group) {
  std::vector<SharedChunk> shared;
  if (plan.next_group.empty()) return shared;
  if (plan.patches == nullptr) {
    for (int64_t i = plan.carry_begin[group]; i < plan.carry_begin[group + 1]; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto field = static_cast<size_t>(plan.carry_field[at]);
      for (size_t cell = 0; cell < fields[field].num_cells(); ++cell) {
        shared.push_back({field, plan.carry_chunk[at], cell, plan.carry_on[at] != 0});
      }
    }
    return shared;
  }
  for (size_t f = 0; f < fields.size(); ++f) {
    const PatchCopy* const patches = fields[f].patches();
    if (patches == nullptr) continue;
    const Cells cells = cells_of(plan, group, *patches);
    const int64_t next = plan.next_group[group];
    const Cells of_next = next < 0 ? Cells{} : cells_of(plan, static_cast<size_t>(next), *patches);
    for (auto at = cells.begin(); at != cells.end();) {
      const auto end = std::upper_bound(at, cells.end(), *at);
      const bool is_of_next = std::binary_search(of_next.begin(), of_next.end(), *at);
      if (is_of_next || end - at > 1) shared.push_back({f, at->chunk, at->cell, is_of_next});
      at = end;
    }
  }
  return shared;
}

}  // namespace zarrfeed
