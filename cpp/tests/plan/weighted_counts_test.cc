// Weighted counts: how far they may be from what is expected, of rows and of blocks, whatever blocks and weights are.

#include "plan/weighted_counts.h"

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/check.h"

namespace zarrfeed::testing::weighted_counts_test {
namespace {

constexpr unsigned kBits = 32;
constexpr int64_t kOne = int64_t{1} << kBits;

struct Drawn {
  std::vector<int64_t> units;
  std::vector<int64_t> rows;

  std::vector<int64_t> at(uint64_t seed, uint64_t epoch) const {
    std::vector<int64_t> counts(units.size(), -1);
    draw_counts({units, kBits, rows}, seed, epoch, counts);
    return counts;
  }
};

Drawn some_rows(uint64_t seed) {
  std::mt19937_64 random(seed);
  Drawn made;
  const uint64_t most =
      seed % 2 == 0 ? 200 : 9;  // blocks with pools of their own among small ones, or small ones alone
  while (made.units.size() < 1500) {
    made.rows.push_back(static_cast<int64_t>(random() % most));
    for (int64_t row = 0; row < made.rows.back(); ++row) {
      const uint64_t kind = random() % 4;
      const int64_t whole = static_cast<int64_t>(random() % 5) * kOne;
      made.units.push_back(kind == 0   ? 0
                           : kind == 1 ? whole
                           : kind == 2 ? static_cast<int64_t>(random() % (1 << 30))
                                       : static_cast<int64_t>(random() % (kOne * 8)));
    }
  }
  const int64_t sum = std::accumulate(made.units.begin(), made.units.end(), int64_t{0});
  made.units.back() += (kOne - sum % kOne) % kOne;  // a whole number of samples
  return made;
}

[[gnu::noinline]] void draw(const std::vector<int64_t>& units, unsigned bits, const std::vector<int64_t>& rows) {
  std::vector<int64_t> counts(units.size());
  draw_counts({units, bits, rows}, 1, 2, counts);
}

}  // namespace

TEST(rows_blocks_and_epochs_come_as_often_as_expected_to_within_one) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const Drawn drawn = some_rows(seed);
    const int64_t sum = std::accumulate(drawn.units.begin(), drawn.units.end(), int64_t{0});
    for (const uint64_t epoch : {0, 1, 77}) {
      const std::vector<int64_t> counts = drawn.at(seed, epoch);
      CHECK_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), sum / kOne);
      size_t row = 0;
      for (const int64_t rows : drawn.rows) {
        int64_t of_block = 0;
        int64_t expected = 0;
        for (const size_t end = row + static_cast<size_t>(rows); row < end; ++row) {
          const int64_t units = drawn.units[row];
          CHECK(counts[row] == units / kOne || counts[row] == (units + kOne - 1) / kOne);
          of_block += counts[row];
          expected += units;
        }
        if (rows >= 64) CHECK(of_block == expected / kOne || of_block == (expected + kOne - 1) / kOne);
      }
    }
  }
}

TEST(counts_follow_from_seed_and_epoch_alone_and_are_right_on_average) {
  const Drawn drawn = some_rows(2);
  CHECK(drawn.at(5, 6) == drawn.at(5, 6));
  CHECK(drawn.at(5, 6) != drawn.at(5, 7));
  CHECK(drawn.at(5, 6) != drawn.at(6, 6));
  std::vector<int64_t> sums(drawn.units.size());
  constexpr int64_t kEpochs = 4000;
  for (uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> counts = drawn.at(1, epoch);
    for (size_t row = 0; row < sums.size(); ++row) sums[row] += counts[row];
  }
  for (size_t row = 0; row < sums.size(); ++row) {
    const double mean = static_cast<double>(sums[row]) / kEpochs;
    CHECK(std::abs(mean - static_cast<double>(drawn.units[row]) / kOne) < 0.05);  // 6 standard deviations, at most
  }
}

TEST(arrays_that_do_not_fit_together_are_refused) {
  CHECK_THROWS(kConfig, "blocks have other rows", draw({1, 2}, kBits, {1}));
  CHECK_THROWS(kConfig, "blocks have other rows", draw({1, 2}, kBits, {3}));
  CHECK_THROWS(kConfig, "blocks have other rows", draw({1, 2}, kBits, {3, -1}));
  CHECK_THROWS(kConfig, "units are negative, or too many", draw({1, -2}, kBits, {2}));
  CHECK_THROWS(kConfig, "units are negative, or too many", draw({INT64_MAX, INT64_MAX}, kBits, {2}));
  CHECK_THROWS(kConfig, "there are other rows", draw({1}, 61, {1}));
}

}  // namespace zarrfeed::testing::weighted_counts_test
