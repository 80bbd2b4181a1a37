#include "transform/touched_blocks.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/division.h"
#include "base/error.h"
#include "codecs/codec_pipeline.h"

namespace zarrfeed {

bool TouchedBlocks::begin(const ArraySpec& array, const StoredBytes& stored, size_t decoded_bytes) {
  chunk_.emplace(stored, decoded_bytes);
  check_decoded_bytes(chunk_->decoded_bytes(), decoded_bytes);
  return begin(array, chunk_->header());
}

bool TouchedBlocks::begin_raw(const ArraySpec& array, const StoredBytes& stored, size_t decoded_bytes) {
  check_decoded_bytes(stored.size(), decoded_bytes);
  if (decoded_bytes > kMostBytes) return false;
  chunk_.reset();
  raw_ = stored;
  BloscHeader header;
  header.decoded_bytes = header.stored_bytes = decoded_bytes;
  header.block_bytes = kRawBlock;
  header.num_blocks = ceil_div(decoded_bytes, kRawBlock);
  return begin(array, header);
}

bool TouchedBlocks::begin(const ArraySpec& array, const BloscHeader& header) {
  array_ = &array;
  header_ = header;
  if (header_.num_blocks < 2 || header_.block_bytes < kLeastBlock) return false;
  at_.assign(header_.num_blocks, kNowhere);
  num_touched_ = 0;
  crop_room_ = 0;
  return true;
}

void TouchedBlocks::add(const ChunkCrop& crop) {
  if (!is_one_run(*array_, crop)) crop_room_ = std::max(crop_room_, crop_bytes(*array_, crop));
  // No block lies within a gap that is shorter than a block.
  for_each_run(*array_, crop, header_.block_bytes - 1, [this](size_t begin, size_t size) { add(begin, size); });
}

void TouchedBlocks::add(const std::vector<std::vector<ChunkItems>>& ranges) {
  // Runs of bytes of one item of the axes looked at so far, ascending. No block lies within a gap that is shorter than a
  // block, so runs with such a gap are one: there are hardly more runs than blocks.
  const size_t max_gap = header_.block_bytes - 1;
  const PerAxis strides = crop_strides(*array_, whole_chunk(*array_));
  runs_.assign(1, {0, array_->item_bytes});
  for (size_t i = array_->storage_order.size(); i-- > 0;) {
    const auto axis = static_cast<size_t>(array_->storage_order[i]);
    const auto stride = static_cast<size_t>(strides[axis]);
    inner_runs_.swap(runs_);
    runs_.clear();
    const auto append = [&](size_t begin, size_t size) {
      if (!runs_.empty() && begin <= runs_.back().begin + runs_.back().size + max_gap) {
        runs_.back().size = begin + size - runs_.back().begin;
      } else {
        runs_.push_back({begin, size});
      }
    };
    for (const ChunkItems& range : ranges[axis]) {
      const auto first = static_cast<size_t>(range.begin);
      const auto count = static_cast<size_t>(range.end - range.begin);
      const Run& inner = inner_runs_.front();
      if (inner_runs_.size() == 1 && stride - inner.size <= max_gap) {
        append(first * stride + inner.begin, (count - 1) * stride + inner.size);
        continue;
      }
      for (size_t item = first; item < first + count; ++item) {
        for (const Run& run : inner_runs_) append(item * stride + run.begin, run.size);
      }
    }
  }
  for (const Run& run : runs_) add(run.begin, run.size);
}

size_t TouchedBlocks::decode_in_place(MutableBytes chunk, DecodeScratch& scratch) const {
  size_t decoded = 0;
  for (size_t b = 0; b < header_.num_blocks; ++b) {
    if (at_[b] == kNowhere) continue;
    const size_t begin = b * header_.block_bytes;
    const size_t size = header_.size_of(b);
    if (chunk_) {
      chunk_->decode_block(b, chunk.subspan(begin, size), scratch);
    } else {
      std::memcpy(chunk.data() + begin, bytes(begin, size), size);
    }
    decoded += size;
  }
  return decoded;
}

void TouchedBlocks::begin_rows(const ChunkCrop& first) {
  row_stride_ =
      static_cast<size_t>(crop_strides(*array_, whole_chunk(*array_))[static_cast<size_t>(array_->sample_axis)]);
  if (!is_one_run(*array_, first)) crop_room_ = std::max(crop_room_, crop_bytes(*array_, first));
  runs_of_row_.clear();
  for_each_run(*array_, first, header_.block_bytes - 1,
               [this](size_t begin, size_t size) { runs_of_row_.push_back({begin, size}); });
}

std::vector<StoredRange> TouchedBlocks::stored_ranges() const {
  std::vector<StoredRange> ranges;
  std::optional<BloscTable> table;
  if (chunk_) table.emplace(header_, chunk_->table());
  for (size_t b = 0; b < header_.num_blocks; ++b) {
    if (at_[b] == kNowhere) continue;
    const size_t begin = b * header_.block_bytes;
    ranges.push_back(table ? table->range_of(b) : StoredRange{begin, begin + header_.size_of(b)});
  }
  return ranges;
}

size_t TouchedBlocks::decode(Buffer& room, DecodeScratch& scratch, size_t row_bytes) {
  row_bytes_ = row_bytes;
  if (!chunk_) {
    memory_ = room.reserve(crop_room_).data();
    blocks_end_ = 0;
    return 0;
  }
  rows_moved_.assign(header_.num_blocks, 0);
  const size_t num_blocks = header_.num_blocks;
  size_t end = 0;
  size_t decoded = 0;
  for (size_t b = 0; b < num_blocks; ++b) {
    if (at_[b] == kNowhere) continue;
    if (b == 0 || at_[b - 1] == kNowhere) {
      // A run of blocks begins in memory as far behind a row as it does in the chunk.
      const size_t phase = b * header_.block_bytes % row_bytes;
      end += (row_bytes + phase - end % row_bytes) % row_bytes;
    }
    at_[b] = static_cast<uint32_t>(end);
    rows_moved_[b] = static_cast<int32_t>((static_cast<int64_t>(end) - static_cast<int64_t>(b * header_.block_bytes)) /
                                          static_cast<int64_t>(row_bytes));
    end += header_.size_of(b);
    decoded += header_.size_of(b);
  }
  const MutableBytes memory = room.reserve(end + crop_room_);
  for (size_t b = 0; b < num_blocks; ++b) {
    if (at_[b] != kNowhere) chunk_->decode_block(b, memory.subspan(at_[b], header_.size_of(b)), scratch);
  }
  memory_ = memory.data();
  blocks_end_ = end;
  return decoded;
}

const uint8_t* TouchedBlocks::bytes(size_t begin, size_t size) const {
  if (!chunk_) {
    const Bytes read = raw_.from(begin);
    if (read.size() < size) refuse(begin, size);
    return read.data();
  }
  const size_t first = block_of(begin);
  const size_t last = block_of(begin + size - 1);
  for (size_t b = first; b <= last; ++b) {
    if (at_[b] == kNowhere) refuse(begin, size);
  }
  return memory_ + at_[first] + (begin - first * header_.block_bytes);
}

const uint8_t* TouchedBlocks::crop(const ChunkCrop& crop) const {
  if (is_one_run(*array_, crop)) {
    const uint8_t* found = nullptr;
    for_each_run(*array_, crop, 0, [&](size_t begin, size_t size) { found = bytes(begin, size); });
    return found;
  }
  copy(crop, memory_ + blocks_end_);
  return memory_ + blocks_end_;
}

void TouchedBlocks::copy(const ChunkCrop& crop, uint8_t* out) const {
  for_each_run(*array_, crop, 0, [&](size_t begin, size_t size) {
    std::memcpy(out, bytes(begin, size), size);
    out += size;
  });
}

void TouchedBlocks::refuse(size_t begin, size_t size) {
  throw Error(ErrorKind::kConfig, "bytes " + std::to_string(begin) + " to " + std::to_string(begin + size) +
                                      " of a chunk are copied, and were not said to be wanted");
}

}  // namespace zarrfeed
