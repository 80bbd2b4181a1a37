#include "engine/chunks/shared_chunks.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/chunks/crop_memory.h"
#include "engine/chunks/row_runs.h"
#include "plan/patch_table.h"
#include "transform/patches/patch_copy.h"

namespace zarrfeed {
namespace {

using Cells = std::vector<PatchCell>;

/// The chunks that an output needs for a segment.
struct Needs {
  size_t segment = 0;
  Cells cells;  ///< ascending, each once
  int64_t volume = 0;
  const PatchCopy* patches = nullptr;
  std::vector<std::vector<ChunkSpan>> spans;  ///< what of them is carried, by axis, ascending by chunk; empty: all
};

/// Sets the chunks of all patches of a block of tiles. They are a grid: along each axis, what any of its tiles needs.
void find_needs_of_tiles(const PatchTable& table, size_t block, const PatchCopy& patches, Needs& out) {
  const int64_t volume = table.block_volume[block];
  if (!patches.has(volume)) return;
  std::vector<std::vector<int64_t>> chunks(patches.num_axes());
  std::vector<std::vector<ChunkSpan>> spans(patches.num_axes());
  for (size_t a = 0; a < patches.num_axes(); ++a) {
    PatchStart start{volume, {}};
    const int dim = patches.axis(a).dim;
    if (dim < 0) {
      patches.add_spans(a, start, spans[a]);
    } else {
      const auto d = static_cast<size_t>(dim);
      const int64_t begin = table.block_begin[block * table.num_dims + d];
      for (int64_t tile = begin; tile < begin + table.block_count[block * table.num_dims + d]; ++tile) {
        start.at[d] = table.tile_start(volume, d, tile);
        patches.add_spans(a, start, spans[a]);
      }
    }
    std::ranges::sort(spans[a], {}, &ChunkSpan::chunk);
    for (ChunkSpan& span : spans[a]) {
      chunks[a].push_back(span.chunk);
      if (dim >= 0 && dim == table.sweep_axis) span = patches.span_in_volume(a, volume, span.chunk);
    }
  }
  patches.add_cells(volume, chunks, out.cells);
  if (table.sweep_axis < 0) return;  // nothing is known of the other blocks of the run
  out.volume = volume;
  out.spans = std::move(spans);
}

/// Adds what the segments of a group need for an output.
void add_needs(const EpochPlan& plan, size_t group, const PatchCopy& patches, std::vector<Needs>& found) {
  const PatchTable& table = *plan.patches;
  for (auto s = static_cast<size_t>(plan.group_begin[group]); s < static_cast<size_t>(plan.group_begin[group + 1]);
       ++s) {
    const int64_t first = plan.segment_first[s];
    const int64_t rows = plan.segment_rows[s];
    if (first < 0 || rows < 1 || first > table.num_samples() - rows) {
      throw Error(ErrorKind::kConfig, "plan: there are no patches " + std::to_string(first) + " and on");
    }
    Needs& of_segment = found.emplace_back();
    of_segment.segment = s;
    of_segment.patches = &patches;
    const size_t block = table.is_listed() ? 0 : table.block_of(first);
    if (!table.is_listed() && table.block_first[block] == first && table.block_first[block + 1] == first + rows) {
      find_needs_of_tiles(table, block, patches, of_segment);
    } else {
      for (int64_t sample = first; sample < first + rows; ++sample) {
        const PatchStart start = table.start(sample);
        if (patches.has(start.volume)) patches.find_cells(start, of_segment.cells);
      }
    }
    std::ranges::sort(of_segment.cells);
    of_segment.cells.erase(std::unique(of_segment.cells.begin(), of_segment.cells.end()), of_segment.cells.end());
  }
}

/// The chunks that the segments of a group need of a source, for all outputs that draw from it; nothing without
/// patches.
std::vector<Needs> needs_of(const EpochPlan& plan, size_t group, const OutputTable& outputs, size_t source) {
  std::vector<Needs> found;
  for (const size_t output : outputs.outputs_of(source)) {
    const PatchCopy* const patches = outputs[output].patches();
    if (patches != nullptr) add_needs(plan, group, *patches, found);
  }
  return found;
}

/// The chunks that a group needs, ascending; those of several segments as often as there are.
Cells cells_of(const std::vector<Needs>& needs) {
  std::vector<std::pair<PatchCell, size_t>> of_segments;
  for (const Needs& one : needs) {
    for (const PatchCell& cell : one.cells) of_segments.emplace_back(cell, one.segment);
  }
  std::ranges::sort(of_segments);  // several outputs may need a chunk for one segment
  of_segments.erase(std::unique(of_segments.begin(), of_segments.end()), of_segments.end());
  Cells found;
  found.reserve(of_segments.size());
  for (const auto& [cell, segment] : of_segments) found.push_back(cell);
  return found;
}

/// The crop of a chunk that a group needs; none: the whole chunk.
std::optional<ChunkCrop> crop_of(const std::vector<Needs>& needs, PatchCell cell, const ArraySource& source) {
  std::optional<ChunkCrop> crop;
  for (const Needs& one : needs) {
    if (!std::ranges::binary_search(one.cells, cell)) continue;
    if (one.spans.empty()) return std::nullopt;
    const ChunkCrop of_segment = one.patches->crop_of(cell, one.volume, one.spans);
    if (crop) {
      crop->join(of_segment);
    } else {
      crop = of_segment;
    }
  }
  // A crop that takes as much memory as the chunk saves nothing.
  const bool is_smaller = crop && CropMemory::room_for(crop_bytes(source.array(), *crop)) < source.decoded_bytes();
  return is_smaller ? crop : std::nullopt;
}

/// True if the next group finds in the crop for this one all of its own crop.
bool suffices(const std::optional<ChunkCrop>& crop, const std::optional<ChunkCrop>& of_next) {
  return !crop || (of_next && crop->holds(*of_next));
}

}  // namespace

std::vector<ChunkKey> find_needed(const EpochPlan& plan, const OutputTable& outputs, size_t group) {
  std::vector<ChunkKey> needed;
  for (size_t source = 0; source < outputs.size(); ++source) {
    for (const PatchCell& one : cells_of(needs_of(plan, group, outputs, source))) {
      const ChunkKey key(source, one.chunk, one.cell);
      if (needed.empty() || needed.back() != key) needed.push_back(key);
    }
  }
  return needed;
}

std::vector<SharedChunk> find_shared(const EpochPlan& plan, const OutputTable& outputs, size_t group) {
  std::vector<SharedChunk> shared;
  if (plan.next_group.empty()) return shared;
  if (plan.patches == nullptr) {
    for (int64_t i = plan.carry_begin[group]; i < plan.carry_begin[group + 1]; ++i) {
      const auto at = static_cast<size_t>(i);
      const auto source = static_cast<size_t>(plan.carry_source[at]);
      if (source >= outputs.size() || outputs.source(source) == nullptr) {
        throw Error(ErrorKind::kConfig, "plan: source " + std::to_string(plan.carry_source[at]) + " has no chunks");
      }
      const RowRuns runs(plan, *outputs.source(source), source);
      for (size_t cell = 0; cell < outputs.source(source)->num_cells(); ++cell) {
        shared.push_back(runs.shared(plan.carry_chunk[at], cell, plan.carry_on[at] != 0));
      }
    }
    return shared;
  }
  const int64_t next = plan.next_group[group];
  for (size_t number = 0; number < outputs.size(); ++number) {
    const std::vector<Needs> needs = needs_of(plan, group, outputs, number);
    if (needs.empty()) continue;
    const ArraySource& source = *outputs.source(number);
    const Cells cells = cells_of(needs);
    const std::vector<Needs> of_next =
        next < 0 ? std::vector<Needs>{} : needs_of(plan, static_cast<size_t>(next), outputs, number);
    const Cells next_cells = cells_of(of_next);
    for (auto at = cells.begin(); at != cells.end();) {
      const auto end = std::upper_bound(at, cells.end(), *at);
      const bool is_of_next = std::ranges::binary_search(next_cells, *at);
      if (is_of_next || end - at > 1) {
        SharedChunk one{number, at->chunk, at->cell, false, crop_of(needs, *at, source), source.decoded_bytes()};
        one.next = is_of_next && suffices(one.crop, crop_of(of_next, *at, source));
        if (one.crop) one.crop_room = CropMemory::room_for(crop_bytes(source.array(), *one.crop));
        if (one.next || end - at > 1) shared.push_back(one);
      }
      at = end;
    }
  }
  return shared;
}

}  // namespace zarrfeed
