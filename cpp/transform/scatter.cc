#include "transform/scatter.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/streaming_store.h"
#include "transform/axis_items.h"
#include "transform/convert/item_copy.h"

namespace zarrfeed {
namespace {

#if defined(__x86_64__)
#define ZARRFEED_PREFETCHW __attribute__((target("prfchw")))
#else
#define ZARRFEED_PREFETCHW
#endif

/// Slots are scattered: so many rows ahead they are fetched for writing, while those before them are copied.
constexpr size_t kRowsAhead = 16;
/// Rows from this size on fill whole lines: they need not be fetched before they are written.
constexpr size_t kMinPastCacheRow = 256;

/// Items that a cell has of the array along an axis.
int64_t extent_of(const ArraySpec& array, std::span<const int64_t> cell, size_t axis) {
  return std::min(array.chunk_shape[axis], array.shape[axis] - cell[axis] * array.chunk_shape[axis]);
}

}  // namespace

ChunkCrop row_crop(const ArraySpec& array, std::span<const int64_t> cell) {
  ChunkCrop crop;
  for (size_t axis = 0; axis < array.shape.size(); ++axis) {
    const bool is_sample_axis = static_cast<int>(axis) == array.sample_axis;
    crop.end[axis] = is_sample_axis ? 1 : extent_of(array, cell, axis);
  }
  return crop;
}

BoxCopy::BoxCopy(const ArraySpec& array, std::span<const int64_t> cell, const Converter* converter, bool of_one_row)
    : item_bytes_(array.item_bytes), swap_bytes_(array.swap_bytes), converter_(converter), fill_(array.fill) {
  const size_t ndim = array.shape.size();
  const auto item = static_cast<int64_t>(item_bytes_);
  const auto dest_item = static_cast<int64_t>(converter != nullptr ? converter->dest_item_bytes() : item_bytes_);
  choose_copy(item_bytes_, swap_bytes_);  // refuses unknown widths now rather than in a thread
  if (fill_.empty() || fill_.size() % item_bytes_ != 0) {
    throw Error(ErrorKind::kConfig, array.name + ": fill value of " + std::to_string(fill_.size()) +
                                        " bytes, items of " + std::to_string(item_bytes_));
  }

  // Strides of the chunk as stored, and of the sample, in bytes, by axis of the array.
  std::vector<int64_t> source_stride(ndim);
  int64_t stride = item;
  for (size_t i = ndim; i-- > 0;) {
    const auto axis = static_cast<size_t>(array.storage_order[i]);
    source_stride[axis] = stride;
    const bool is_sample_axis = static_cast<int>(axis) == array.sample_axis;
    stride *= !of_one_row ? array.chunk_shape[axis] : is_sample_axis ? 1 : extent_of(array, cell, axis);
  }
  row_stride_ = source_stride[static_cast<size_t>(array.sample_axis)];

  std::vector<Loop> loops;  // innermost first
  int64_t dest_stride = dest_item;
  bool whole = true;
  box_bytes_ = static_cast<size_t>(dest_item);
  for (size_t axis = ndim; axis-- > 0;) {
    if (static_cast<int>(axis) == array.sample_axis) continue;
    const AxisItems items = AxisItems::of(array, axis, cell[axis]);
    whole = whole && items.count == array.extent(axis);
    source_offset_ += items.source * source_stride[axis];
    dest_offset_ += items.dest * dest_stride;
    box_bytes_ *= static_cast<size_t>(items.count);
    Loop loop{items.count, items.source_step * source_stride[axis], items.dest_step * dest_stride};
    for (const auto& [source, dest] : items.at) loop.at.push_back({source * source_stride[axis], dest * dest_stride});
    if (items.count > 1) {
      // An axis that continues the one inside it, on both sides, is the same loop.
      if (!loops.empty() && loop.at.empty() && loops.back().at.empty() &&
          loops.back().source_stride * loops.back().count == loop.source_stride &&
          loops.back().dest_stride * loops.back().count == loop.dest_stride) {
        loops.back().count *= items.count;
      } else {
        loops.push_back(std::move(loop));
      }
    }
    dest_stride *= array.extent(axis);
  }
  // The innermost loop becomes the runs if it writes consecutive items.
  runs_ = {{1, item, {0, 0}}};
  if (!loops.empty() && !loops.front().at.empty()) {
    runs_.clear();
    for (const Offset& at : loops.front().at) add_to_runs(at, item, dest_item);
    loops.erase(loops.begin());
  } else if (!loops.empty() && loops.front().dest_stride == dest_item) {
    runs_ = {{loops.front().count, loops.front().source_stride, {0, 0}}};
    loops.erase(loops.begin());
  }
  loops_.assign(std::make_move_iterator(loops.rbegin()), std::make_move_iterator(loops.rend()));
  are_side_by_side_ = std::ranges::all_of(runs_, [=](const Run& run) { return run.stride == item; });
  plain_ = converter_ == nullptr && whole && is_one_run() && are_side_by_side_ && swap_bytes_ == 0 &&
           row_stride_ == static_cast<int64_t>(box_bytes_);
}

void BoxCopy::add_to_runs(Offset at, int64_t item, int64_t dest_item) {
  if (!runs_.empty() && runs_.back().at.dest + runs_.back().items * dest_item == at.dest) {
    Run& run = runs_.back();
    const int64_t step = at.source - run.at.source - (run.items - 1) * run.stride;
    if (run.items == 1) run.stride = step;
    if (run.stride == step) {
      ++run.items;
      return;
    }
  }
  runs_.push_back({1, item, at});
}

void BoxCopy::copy_rows(const uint8_t* chunk, std::span<const RowTarget> targets, bool streaming) const {
  if (converter_ != nullptr) {
    convert_rows(chunk, targets, streaming);
    return;
  }
  if (swap_bytes_ == 0 && are_side_by_side_) {
    if (is_one_run()) {
      copy_whole_rows(chunk + source_offset_, targets, box_bytes_, streaming);
      return;
    }
    for (const RowTarget& t : targets) {
      for_each_run(t.dest, t.row, [&](uint8_t* dest, int64_t source, const Run& run) {
        std::memcpy(dest, chunk + source, static_cast<size_t>(run.items) * item_bytes_);
      });
    }
    return;
  }
  const ItemCopy copy = choose_copy(item_bytes_, swap_bytes_);
  for (const RowTarget& t : targets) {
    for_each_run(t.dest, t.row, [&](uint8_t* dest, int64_t source, const Run& run) {
      copy(dest, chunk + source, run.items, run.stride);
    });
  }
}

void BoxCopy::copy_whole_rows(const uint8_t* chunk, std::span<const RowTarget> targets, size_t bytes,
                              bool streaming) const {
  const auto copy_all = [&](const auto& copy) ZARRFEED_PREFETCHW {
    for (size_t i = 0; i < targets.size(); ++i) {
      if (i + kRowsAhead < targets.size()) __builtin_prefetch(targets[i + kRowsAhead].dest + dest_offset_, 1);
      copy(targets[i].dest + dest_offset_, chunk + targets[i].row * row_stride_);
    }
  };
  switch (bytes) {  // a known size costs no call
    case 4:
      copy_all([](uint8_t* dest, const uint8_t* source) { std::memcpy(dest, source, 4); });
      return;
    case 8:
      copy_all([](uint8_t* dest, const uint8_t* source) { std::memcpy(dest, source, 8); });
      return;
    default:
      break;
  }
  if (streaming && bytes >= kMinPastCacheRow) {
    for (const RowTarget& t : targets) {
      copy_streaming(t.dest + dest_offset_, chunk + t.row * row_stride_, bytes);
    }
  } else {
    copy_all([=](uint8_t* dest, const uint8_t* source) { std::memcpy(dest, source, bytes); });
  }
}

bool BoxCopy::has_runs_of(size_t bytes) const {
  return converter_ == nullptr && swap_bytes_ == 0 && are_side_by_side_ &&
         std::ranges::all_of(runs_,
                             [&](const Run& run) { return static_cast<size_t>(run.items) * item_bytes_ >= bytes; });
}

void BoxCopy::list_runs(const RowTarget& target, std::vector<ByteRun>& out) const {
  for_each_run(target.dest, target.row, [&](uint8_t* dest, int64_t source, const Run& run) {
    out.push_back({static_cast<size_t>(source), static_cast<size_t>(run.items) * item_bytes_, dest});
  });
}

void BoxCopy::fill_rows(std::span<const RowTarget> targets) const {
  if (converter_ != nullptr) {
    fill_converted_rows(targets);
    return;
  }
  const bool uniform = std::all_of(fill_.begin(), fill_.end(), [this](uint8_t b) { return b == fill_.front(); });
  for (const RowTarget& t : targets) {
    for_each_run(t.dest, 0, [&](uint8_t* dest, int64_t, const Run& run) {
      const auto run_items = static_cast<size_t>(run.items);
      if (uniform) {
        std::memset(dest, fill_.front(), run_items * item_bytes_);
      } else {
        write_fill(dest, static_cast<size_t>(dest - t.dest) / item_bytes_, run_items);
      }
    });
  }
}

void BoxCopy::write_fill(uint8_t* dest, size_t first, size_t count) const {
  write_pattern(dest, fill_, item_bytes_, first, count);
}

void BoxCopy::convert_rows(const uint8_t* chunk, std::span<const RowTarget> targets, bool streaming) const {
  const size_t dest_item = converter_->dest_item_bytes();
  for (const RowTarget& t : targets) {
    for_each_run(t.dest, t.row, [&](uint8_t* dest, int64_t source, const Run& run) {
      convert_run(dest, chunk + source, run, static_cast<size_t>(dest - t.dest) / dest_item, streaming);
    });
  }
}

void BoxCopy::convert_run(uint8_t* dest, const uint8_t* source, const Run& run, size_t position, bool streaming) const {
  const bool is_ready = swap_bytes_ == 0 && are_side_by_side_;
  if (is_ready && !streaming) {
    converter_->convert(dest, source, static_cast<size_t>(run.items), position);
    return;
  }
  const size_t dest_item = converter_->dest_item_bytes();
  const ItemCopy copy = choose_copy(item_bytes_, swap_bytes_);
  constexpr auto kBlock = static_cast<int64_t>(Converter::kBlock);
  uint8_t gathered[Converter::kBlock * kMaxConvertedItem];
  uint8_t converted[Converter::kBlock * kMaxConvertedItem];
  for (int64_t done = 0; done < run.items; done += kBlock) {
    const auto n = static_cast<size_t>(std::min(kBlock, run.items - done));
    const auto begin = static_cast<size_t>(done);
    const uint8_t* items = source + done * run.stride;
    if (!is_ready) {
      copy(gathered, items, static_cast<int64_t>(n), run.stride);
      items = gathered;
    }
    uint8_t* const to = dest + begin * dest_item;
    converter_->convert(streaming ? converted : to, items, n, position + begin);
    if (streaming) copy_streaming(to, converted, n * dest_item);
  }
}

bool BoxCopy::joins_rows(size_t slot_bytes) const {
  return is_one_run() && are_side_by_side_ && slot_bytes == box_bytes_ &&
         row_stride_ == runs_.front().items * runs_.front().stride &&
         (converter_ == nullptr || converter_->repeats_after(static_cast<size_t>(runs_.front().items)));
}

void BoxCopy::copy_stretch(const uint8_t* chunk, const StretchTarget& target, bool streaming) const {
  const uint8_t* const source = chunk + source_offset_ + target.row * row_stride_;
  Run run = runs_.front();
  run.items *= target.count;
  if (converter_ != nullptr) {
    convert_run(target.dest, source, run, 0, streaming);
  } else if (swap_bytes_ != 0) {
    choose_copy(item_bytes_, swap_bytes_)(target.dest, source, run.items, run.stride);
  } else if (const size_t bytes = static_cast<size_t>(run.items) * item_bytes_;
             streaming && bytes >= kMinPastCacheRow) {
    copy_streaming(target.dest, source, bytes);
  } else {
    std::memcpy(target.dest, source, bytes);
  }
}

void BoxCopy::fill_converted_rows(std::span<const RowTarget> targets) const {
  const size_t dest_item = converter_->dest_item_bytes();
  uint8_t fills[Converter::kBlock * kMaxConvertedItem];
  for (const RowTarget& t : targets) {
    for_each_run(t.dest, 0, [&](uint8_t* dest, int64_t, const Run& run) {
      const auto run_items = static_cast<size_t>(run.items);
      const size_t position = static_cast<size_t>(dest - t.dest) / dest_item;
      for (size_t done = 0; done < run_items; done += Converter::kBlock) {
        const size_t n = std::min(Converter::kBlock, run_items - done);
        write_fill(fills, position + done, n);
        converter_->convert(dest + done * dest_item, fills, n, position + done);
      }
    });
  }
}

}  // namespace zarrfeed
