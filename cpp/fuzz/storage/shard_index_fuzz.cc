// The index of a shard, of arbitrary bytes for any number of inner chunks, in shards of any size.
//
// What must hold: an index is accepted if and only if it has the right size and checksum, and every range lies in the
// shard, beside the index, and overlaps no other one but its equals; checked here range by range in 128 bits.

#include <algorithm>
#include <exception>
#include <numeric>
#include <optional>

#include "base/bytes.h"
#include "codecs/codec.h"
#include "fuzz/support/fuzz.h"
#include "spec/shard_spec.h"
#include "storage/shard_index.h"
#include "tests/support/check.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/shards.h"

namespace zarrfeed::fuzzing::shard_index_fuzz {
namespace {

using testing::kNoChunk;
using testing::ShardEntry;
using Wide = unsigned __int128;

struct Case {
  ShardSpec spec;
  std::optional<uint64_t> shard_bytes;
  ByteVector stored;
};

uint64_t draw_word(Draw& draw) {
  switch (draw.pick(0, 4)) {
    case 0:
      return draw.word64();
    case 1:
      return kNoChunk - draw.byte();
    case 2:
      return static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + 128 - draw.byte();
    default:
      return static_cast<uint64_t>(draw.pick(0, 4095));
  }
}

Case draw_case(Draw& draw) {
  Case c;
  const int64_t axes = draw.pick(1, 3);
  for (int64_t axis = 0; axis < axes; ++axis) {
    // Metadata is not trusted either: the product may exceed any number.
    c.spec.chunks.push_back(draw.pick(0, 31) == 31 ? static_cast<int64_t>(draw.word64() >> 1 | 1) : draw.pick(1, 5));
  }
  c.spec.index_at_start = draw.coin();
  c.spec.index_big_endian = draw.coin();
  c.spec.index_has_crc32c = draw.coin();
  if (draw.coin()) c.shard_bytes = draw_word(draw);
  if (draw.coin()) {
    const Bytes rest = draw.rest();
    c.stored.assign(rest.begin(), rest.end());
    return c;
  }
  std::vector<ShardEntry> entries;
  const auto count = static_cast<size_t>(draw.pick(0, 130));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t offset = draw_word(draw);
    entries.emplace_back(offset, offset == kNoChunk ? kNoChunk : draw_word(draw));
  }
  c.stored = testing::make_index(c.spec, entries);
  return c;
}

/// Reads the index as the specification says, and tells whether it may be accepted.
bool is_valid(const Case& c, std::vector<ShardEntry>& entries) {
  Wide count = 1;
  for (const int64_t along : c.spec.chunks) count = std::min<Wide>(count * static_cast<Wide>(along), Wide{1} << 63);
  const Wide index_bytes = count * 16 + (c.spec.index_has_crc32c ? 4 : 0);
  if (c.stored.size() != index_bytes) return false;
  const auto payload = static_cast<size_t>(count) * 16;
  if (c.spec.index_has_crc32c && load_le32(&c.stored[payload]) != crc32c(Bytes(c.stored).first(payload))) return false;
  for (size_t at = 0; at < payload; at += 8) {
    uint64_t word = 0;
    for (size_t b = 0; b < 8; ++b) {
      word = word << 8 | c.stored[at + (c.spec.index_big_endian ? b : 7 - b)];
    }
    if (at % 16 == 0) {
      entries.emplace_back(word, 0);
    } else {
      entries.back().second = word;
    }
  }
  if (c.shard_bytes && *c.shard_bytes < index_bytes) return false;
  const Wide begin = c.spec.index_at_start ? index_bytes : 0;
  const Wide end = !c.shard_bytes          ? static_cast<Wide>(std::numeric_limits<int64_t>::max())
                   : c.spec.index_at_start ? *c.shard_bytes
                                           : *c.shard_bytes - index_bytes;
  for (const auto& [offset, size] : entries) {
    if ((offset == kNoChunk) != (size == kNoChunk)) return false;
    if (offset != kNoChunk && (offset < begin || Wide{offset} + size > end)) return false;
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto& [a, a_size] = entries[i];
      const auto& [b, b_size] = entries[j];
      if (a == kNoChunk || b == kNoChunk || a_size == 0 || b_size == 0 || entries[i] == entries[j]) continue;
      if (Wide{a} + a_size > b && Wide{b} + b_size > a) return false;
    }
  }
  return true;
}

