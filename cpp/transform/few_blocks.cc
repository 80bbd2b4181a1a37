#include "transform/few_blocks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/streaming_store.h"
#include "spec/chunk_grid.h"
#include "transform/output.h"

namespace zarrfeed {
namespace {

/// So many rows or patches are always looked at. More may be all that a chunk has, and their bytes tell.
constexpr size_t kMostLookedAt = 64;
/// Longer rows are copied one by one; shorter ones many at a time, from blocks that lie in memory so that rows are evenly
/// spaced.
constexpr size_t kMinSingleRow = 4096;

const ArraySource& source_of(std::span<const OutputRows> outputs) {
  return *outputs.front().output->source();
}

/// Bytes that a row takes of a chunk, padding included.
size_t row_bytes_of(const ArraySource& source) {
  return source.decoded_bytes() / static_cast<size_t>(source.rows_per_chunk());
}

std::vector<int64_t> index_of(const ArraySource& source, size_t cell) {
  const CellGrid grid(source.array());
  std::vector<int64_t> index;
  for (size_t axis = 0; axis < source.array().shape.size(); ++axis) index.push_back(grid.index(cell, axis));
  return index;
}

/// True if a row is one run of bytes of a chunk, up to where the array ends: no axis with several items is stored
/// around the sample axis.
bool is_run_of_bytes(const ArraySpec& array) {
  for (const int axis : array.storage_order) {
    if (axis == array.sample_axis) return true;
    if (array.chunk_shape[static_cast<size_t>(axis)] > 1) return false;
  }
  return true;
}

}  // namespace

bool may_be_most(size_t count, size_t bytes, const ArraySource& source) {
  return count > kMostLookedAt && count > source.decoded_bytes() / 2 / std::max<size_t>(1, bytes);
}

ChunkCrop first_row_of(const ArraySource& source, size_t cell) {
  return row_crop(source.array(), index_of(source, cell));
}

bool touch_rows_of_chosen(size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                          std::span<const RowTarget> rows, WorkerScratch& scratch) {
  std::vector<int64_t> wanted;
  for (const RowTarget& t : rows) wanted.push_back(t.row);
  return source_of(outputs).touch_chosen(cell, stored, join_items(std::move(wanted)), scratch.touched);
}

bool touch_few_blocks(size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                      std::span<const RowTarget> rows, WorkerScratch& scratch) {
  const ArraySource& source = source_of(outputs);
  if (source.has_chosen()) {
    if (!source.touch_chosen(cell, stored, {{0, source.rows_per_chunk()}}, scratch.touched)) return false;
    const size_t of_all = scratch.touched.num_touched();
    touch_rows_of_chosen(cell, stored, outputs, rows, scratch);
    return 2 * scratch.touched.num_touched() <= of_all;
  }
  for (const OutputRows& one : outputs) {
    if (stored.is_whole() && may_be_most(one.count, row_bytes_of(source), source)) return false;
  }
  TouchedBlocks& touched = scratch.touched;
  if (!source.begin_blocks(stored, touched)) return false;
  touched.begin_rows(first_row_of(source, cell));
  for (const RowTarget& t : rows) {
    if (touched.add_row(t.row) && stored.is_whole() && touched.are_most()) return false;
  }
  return true;
}

bool touch_few_blocks(PatchCell from, const StoredBytes& stored, std::span<const OutputRows> outputs,
                      std::span<const PatchTarget> patches, WorkerScratch& scratch) {
  const ArraySource& source = source_of(outputs);
  for (const OutputRows& one : outputs) {
    const size_t most_bytes = one.output->patches()->most_bytes_of_chunk();
    if (stored.is_whole() && may_be_most(one.count, most_bytes, source)) return false;
  }
  TouchedBlocks& touched = scratch.touched;
  if (!source.begin_blocks(stored, touched)) return false;
  std::vector<ChunkCrop>& crops = scratch.crops;
  auto patch = patches.begin();
  for (const OutputRows& one : outputs) {
    for (size_t i = 0; i < one.count; ++i, ++patch) {
      crops.clear();
      one.output->patches()->find_crops(from, *patch, crops);
      for (const ChunkCrop& crop : crops) touched.add(crop);
      if (stored.is_whole() && touched.are_most()) return false;
    }
  }
  return true;
}

size_t bytes_of_rows(const ArraySource& source, std::span<const RowTarget> rows, WorkerScratch& scratch) {
  std::vector<bool>& seen = scratch.seen_rows;
  seen.assign(static_cast<size_t>(source.rows_per_chunk()), false);
  for (const RowTarget& t : rows) seen[static_cast<size_t>(t.row)] = true;
  return static_cast<size_t>(std::ranges::count(seen, true)) * row_bytes_of(source);
}

std::vector<ChunkCrop> list_crops(PatchCell from, std::span<const OutputRows> outputs,
                                  std::span<const PatchTarget> patches) {
  std::vector<ChunkCrop> crops;
  auto patch = patches.begin();
  for (const OutputRows& one : outputs) {
    for (size_t i = 0; i < one.count; ++i) one.output->patches()->find_crops(from, *patch++, crops);
  }
  return crops;
}

size_t scatter_from_few_blocks(size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                               std::span<RowTarget> rows, bool streaming, WorkerScratch& scratch, StageTimer& timer,
                               Stats& stats) {
  if (source_of(outputs).has_chosen() || !touch_few_blocks(cell, stored, outputs, rows, scratch)) return 0;
  const ArraySpec& array = source_of(outputs).array();
  const size_t row_bytes = row_bytes_of(source_of(outputs));
  const bool is_raw = source_of(outputs).pipeline().is_raw();
  const bool are_spaced = is_run_of_bytes(array) && row_bytes < kMinSingleRow && !is_raw;
  TouchedBlocks& touched = scratch.touched;
  const size_t decoded = touched.decode(scratch.decoded, scratch.codecs, are_spaced ? row_bytes : 1);
  timer.lap(stats.scatter_ns);
  const std::vector<int64_t> index = index_of(source_of(outputs), cell);
  ChunkCrop crop = row_crop(array, index);
  const auto axis = static_cast<size_t>(array.sample_axis);
  size_t begin = 0;
  for (const OutputRows& one : outputs) {
    const std::span<RowTarget> of_output = rows.subspan(begin, one.count);
    if (are_spaced) {
      for (RowTarget& t : of_output) t.row = touched.row_at(t.row);
      one.output->box(cell).copy_rows(touched.memory(), of_output, streaming);
    } else {
      const BoxCopy box(array, index, one.output->converter(), true);
      for (const RowTarget& t : of_output) {
        crop.begin[axis] = t.row;
        crop.end[axis] = t.row + 1;
        const RowTarget alone{0, t.dest};
        box.copy_rows(touched.crop(crop), {&alone, 1}, streaming);
      }
    }
    stats.bytes_scattered.fetch_add(one.count * one.output->box(cell).bytes(), std::memory_order_relaxed);
    begin += one.count;
  }
  if (streaming) fence_streaming_stores();
  return is_raw ? bytes_of_rows(source_of(outputs), rows, scratch) : decoded;
}

size_t cut_from_few_blocks(PatchCell from, const StoredBytes& stored, std::span<const OutputRows> outputs,
                           std::span<const PatchTarget> patches, WorkerScratch& scratch, StageTimer& timer,
                           Stats& stats) {
  if (!touch_few_blocks(from, stored, outputs, patches, scratch)) return 0;
  const TouchedBlocks& touched = scratch.touched;
  size_t decoded = scratch.touched.decode(scratch.decoded, scratch.codecs);
  const ArraySource& source = source_of(outputs);
  timer.lap(stats.scatter_ns);
  std::vector<ChunkCrop>& crops = scratch.crops;
  size_t written = 0;
  auto patch = patches.begin();
  for (const OutputRows& one : outputs) {
    const PatchCopy& copy = *one.output->patches();
    for (size_t i = 0; i < one.count; ++i, ++patch) {
      crops.clear();
      copy.find_crops(from, *patch, crops);
      for (const ChunkCrop& crop : crops) {
        written += copy.cut_crop(from, touched.crop(crop), *patch, crop);
        if (source.pipeline().is_raw()) decoded += crop_bytes(source.array(), crop);
      }
    }
  }
  stats.bytes_scattered.fetch_add(written, std::memory_order_relaxed);
  return decoded;
}

}  // namespace zarrfeed
