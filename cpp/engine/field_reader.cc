#include "engine/field_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "base/streaming_store.h"
#include "spec/array_spec.h"
#include "storage/chunk_key.h"

namespace zarrfeed {
namespace {

/// Shorter rows are copied from a decoded chunk: taking a Blosc block apart into many small pieces costs more than that.
constexpr size_t kMinFusedRow = 4096;

/// All grid indices over the axes other than the sample axis, in C order.
std::vector<std::vector<int64_t>> list_cells(const ArraySpec& array) {
  const size_t ndim = array.shape.size();
  std::vector<std::vector<int64_t>> cells(1, std::vector<int64_t>(ndim, 0));
  for (size_t axis = ndim; axis-- > 0;) {
    if (static_cast<int>(axis) == array.sample_axis) continue;
    const int64_t n = (array.shape[axis] + array.chunk_shape[axis] - 1) / array.chunk_shape[axis];
    std::vector<std::vector<int64_t>> more;
    more.reserve(cells.size() * static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      for (const auto& cell : cells) {
        more.push_back(cell);
        more.back()[axis] = i;
      }
    }
    cells = std::move(more);
  }
  return cells;
}

size_t chunk_bytes(const ArraySpec& array) {
  size_t n = array.item_bytes;
  for (const int64_t extent : array.chunk_shape) n *= static_cast<size_t>(extent);
  return n;
}

size_t bytes_of_row(const ArraySpec& array) {
  size_t n = array.item_bytes;
  for (size_t axis = 0; axis < array.shape.size(); ++axis) {
    if (static_cast<int>(axis) != array.sample_axis) n *= static_cast<size_t>(array.shape[axis]);
  }
  return n;
}

}  // namespace

FieldReader::FieldReader(FieldSpec spec) : spec_(std::move(spec)) {
  if (spec_.conversion) converter_ = std::make_unique<Converter>(*spec_.conversion);
  const auto converted = [this](size_t bytes) {
    return converter_ ? bytes / converter_->source_item_bytes() * converter_->dest_item_bytes() : bytes;
  };
  if (!is_stored()) {
    row_bytes_ = spec_.kind == FieldSpec::Kind::kIndex ? sizeof(int64_t) : converted(spec_.sample_bytes);
    cells_.resize(1);
    return;
  }
  const ArraySpec& array = spec_.array;
  if (converter_ && converter_->source_item_bytes() != array.item_bytes) {
    throw Error(ErrorKind::kConfig, array.name + ": items of " + std::to_string(array.item_bytes) +
                                        " bytes, the conversion is of " +
                                        std::to_string(converter_->source_item_bytes()));
  }
  row_bytes_ = converted(bytes_of_row(array));
  rows_per_chunk_ = array.chunk_shape[static_cast<size_t>(array.sample_axis)];
  cells_ = list_cells(array);
  boxes_.reserve(cells_.size());
  for (const auto& cell : cells_) boxes_.emplace_back(array, cell, converter_.get());
  pipeline_ = std::make_unique<CodecPipeline>(array.codecs, chunk_bytes(array));
  if (array.fed) return;
  source_ = std::make_unique<FileStore>(array.root, array.metadata_key, pipeline_->max_stored_bytes());
  if (!array.shard.is_sharded()) return;
  shards_ = std::make_unique<ShardReader>(*source_, array.shard, pipeline_->max_stored_bytes());
}

void FieldReader::open(bool keep_indices) {
  if (shards_ && !keep_indices) shards_->clear();
  if (source_) source_->open();
}

void FieldReader::close() {
  if (source_) source_->close();
}

int64_t FieldReader::grid_index(size_t axis, int64_t chunk, size_t cell) const {
  return axis == static_cast<size_t>(spec_.array.sample_axis) ? chunk : cells_[cell][axis];
}

std::string FieldReader::key(int64_t chunk, size_t cell) const {
  return chunk_key(spec_.array, [&](size_t axis) { return grid_index(axis, chunk, cell); });
}

std::optional<size_t> FieldReader::position(int64_t chunk, size_t cell) const {
  return place_in_shard(spec_.array, [&](size_t axis) { return grid_index(axis, chunk, cell); });
}

std::string FieldReader::label(int64_t chunk, size_t cell) const {
  const std::optional<size_t> place = position(chunk, cell);
  return key(chunk, cell) + (place ? " inner chunk " + inner_chunk_name(spec_.array.shard, *place) : "");
}

ReadStatus FieldReader::read_cached(int64_t chunk, size_t cell, Buffer& out, PendingRead& pending) const {
  const std::string name = key(chunk, cell);
  try {
    if (shards_) return shards_->read_cached(name, *position(chunk, cell), out, pending);
    return source_->read_cached(name, out, pending);
  } catch (const Error& error) {
    throw error.at(spec_.array.name, name);
  }
}

ReadStatus FieldReader::read_blocking(int64_t chunk, size_t cell, Buffer& out, PendingRead& pending) const {
  const std::string name = key(chunk, cell);
  try {
    if (shards_) return shards_->read_blocking(name, *position(chunk, cell), out, pending);
    return source_->read_blocking(name, out, pending);
  } catch (const Error& error) {
    throw error.at(spec_.array.name, name);
  }
}

void FieldReader::decode_and_scatter(int64_t chunk, size_t cell, Bytes stored, std::span<RowTarget> targets,
                                     bool streaming, WorkerScratch& scratch, Stats& stats) const {
  const BoxCopy& box = boxes_[cell];
  const size_t size = pipeline_->decoded_bytes();
  for (RowTarget& t : targets) t.row -= chunk * rows_per_chunk_;

  // A chunk whose rows are all wanted, in order and side by side, is decoded straight into the batch.
  bool direct = box.is_plain() && !pipeline_->is_view() && targets.size() * box.bytes() == size;
  for (size_t i = 0; direct && i < targets.size(); ++i) {
    direct = targets[i].row == static_cast<int64_t>(i) && targets[i].dest == targets[0].dest + i * box.bytes();
  }
  StageTimer timer(stats.decode_ns);
  try {
    if (is_fed()) check_stored_size(stored.size(), pipeline_->max_stored_bytes());
    if (direct) {
      const Bytes decoded = pipeline_->decode(stored, {targets[0].dest, size}, scratch.codecs);
      if (decoded.data() != targets[0].dest) std::memcpy(targets[0].dest, decoded.data(), size);
    } else if (box.is_plain() && box.bytes() >= kMinFusedRow && pipeline_->is_blosc()) {
      scatter_blosc(stored, size, box.bytes(), targets, streaming, scratch.codecs, scratch.blosc);
    } else {
      const MutableBytes room = pipeline_->is_view() ? MutableBytes{} : scratch.decoded.reserve(size);
      const Bytes decoded = pipeline_->decode(stored, room, scratch.codecs);
      timer.lap(stats.scatter_ns);
      box.copy_rows(decoded.data(), targets, streaming);
      if (streaming) fence_streaming_stores();
    }
  } catch (const Error& error) {
    throw error.at(spec_.array.name, label(chunk, cell));
  }
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(size, std::memory_order_relaxed);
  stats.bytes_scattered.fetch_add(targets.size() * box.bytes(), std::memory_order_relaxed);
}

DecodedChunk FieldReader::decode(int64_t chunk, size_t cell, Bytes stored, WorkerScratch& scratch, Stats& stats) const {
  const size_t size = pipeline_->decoded_bytes();
  const StageTimer timer(stats.decode_ns);
  DecodedChunk out;
  try {
    if (is_fed()) check_stored_size(stored.size(), pipeline_->max_stored_bytes());
    // Into scratch first: a damaged chunk must not cost fresh memory, and what a view shows is not ours to keep.
    const MutableBytes room = pipeline_->is_view() ? MutableBytes{} : scratch.decoded.reserve(size);
    const Bytes decoded = pipeline_->decode(stored, room, scratch.codecs);
    out.bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
    out.size = size;
    std::memcpy(out.bytes.get(), decoded.data(), size);
  } catch (const Error& error) {
    throw error.at(spec_.array.name, label(chunk, cell));
  }
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(size, std::memory_order_relaxed);
  return out;
}

void FieldReader::decode_into(int64_t chunk, size_t cell, Bytes stored, MutableBytes out, WorkerScratch& scratch,
                              Stats& stats) const {
  const StageTimer timer(stats.decode_ns);
  try {
    if (is_fed()) check_stored_size(stored.size(), pipeline_->max_stored_bytes());
    const Bytes decoded = pipeline_->decode(stored, pipeline_->is_view() ? MutableBytes{} : out, scratch.codecs);
    if (decoded.data() != out.data()) std::memcpy(out.data(), decoded.data(), out.size());
  } catch (const Error& error) {
    throw error.at(spec_.array.name, label(chunk, cell));
  }
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(out.size(), std::memory_order_relaxed);
}

void FieldReader::scatter_decoded(int64_t chunk, size_t cell, const uint8_t* decoded, std::span<RowTarget> targets,
                                  Stats& stats, bool streaming) const {
  for (RowTarget& t : targets) t.row -= chunk * rows_per_chunk_;
  boxes_[cell].copy_rows(decoded, targets, streaming);
  if (streaming) fence_streaming_stores();
  stats.bytes_scattered.fetch_add(targets.size() * boxes_[cell].bytes(), std::memory_order_relaxed);
}

void FieldReader::scatter_fill(size_t cell, std::span<RowTarget> targets) const {
  boxes_[cell].fill_rows(targets);
}

void FieldReader::scatter_resident(std::span<RowTarget> targets) const {
  if (spec_.kind == FieldSpec::Kind::kIndex) {
    for (const RowTarget& t : targets) std::memcpy(t.dest, &t.row, sizeof(int64_t));
    return;
  }
  if (row_bytes_ == 0) return;  // rows of nothing may lie nowhere, where memcpy() may not look
  for (const RowTarget& t : targets) {
    const uint8_t* const row = spec_.rows + static_cast<size_t>(t.row) * spec_.sample_bytes;
    if (converter_) {
      converter_->convert(t.dest, row, spec_.sample_bytes / converter_->source_item_bytes(), 0);
    } else {
      std::memcpy(t.dest, row, row_bytes_);
    }
  }
}

}  // namespace zarrfeed
