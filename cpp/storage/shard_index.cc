#include "storage/shard_index.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "codecs/codec.h"

namespace zarrfeed {
namespace {

constexpr size_t kEntryBytes = 16;
constexpr uint64_t kMissing = std::numeric_limits<uint64_t>::max();

uint64_t load_word(const uint8_t* p, bool big_endian) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= static_cast<uint64_t>(p[i]) << 8 * (big_endian ? 7 - i : i);
  return word;
}

std::string describe(size_t position, const ShardRange& range) {
  return "inner chunk " + std::to_string(position) + " at bytes [" + std::to_string(range.offset) + ", " +
         std::to_string(range.end()) + ")";
}

bool is_missing(const ShardRange& range) {
  return range.offset == kMissing;
}

bool are_same(const ShardRange& a, const ShardRange& b) {
  return a.offset == b.offset && a.size == b.size;
}

/// Refuses ranges that overlap without being the same: a writer may store the bytes of equal inner chunks once. Ranges
/// without bytes overlap nothing. Writers mostly write in ascending order, so that sorting is rare.
void check_disjoint(const std::vector<ShardRange>& ranges) {
  std::vector<size_t> order;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!is_missing(ranges[i]) && ranges[i].size > 0) order.push_back(i);
  }
  const auto by_offset = [&](size_t a, size_t b) { return ranges[a].offset < ranges[b].offset; };
  if (!std::is_sorted(order.begin(), order.end(), by_offset)) std::sort(order.begin(), order.end(), by_offset);
  for (size_t i = 1; i < order.size(); ++i) {
    const size_t before = order[i - 1];
    const size_t after = order[i];
    if (ranges[before].end() > ranges[after].offset && !are_same(ranges[before], ranges[after])) {
      throw_corrupt(describe(before, ranges[before]) + " overlaps " + describe(after, ranges[after]));
    }
  }
}

}  // namespace

size_t chunks_per_shard(const ShardSpec& spec) {
  // Bounded, so that neither the size of an index nor that of what it is parsed to overflows.
  constexpr size_t kMax = size_t{1} << 48;
  size_t n = 1;
  for (const int64_t along : spec.chunks) {
    if (__builtin_mul_overflow(n, static_cast<size_t>(along), &n) || n > kMax) {
      throw_corrupt("the metadata implies more than " + std::to_string(kMax) + " inner chunks in a shard");
    }
  }
  return n;
}

size_t stored_index_bytes(const ShardSpec& spec) {
  return chunks_per_shard(spec) * kEntryBytes + (spec.index_has_crc32c ? kChecksumBytes : 0);
}

ShardIndex::ShardIndex(const ShardSpec& spec, Bytes stored, std::optional<uint64_t> shard_bytes) {
  const size_t index_bytes = stored_index_bytes(spec);
  if (stored.size() != index_bytes) {
    throw_corrupt("has " + std::to_string(stored.size()) + " bytes, must have " + std::to_string(index_bytes));
  }
  if (shard_bytes && *shard_bytes < index_bytes) {
    throw_corrupt("has " + std::to_string(index_bytes) + " bytes, the whole shard has " + std::to_string(*shard_bytes));
  }
  if (spec.index_has_crc32c) stored = verify_checksum(stored, false, "crc32c", crc32c);
  // The range that inner chunks may occupy; an index at the end of a shard of unknown size says nothing of where it
  // ends.
  const uint64_t begin = spec.index_at_start ? index_bytes : 0;
  uint64_t end = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (shard_bytes) end = *shard_bytes - (spec.index_at_start ? 0 : index_bytes);

  ranges_.reserve(chunks_per_shard(spec));
  for (size_t position = 0; position < chunks_per_shard(spec); ++position) {
    const uint8_t* const entry = stored.data() + position * kEntryBytes;
    const ShardRange range{load_word(entry, spec.index_big_endian), load_word(entry + 8, spec.index_big_endian)};
    if (is_missing(range) != (range.size == kMissing)) {
      throw_corrupt("inner chunk " + std::to_string(position) + " has offset " + std::to_string(range.offset) +
                    " and " + std::to_string(range.size) + " bytes: only both together can say that it is missing");
    }
    if (!is_missing(range)) {
      const bool overflows = range.size > kMissing - range.offset;
      if (overflows || range.offset < begin || range.end() > end) {
        throw_corrupt("inner chunk " + std::to_string(position) + " has offset " + std::to_string(range.offset) +
                      " and " + std::to_string(range.size) + " bytes, must lie in [" + std::to_string(begin) + ", " +
                      std::to_string(end) + ")");
      }
    }
    ranges_.push_back(range);
  }
  check_disjoint(ranges_);
}

std::optional<ShardRange> ShardIndex::find(size_t position) const {
  const ShardRange& range = ranges_[position];
  if (is_missing(range)) return std::nullopt;
  return range;
}

}  // namespace zarrfeed
