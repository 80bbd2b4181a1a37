#include "engine/chunks/shared_chunks.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/chunks/crop_memory.h"
#include "plan/patch_table.h"
#include "transform/patches/patch_copy.h"

namespace zarrfeed {
namespace {

using Cells = std::vector<PatchCell>;

/// The chunks that a segment needs.
struct Needs {
  Cells cells;  ///< ascending, each once
  int64_t volume = 0;
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

/// What the segments of a group need.
std::vector<Needs> needs_of(const EpochPlan& plan, size_t group, const PatchCopy& patches) {
  const PatchTable& table = *plan.patches;
  std::vector<Needs> found;
  for (auto s = static_cast<size_t>(plan.group_begin[group]); s < static_cast<size_t>(plan.group_begin[group + 1]);
       ++s) {
    const int64_t first = plan.segment_first[s];
    const int64_t rows = plan.segment_rows[s];
    if (first < 0 || rows < 1 || first > table.num_samples() - rows) {
      throw Error(ErrorKind::kConfig, "plan: there are no patches " + std::to_string(first) + " and on");
    }
    Needs& of_segment = found.emplace_back();
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
  return found;
}

/// The chunks of all segments, ascending; those of several segments as often as there are.
Cells cells_of(const std::vector<Needs>& segments) {
  Cells found;
  for (const Needs& one : segments) found.insert(found.end(), one.cells.begin(), one.cells.end());
  std::ranges::sort(found);
  return found;
}

/// The crop of a chunk that segments need; none: the whole chunk.
std::optional<ChunkCrop> crop_of(const std::vector<Needs>& segments, PatchCell cell, const FieldDecoder& field) {
  std::optional<ChunkCrop> crop;
  for (const Needs& one : segments) {
    if (!std::ranges::binary_search(one.cells, cell)) continue;
    if (one.spans.empty()) return std::nullopt;
    const ChunkCrop of_segment = field.patches()->crop_of(cell, one.volume, one.spans);
    if (crop) {
      crop->join(of_segment);
    } else {
      crop = of_segment;
    }
  }
  // A crop that takes as much memory as the chunk saves nothing.
  const bool is_smaller = crop && CropMemory::room_for(crop_bytes(field.spec().array, *crop)) < field.decoded_bytes();
  return is_smaller ? crop : std::nullopt;
}

/// Whether the next group finds in the crop for this one all of its own crop.
bool suffices(const std::optional<ChunkCrop>& crop, const std::optional<ChunkCrop>& of_next) {
  return !crop || (of_next && crop->holds(*of_next));
}

}  // namespace

std::vector<ChunkKey> find_needed(const EpochPlan& plan, const std::vector<FieldDecoder>& fields, size_t group) {
  std::vector<ChunkKey> needed;
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].patches() == nullptr) continue;
    for (const PatchCell& one : cells_of(needs_of(plan, group, *fields[f].patches()))) {
      const ChunkKey key(f, one.chunk, one.cell);
      if (needed.empty() || needed.back() != key) needed.push_back(key);
    }
  }
  return needed;
}

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
    const std::vector<Needs> segments = needs_of(plan, group, *patches);
    const Cells cells = cells_of(segments);
    const int64_t next = plan.next_group[group];
    const std::vector<Needs> of_next =
        next < 0 ? std::vector<Needs>{} : needs_of(plan, static_cast<size_t>(next), *patches);
    const Cells next_cells = cells_of(of_next);
    for (auto at = cells.begin(); at != cells.end();) {
      const auto end = std::upper_bound(at, cells.end(), *at);
      const bool is_of_next = std::ranges::binary_search(next_cells, *at);
      if (is_of_next || end - at > 1) {
        SharedChunk one{f, at->chunk, at->cell, false, crop_of(segments, *at, fields[f]), fields[f].decoded_bytes()};
        one.next = is_of_next && suffices(one.crop, crop_of(of_next, *at, fields[f]));
        if (one.crop) one.crop_room = CropMemory::room_for(crop_bytes(fields[f].spec().array, *one.crop));
        if (one.next || end - at > 1) shared.push_back(one);
      }
      at = end;
    }
  }
  return shared;
}

}  // namespace zarrfeed
