#pragma once
// Rows and patches out of Blosc chunks of which they touch few blocks: the others are not decoded (touched_blocks.h). These
// are the chunks that do not take the fused path: short rows, items that are converted or swapped, rows that lie scattered
// in their chunk, several outputs, patches.
//
// The functions return 0, and have written nothing, where the chunk is better decoded whole. They look at so few rows or
// patches, or stop so early, that this costs next to nothing where all rows of a chunk are wanted.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/stats.h"
#include "base/stored_bytes.h"
#include "transform/array_source.h"
#include "transform/axis_items.h"
#include "transform/patches/patch_copy.h"
#include "transform/scatter.h"
#include "transform/worker_scratch.h"

namespace zarrfeed {

/// The box that row 0 of a chunk has of it.
ChunkCrop first_row_of(const ArraySource& source, size_t cell);
/// True if so many rows or patches, of `bytes` at most, may be more than half of a chunk, so that they are not looked
/// at.
bool may_be_most(size_t count, size_t bytes, const ArraySource& source);

/// True if the rows that outputs without patches want of a chunk touch few Blosc blocks, which `scratch.touched` then
/// knows. `rows` are counted from the first one of the chunk, those of one output after those of another. Throws
/// Error(kCorrupt).
bool touch_few_blocks(size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                      std::span<const RowTarget> rows, WorkerScratch& scratch);
/// For an array with chosen items: adds the Blosc blocks that the rows touch to `scratch.touched`, few or not.
/// False where blocks cannot be told apart.
bool touch_rows_of_chosen(size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                          std::span<const RowTarget> rows, WorkerScratch& scratch);
/// touch_few_blocks() for outputs that all have patches, as many of each.
bool touch_few_blocks(PatchCell from, const StoredBytes& stored, std::span<const OutputRows> outputs,
                      std::span<const PatchTarget> patches, WorkerScratch& scratch);

/// The decoded bytes of rows of a chunk, counted from its first one; a row that several targets have counts once.
size_t bytes_of_rows(const ArraySource& source, std::span<const RowTarget> rows, WorkerScratch& scratch);

/// The boxes that patches have of a chunk.
std::vector<ChunkCrop> list_crops(PatchCell from, std::span<const OutputRows> outputs,
                                  std::span<const PatchTarget> patches);

/// Decodes the blocks that rows touch, and copies these to their slots. Changes `rows`. Returns how many bytes were decoded;
/// counts what was written. Time after decoding is that of `stats.scatter_ns`.
size_t scatter_from_few_blocks(size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                               std::span<RowTarget> rows, bool streaming, WorkerScratch& scratch, StageTimer& timer,
                               Stats& stats);
/// Cuts patches out of few Blosc blocks, as the function above copies rows.
size_t cut_from_few_blocks(PatchCell from, const StoredBytes& stored, std::span<const OutputRows> outputs,
                           std::span<const PatchTarget> patches, WorkerScratch& scratch, StageTimer& timer,
                           Stats& stats);

}  // namespace zarrfeed