void run_input(Bytes input) {
  Draw draw(input);
  const Case c = draw_case(draw);
  std::vector<ShardEntry> entries;
  const bool valid = is_valid(c, entries);
  const testing::GuardedBytes stored(c.stored);
  try {
    const ShardIndex index(c.spec, stored.span(), c.shard_bytes);
    CHECK(valid);
    CHECK_EQ(index.num_chunks(), entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::optional<ShardRange> range = index.find(i);
      CHECK_EQ(range.has_value(), entries[i].first != kNoChunk);
      if (range) CHECK(ShardEntry(range->offset, range->size) == entries[i]);
    }
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    CHECK(!valid);
  }
}

std::vector<ByteVector> make_seeds() {
  std::vector<ByteVector> seeds;
  for (int number = 0; number < 64; ++number) {
    ShardSpec spec;
    spec.index_at_start = number % 2 == 1;
    spec.index_big_endian = number / 2 % 2 == 1;
    spec.index_has_crc32c = number / 4 % 2 == 1;
    const int64_t along = 1 + number % 5;
    spec.chunks = {along, 2};
    const bool known = number / 8 % 2 == 1;
    const bool raw = number / 16 % 2 == 1;
    std::vector<std::optional<ByteVector>> chunks;
    for (int64_t i = 0; i < along * 2; ++i) {
      chunks.push_back(i % 3 == 2 ? std::nullopt : std::optional(ByteVector(static_cast<size_t>(i) * 5, 1)));
    }
    const ByteVector shard = testing::make_shard(spec, chunks, 3);
    const size_t index_bytes = stored_index_bytes(spec);
    const size_t at = spec.index_at_start ? 0 : shard.size() - index_bytes;
    const Bytes index = Bytes(shard).subspan(at, index_bytes);
    Pen pen;
    pen.pick(2, 1, 3).pick(0, 0, 31).pick(along, 1, 5).pick(0, 0, 31).pick(2, 1, 5);
    pen.byte(spec.index_at_start ? 1 : 0).byte(spec.index_big_endian ? 1 : 0).byte(spec.index_has_crc32c ? 1 : 0);
    pen.byte(known ? 1 : 0);
    if (known) pen.pick(3, 0, 4).pick(std::ssize(shard), 0, 4095);
    pen.byte(raw ? 1 : 0);
    if (raw) {
      pen.bytes(index);
    } else {
      const ShardIndex parsed(spec, index, shard.size());
      pen.pick(along * 2, 0, 130);
      for (size_t i = 0; i < parsed.num_chunks(); ++i) {
        const std::optional<ShardRange> range = parsed.find(i);
        if (!range) {
          pen.pick(1, 0, 4).byte(0);
          continue;
        }
        pen.pick(4, 0, 4).pick(static_cast<int64_t>(range->offset), 0, 4095);
        pen.pick(4, 0, 4).pick(static_cast<int64_t>(range->size), 0, 4095);
      }
    }
    seeds.push_back(pen.input());
  }
  return seeds;
}

std::vector<Finding> findings() {
  return {
      {"an index was accepted in a shard with fewer bytes than the index",
       "01a100010a00000d032100000001210101000001 7e7e7e7e7e7e7e0000fb"},
      {"as many inner chunks as overflow 64 bits became few",
       "011f0e000000000000001f6edbb66ddbb66ddb 0000000001 0000000000000000 0500000000000000"},
  };
}

const Target target("shard_index", run_input, make_seeds, findings, kQuickChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::shard_index_fuzz
