#include "transform/patches/patch_copy.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "transform/convert/item_copy.h"
#include "transform/patches/transpose.h"

namespace zarrfeed {
PatchCopy::PatchCopy(ArraySpec array, PatchSpec patch, const Converter* converter)
    : array_(std::move(array)),
      patch_(std::move(patch)),
      converter_(converter),
      item_bytes_(array_.item_bytes),
      dest_item_(converter != nullptr ? converter->dest_item_bytes() : array_.item_bytes),
      dest_stride_(array_.shape.size()),
      cells_(array_) {
  const size_t num_axes = array_.shape.size();
  choose_copy(item_bytes_, array_.swap_bytes);  // refuses unknown widths now rather than in a thread
  const auto is_whole = [](const PatchAxis& axis, int64_t length) {
    return axis.offsets.empty() && axis.size == length;
  };
  const auto is_listed = [](const PatchAxis& axis, int64_t length) {
    return !axis.offsets.empty() && std::ranges::all_of(axis.offsets, [=](int64_t i) { return i >= 0 && i < length; });
  };
  bool fits = num_axes <= kMaxAxes && patch_.axes.size() == num_axes && !array_.fill.empty() &&
              array_.fill.size() % item_bytes_ == 0 && !patch_.volumes.empty() &&
              (patch_.fill.empty() || patch_.fill.size() == dest_item_);
  for (size_t a = 0; fits && a < num_axes; ++a) {
    const PatchAxis& axis = patch_.axes[a];
    const bool is_sample_axis = static_cast<int>(a) == array_.sample_axis;
    fits =
        axis.dim < static_cast<int>(kMaxPatchDims) && axis.size >= 1 && axis.scale >= 1 &&
        (axis.offsets.empty() || std::ssize(axis.offsets) == axis.size) &&
        (axis.dim >= 0 || (!is_sample_axis && (is_whole(axis, array_.extent(a)) || is_listed(axis, array_.extent(a)))));
  }
  for (const PatchVolume& rows : patch_.volumes) fits = fits && rows.first_chunk >= 0 && 0 <= rows.begin;
  if (!fits) throw Error(ErrorKind::kConfig, array_.name + ": patches do not fit the array");
  source_stride_ = crop_strides(array_, whole_chunk(array_));
  auto stride = static_cast<int64_t>(dest_item_);
  for (size_t a = num_axes; a-- > 0;) {
    dest_stride_[a] = stride;
    stride *= patch_.axes[a].size;
  }
  sample_bytes_ = static_cast<size_t>(stride);
  axis_of_dim_.fill(-1);
  for (size_t a = 0; a < num_axes; ++a) {
    const int dim = patch_.axes[a].dim;
    if (dim >= 0) axis_of_dim_[static_cast<size_t>(dim)] = static_cast<int>(a);
  }
}

void PatchCopy::check(const Orientation& turned) const {
  for (const PatchAxis& axis : patch_.axes) {
    if (axis.dim < 0) continue;
    const int other = axis_of_dim_[static_cast<size_t>(turned.source_of(axis.dim))];
    if (other >= 0 && patch_.axes[static_cast<size_t>(other)].size == axis.size) continue;
    throw Error(ErrorKind::kConfig, array_.name + ": patches with sides of different lengths are not turned");
  }
}

size_t PatchCopy::source_axis(const Orientation& by, size_t axis) const {
  const int dim = patch_.axes[axis].dim;
  return dim < 0 ? axis : static_cast<size_t>(axis_of_dim_[static_cast<size_t>(by.source_of(dim))]);
}

bool PatchCopy::is_reversed(const Orientation& by, size_t axis) const {
  const int dim = patch_.axes[axis].dim;
  return dim >= 0 && by.is_reversed(dim);
}

void PatchCopy::turn(const Orientation& by, Runs& runs) const {
  Runs of_array;
  runs.swap(of_array);
  for (size_t a = 0; a < num_axes(); ++a) {
    runs[a] = std::move(of_array[source_axis(by, a)]);
    if (is_reversed(by, a)) mirror_runs(patch_.axes[a].size, runs[a]);
  }
}

void PatchCopy::turn(const Orientation& by, PerAxis& of_axes) const {
  const PerAxis of_array = of_axes;
  for (size_t a = 0; a < num_axes(); ++a) of_axes[a] = of_array[source_axis(by, a)];
}

void PatchCopy::find_axis_runs(size_t axis, const PatchStart& start, std::vector<AxisRun>& out) const {
  const PatchAxis& of = patch_.axes[axis];
  const int64_t at = of.dim < 0 ? 0 : start.at[static_cast<size_t>(of.dim)];
  if (static_cast<int>(axis) != array_.sample_axis) {
    find_runs(of, at, array_.extent(axis), out);
    if (!array_.has_all(axis)) take_items(array_.chosen[axis], out);
    return;
  }
  const PatchVolume& rows = volume(start.volume);
  find_runs(of, at, rows.end - rows.begin, out);
  for (AxisRun& run : out) run.source += rows.begin;
}

void PatchCopy::add_chunks(size_t axis, const PatchStart& start, std::vector<int64_t>& out) const {
  std::vector<AxisRun> runs;
  find_axis_runs(axis, start, runs);
  const int64_t length = array_.chunk_shape[axis];
  for (const AxisRun& run : runs) {
    const int64_t last = run.source + (run.count - 1) * run.step;
    for (int64_t c = std::min(run.source, last) / length; c <= std::max(run.source, last) / length; ++c) {
      out.push_back(c);
    }
  }
}

void PatchCopy::add_spans(size_t axis, const PatchStart& start, std::vector<ChunkSpan>& out) const {
  std::vector<AxisRun> runs;
  find_axis_runs(axis, start, runs);
  const int64_t length = array_.chunk_shape[axis];
  for (const AxisRun& run : runs) {
    const int64_t other = run.source + (run.count - 1) * run.step;
    const int64_t begin = std::min(run.source, other);
    const int64_t end = std::max(run.source, other) + 1;
    for (int64_t c = begin / length; c * length < end; ++c) {
      out.push_back({c, std::max<int64_t>(begin - c * length, 0), std::min(end - c * length, length)});
    }
  }
}

ChunkSpan PatchCopy::span_in_volume(size_t axis, int64_t of, int64_t chunk) const {
  const bool is_sample_axis = static_cast<int>(axis) == array_.sample_axis;
  int64_t begin = is_sample_axis ? volume(of).begin : 0;
  int64_t end = is_sample_axis ? volume(of).end : array_.shape[axis];
  if (!array_.has_all(axis)) {
    const auto [first, last] = std::ranges::minmax(array_.chosen[axis]);
    begin = first;
    end = last + 1;
  }
  const int64_t length = array_.chunk_shape[axis];
  const int64_t first = chunk * length;
  return {chunk, std::clamp<int64_t>(begin - first, 0, length), std::clamp<int64_t>(end - first, 0, length)};
}

ChunkCrop PatchCopy::crop_of(PatchCell cell, int64_t of, std::span<const std::vector<ChunkSpan>> spans) const {
  ChunkCrop crop;
  for (size_t a = 0; a < num_axes(); ++a) {
    for (const ChunkSpan& span : std::ranges::equal_range(spans[a], index_along(a, cell, of), {}, &ChunkSpan::chunk)) {
      const bool is_first = crop.begin[a] == crop.end[a];
      crop.begin[a] = is_first ? span.begin : std::min(crop.begin[a], span.begin);
      crop.end[a] = is_first ? span.end : std::max(crop.end[a], span.end);
    }
  }
  return crop;
}

int64_t PatchCopy::index_along(size_t axis, PatchCell cell, int64_t of) const {
  if (static_cast<int>(axis) == array_.sample_axis) return cell.chunk - volume(of).first_chunk;
  return cells_.index(cell.cell, axis);
}

void PatchCopy::add_cells(int64_t of, std::span<std::vector<int64_t>> chunks, std::vector<PatchCell>& out) const {
  size_t count = 1;
  for (std::vector<int64_t>& of_axis : chunks) {
    std::ranges::sort(of_axis);
    of_axis.erase(std::unique(of_axis.begin(), of_axis.end()), of_axis.end());
    count *= of_axis.size();
  }
  const int64_t first_chunk = volume(of).first_chunk;
  for (size_t number = 0; number < count; ++number) {
    PatchCell& found = out.emplace_back();
    size_t left = number;
    for (size_t a = chunks.size(); a-- > 0;) {
      const int64_t index = chunks[a][left % chunks[a].size()];
      left /= chunks[a].size();
      if (static_cast<int>(a) == array_.sample_axis) {
        found.chunk = first_chunk + index;
      } else {
        found.cell += cells_.ordinal(index, a) * cells_.stride(a);
      }
    }
  }
}

void PatchCopy::find_cells(const PatchStart& start, std::vector<PatchCell>& out) const {
  std::array<std::vector<int64_t>, kMaxAxes> chunks;
  for (size_t a = 0; a < num_axes(); ++a) add_chunks(a, start, chunks[a]);
  add_cells(start.volume, std::span(chunks).first(num_axes()), out);
}

bool PatchCopy::reaches_out(const PatchStart& start) const {
  std::vector<AxisRun> runs;
  for (size_t a = 0; a < num_axes(); ++a) {
    if (patch_.axes[a].border != Border::kFill) continue;
    find_axis_runs(a, start, runs);
    int64_t inside = 0;
    for (const AxisRun& run : runs) inside += run.count;
    if (inside < patch_.axes[a].size) return true;
  }
  return false;
}

template <typename Box>
size_t PatchCopy::for_each_box(const Runs& runs, const PerAxis& origin, const PerAxis& strides, const Box& box) const {
  size_t combinations = 1;
  for (size_t a = 0; a < num_axes(); ++a) combinations *= runs[a].size();
  size_t items = 0;
  for (size_t number = 0; number < combinations; ++number) {
    Loops loops;
    int64_t dest = 0;
    int64_t source = 0;
    size_t left = number;
    size_t in_box = 1;
    for (size_t a = num_axes(); a-- > 0;) {
      const AxisRun& run = runs[a][left % runs[a].size()];
      left /= runs[a].size();
      dest += run.dest * dest_stride_[a];
      source += (run.source - origin[a]) * strides[a];
      in_box *= static_cast<size_t>(run.count);
      if (run.count == 1) continue;
      const Loop next{run.count, run.step * strides[a], dest_stride_[a]};
      // An axis that continues the one inside it, on both sides, is the same loop.
      Loop* const inner = loops.depth > 0 ? &loops.of[loops.depth - 1] : nullptr;
      if (inner != nullptr && inner->source_stride * inner->count == next.source_stride &&
          inner->dest_stride * inner->count == next.dest_stride) {
        inner->count *= next.count;
      } else {
        loops.of[loops.depth++] = next;
      }
    }
    // The innermost loop becomes the run if it writes consecutive items.
    loops.run_stride = static_cast<int64_t>(item_bytes_);
    if (loops.depth > 0 && loops.of[0].dest_stride == static_cast<int64_t>(dest_item_)) {
      loops.run_items = loops.of[0].count;
      loops.run_stride = loops.of[0].source_stride;
      std::copy(loops.of.begin() + 1, loops.of.begin() + static_cast<std::ptrdiff_t>(loops.depth), loops.of.begin());
      --loops.depth;
    }
    box(loops, dest, source);
    items += in_box;
  }
  return items;
}

namespace {

/// Calls run(offset in the patch, offset in the chunk) for each run of nested loops; the last of `loops` is outermost.
template <typename LoopType, typename Run>
void for_each_run(std::span<const LoopType> loops, int64_t dest, int64_t source, const Run& run) {
  if (loops.empty()) {
    run(dest, source);
    return;
  }
  const LoopType& loop = loops.back();
  for (int64_t i = 0; i < loop.count; ++i) {
    for_each_run(loops.first(loops.size() - 1), dest + i * loop.dest_stride, source + i * loop.source_stride, run);
  }
}

}  // namespace

size_t PatchCopy::find_crossing(const Loops& loops) const {
  constexpr int64_t kWorthwhile = 4;
  const auto item = static_cast<int64_t>(item_bytes_);
  if (std::abs(loops.run_stride) == item || loops.run_items < kWorthwhile || !can_transpose(item_bytes_)) {
    return loops.depth;
  }
  const std::span<const Loop> nested(loops.of.data(), loops.depth);
  const auto found = std::ranges::find_if(
      nested, [&](const Loop& one) { return std::abs(one.source_stride) == item && one.count >= kWorthwhile; });
  return static_cast<size_t>(found - nested.begin());
}

void PatchCopy::copy_across(const Loops& loops, size_t crossing, uint8_t* sample, int64_t dest,
                            const uint8_t* source) const {
  Loops around = loops;
  std::copy(loops.of.begin() + static_cast<std::ptrdiff_t>(crossing) + 1,
            loops.of.begin() + static_cast<std::ptrdiff_t>(loops.depth),
            around.of.begin() + static_cast<std::ptrdiff_t>(crossing));
  const std::span<const Loop> nested(around.of.data(), loops.depth - 1);
  Loop columns = loops.of[crossing];
  if (columns.source_stride < 0) {  // backwards along the patch is forwards along the source
    dest += (columns.count - 1) * columns.dest_stride;
    source += (columns.count - 1) * columns.source_stride;
    columns.dest_stride = -columns.dest_stride;
  }
  if (converter_ == nullptr && array_.swap_bytes == 0) {
    for_each_run(nested, dest, 0, [&](int64_t to, int64_t from) {
      copy_transposed(item_bytes_, sample + to, source + from, loops.run_items, columns.count, columns.dest_stride,
                      loops.run_stride);
    });
    return;
  }
  // Some rows of the patch at a time are transposed in the L1 cache, and converted from there.
  constexpr int64_t kRows = 16;
  constexpr auto kItems = static_cast<int64_t>(Converter::kBlock) / 4;
  uint8_t transposed[kRows * kItems * static_cast<int64_t>(kMaxConvertedItem)];
  const auto item = static_cast<int64_t>(item_bytes_);
  const auto dest_item = static_cast<int64_t>(dest_item_);
  uint8_t swapped[kItems * static_cast<int64_t>(kMaxConvertedItem)];
  const ItemCopy copy = choose_copy(item_bytes_, array_.swap_bytes);
  const auto finish = [&](int64_t to, const uint8_t* row, int64_t count) {
    if (converter_ == nullptr) {
      copy(sample + to, row, count, item);
      return;
    }
    if (array_.swap_bytes != 0) copy(swapped, row, count, item);
    converter_->convert(sample + to, array_.swap_bytes != 0 ? swapped : row, static_cast<size_t>(count),
                        static_cast<size_t>(to / dest_item));
  };
  for_each_run(nested, dest, 0, [&](int64_t to, int64_t from) {
    for (int64_t i = 0; i < loops.run_items; i += kItems) {
      const int64_t items = std::min(kItems, loops.run_items - i);
      for (int64_t j = 0; j < columns.count; j += kRows) {
        const int64_t rows = std::min(kRows, columns.count - j);
        copy_transposed(item_bytes_, transposed, source + from + i * loops.run_stride + j * item, items, rows,
                        items * item, loops.run_stride);
        for (int64_t row = 0; row < rows; ++row) {
          finish(to + (j + row) * columns.dest_stride + i * dest_item, transposed + row * items * item, items);
        }
      }
    }
  });
}

void PatchCopy::copy_box(const Loops& loops, uint8_t* sample, int64_t dest, const uint8_t* source) const {
  const std::span<const Loop> nested(loops.of.data(), loops.depth);
  const bool is_ready = array_.swap_bytes == 0 && loops.run_stride == static_cast<int64_t>(item_bytes_);
  if (converter_ == nullptr && is_ready) {
    const Loop inner = nested.empty() ? Loop{1, 0, 0} : nested.front();
    const size_t bytes = static_cast<size_t>(loops.run_items) * item_bytes_;
    const RunRows rows{inner.count, inner.dest_stride, inner.source_stride, bytes};
    for_each_run(nested.subspan(nested.empty() ? 0 : 1), dest, 0,
                 [&](int64_t to, int64_t from) { copy_rows(sample + to, source + from, rows); });
    return;
  }
  if (const size_t crossing = find_crossing(loops); crossing < loops.depth) {
    copy_across(loops, crossing, sample, dest, source);
    return;
  }
  const bool is_reversed = loops.run_stride == -static_cast<int64_t>(item_bytes_);
  const ItemCopy copy = (is_reversed ? choose_reversed_copy : choose_copy)(item_bytes_, array_.swap_bytes);
  if (converter_ == nullptr) {
    for_each_run(nested, dest, 0, [&](int64_t to, int64_t from) {
      copy(sample + to, source + from, loops.run_items, loops.run_stride);
    });
    return;
  }
  uint8_t gathered[Converter::kBlock * kMaxConvertedItem];
  constexpr auto kBlock = static_cast<int64_t>(Converter::kBlock);
  for_each_run(nested, dest, 0, [&](int64_t to, int64_t from) {
    const size_t position = static_cast<size_t>(to) / dest_item_;
    if (is_ready) {
      converter_->convert(sample + to, source + from, static_cast<size_t>(loops.run_items), position);
      return;
    }
    for (int64_t done = 0; done < loops.run_items; done += kBlock) {
      const int64_t n = std::min(kBlock, loops.run_items - done);
      copy(gathered, source + from + done * loops.run_stride, n, loops.run_stride);
      const auto begin = static_cast<size_t>(done);
      converter_->convert(sample + to + begin * dest_item_, gathered, static_cast<size_t>(n), position + begin);
    }
  });
}

void PatchCopy::fill_box(const Loops& loops, uint8_t* sample, int64_t dest) const {
  uint8_t fills[Converter::kBlock * kMaxConvertedItem];
  const auto run_items = static_cast<size_t>(loops.run_items);
  for_each_run(std::span<const Loop>(loops.of.data(), loops.depth), dest, 0, [&](int64_t to, int64_t) {
    const size_t position = static_cast<size_t>(to) / dest_item_;
    if (converter_ == nullptr) {
      write_pattern(sample + to, array_.fill, item_bytes_, position, run_items);
      return;
    }
    for (size_t done = 0; done < run_items; done += Converter::kBlock) {
      const size_t n = std::min(Converter::kBlock, run_items - done);
      write_pattern(fills, array_.fill, item_bytes_, position + done, n);
      converter_->convert(sample + to + done * dest_item_, fills, n, position + done);
    }
  });
}

size_t PatchCopy::copy_runs(const PatchTarget& target, Runs& runs, PerAxis origin, PerAxis strides,
                            const uint8_t* bytes) const {
  if (target.turned != nullptr) {
    turn(*target.turned, strides);
    turn(*target.turned, origin);
    turn(*target.turned, runs);
  }
  return for_each_box(runs, origin, strides, [&](const Loops& loops, int64_t dest, int64_t source) {
    if (bytes == nullptr) {
      fill_box(loops, target.dest, dest);
    } else {
      copy_box(loops, target.dest, dest, bytes + source);
    }
  });
}

size_t PatchCopy::cut(PatchCell from, const uint8_t* chunk, std::span<const PatchTarget> targets,
                      const ChunkCrop* crop) const {
  Runs runs;
  const PerAxis strides = crop == nullptr ? source_stride_ : crop_strides(array_, *crop);
  size_t items = 0;
  for (const PatchTarget& target : targets) {
    PerAxis origin{};
    for (size_t a = 0; a < num_axes(); ++a) {
      const int64_t begin = index_along(a, from, target.start.volume) * array_.chunk_shape[a];
      origin[a] = crop == nullptr ? begin : begin + crop->begin[a];
      find_axis_runs(a, target.start, runs[a]);
      clip_runs(begin, begin + array_.chunk_shape[a], runs[a]);
      if (crop == nullptr) continue;
      for (const AxisRun& run : runs[a]) check_crop(*crop, a, begin, run);
    }
    items += copy_runs(target, runs, origin, strides, chunk);
  }
  return items * dest_item_;
}

void PatchCopy::find_crops(PatchCell from, const PatchTarget& target, std::vector<ChunkCrop>& out) const {
  std::vector<AxisRun> runs;
  std::vector<ItemRange> ranges;
  const size_t first = out.size();
  out.emplace_back();
  for (size_t a = 0; a < num_axes(); ++a) {
    const int64_t begin = index_along(a, from, target.start.volume) * array_.chunk_shape[a];
    find_axis_runs(a, target.start, runs);
    clip_runs(begin, begin + array_.chunk_shape[a], runs);
    find_ranges(runs, ranges);
    // The crops so far, times these ranges; none if the patch has nothing of the chunk.
    const size_t before = out.size() - first;
    out.resize(first + before * ranges.size());
    for (size_t i = out.size(); i-- > first;) {
      const ItemRange& range = ranges[(i - first) / before];
      out[i] = out[first + (i - first) % before];
      out[i].begin[a] = range.begin - begin;
      out[i].end[a] = range.end - begin;
    }
    if (ranges.empty()) return;
  }
}

size_t PatchCopy::cut_crop(PatchCell from, const uint8_t* bytes, const PatchTarget& target,
                           const ChunkCrop& crop) const {
  Runs runs;
  PerAxis origin{};
  for (size_t a = 0; a < num_axes(); ++a) {
    const int64_t begin = index_along(a, from, target.start.volume) * array_.chunk_shape[a];
    origin[a] = begin + crop.begin[a];
    find_axis_runs(a, target.start, runs[a]);
    clip_runs(origin[a], begin + crop.end[a], runs[a]);
  }
  return copy_runs(target, runs, origin, crop_strides(array_, crop), bytes) * dest_item_;
}

size_t PatchCopy::most_bytes_of_chunk() const {
  size_t bytes = item_bytes_;
  for (size_t a = 0; a < num_axes(); ++a) {
    bytes *= static_cast<size_t>(std::min(patch_.axes[a].size, array_.chunk_shape[a]));
  }
  return bytes;
}

void PatchCopy::check_crop(const ChunkCrop& crop, size_t axis, int64_t begin, const AxisRun& run) const {
  const int64_t first = run.source - begin;
  const int64_t last = first + (run.count - 1) * run.step;
  if (std::min(first, last) < crop.begin[axis] || std::max(first, last) >= crop.end[axis]) {
    throw Error(ErrorKind::kConfig, array_.name + ": a patch needs more of a chunk than its crop has");
  }
}

void PatchCopy::pad(std::span<const PatchTarget> targets) const {
  const std::vector<uint8_t> zero(dest_item_, 0);
  const std::span<const uint8_t> item = patch_.fill.empty() ? zero : patch_.fill;
  for (const PatchTarget& target : targets) {
    // Axis by axis: what lies beyond it, inside of the axes before it.
    Runs inside;
    for (size_t a = 0; a < num_axes(); ++a) find_axis_runs(a, target.start, inside[a]);
    if (target.turned != nullptr) turn(*target.turned, inside);
    for (size_t beyond = 0; beyond < num_axes(); ++beyond) {
      Runs runs;
      for (size_t a = 0; a < num_axes(); ++a) {
        if (a < beyond) runs[a] = inside[a];
        if (a > beyond) runs[a] = {{0, patch_.axes[a].size, 0, 1}};
      }
      int64_t next = 0;
      for (const AxisRun& run : inside[beyond]) {
        if (run.dest > next) runs[beyond].push_back({next, run.dest - next, 0, 1});
        next = run.dest + run.count;
      }
      const int64_t size = patch_.axes[beyond].size;
      if (size > next) runs[beyond].push_back({next, size - next, 0, 1});
      for_each_box(runs, {}, source_stride_, [&](const Loops& loops, int64_t dest, int64_t) {
        for_each_run(std::span<const Loop>(loops.of.data(), loops.depth), dest, 0, [&](int64_t to, int64_t) {
          write_pattern(target.dest + to, item, item.size(), 0, static_cast<size_t>(loops.run_items));
        });
      });
    }
  }
}

}  // namespace zarrfeed
