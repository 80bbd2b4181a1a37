// The block order: every order is a permutation, and is found from any position on.

#include "plan/block_order.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::block_order_test {
namespace {

/// All held indices of an order.
std::vector<int64_t> unfolded(const BlockOrder& order) {
  std::vector<int64_t> all;
  std::vector<uint32_t> indices;
  while (std::ssize(all) < order.table().num_blocks()) {
    order.unfold(std::ssize(all), indices);
    CHECK(!indices.empty());
    all.insert(all.end(), indices.begin(), indices.end());
  }
  CHECK_EQ(std::ssize(all), order.table().num_blocks());
  return all;
}

/// Checks that each held index comes once, and that searches find what the order has.
void check_order(const BlockOrder& order, std::mt19937_64& random) {
  const std::vector<int64_t> indices = unfolded(order);
  std::vector<int64_t> ascending = indices;
  std::ranges::sort(ascending);
  for (size_t i = 0; i < ascending.size(); ++i) CHECK_EQ(ascending[i], static_cast<int64_t>(i));
  int64_t begin = 0;
  for (int64_t i = 0; i < std::ssize(indices); ++i) {
    const int64_t index = indices[static_cast<size_t>(i)], rows = order.table().at(index).rows;
    for (const int64_t position : {begin, begin + rows - 1}) {
      const BlockOrder::Seat found = order.find(position);
      CHECK_EQ(found.ordinal, i);
      CHECK_EQ(found.begin, begin);
    }
    CHECK_EQ(order.at(i).begin, begin);
    CHECK_EQ(order.ordinal_of(index), i);
    begin += rows;
  }
  const int64_t from = pick(random, 0, std::ssize(indices) - 1);
  std::vector<uint32_t> some;
  order.unfold(from, some);
  for (size_t i = 0; i < some.size(); ++i) CHECK_EQ(int64_t{some[i]}, indices[static_cast<size_t>(from) + i]);
}

std::shared_ptr<const BlockTable> random_table(std::mt19937_64& random) {
  const int64_t kind = pick(random, 0, 2), count = pick(random, 1, 1500);
  if (kind == 0) return BlockTable::of_steps(pick(random, 0, 9), pick(random, 1, 7), count, pick(random, 1, 9));
  if (kind == 1) return BlockTable::of_runs({{0, 0, 0, 8, 8}, {count, count, count * 8, 3, 3}}, count + 1);
  std::vector<int64_t> block(static_cast<size_t>(count)), rows;
  std::iota(block.begin(), block.end(), 0);
  while (rows.size() < block.size()) rows.push_back(pick(random, 1, 20));
  return BlockTable::of_list(block, block, rows);
}

}  // namespace

TEST(combs_have_each_block_once_and_are_found_from_any_position_on) {
  std::mt19937_64 random(5);
  for (int64_t i = 0; i < 40 * stress(); ++i) {
    const int64_t strata = std::vector<int64_t>{1, 2, 7, 64, 1024}[static_cast<size_t>(i % 5)];
    check_order(*BlockOrder::combs(random_table(random), random(), random(), strata), random);
  }
}

TEST(a_listed_order_is_the_list) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 60; ++i) {
    const auto table = random_table(random);
    std::vector<int64_t> indices(static_cast<size_t>(table->num_blocks()));
    std::iota(indices.begin(), indices.end(), 0);
    std::ranges::shuffle(indices, random);
    const auto order = BlockOrder::listed(table, indices);
    CHECK(unfolded(*order) == indices);
    check_order(*order, random);
  }
}

TEST(a_natural_order_goes_round_and_may_end_with_the_short_block) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 60; ++i) {
    const auto table = random_table(random);
    const int64_t last = table->num_blocks() - 1, first = i % 7 == 0 ? last : pick(random, 0, last);
    std::vector<int64_t> indices(static_cast<size_t>(last + 1));
    std::iota(indices.begin(), indices.end(), 0);
    std::ranges::rotate(indices, indices.begin() + first);
    if (i % 2 == 1) {
      std::erase(indices, last);
      indices.push_back(last);
    }
    const auto order = BlockOrder::natural(table, first, i % 2 == 1);
    CHECK(unfolded(*order) == indices);
    check_order(*order, random);
  }
}

TEST(combs_of_neighbours_lie_far_apart) {
  const auto table = BlockTable::of_runs({{0, 0, 0, 1, 1}}, 100000);
  const std::vector<int64_t> indices = unfolded(*BlockOrder::combs(table, 1, 2, 100));
  for (size_t begin = 0; begin < indices.size(); begin += 100) {  // a superblock has a block of each hundredth
    std::vector<int64_t> strata;
    for (size_t i = begin; i < begin + 100; ++i) strata.push_back(indices[i] / 1000);
    std::ranges::sort(strata);
    for (size_t i = 0; i < 100; ++i) CHECK_EQ(strata[i], static_cast<int64_t>(i));
  }
  CHECK(unfolded(*BlockOrder::combs(table, 1, 3, 100)) != indices);
  CHECK(unfolded(*BlockOrder::combs(table, 2, 2, 100)) != indices);
}

TEST(block_orders_that_contradict_their_table_are_refused) {
  const auto table = BlockTable::of_runs({{0, 0, 0, 1, 1}}, 3);
  CHECK_THROWS(kConfig, "another number of blocks", BlockOrder::listed(table, std::vector<int64_t>{0, 1}));
  CHECK_THROWS(kConfig, "twice", BlockOrder::listed(table, std::vector<int64_t>{0, 1, 1}));
  CHECK_THROWS(kConfig, "twice", BlockOrder::listed(table, std::vector<int64_t>{0, 1, 3}));
  CHECK_THROWS(kConfig, "begins at block 3", BlockOrder::natural(table, 3, false));
  CHECK_THROWS(kConfig, "0 strata", BlockOrder::combs(table, 0, 0, 0));
  const auto many = BlockTable::of_runs({{0, 0, 0, 1, 1}}, (int64_t{1} << 32) + 1);
  CHECK_THROWS(kConfig, "2^32", BlockOrder::natural(many, 0, false));
}

}  // namespace zarrfeed::testing::block_order_test
