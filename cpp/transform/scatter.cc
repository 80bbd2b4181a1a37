#include "transform/scatter.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/streaming_store.h"
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

}  // namespace

BoxCopy::BoxCopy(const ArraySpec& array, std::span<const int64_t> cell, const Converter* converter)
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
    stride *= array.chunk_shape[axis];
  }
  row_stride_ = source_stride[static_cast<size_t>(array.sample_axis)];

  std::vector<Loop> loops;
  int64_t dest_stride = dest_item;
  bool whole = true;
  box_bytes_ = static_cast<size_t>(dest_item);
  for (size_t axis = ndim; axis-- > 0;) {
    if (static_cast<int>(axis) == array.sample_axis) continue;
    const int64_t begin = cell[axis] * array.chunk_shape[axis];
    const int64_t extent = std::min(array.chunk_shape[axis], array.shape[axis] - begin);
    whole = whole && extent == array.shape[axis];
    dest_offset_ += begin * dest_stride;
    box_bytes_ *= static_cast<size_t>(extent);
    if (extent > 1) {
      // Innermost first. An axis that continues the one inside it, on both sides, is the same loop.
      if (!loops.empty() && loops.back().source_stride * loops.back().count == source_stride[axis] &&
          loops.back().dest_stride * loops.back().count == dest_stride) {
        loops.back().count *= extent;
      } else {
        loops.push_back({extent, source_stride[axis], dest_stride});
      }
    }
    dest_stride *= array.shape[axis];
  }
  // The innermost loop becomes the run if it writes consecutive items.
  run_stride_ = item;
  if (!loops.empty() && loops.front().dest_stride == dest_item) {
    run_items_ = loops.front().count;
    run_stride_ = loops.front().source_stride;
    loops.erase(loops.begin());
  }
  loops_.assign(loops.rbegin(), loops.rend());
  plain_ = converter_ == nullptr && whole && loops_.empty() && run_stride_ == item && swap_bytes_ == 0 &&
           row_stride_ == static_cast<int64_t>(box_bytes_);
}

namespace {

/// Calls run(dest, offset in the source) for every run of nested loops, innermost last.
template <typename LoopType, typename Run>
void for_each_run(std::span<const LoopType> loops, uint8_t* dest, int64_t source, const Run& run) {
  if (loops.empty()) {
    run(dest, source);
    return;
  }
  const LoopType& loop = loops.front();
  for (int64_t i = 0; i < loop.count; ++i) {
    for_each_run(loops.subspan(1), dest + i * loop.dest_stride, source + i * loop.source_stride, run);
  }
}

}  // namespace

void BoxCopy::copy_rows(const uint8_t* chunk, std::span<const RowTarget> targets, bool streaming) const {
  if (converter_ != nullptr) {
    convert_rows(chunk, targets, streaming);
    return;
  }
  const auto item = static_cast<int64_t>(item_bytes_);
  const std::span<const Loop> loops(loops_);
  if (swap_bytes_ == 0 && run_stride_ == item) {
    const auto run_bytes = static_cast<size_t>(run_items_ * item);
    if (loops.empty()) {
      copy_whole_rows(chunk, targets, run_bytes, streaming);
      return;
    }
    for (const RowTarget& t : targets) {
      for_each_run(loops, t.dest + dest_offset_, t.row * row_stride_,
                   [=](uint8_t* dest, int64_t source) { std::memcpy(dest, chunk + source, run_bytes); });
    }
    return;
  }
  const ItemCopy copy = choose_copy(item_bytes_, swap_bytes_);
  for (const RowTarget& t : targets) {
    for_each_run(loops, t.dest + dest_offset_, t.row * row_stride_,
                 [=, this](uint8_t* dest, int64_t source) { copy(dest, chunk + source, run_items_, run_stride_); });
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

void BoxCopy::fill_rows(std::span<const RowTarget> targets) const {
  if (converter_ != nullptr) {
    fill_converted_rows(targets);
    return;
  }
  const std::span<const Loop> loops(loops_);
  const bool uniform = std::all_of(fill_.begin(), fill_.end(), [this](uint8_t b) { return b == fill_.front(); });
  const auto run_items = static_cast<size_t>(run_items_);
  for (const RowTarget& t : targets) {
    for_each_run(loops, t.dest + dest_offset_, 0, [&](uint8_t* dest, int64_t) {
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
  const bool is_ready = swap_bytes_ == 0 && run_stride_ == static_cast<int64_t>(item_bytes_);
  const ItemCopy copy = choose_copy(item_bytes_, swap_bytes_);
  constexpr auto kBlock = static_cast<int64_t>(Converter::kBlock);
  uint8_t gathered[Converter::kBlock * kMaxConvertedItem];
  uint8_t converted[Converter::kBlock * kMaxConvertedItem];
  for (const RowTarget& t : targets) {
    for_each_run(std::span<const Loop>(loops_), t.dest + dest_offset_, t.row * row_stride_,
                 [&](uint8_t* dest, int64_t source) {
                   const size_t position = static_cast<size_t>(dest - t.dest) / dest_item;
                   if (is_ready && !streaming) {
                     converter_->convert(dest, chunk + source, static_cast<size_t>(run_items_), position);
                     return;
                   }
                   for (int64_t done = 0; done < run_items_; done += kBlock) {
                     const auto n = static_cast<size_t>(std::min(kBlock, run_items_ - done));
                     const auto begin = static_cast<size_t>(done);
                     const uint8_t* items = chunk + source + done * run_stride_;
                     if (!is_ready) {
                       copy(gathered, items, static_cast<int64_t>(n), run_stride_);
                       items = gathered;
                     }
                     uint8_t* const to = dest + begin * dest_item;
                     converter_->convert(streaming ? converted : to, items, n, position + begin);
                     if (streaming) copy_streaming(to, converted, n * dest_item);
                   }
                 });
  }
}

void BoxCopy::fill_converted_rows(std::span<const RowTarget> targets) const {
  const size_t dest_item = converter_->dest_item_bytes();
  uint8_t fills[Converter::kBlock * kMaxConvertedItem];
  const auto run_items = static_cast<size_t>(run_items_);
  for (const RowTarget& t : targets) {
    for_each_run(std::span<const Loop>(loops_), t.dest + dest_offset_, 0, [&](uint8_t* dest, int64_t) {
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
