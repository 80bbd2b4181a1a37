#include "transform/wanted_parts.h"

#include <algorithm>

#include "base/error.h"
#include "codecs/blosc_table.h"
#include "transform/few_blocks.h"

namespace zarrfeed {
namespace {

/// Joins ranges, in any order, that have at most `max_gap` bytes between them.
std::vector<StoredRange> join_near(std::vector<StoredRange> ranges, size_t max_gap) {
  std::ranges::sort(ranges, {}, &StoredRange::begin);
  std::vector<StoredRange> joined;
  for (const StoredRange& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end + max_gap) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace

bool WantedParts::has_parts(const ArraySource& source, const PartCosts& costs) {
  return source.decoded_bytes() >= costs.least_chunk && source.array().shape.size() <= kMaxAxes &&
         (source.pipeline().is_blosc() ||
          (source.pipeline().is_raw() && source.decoded_bytes() <= TouchedBlocks::kMostBytes));
}

std::shared_ptr<const ChunkParts> WantedParts::of_rows(std::shared_ptr<const ArraySource> source, size_t cell,
                                                       std::vector<ChunkItems> rows, const PartCosts& costs) {
  int64_t count = 0;
  for (const ChunkItems& range : rows) count += range.end - range.begin;
  if (!source->has_chosen() && 2 * count > source->rows_per_chunk()) return nullptr;
  return std::make_shared<WantedParts>(std::move(source), cell, std::move(rows), std::vector<ChunkCrop>{}, costs);
}

std::shared_ptr<const ChunkParts> WantedParts::of_crops(std::shared_ptr<const ArraySource> source,
                                                        std::vector<ChunkCrop> crops, const PartCosts& costs) {
  const auto is_most = [&](const ChunkCrop& crop) {
    return crop_bytes(source->array(), crop) > source->decoded_bytes() / 2;
  };
  if (std::ranges::any_of(crops, is_most)) return nullptr;
  return std::make_shared<WantedParts>(std::move(source), size_t{0}, std::vector<ChunkItems>{}, std::move(crops),
                                       costs);
}

ChunkParts::Found WantedParts::find(Bytes first, size_t stored_bytes) const {
  if (stored_bytes < std::max(costs_.least_chunk, BloscHeader::kBytes)) return {};
  if (source_->pipeline().is_raw()) {
    if (stored_bytes != source_->decoded_bytes()) return {};
    return find_ranges({first, std::make_shared<StoredParts>(StoredParts{stored_bytes, {}})});
  }
  if (first.size() < BloscHeader::kBytes) return {.first = std::max(costs_.first_bytes, BloscHeader::kBytes)};
  try {
    const BloscHeader header = BloscHeader::read(first, stored_bytes, source_->decoded_bytes());
    const size_t head_bytes = BloscHeader::kBytes + header.table_bytes();
    if (first.size() < head_bytes) return {.first = head_bytes};
    const StoredParts::Part head{{0, first.size()}, 0};
    return find_ranges({first, std::make_shared<StoredParts>(StoredParts{stored_bytes, {head}})});
  } catch (const Error&) {
    return {};
  }
}

bool WantedParts::touch(const StoredBytes& stored, TouchedBlocks& touched) const {
  if (source_->has_chosen() && !rows_.empty()) return source_->touch_chosen(cell_, stored, rows_, touched);
  if (!source_->begin_blocks(stored, touched)) return false;
  if (!rows_.empty()) touched.begin_rows(first_row_of(*source_, cell_));
  for (const ChunkItems& range : rows_) {
    for (int64_t row = range.begin; row < range.end; ++row) touched.add_row(row);
  }
  for (const ChunkCrop& crop : crops_) touched.add(crop);
  return true;
}

ChunkParts::Found WantedParts::find_ranges(const StoredBytes& stored) const {
  TouchedBlocks touched;
  if (!touch(stored, touched) || touched.are_most()) return {};
  std::vector<StoredRange> ranges = join_near(touched.stored_ranges(), costs_.max_gap);
  size_t bytes = 0;
  for (const StoredRange& range : ranges) bytes += range.end - range.begin + costs_.max_gap;
  if (bytes > stored.size() / 2) return {};
  return {.ranges = std::move(ranges)};
}

}  // namespace zarrfeed
