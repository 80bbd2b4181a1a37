// Sequence packing: every sequence whole, in a sample of its pool, and nearly no room left over.

#include "plan/sequence_packing.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/support/check.h"

namespace zarrfeed::testing::sequence_packing_test {
namespace {

TEST(best_fit_takes_the_least_room_that_is_enough) {
  const std::vector<int64_t> lengths = {3, 7, 5, 3, 2};
  std::vector<int64_t> sample_of(lengths.size());
  pack_sequences(lengths, std::vector<int64_t>{0}, 10, sample_of);
  CHECK_EQ(sample_of, (std::vector<int64_t>{0, 0, 1, 1, 1}));
  pack_sequences(lengths, std::vector<int64_t>{0, 2}, 10, sample_of);
  CHECK_EQ(sample_of, (std::vector<int64_t>{0, 0, 1, 1, 1}));
  pack_sequences(lengths, std::vector<int64_t>{0, 1}, 10, sample_of);
  CHECK_EQ(sample_of, (std::vector<int64_t>{0, 1, 2, 1, 2}));
}

TEST(samples_of_random_pools_are_full_but_for_the_last_ones) {
  std::mt19937_64 random(1);
  for (int64_t room : {int64_t{1}, int64_t{7}, int64_t{512}}) {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 3000; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % static_cast<uint64_t>(room)));
    const std::vector<int64_t> pools = {0, 700, 700, 1500};
    std::vector<int64_t> sample_of(lengths.size(), -1);
    pack_sequences(lengths, pools, room, sample_of);
    const auto num_samples = static_cast<size_t>(*std::ranges::max_element(sample_of) + 1);
    std::vector<int64_t> rows(num_samples, 0);
    for (size_t i = 0; i < lengths.size(); ++i) rows[static_cast<size_t>(sample_of[i])] += lengths[i];
    int64_t left = 0;
    for (const int64_t one : rows) {
      CHECK(one >= 1 && one <= room);
      left += room - one;
    }
    CHECK(left * 20 <= static_cast<int64_t>(num_samples) * room);
    for (size_t i = 1; i < pools.size(); ++i) {  // no sample has sequences of two pools
      const auto begin = sample_of.begin() + pools[i];
      if (begin == sample_of.begin() || begin == sample_of.end()) continue;
      CHECK(*std::max_element(sample_of.begin(), begin) < *std::min_element(begin, sample_of.end()));
    }
  }
}

TEST(sequences_and_pools_that_do_not_fit_are_refused) {
  std::vector<int64_t> sample_of(2);
  const std::vector<int64_t> lengths = {3, 4};
  const std::vector<int64_t> one = {0};
  CHECK_THROWS(kConfig, "a sequence of 4 rows, and room for 3", pack_sequences(lengths, one, 3, sample_of));
  CHECK_THROWS(kConfig, "do not fit", pack_sequences(lengths, std::vector<int64_t>{1}, 9, sample_of));
  CHECK_THROWS(kConfig, "do not fit", pack_sequences(lengths, std::vector<int64_t>{0, 3}, 9, sample_of));
  CHECK_THROWS(kConfig, "do not fit", pack_sequences(lengths, std::vector<int64_t>{}, 9, sample_of));
  CHECK_THROWS(kConfig, "a sequence of 0 rows", pack_sequences(std::vector<int64_t>{0, 0}, one, 9, sample_of));
}

}  // namespace
}  // namespace zarrfeed::testing::sequence_packing_test
