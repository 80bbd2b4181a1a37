#include "transform/field_decoder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "base/streaming_store.h"
#include "spec/array_spec.h"
#include "spec/chunk_grid.h"

namespace zarrfeed {
namespace {

/// Shorter rows are copied from a decoded chunk: taking a Blosc block apart into many small pieces costs more than that.
constexpr size_t kMinFusedRow = 4096;

size_t bytes_of_row(const ArraySpec& array) {
  size_t n = array.item_bytes;
  for (size_t axis = 0; axis < array.shape.size(); ++axis) {
    if (static_cast<int>(axis) != array.sample_axis) n *= static_cast<size_t>(array.shape[axis]);
  }
  return n;
}

}  // namespace

FieldDecoder::FieldDecoder(FieldSpec spec) : spec_(std::move(spec)) {
  if (spec_.conversion) converter_ = std::make_unique<Converter>(std::move(*spec_.conversion));
  const auto converted = [this](size_t bytes) {
    return converter_ ? bytes / converter_->source_item_bytes() * converter_->dest_item_bytes() : bytes;
  };
  if (!is_stored()) {
    const bool is_mask = spec_.kind == FieldSpec::Kind::kPadMask;
    const bool is_number = spec_.kind == FieldSpec::Kind::kIndex || spec_.kind == FieldSpec::Kind::kLead;
    row_bytes_ = is_number ? sizeof(int64_t) : is_mask ? 1 : converted(spec_.sample_bytes);
    return;
  }
  const ArraySpec& array = spec_.array;
  if (converter_ && converter_->source_item_bytes() != array.item_bytes) {
    throw Error(ErrorKind::kConfig, array.name + ": items of " + std::to_string(array.item_bytes) +
                                        " bytes, the conversion is of " +
                                        std::to_string(converter_->source_item_bytes()));
  }
  rows_per_chunk_ = array.chunk_shape[static_cast<size_t>(array.sample_axis)];
  if (spec_.patch) {
    patches_.emplace(array, *spec_.patch, converter_.get());
    row_bytes_ = patches_->sample_bytes();
  } else {
    row_bytes_ = converted(bytes_of_row(array));
    const auto cells = list_cells(array);
    boxes_.reserve(cells.size());
    for (const auto& cell : cells) boxes_.emplace_back(array, cell, converter_.get());
  }
  pipeline_ = std::make_unique<CodecPipeline>(array.codecs, chunk_bytes(array));
  parts_ = array.parts.get();
}

std::optional<int64_t> FieldDecoder::num_own_rows() const {
  if (spec_.row_map) return std::nullopt;
  if (is_stored()) return spec_.array.shape[static_cast<size_t>(spec_.array.sample_axis)];
  if (spec_.kind != FieldSpec::Kind::kResident || spec_.num_rows == 0) return std::nullopt;
  return spec_.num_rows;
}

int64_t FieldDecoder::find_row(int64_t sample, int64_t offset, int64_t begin, int64_t end) const {
  const PadSpec::Mode pad = spec_.pad.mode;
  int64_t at = 0;
  if (__builtin_add_overflow(sample, offset, &at)) at = offset < 0 ? std::numeric_limits<int64_t>::min() : end;
  if (at < begin || at >= end) {
    if (pad == PadSpec::Mode::kNone) {
      throw Error(ErrorKind::kConfig, "plan: the window of sample " + std::to_string(sample) +
                                          " reaches beyond the array, to " + std::to_string(at));
    }
    if (pad == PadSpec::Mode::kFill) return -1;
    at = std::clamp(at, begin, end - 1);
  }
  if (!spec_.row_map) return at;
  const RowMapSpec& map = *spec_.row_map;
  const int64_t num_rows =
      is_stored() ? spec_.array.shape[static_cast<size_t>(spec_.array.sample_axis)] : spec_.num_rows;
  if (map.rows != nullptr && at >= map.num_samples) {
    throw Error(ErrorKind::kConfig, "plan: sample " + std::to_string(at) + " is not in the row map");
  }
  int64_t row = 0;
  if (map.rows != nullptr) {
    row = map.rows[at];
  } else if (__builtin_mul_overflow(map.step, at, &row) || __builtin_add_overflow(map.first, row, &row)) {
    row = -1;
  }
  if (row >= num_rows) {
    if (map.rows != nullptr) {
      throw Error(ErrorKind::kConfig, "plan: sample " + std::to_string(at) + " has row " + std::to_string(row) +
                                          " of " + std::to_string(num_rows));
    }
    row = -1;
  }
  if (row < 0 && pad == PadSpec::Mode::kNone) {
    throw Error(ErrorKind::kConfig, "plan: the array has no row of sample " + std::to_string(at));
  }
  return std::max<int64_t>(row, -1);
}

void FieldDecoder::scatter_pad(std::span<RowTarget> targets) const {
  const std::vector<uint8_t>& item = spec_.pad.item;
  for (const RowTarget& t : targets) {
    if (item.empty()) {
      std::memset(t.dest, 0, row_bytes_);
      continue;
    }
    for (size_t at = 0; at < row_bytes_; at += item.size()) {
      std::memcpy(t.dest + at, item.data(), std::min(item.size(), row_bytes_ - at));
    }
  }
}

void FieldDecoder::decode_and_scatter(int64_t chunk, size_t cell, Bytes stored, std::span<RowTarget> targets,
                                      bool streaming, WorkerScratch& scratch, Stats& stats) const {
  const BoxCopy& box = boxes_[cell];
  const size_t size = pipeline_->decoded_bytes();
  const int64_t first_row = parts_ == nullptr ? chunk * rows_per_chunk_ : parts_->first_row(chunk);
  for (RowTarget& t : targets) t.row -= first_row;

  // A chunk whose rows are all wanted, in order and side by side, is decoded straight into the batch.
  bool direct = box.is_plain() && !pipeline_->is_view() && targets.size() * box.bytes() == size;
  for (size_t i = 0; direct && i < targets.size(); ++i) {
    direct = targets[i].row == static_cast<int64_t>(i) && targets[i].dest == targets[0].dest + i * box.bytes();
  }
  StageTimer timer(stats.decode_ns);
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
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(size, std::memory_order_relaxed);
  stats.bytes_scattered.fetch_add(targets.size() * box.bytes(), std::memory_order_relaxed);
}

void FieldDecoder::decode_and_cut(PatchCell cell, Bytes stored, std::span<const PatchTarget> targets,
                                  WorkerScratch& scratch, Stats& stats) const {
  const Bytes decoded = decode_in_scratch(stored, scratch, stats);
  const StageTimer timer(stats.scatter_ns);
  const size_t written = patches_->cut(cell, decoded.data(), targets);
  stats.bytes_scattered.fetch_add(written, std::memory_order_relaxed);
}

Bytes FieldDecoder::decode_in_scratch(Bytes stored, WorkerScratch& scratch, Stats& stats) const {
  const size_t size = pipeline_->decoded_bytes();
  const StageTimer timer(stats.decode_ns);
  const MutableBytes room = pipeline_->is_view() ? MutableBytes{} : scratch.decoded.reserve(size);
  const Bytes decoded = pipeline_->decode(stored, room, scratch.codecs);
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(size, std::memory_order_relaxed);
  return decoded;
}

DecodedChunk FieldDecoder::decode(Bytes stored, WorkerScratch& scratch, Stats& stats) const {
  const size_t size = pipeline_->decoded_bytes();
  const StageTimer timer(stats.decode_ns);
  DecodedChunk out;
  // Into scratch first: a damaged chunk must not cost fresh memory, and what a view shows is not ours to keep.
  const MutableBytes room = pipeline_->is_view() ? MutableBytes{} : scratch.decoded.reserve(size);
  const Bytes decoded = pipeline_->decode(stored, room, scratch.codecs);
  out.bytes = std::make_unique_for_overwrite<uint8_t[]>(size);
  out.size = size;
  std::memcpy(out.bytes.get(), decoded.data(), size);
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(size, std::memory_order_relaxed);
  return out;
}

void FieldDecoder::decode_into(Bytes stored, MutableBytes out, WorkerScratch& scratch, Stats& stats) const {
  const StageTimer timer(stats.decode_ns);
  const Bytes decoded = pipeline_->decode(stored, pipeline_->is_view() ? MutableBytes{} : out, scratch.codecs);
  if (decoded.data() != out.data()) std::memcpy(out.data(), decoded.data(), out.size());
  stats.chunks_read.fetch_add(1, std::memory_order_relaxed);
  stats.bytes_read.fetch_add(stored.size(), std::memory_order_relaxed);
  stats.bytes_decoded.fetch_add(out.size(), std::memory_order_relaxed);
}

void FieldDecoder::scatter_decoded(int64_t chunk, size_t cell, const uint8_t* decoded, std::span<RowTarget> targets,
                                   Stats& stats, bool streaming) const {
  const int64_t first_row = parts_ == nullptr ? chunk * rows_per_chunk_ : parts_->first_row(chunk);
  for (RowTarget& t : targets) t.row -= first_row;
  boxes_[cell].copy_rows(decoded, targets, streaming);
  if (streaming) fence_streaming_stores();
  stats.bytes_scattered.fetch_add(targets.size() * boxes_[cell].bytes(), std::memory_order_relaxed);
}

void FieldDecoder::scatter_fill(size_t cell, std::span<RowTarget> targets) const {
  boxes_[cell].fill_rows(targets);
}

void FieldDecoder::scatter_resident(std::span<RowTarget> targets) const {
  if (spec_.kind == FieldSpec::Kind::kIndex || spec_.kind == FieldSpec::Kind::kLead) {
    for (const RowTarget& t : targets) std::memcpy(t.dest, &t.row, sizeof(int64_t));
    return;
  }
  if (spec_.kind == FieldSpec::Kind::kPadMask) {
    for (const RowTarget& t : targets) *t.dest = t.row < 0 ? 1 : 0;
    return;
  }
  if (row_bytes_ == 0) return;  // rows of nothing may lie nowhere, where memcpy() may not look
  for (RowTarget& t : targets) {
    if (t.row < 0) {
      scatter_pad({&t, 1});
      continue;
    }
    const uint8_t* const row = spec_.rows + static_cast<size_t>(t.row) * spec_.sample_bytes;
    if (converter_) {
      converter_->convert(t.dest, row, spec_.sample_bytes / converter_->source_item_bytes(), 0);
    } else {
      std::memcpy(t.dest, row, row_bytes_);
    }
  }
}

}  // namespace zarrfeed
