#include "transform/array_source.h"

#include <cstring>
#include <utility>

#include "spec/chunk_grid.h"

namespace zarrfeed {

ArraySource::ArraySource(ArraySpec array)
    : array_(std::move(array)),
      rows_per_chunk_(array_.chunk_shape[static_cast<size_t>(array_.sample_axis)]),
      num_cells_(CellGrid(array_).num_cells()),
      parts_(array_.parts.get()),
      pipeline_(array_.is_transcoded ? std::vector<CodecSpec>{{.name = "blosc"}} : array_.codecs, chunk_bytes(array_)),
      max_stored_bytes_(
          std::max(pipeline_.max_stored_bytes(), CodecPipeline(array_.codecs, chunk_bytes(array_)).max_stored_bytes())),
      cells_(array_) {
  if (!has_chosen()) return;
  chosen_of_chunk_.resize(array_.shape.size());
  for (size_t axis = 0; axis < array_.shape.size(); ++axis) {
    if (static_cast<int>(axis) == array_.sample_axis) continue;
    for (const int64_t chunk : cells_.chunks_along(axis)) {
      chosen_of_chunk_[axis].emplace(chunk, wanted_items(array_, axis, chunk));
    }
  }
}

bool ArraySource::begin_blocks(const StoredBytes& stored, TouchedBlocks& touched) const {
  if (array_.shape.size() > kMaxAxes) return false;
  if (pipeline_.is_blosc()) return touched.begin(array_, stored, decoded_bytes());
  // A chunk without codecs that was read whole is copied from as it is.
  return pipeline_.is_raw() && !stored.is_whole() && touched.begin_raw(array_, stored, decoded_bytes());
}

void ArraySource::count(const StoredBytes& stored, size_t decoded, Stats& stats) const {
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.bytes_read(), std::memory_order_relaxed);
  stats.stored_bytes.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.chunk_bytes.fetch_add(decoded_bytes(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(decoded, std::memory_order_relaxed);
}

Bytes ArraySource::decode_in_scratch(PatchCell at, const StoredBytes& stored, WorkerScratch& scratch, Stats& stats,
                                     size_t wanted) const {
  const StageTimer timer(stats.decode_ns);
  const MutableBytes room = is_view_of(stored) ? MutableBytes{} : scratch.decoded.reserve(decoded_bytes());
  return decode_needed(at, stored, room, scratch, stats, wanted);
}

DecodedChunk ArraySource::decode(PatchCell at, const StoredBytes& stored, WorkerScratch& scratch, Stats& stats) const {
  // Into scratch first: a damaged chunk must not cost fresh memory, and what a view shows is not ours to keep.
  const Bytes decoded = decode_in_scratch(at, stored, scratch, stats);
  const StageTimer timer(stats.decode_ns);
  const size_t size = decoded_bytes();
  DecodedChunk out;
  out.bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
  out.size = size;
  std::memcpy(out.bytes.get(), decoded.data(), size);
  return out;
}

void ArraySource::decode_into(PatchCell at, const StoredBytes& stored, MutableBytes out, WorkerScratch& scratch,
                              Stats& stats) const {
  const StageTimer timer(stats.decode_ns);
  const Bytes decoded = decode_needed(at, stored, is_view_of(stored) ? MutableBytes{} : out, scratch, stats);
  if (decoded.data() != out.data()) std::memcpy(out.data(), decoded.data(), out.size());
}

Bytes ArraySource::decode_needed(PatchCell at, const StoredBytes& stored, MutableBytes room, WorkerScratch& scratch,
                                 Stats& stats, size_t wanted) const {
  if (has_chosen() && touch_chosen(at.cell, stored, all_rows(at.chunk), scratch.touched)) {
    count(stored, scratch.touched.decode_in_place(room, scratch.codecs), stats);
    return room.first(decoded_bytes());
  }
  const Bytes decoded = pipeline_.decode(stored.whole(), room, scratch.codecs);
  count(stored, decoded_of(wanted), stats);
  return decoded;
}

bool ArraySource::touch_chosen(size_t cell, const StoredBytes& stored, std::vector<ChunkItems> rows,
                               TouchedBlocks& touched) const {
  if (!begin_blocks(stored, touched)) return false;
  std::vector<std::vector<ChunkItems>> ranges(array_.shape.size());
  for (size_t axis = 0; axis < ranges.size(); ++axis) {
    const bool is_sample_axis = static_cast<int>(axis) == array_.sample_axis;
    ranges[axis] = is_sample_axis ? std::move(rows) : chosen_of_chunk_[axis].at(cells_.index(cell, axis));
  }
  touched.add(ranges);
  return true;
}

bool ArraySource::decode_crop(const StoredBytes& stored, const ChunkCrop& crop, uint8_t* out, WorkerScratch& scratch,
                              Stats& stats) const {
  StageTimer timer(stats.decode_ns);
  TouchedBlocks& touched = scratch.touched;
  if (!begin_blocks(stored, touched)) return false;
  touched.add(crop);
  if (stored.is_whole() && touched.are_most()) return false;
  const size_t decoded = touched.decode(scratch.decoded, scratch.codecs);
  count(stored, pipeline_.is_raw() ? crop_bytes(array_, crop) : decoded, stats);
  timer.lap(stats.scatter_ns);
  touched.copy(crop, out);
  return true;
}

}  // namespace zarrfeed
