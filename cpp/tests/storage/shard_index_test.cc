// The index of a shard: what is read from it, and everything that it may not say.

#include "storage/shard_index.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "spec/shard_spec.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"
#include "tests/support/shards.h"

namespace zarrfeed::testing::shard_index_test {
namespace {

constexpr uint64_t kShardBytes = 1000;
constexpr ShardEntry kNone{kNoChunk, kNoChunk};

ShardSpec spec_of(bool at_start, bool big_endian, bool crc32c, std::vector<int64_t> chunks = {2, 2}) {
  return {.chunks = std::move(chunks),
          .index_at_start = at_start,
          .index_big_endian = big_endian,
          .index_has_crc32c = crc32c};
}

ShardIndex parse(const ShardSpec& spec, const std::vector<ShardEntry>& entries,
                 std::optional<uint64_t> shard_bytes = kShardBytes) {
  const std::vector<uint8_t> stored = make_index(spec, entries);
  return {spec, stored, shard_bytes};
}

}  // namespace

TEST(entries_come_back_in_every_encoding) {
  std::mt19937_64 random(5);
  for (int encoding = 0; encoding < 8; ++encoding) {
    const ShardSpec spec = spec_of((encoding & 1) != 0, (encoding & 2) != 0, (encoding & 4) != 0, {3, 1, 4});
    std::vector<ShardEntry> entries(12, kNone);
    uint64_t at = spec.index_at_start ? stored_index_bytes(spec) : 0;
    for (ShardEntry& entry : entries) {
      if (random() % 4 == 0) continue;
      at += random() % 9;
      entry = {at, random() % 20};
      at += entry.second;
    }
    std::shuffle(entries.begin(), entries.end(), random);
    const ShardIndex index = parse(spec, entries);
    CHECK_EQ(index.num_chunks(), entries.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const std::optional<ShardRange> range = index.find(i);
      CHECK_EQ(range.has_value(), entries[i] != kNone);
      if (!range) continue;
      CHECK_EQ(range->offset, entries[i].first);
      CHECK_EQ(range->size, entries[i].second);
    }
  }
}

TEST(an_index_has_its_size_and_no_other) {
  for (const bool crc32c : {false, true}) {
    const ShardSpec spec = spec_of(false, false, crc32c);
    std::vector<uint8_t> stored = make_index(spec, {kNone, kNone, kNone, kNone});
    CHECK_EQ(stored.size(), stored_index_bytes(spec));
    stored.push_back(0);
    CHECK_THROWS(kCorrupt, "must have", ShardIndex(spec, stored, kShardBytes));
    stored.resize(stored.size() - 2);
    CHECK_THROWS(kCorrupt, "must have", ShardIndex(spec, stored, kShardBytes));
    CHECK_THROWS(kCorrupt, "has 0 bytes, must have", ShardIndex(spec, {}, kShardBytes));
  }
}

TEST(a_flipped_bit_fails_the_checksum) {
  const ShardSpec spec = spec_of(false, false, true);
  const std::vector<uint8_t> stored = make_index(spec, {{0, 10}, kNone, {10, 10}, {20, 5}});
  for (size_t bit = 0; bit < stored.size() * 8; bit += 7) {
    std::vector<uint8_t> damaged = stored;
    damaged[bit / 8] ^= static_cast<uint8_t>(1U << bit % 8);
    CHECK_THROWS(kCorrupt, "crc32c", ShardIndex(spec, damaged, kShardBytes));
  }
}

TEST(ranges_lie_in_the_shard_and_not_in_its_index) {
  const ShardSpec end = spec_of(false, false, false);
  const ShardSpec start = spec_of(true, false, false);
  const uint64_t size = stored_index_bytes(end);
  const auto with = [](ShardEntry entry) { return std::vector<ShardEntry>{kNone, entry, kNone, kNone}; };
  CHECK_EQ(parse(end, with({kShardBytes - size - 5, 5})).find(1)->end(), kShardBytes - size);
  CHECK_THROWS(kCorrupt, "inner chunk 1 has offset", parse(end, with({kShardBytes - size - 5, 6})));
  CHECK_THROWS(kCorrupt, "must lie in [0, 936)", parse(end, with({kShardBytes, 1})));
  CHECK_EQ(parse(start, with({kShardBytes - 5, 5})).find(1)->end(), kShardBytes);
  CHECK_THROWS(kCorrupt, "must lie in [64, 1000)", parse(start, with({kShardBytes - 5, 6})));
  CHECK_THROWS(kCorrupt, "must lie in", parse(start, with({size - 1, 6})));
}

TEST(ranges_that_overflow_are_refused_also_where_the_size_of_the_shard_is_not_known) {
  const ShardSpec spec = spec_of(false, false, false);
  for (const std::optional<uint64_t> known : {std::optional<uint64_t>{}, std::optional<uint64_t>{kShardBytes}}) {
    for (const ShardEntry& entry : {ShardEntry{kNoChunk - 1, 2}, {kNoChunk - 1, 1}, {8, kNoChunk - 1}}) {
      CHECK_THROWS(kCorrupt, "must lie in", parse(spec, {entry, kNone, kNone, kNone}, known));
    }
  }
  CHECK_EQ(parse(spec, {{1U << 30, 5}, kNone, kNone, kNone}, std::nullopt).find(0)->size, uint64_t{5});
}

TEST(half_of_a_missing_entry_is_no_entry) {
  const ShardSpec spec = spec_of(false, false, false);
  CHECK_THROWS(kCorrupt, "only both together", parse(spec, {kNone, {kNoChunk, 5}, kNone, kNone}));
  CHECK_THROWS(kCorrupt, "only both together", parse(spec, {kNone, {5, kNoChunk}, kNone, kNone}));
}

TEST(ranges_may_touch_and_leave_gaps_but_not_overlap) {
  const ShardSpec spec = spec_of(false, false, false);
  parse(spec, {{30, 10}, {0, 10}, {10, 20}, {50, 1}});
  parse(spec, {{30, 10}, {35, 0}, {40, 0}, kNone});  // nothing overlaps nothing
  CHECK_THROWS(kCorrupt, "inner chunk 0 at bytes [30, 40) overlaps inner chunk 2 at bytes [39, 41)",
               parse(spec, {{30, 10}, kNone, {39, 2}, {0, 5}}));
  CHECK_THROWS(kCorrupt, "overlaps", parse(spec, {{30, 10}, {30, 9}, kNone, kNone}));
  CHECK_THROWS(kCorrupt, "overlaps", parse(spec, {{0, 100}, {10, 1}, kNone, kNone}));
}

TEST(ranges_may_be_the_same) {
  const ShardSpec spec = spec_of(false, false, false);
  parse(spec, {{30, 10}, {30, 10}, kNone, {30, 10}});
  parse(spec, {{30, 10}, {0, 30}, {30, 10}, {0, 30}});
  CHECK_THROWS(kCorrupt, "overlaps", parse(spec, {{30, 10}, {29, 2}, {30, 10}, kNone}));
  CHECK_THROWS(kCorrupt, "overlaps", parse(spec, {{30, 10}, {39, 1}, {30, 10}, kNone}));
}

TEST(random_overlaps_are_found_as_by_looking_at_all_pairs) {
  std::mt19937_64 random(11);
  const ShardSpec spec = spec_of(false, false, false, {5});
  for (int round = 0; round < draws(2000); ++round) {
    std::vector<ShardEntry> entries(5);
    for (ShardEntry& entry : entries) {
      entry = {static_cast<uint64_t>(pick(random, 0, 30)), static_cast<uint64_t>(pick(random, 0, 6))};
    }
    bool overlap = false;
    for (size_t a = 0; a < entries.size(); ++a) {
      for (size_t b = 0; b < entries.size(); ++b) {
        overlap = overlap || (entries[a] != entries[b] && entries[a].second > 0 && entries[b].second > 0 &&
                              entries[a].first < entries[b].first + entries[b].second &&
                              entries[b].first < entries[a].first + entries[a].second);
      }
    }
    if (overlap) {
      CHECK_THROWS(kCorrupt, "overlaps", parse(spec, entries));
    } else {
      parse(spec, entries);
    }
  }
}

}  // namespace zarrfeed::testing::shard_index_test
