#include "engine/task_builder.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/window_rows.h"

namespace zarrfeed {
namespace {

/// A row with the chunk that it lies in.
struct ChunkRow {
  int64_t chunk = kNoChunk;
  Placement row;
};

}  // namespace

std::optional<int64_t> TaskBuilder::pieces_per_sample(const std::vector<FieldDecoder>& fields) {
  if (std::ranges::any_of(fields, [](const FieldDecoder& field) { return field.patches() != nullptr; })) {
    return std::nullopt;  // each patch lies in chunks of its own
  }
  size_t pieces = 0;
  std::map<std::pair<size_t, size_t>, size_t> cells_of_slot;  // of fields with parts: by tensor and offset in it
  for (const FieldDecoder& field : fields) {
    const size_t cells = std::max<size_t>(1, field.num_cells());
    if (const auto& slot = field.spec().slot; slot && field.is_stored() && field.spec().array.parts != nullptr) {
      const auto [of_slot, is_first] = cells_of_slot.try_emplace({slot->tensor, slot->offset}, cells);
      if (!is_first && of_slot->second != cells) return std::nullopt;
      if (!is_first) continue;
    }
    pieces += cells * field.num_offsets();
  }
  return static_cast<int64_t>(pieces);
}

TaskBuilder::Rows TaskBuilder::build(size_t group, ShuffleScratch& scratch, std::vector<Task>& out) const {
  GroupPlacements placements;
  expand_group(plan_, group, scratch, placements);
  auto samples = std::make_shared<const std::vector<Placement>>(std::move(placements.rows));
  const auto first_segment = static_cast<size_t>(plan_.group_begin[group]);
  for (size_t s = 0; s + 1 < placements.begin.size(); ++s) {
    if (placements.begin[s] == placements.begin[s + 1]) continue;
    const SampleRange of_block = find_samples(plan_, first_segment + s);
    for (size_t f = 0; f < fields_.size(); ++f) {
      add_field(f, samples, placements.begin[s], placements.begin[s + 1], of_block, out);
    }
  }
  return samples;
}

void TaskBuilder::add_field(size_t field, const Rows& samples, size_t begin, size_t end, const SampleRange& of_block,
                            std::vector<Task>& out) const {
  const FieldDecoder& decoder = fields_[field];
  if (decoder.patches() != nullptr) {
    add_patches(field, samples, begin, end, out);
    return;
  }
  const auto of_segment = std::span(*samples).subspan(begin, end - begin);
  if (decoder.is_direct()) {
    if (!decoder.is_stored()) {
      add_rows(field, samples, samples, begin, end, 0, out);
      return;
    }
    // Mostly one chunk has the whole block, so that its rows need not be looked at.
    SampleRange range = of_block;
    int64_t chunk = decoder.chunk_of(range.first);
    if (chunk == kNoChunk || chunk != decoder.chunk_of(range.last)) {
      const auto [first, last] =
          std::minmax_element(of_segment.begin(), of_segment.end(),
                              [](const Placement& a, const Placement& b) { return a.sample < b.sample; });
      range = {first->sample, last->sample};
      chunk = decoder.chunk_of(range.first);
    }
    if (chunk != kNoChunk && chunk == decoder.chunk_of(range.last)) {
      add_rows(field, samples, samples, begin, end, chunk, out);
      return;
    }
  }
  const WindowRows windows(decoder, plan_);
  const size_t num_rows = of_segment.size() * decoder.num_offsets();
  if (!decoder.is_direct() && num_rows > most_listed_ && decoder.row_bytes() < kSmallRow) {
    const auto chunks = decoder.is_stored() ? windows.find_chunks(of_segment) : std::vector<int64_t>{0};
    for (const int64_t chunk : chunks) add_rows(field, samples, nullptr, begin, end, chunk, out);
    return;
  }
  if (!decoder.is_stored()) {
    const auto rows = std::make_shared<const std::vector<Placement>>(windows.list(of_segment));
    add_rows(field, samples, rows, 0, rows->size(), 0, out);
    return;
  }
  // The rows may lie in several chunks: one task for each chunk, and one for those that are padded.
  const std::vector<Placement> found =
      decoder.is_direct() ? std::vector<Placement>(of_segment.begin(), of_segment.end()) : windows.list(of_segment);
  std::vector<ChunkRow> by_chunk;
  by_chunk.reserve(found.size());
  bool is_sorted = true;
  for (const Placement& row : found) {
    const int64_t chunk = windows.chunk_of(row);
    if (chunk == WindowRows::kOfOther) continue;
    is_sorted = is_sorted && (by_chunk.empty() || by_chunk.back().chunk <= chunk);
    by_chunk.push_back({chunk, row});
  }
  if (!is_sorted) {
    std::stable_sort(by_chunk.begin(), by_chunk.end(),
                     [](const ChunkRow& a, const ChunkRow& b) { return a.chunk < b.chunk; });
  }
  std::vector<Placement> sorted;
  sorted.reserve(by_chunk.size());
  for (const ChunkRow& one : by_chunk) sorted.push_back(one.row);
  const auto rows = std::make_shared<const std::vector<Placement>>(std::move(sorted));
  for (size_t from = 0; from < by_chunk.size();) {
    size_t to = from + 1;
    while (to < by_chunk.size() && by_chunk[to].chunk == by_chunk[from].chunk) ++to;
    add_rows(field, samples, rows, from, to, by_chunk[from].chunk, out);
    from = to;
  }
}

void TaskBuilder::add_patches(size_t field, const Rows& samples, size_t begin, size_t end,
                              std::vector<Task>& out) const {
  const PatchCopy& patches = *fields_[field].patches();
  struct Piece {
    PatchCell cell;
    Placement sample;
  };
  std::vector<Piece> pieces;
  std::vector<PatchCell> cells;
  for (size_t i = begin; i < end; ++i) {
    const Placement& sample = (*samples)[i];
    const PatchStart start = plan_.patches->start(sample.sample);
    if (!patches.has(start.volume)) continue;  // another field has it
    cells.clear();
    patches.find_cells(start, cells);
    if (patches.reaches_out(start)) cells.push_back({kNoChunk, 0});
    for (const PatchCell& cell : cells) pieces.push_back({cell, sample});
  }
  std::ranges::stable_sort(pieces, {}, &Piece::cell);
  std::vector<Placement> sorted;
  sorted.reserve(pieces.size());
  for (const Piece& piece : pieces) sorted.push_back(piece.sample);
  const auto rows = std::make_shared<const std::vector<Placement>>(std::move(sorted));
  for (size_t from = 0; from < pieces.size();) {
    size_t to = from + 1;
    while (to < pieces.size() && pieces[to].cell == pieces[from].cell) ++to;
    Task& task = out.emplace_back();
    task.field = field;
    task.cell = pieces[from].cell.cell;
    task.chunk = pieces[from].cell.chunk;
    task.rows = rows;
    task.begin = from;
    task.end = to;
    task.samples = samples;
    task.pads = task.chunk == kNoChunk;
    from = to;
  }
}

void TaskBuilder::add_rows(size_t field, const Rows& samples, const Rows& rows, size_t begin, size_t end, int64_t chunk,
                           std::vector<Task>& out) const {
  for (size_t cell = 0; cell < std::max<size_t>(1, fields_[field].num_cells()); ++cell) {
    Task& task = out.emplace_back();
    task.field = field;
    task.cell = cell;
    task.chunk = chunk;
    task.rows = rows;
    task.begin = begin;
    task.end = end;
    task.samples = samples;
    task.pads = chunk == kNoChunk;
  }
}

}  // namespace zarrfeed
