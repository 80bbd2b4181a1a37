// The block table: each form against a list of its blocks.

#include "plan/block_table.h"

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::block_table_test {
namespace {

/// Checks all that a table says against its blocks.
void check_table(const BlockTable& table, const std::vector<BlockRows>& blocks) {
  CHECK_EQ(table.num_blocks(), std::ssize(blocks));
  std::vector<int64_t> listed(blocks.size());
  table.list_rows(0, listed);
  int64_t before = 0;
  for (int64_t index = 0; index < std::ssize(blocks); ++index) {
    const BlockRows& wanted = blocks[static_cast<size_t>(index)];
    const BlockRows found = table.at(index);
    CHECK_EQ(found.block, wanted.block);
    CHECK_EQ(found.first, wanted.first);
    CHECK_EQ(found.rows, wanted.rows);
    CHECK_EQ(listed[static_cast<size_t>(index)], wanted.rows);
    CHECK_EQ(table.rows_before(index), before);
    CHECK_EQ(table.index_of(before), index);
    CHECK_EQ(table.index_of(before + wanted.rows - 1), index);
    before += wanted.rows;
  }
  CHECK_EQ(table.rows_before(table.num_blocks()), before);
  CHECK_EQ(table.length(), before);
  for (int64_t index = 0; index < table.num_blocks();) {
    const Stretch stretch = table.stretch(index, table.num_blocks());
    CHECK(stretch.count >= 1 && index + stretch.count <= table.num_blocks());
    for (const int64_t end = index + stretch.count; index < end; ++index) {
      CHECK_EQ(blocks[static_cast<size_t>(index)].rows, stretch.rows);
    }
  }
  const int64_t from = table.num_blocks() / 3;
  std::vector<int64_t> some(static_cast<size_t>((table.num_blocks() - from + 1) / 2));
  table.list_rows(from, some);
  for (size_t i = 0; i < some.size(); ++i) CHECK_EQ(some[i], blocks[static_cast<size_t>(from) + i].rows);
}

}  // namespace

TEST(evenly_spaced_samples_are_found_in_blocks_without_a_list) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 400; ++i) {
    const int64_t rows = pick(random, 1, 12), start = pick(random, 0, 40), step = pick(random, 1, 20);
    const int64_t count = pick(random, 1, 200);
    std::vector<BlockRows> blocks;
    for (int64_t sample = start; sample < start + count * step; sample += step) {
      if (blocks.empty() || blocks.back().block != sample / rows) blocks.push_back({sample / rows, sample, 0});
      ++blocks.back().rows;
    }
    check_table(*BlockTable::of_steps(start, step, count, rows), blocks);
  }
}

TEST(runs_and_lists_say_what_was_put_in) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 200; ++i) {
    std::vector<BlockRun> runs;
    std::vector<BlockRows> blocks;
    int64_t block = 0, first = 0;
    for (int64_t r = pick(random, 1, 8); r > 0; --r) {
      block += pick(random, 0, 3);
      first += pick(random, 0, 500);
      BlockRun run{std::ssize(blocks), block, first, pick(random, 1, 9), pick(random, 1, i % 2 == 0 ? 9 : 70000)};
      runs.push_back(run);
      for (int64_t n = pick(random, 1, 400); n > 0; --n, ++block, first += run.stride) {
        blocks.push_back({block, first, run.rows});
      }
    }
    check_table(*BlockTable::of_runs(runs, std::ssize(blocks)), blocks);
    std::vector<int64_t> of[3];
    for (const BlockRows& one : blocks) {
      of[0].push_back(one.block);
      of[1].push_back(one.first + (i % 3 == 0 ? int64_t{1} << 40 : 0));
      of[2].push_back(one.rows);
    }
    for (size_t b = 0; b < blocks.size(); ++b) blocks[b].first = of[1][b];
    check_table(*BlockTable::of_list(of[0], of[1], of[2]), blocks);
  }
}

TEST(numbers_that_do_not_fit_together_are_refused) {
  const std::vector<int64_t> one{1}, zero{0}, two{1, 1}, negative{-1};
  CHECK_THROWS(kConfig, "the blocks", BlockTable::of_runs({}, 1));
  CHECK_THROWS(kConfig, "the blocks", BlockTable::of_runs({{1, 0, 0, 1, 1}}, 1));
  CHECK_THROWS(kConfig, "the blocks", BlockTable::of_runs({{0, 0, 0, 1, 0}}, 1));
  CHECK_THROWS(kConfig, "the blocks", BlockTable::of_runs({{0, 0, 0, 1, 1}, {0, 0, 0, 1, 1}}, 1));
  CHECK_THROWS(kConfig, "too many rows", BlockTable::of_runs({{0, 0, 0, 1, INT64_MAX}}, 2));
  CHECK_THROWS(kConfig, "the blocks", BlockTable::of_steps(-1, 1, 1, 1));
  CHECK_THROWS(kConfig, "the blocks", BlockTable::of_steps(0, 0, 1, 1));
  CHECK_THROWS(kConfig, "the blocks", BlockTable::of_steps(0, 1, 1, 0));
  CHECK_THROWS(kConfig, "too many rows", BlockTable::of_steps(0, INT64_MAX / 2, 4, 1));
  CHECK_THROWS(kConfig, "of no length", BlockTable::of_list(one, two, one));
  CHECK_THROWS(kConfig, "without rows", BlockTable::of_list(one, one, zero));
  CHECK_THROWS(kConfig, "below 0", BlockTable::of_list(negative, one, one));
}

}  // namespace zarrfeed::testing::block_table_test
