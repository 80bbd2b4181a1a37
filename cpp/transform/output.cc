#include "transform/output.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/buffer.h"
#include "base/error.h"
#include "base/streaming_store.h"
#include "codecs/unshuffle.h"
#include "spec/array_spec.h"
#include "spec/chunk_grid.h"
#include "transform/few_blocks.h"
#include "transform/scatter_runs.h"

namespace zarrfeed {
namespace {

/// Shorter rows are copied from a decoded chunk: taking a Blosc block apart into many small pieces costs more than that.
constexpr size_t kMinFusedRow = 4096;

size_t bytes_of_row(const ArraySpec& array) {
  size_t n = array.item_bytes;
  for (size_t axis = 0; axis < array.shape.size(); ++axis) {
    if (static_cast<int>(axis) != array.sample_axis) n *= static_cast<size_t>(array.extent(axis));
  }
  return n;
}

/// Returns the rows of `most` samples from one on in a row map of runs, as far as its run goes. It is looked for in run
/// `run` and the one behind it first.
Output::Rows rows_in_runs(const RowMapSpec& map, int64_t sample, int64_t most, int64_t& run) {
  const int64_t* const end = map.rows + map.num_runs;
  const auto end_of = [&](int64_t i) { return i + 1 == map.num_runs ? map.num_samples : map.rows[i + 1]; };
  const auto has_it = [&](int64_t i) { return i < map.num_runs && sample >= map.rows[i] && sample < end_of(i); };
  if (!has_it(run)) run = has_it(run + 1) ? run + 1 : std::upper_bound(map.rows, end, sample) - map.rows - 1;
  if (run < 0) return {-1, 1, 0};
  const int64_t count = std::min(most, end_of(run) - sample);
  if (end[run] < 0) return {-1, count, 0};
  return {end[run] + map.step * (sample - map.rows[run]), count, map.step};
}

/// Lists the copy of each cell of a row.
std::vector<BoxCopy> list_boxes(const ArraySpec& array, const Converter* converter) {
  const CellGrid grid(array);
  std::vector<BoxCopy> boxes;
  boxes.reserve(grid.num_cells());
  std::vector<int64_t> index;
  for (size_t cell = 0; cell < grid.num_cells(); ++cell) {
    index.clear();
    for (size_t axis = 0; axis < array.shape.size(); ++axis) index.push_back(grid.index(cell, axis));
    boxes.emplace_back(array, index, converter);
  }
  return boxes;
}

/// True if the rows of all outputs are those of the decoded chunk, so that their boxes are the same.
bool are_plain(size_t cell, std::span<const OutputRows> outputs) {
  return std::ranges::all_of(outputs, [cell](const OutputRows& one) { return one.output->box(cell).is_plain(); });
}

/// True if rows are runs of bytes of a Blosc chunk of an array with chosen items, long enough to take blocks apart.
bool has_long_runs(size_t cell, std::span<const OutputRows> outputs) {
  const ArraySource& source = *outputs.front().output->source();
  return source.has_chosen() && source.pipeline().is_blosc() &&
         std::ranges::all_of(outputs,
                             [cell](const OutputRows& one) { return one.output->box(cell).has_runs_of(kMinFusedRow); });
}

/// The kernel that undoes the byte shuffle of a chunk row by row, straight to the slots, without a decoded chunk between:
/// for whole samples, where the shuffle is the last step of the codecs. Null if rows do not take that path.
UnshuffleRange find_row_unshuffle(size_t cell, std::span<const OutputRows> outputs) {
  const size_t element = outputs.front().output->source()->pipeline().shuffled_element();
  const size_t row = outputs.front().output->box(cell).bytes();
  const bool fits = element > 0 && row >= kMinFusedRow && row % element == 0 && are_plain(cell, outputs);
  return fits ? find_unshuffle_range(element) : nullptr;
}

}  // namespace

Output::Output(FieldSpec spec, std::shared_ptr<const ArraySource> source)
    : spec_(std::move(spec)), source_(std::move(source)) {
  if (spec_.conversion) converter_ = std::make_unique<Converter>(std::move(*spec_.conversion));
  const auto converted = [this](size_t bytes) {
    return converter_ ? bytes / converter_->source_item_bytes() * converter_->dest_item_bytes() : bytes;
  };
  if (spec_.kind != FieldSpec::Kind::kStored) {
    const bool is_mask = spec_.kind == FieldSpec::Kind::kPadMask;
    const bool is_number = spec_.kind == FieldSpec::Kind::kIndex || spec_.kind == FieldSpec::Kind::kLead;
    row_bytes_ = is_number ? sizeof(int64_t) : is_mask ? 1 : converted(spec_.sample_bytes);
    return;
  }
  if (source_ == nullptr) source_ = std::make_shared<const ArraySource>(std::move(spec_.array));
  spec_.array = {};
  const ArraySpec& array = source_->array();
  if (converter_ && converter_->source_item_bytes() != array.item_bytes) {
    throw Error(ErrorKind::kConfig, array.name + ": items of " + std::to_string(array.item_bytes) +
                                        " bytes, the conversion is of " +
                                        std::to_string(converter_->source_item_bytes()));
  }
  if (spec_.patch) {
    patches_.emplace(array, *spec_.patch, converter_.get());
    row_bytes_ = patches_->sample_bytes();
  } else {
    row_bytes_ = converted(bytes_of_row(array));
    boxes_ = list_boxes(array, converter_.get());
  }
}

std::optional<int64_t> Output::num_own_rows() const {
  if (spec_.row_map) return std::nullopt;
  if (is_stored()) return source_->num_rows();
  if (spec_.kind != FieldSpec::Kind::kResident || spec_.num_rows == 0) return std::nullopt;
  return spec_.num_rows;
}

Output::Rows Output::find_rows(int64_t sample, int64_t offset, int64_t most, int64_t begin, int64_t end,
                               int64_t& run) const {
  const PadSpec::Mode pad = spec_.pad.mode;
  int64_t at = 0;
  if (__builtin_add_overflow(sample, offset, &at)) {
    at = offset < 0 ? std::numeric_limits<int64_t>::min() : end;
    most = 1;
  }
  if (at < begin || at >= end) {
    if (pad == PadSpec::Mode::kNone) {
      throw Error(ErrorKind::kConfig, "plan: the window of sample " + std::to_string(sample) +
                                          " reaches beyond the array, to " + std::to_string(at));
    }
    if (pad == PadSpec::Mode::kFill) {
      const bool is_before = at < begin && at != std::numeric_limits<int64_t>::min();
      return {-1, is_before ? std::min(most, begin - at) : at < begin ? 1 : most, 0};
    }
    at = std::clamp(at, begin, end - 1);
    most = 1;
  }
  most = std::min(most, end - at);
  if (!spec_.row_map) return {at, most, 1};
  const RowMapSpec& map = *spec_.row_map;
  const int64_t num_rows = is_stored() ? source_->num_rows() : spec_.num_rows;
  if ((map.rows != nullptr && at >= map.num_samples) || (map.grid && at >= map.grid->num_samples())) {
    throw Error(ErrorKind::kConfig, "plan: sample " + std::to_string(at) + " is not in the row map");
  }
  Rows found{0, 1, 0};
  if (map.grid) {
    found.row = map.grid->row_of(at);
  } else if (map.num_runs > 0) {
    found = rows_in_runs(map, at, most, run);
  } else if (map.rows != nullptr) {
    found.row = map.rows[at];
  } else if (__builtin_mul_overflow(map.step, at, &found.row) ||
             __builtin_add_overflow(map.first, found.row, &found.row)) {
    found.row = -1;
  }
  const int64_t last = found.row + (found.count - 1) * found.row_step;
  if (last >= num_rows) {
    if (map.rows != nullptr) {
      throw Error(ErrorKind::kConfig,
                  "plan: sample " + std::to_string(at + std::max<int64_t>(0, num_rows - found.row)) + " has row " +
                      std::to_string(std::max(num_rows, found.row)) + " of " + std::to_string(num_rows));
    }
    found.row = -1;
  }
  if (found.row < 0 && pad == PadSpec::Mode::kNone) {
    throw Error(ErrorKind::kConfig, "plan: the array has no row of sample " + std::to_string(at));
  }
  if (found.row < 0) found.row = -1;
  return found;
}

std::vector<RowTarget> Output::rows_of(std::span<const StretchTarget> targets) const {
  std::vector<RowTarget> rows;
  for (const StretchTarget& t : targets) {
    for (int64_t i = 0; i < t.count; ++i) {
      rows.push_back({t.row + i * t.row_step, t.dest + static_cast<size_t>(i) * slot_bytes()});
    }
  }
  return rows;
}

void Output::pad(uint8_t* dest, size_t bytes) const {
  const std::vector<uint8_t>& item = spec_.pad.item;
  if (item.empty()) {
    std::memset(dest, 0, bytes);
    return;
  }
  for (size_t at = 0; at < bytes; at += item.size()) {
    std::memcpy(dest + at, item.data(), std::min(item.size(), bytes - at));
  }
}

void Output::scatter_pad(std::span<const RowTarget> targets) const {
  for (const RowTarget& t : targets) pad(t.dest, row_bytes_);
}

void Output::scatter_pad(std::span<const StretchTarget> targets) const {
  if (slot_bytes() != row_bytes_ || (!spec_.pad.item.empty() && row_bytes_ % spec_.pad.item.size() != 0)) {
    scatter_pad(rows_of(targets));
    return;
  }
  for (const StretchTarget& t : targets) pad(t.dest, static_cast<size_t>(t.count) * row_bytes_);
}

void Output::scatter_decoded(int64_t first_row, size_t cell, const uint8_t* decoded, std::span<RowTarget> targets,
                             Stats& stats, bool streaming) const {
  for (RowTarget& t : targets) t.row -= first_row;
  boxes_[cell].copy_rows(decoded, targets, streaming);
  if (streaming) fence_streaming_stores();
  stats.bytes_scattered.fetch_add(targets.size() * boxes_[cell].bytes(), std::memory_order_relaxed);
}

void Output::scatter_decoded(int64_t first_row, size_t cell, const uint8_t* decoded, std::span<StretchTarget> targets,
                             Stats& stats, bool streaming) const {
  const BoxCopy& box = boxes_[cell];
  if (!box.joins_rows(slot_bytes())) {
    std::vector<RowTarget> rows = rows_of(targets);
    scatter_decoded(first_row, cell, decoded, rows, stats, streaming);
    return;
  }
  size_t rows = 0;
  for (StretchTarget& t : targets) {
    rows += static_cast<size_t>(t.count);
    t.row -= first_row;
    if (t.row_step == 1 || t.count == 1) {
      box.copy_stretch(decoded, t, streaming);
    } else {
      box.copy_rows(decoded, rows_of({&t, 1}), streaming);
    }
  }
  if (streaming) fence_streaming_stores();
  stats.bytes_scattered.fetch_add(rows * box.bytes(), std::memory_order_relaxed);
}

void Output::scatter_fill(size_t cell, std::span<const RowTarget> targets) const {
  boxes_[cell].fill_rows(targets);
}

void Output::scatter_fill(size_t cell, std::span<const StretchTarget> targets) const {
  scatter_fill(cell, rows_of(targets));
}

void Output::scatter_resident(std::span<const RowTarget> targets) const {
  if (spec_.kind == FieldSpec::Kind::kIndex || spec_.kind == FieldSpec::Kind::kLead) {
    for (const RowTarget& t : targets) std::memcpy(t.dest, &t.row, sizeof(int64_t));
    return;
  }
  if (spec_.kind == FieldSpec::Kind::kPadMask) {
    for (const RowTarget& t : targets) *t.dest = t.row < 0 ? 1 : 0;
    return;
  }
  if (row_bytes_ == 0) return;  // rows of nothing may lie nowhere, where memcpy() may not look
  for (const RowTarget& t : targets) {
    if (t.row < 0) {
      pad(t.dest, row_bytes_);
    } else {
      copy_resident(t.dest, t.row, 1);
    }
  }
}

void Output::scatter_resident(std::span<const StretchTarget> targets) const {
  const size_t row_items = converter_ ? spec_.sample_bytes / converter_->source_item_bytes() : 0;
  const bool joins = slot_bytes() == row_bytes_ && (!converter_ || converter_->repeats_after(row_items));
  for (const StretchTarget& t : targets) {
    if (spec_.kind == FieldSpec::Kind::kIndex && slot_bytes() == sizeof(int64_t)) {
      for (int64_t i = 0; i < t.count; ++i) {
        const int64_t row = t.row + i * t.row_step;
        std::memcpy(t.dest + static_cast<size_t>(i) * sizeof(int64_t), &row, sizeof(int64_t));
      }
    } else if (spec_.kind == FieldSpec::Kind::kPadMask && slot_bytes() == 1) {
      std::memset(t.dest, t.row < 0 ? 1 : 0, static_cast<size_t>(t.count));
    } else if (spec_.kind == FieldSpec::Kind::kResident && joins && t.row >= 0 && t.row_step == 1 && row_bytes_ > 0) {
      copy_resident(t.dest, t.row, static_cast<size_t>(t.count));
    } else {
      scatter_resident(rows_of({&t, 1}));
    }
  }
}

void Output::copy_resident(uint8_t* dest, int64_t row, size_t count) const {
  const uint8_t* const rows = spec_.rows + static_cast<size_t>(row) * spec_.sample_bytes;
  if (converter_) {
    converter_->convert(dest, rows, count * (spec_.sample_bytes / converter_->source_item_bytes()), 0);
  } else {
    std::memcpy(dest, rows, count * row_bytes_);
  }
}

bool scatters_blocks(size_t cell, std::span<const OutputRows> outputs) {
  return outputs.front().output->patches() == nullptr && are_plain(cell, outputs) &&
         outputs.front().output->box(cell).bytes() >= kMinFusedRow &&
         outputs.front().output->source()->pipeline().is_blosc();
}

void decode_and_scatter(int64_t chunk, size_t cell, const StoredBytes& stored, std::span<const OutputRows> outputs,
                        std::span<RowTarget> targets, bool streaming, WorkerScratch& scratch, Stats& stats,
                        const DecodedCopy& copy) {
  const ArraySource& source = *outputs.front().output->source();
  const CodecPipeline& pipeline = source.pipeline();
  const size_t size = pipeline.decoded_bytes();
  const int64_t first_row = source.first_row(chunk);
  for (RowTarget& t : targets) t.row -= first_row;

  const BoxCopy& box = outputs.front().output->box(cell);
  // A chunk whose rows are all wanted, in order and side by side, is decoded straight into the batch.
  bool direct =
      copy.out == nullptr && !pipeline.is_view() && targets.size() * box.bytes() == size && are_plain(cell, outputs);
  for (size_t i = 0; direct && i < targets.size(); ++i) {
    direct = targets[i].row == static_cast<int64_t>(i) && targets[i].dest == targets[0].dest + i * box.bytes();
  }
  StageTimer timer(stats.decode_ns);
  size_t decoded = size;
  if (direct) {
    const Bytes in_place = pipeline.decode(stored.whole(), {targets[0].dest, size}, scratch.codecs);
    if (in_place.data() != targets[0].dest) std::memcpy(targets[0].dest, in_place.data(), size);
    stats.bytes_scattered.fetch_add(size, std::memory_order_relaxed);
  } else if (scatters_blocks(cell, outputs)) {
    decoded = scatter_blosc(stored, size, box.bytes(), targets, streaming, scratch.codecs, scratch.blosc, copy);
    stats.bytes_scattered.fetch_add(targets.size() * box.bytes(), std::memory_order_relaxed);
  } else if (const size_t few =
                 scatter_from_few_blocks(cell, stored, outputs, targets, streaming, scratch, timer, stats);
             few > 0) {
    decoded = few;
  } else if (const UnshuffleRange unshuffle = find_row_unshuffle(cell, outputs); unshuffle != nullptr) {
    const Bytes planes = pipeline.decode_planes(stored.whole(), scratch.codecs);
    timer.lap(stats.scatter_ns);
    const size_t of_row = box.bytes() / pipeline.shuffled_element();
    for (const RowTarget& t : targets) {
      unshuffle(planes.data(), size / pipeline.shuffled_element(), static_cast<size_t>(t.row) * of_row, of_row, t.dest,
                streaming);
    }
    if (streaming) fence_streaming_stores();
    stats.bytes_scattered.fetch_add(targets.size() * box.bytes(), std::memory_order_relaxed);
  } else if (has_long_runs(cell, outputs)) {
    std::vector<ByteRun>& runs = scratch.runs;
    runs.clear();
    size_t begin = 0;
    size_t written = 0;
    for (const OutputRows& one : outputs) {
      const BoxCopy& of_output = one.output->box(cell);
      for (const RowTarget& t : targets.subspan(begin, one.count)) of_output.list_runs(t, runs);
      written += one.count * of_output.bytes();
      begin += one.count;
    }
    decoded = scatter_runs(stored, size, runs, streaming, scratch.codecs, scratch.blosc);
    stats.bytes_scattered.fetch_add(written, std::memory_order_relaxed);
  } else {
    const bool is_view = pipeline.is_view() && stored.is_whole();
    const MutableBytes room = is_view ? MutableBytes{} : scratch.decoded.reserve(size);
    const bool takes_blocks = source.has_chosen() && touch_rows_of_chosen(cell, stored, outputs, targets, scratch);
    if (takes_blocks) decoded = scratch.touched.decode_in_place(room, scratch.codecs);
    const Bytes all = takes_blocks ? Bytes(room) : pipeline.decode(stored.whole(), room, scratch.codecs);
    timer.lap(stats.scatter_ns);
    size_t begin = 0;
    size_t written = 0;
    for (const OutputRows& one : outputs) {
      one.output->box(cell).copy_rows(all.data(), targets.subspan(begin, one.count), streaming);
      written += one.count * one.output->box(cell).bytes();
      begin += one.count;
    }
    if (streaming) fence_streaming_stores();
    stats.bytes_scattered.fetch_add(written, std::memory_order_relaxed);
    if (!takes_blocks && pipeline.is_raw()) decoded = bytes_of_rows(source, targets, scratch);
  }
  source.count(stored, decoded, stats);
}

void decode_and_cut(PatchCell from, const StoredBytes& stored, std::span<const OutputRows> outputs,
                    std::span<const PatchTarget> patches, WorkerScratch& scratch, Stats& stats) {
  const ArraySource& source = *outputs.front().output->source();
  StageTimer timer(stats.decode_ns);
  if (const size_t few = cut_from_few_blocks(from, stored, outputs, patches, scratch, timer, stats); few > 0) {
    source.count(stored, few, stats);
    return;
  }
  const CodecPipeline& pipeline = source.pipeline();
  const bool is_view = pipeline.is_view() && stored.is_whole();
  const MutableBytes room = is_view ? MutableBytes{} : scratch.decoded.reserve(source.decoded_bytes());
  const bool takes_blocks =
      source.has_chosen() && source.touch_chosen(from.cell, stored, source.all_rows(from.chunk), scratch.touched);
  const size_t in_blocks = takes_blocks ? scratch.touched.decode_in_place(room, scratch.codecs) : 0;
  const Bytes whole = takes_blocks ? Bytes(room) : pipeline.decode(stored.whole(), room, scratch.codecs);
  timer.lap(stats.scatter_ns);
  size_t written = 0;
  size_t wanted = 0;
  size_t begin = 0;
  for (const OutputRows& one : outputs) {
    const size_t of_output = one.output->patches()->cut(from, whole.data(), patches.subspan(begin, one.count));
    written += of_output;
    const Converter* const converter = one.output->converter();
    wanted +=
        converter == nullptr ? of_output : of_output / converter->dest_item_bytes() * converter->source_item_bytes();
    begin += one.count;
  }
  stats.bytes_scattered.fetch_add(written, std::memory_order_relaxed);
  source.count(stored, takes_blocks ? in_blocks : source.decoded_of(wanted), stats);
}

}  // namespace zarrfeed
