// The sample table: each form against a list of its samples.

#include "plan/sample_table.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::sample_table_test {
namespace {

constexpr unsigned kBits = 4;  // small pages, so that samples have many

std::shared_ptr<const SampleTable> paged_table(const std::vector<int64_t>& samples) {
  const auto offset = std::make_shared<std::vector<uint16_t>>();
  std::vector<int64_t> before(static_cast<size_t>((samples.back() >> kBits) + 2), 0);
  for (const int64_t sample : samples) {
    offset->push_back(static_cast<uint16_t>(sample & ((1 << kBits) - 1)));
    for (auto page = static_cast<size_t>(sample >> kBits) + 1; page < before.size(); ++page) ++before[page];
  }
  return SampleTable::of_pages(*offset, before, kBits, offset);
}

/// Samples in pages of any samples, several of which may have one base: as a block has that is visited several times.
std::shared_ptr<const SampleTable> repeated_table(const std::vector<std::vector<int64_t>>& pages,
                                                  const std::vector<int64_t>& base) {
  const auto offset = std::make_shared<std::vector<uint16_t>>();
  std::vector<int64_t> before = {0};
  for (size_t page = 0; page < pages.size(); ++page) {
    for (const int64_t sample : pages[page]) offset->push_back(static_cast<uint16_t>(sample - base[page]));
    before.push_back(std::ssize(*offset));
  }
  return SampleTable::of_repeats(*offset, before, base, offset);
}

std::shared_ptr<const SampleTable> flagged_table(const std::vector<int64_t>& samples) {
  const auto flags = std::make_shared<std::vector<uint8_t>>(static_cast<size_t>(samples.back() / 8 + 1), uint8_t{0});
  for (const int64_t sample : samples)
    (*flags)[static_cast<size_t>(sample / 8)] |= static_cast<uint8_t>(1U << (sample % 8));
  return SampleTable::of_flags(*flags, flags);
}

std::shared_ptr<const SampleTable> run_table(const std::vector<int64_t>& samples, int64_t step) {
  std::vector<int64_t> begin, count;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i == 0 || samples[i] != samples[i - 1] + step) {
      begin.push_back(samples[i]);
      count.push_back(0);
    }
    ++count.back();
  }
  return SampleTable::of_runs(begin, count, step);
}

[[gnu::noinline]] void runs(const std::vector<int64_t>& begin, const std::vector<int64_t>& count, int64_t step) {
  SampleTable::of_runs(begin, count, step);
}

[[gnu::noinline]] void pages(const std::vector<int64_t>& before) {
  const std::vector<uint16_t> offsets = {1, 2};
  SampleTable::of_pages(offsets, before, kBits, nullptr);
}

[[gnu::noinline]] void repeats(const std::vector<int64_t>& before, const std::vector<int64_t>& base) {
  const std::vector<uint16_t> offsets = {1, 2};
  SampleTable::of_repeats(offsets, before, base, nullptr);
}

void check_table(const SampleTable& table, const std::vector<int64_t>& samples) {
  CHECK_EQ(table.length(), std::ssize(samples));
  for (int64_t number = 0; number < table.length(); ++number) {
    CHECK_EQ(table.at(number), samples[static_cast<size_t>(number)]);
    std::vector<int64_t> out(static_cast<size_t>(table.length() - number));
    table.list(number, out);
    CHECK(std::equal(out.begin(), out.end(), samples.begin() + number));
  }
  for (int64_t sample = -2; sample < samples.back() + 70; ++sample) {
    CHECK_EQ(table.rank(sample), std::ranges::lower_bound(samples, sample) - samples.begin());
  }
}

}  // namespace

TEST(each_form_has_the_samples_that_it_was_made_of) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> samples;
    const uint64_t one_of = random() % 5 + 1;
    for (int64_t sample = static_cast<int64_t>(random() % 20); sample < 300; ++sample) {
      if (random() % one_of == 0) samples.push_back(sample);
    }
    if (samples.empty()) continue;
    check_table(*listed_table(samples), samples);
    check_table(*paged_table(samples), samples);
    check_table(*flagged_table(samples), samples);
    for (const int64_t step : {1, 2, 3}) check_table(*run_table(samples, step), samples);
  }
}

TEST(samples_may_repeat_and_blocks_may_be_visited_again) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6}) {
    std::mt19937_64 random(seed);
    std::vector<std::vector<int64_t>> pages;
    std::vector<int64_t> base, listed;
    for (int64_t block = 0; block < 5; ++block) {
      const int64_t first = 70'000 * block + 3;  // pages are no multiples of anything
      for (uint64_t visit = random() % 3; visit > 0; --visit) {
        std::vector<int64_t>& page = pages.emplace_back();
        base.push_back(first);
        for (uint64_t rows = random() % 9; rows > 0; --rows) page.push_back(first + static_cast<int64_t>(random() % 5));
        std::ranges::sort(page);
        listed.insert(listed.end(), page.begin(), page.end());
      }
    }
    const auto table = repeated_table(pages, base);
    CHECK_EQ(table->length(), std::ssize(listed));
    for (int64_t number = 0; number < table->length(); ++number) {
      CHECK_EQ(table->at(number), listed[static_cast<size_t>(number)]);
      std::vector<int64_t> out(static_cast<size_t>(table->length() - number));
      table->list(number, out);
      CHECK(std::equal(out.begin(), out.end(), listed.begin() + number));
    }
    for (int64_t sample = -1; sample < 300'000; sample += sample % 70'000 < 12 ? 1 : 1000) {
      CHECK_EQ(table->rank(sample), std::ranges::count_if(listed, [&](int64_t one) { return one < sample; }));
    }
  }
}

TEST(a_sequence_has_its_order_and_the_range_of_each_run) {
  std::mt19937_64 random(1);
  std::vector<int64_t> samples;
  for (int i = 0; i < 90; ++i) samples.push_back(static_cast<int64_t>(random() % 50));
  const auto table = SampleTable::of_list(samples, nullptr, /*ascends=*/false);
  CHECK_EQ(table->length(), 90);
  for (int64_t first = 0; first < 90; ++first) {
    CHECK_EQ(table->at(first), samples[static_cast<size_t>(first)]);
    for (int64_t count = 1; first + count <= 90; ++count) {
      const auto begin = samples.begin() + first;
      const SampleRange range = table->range(first, count);
      CHECK_EQ(range.first, *std::min_element(begin, begin + count));
      CHECK_EQ(range.last, *std::max_element(begin, begin + count));
    }
  }
  std::ranges::sort(samples);
  const auto ascending = SampleTable::of_list(samples, nullptr);
  CHECK_EQ(ascending->range(3, 40).first, samples[3]);
  CHECK_EQ(ascending->range(3, 40).last, samples[42]);
}

TEST(flags_are_counted_over_their_pages) {
  std::vector<int64_t> samples;
  for (int64_t sample = 3; sample < 200000; sample += 1 + sample % 90) samples.push_back(sample);
  const auto table = flagged_table(samples);
  for (int64_t number = 0; number < table->length(); number += 7) {
    CHECK_EQ(table->at(number), samples[static_cast<size_t>(number)]);
    CHECK_EQ(table->rank(samples[static_cast<size_t>(number)]), number);
  }
}

TEST(samples_of_a_grid_come_box_by_box) {
  // 3 members and 5 times in chunks of 2 x 2: 2 x 3 boxes of 4 rows, of which those at the edges are not all there.
  const SampleGrid grid({{3, 2, 12, 2}, {5, 2, 4, 1}});
  const std::vector<int64_t> in_order = {0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14};
  std::vector<int64_t> rows;
  for (const int64_t sample : in_order) rows.push_back(grid.row_of(sample));
  CHECK(std::ranges::is_sorted(rows));
  const auto table = SampleTable::of_grid(grid, SampleTable::of_list(rows, nullptr));
  std::vector<int64_t> listed(in_order.size());
  table->list(0, listed);
  CHECK(listed == in_order);
  for (size_t number = 0; number < in_order.size(); ++number) {
    CHECK_EQ(grid.sample_of(rows[number]), in_order[number]);
    CHECK_EQ(table->at(static_cast<int64_t>(number)), in_order[number]);
    CHECK_EQ(table->rank(in_order[number]), static_cast<int64_t>(number));
  }
}

TEST(grids_of_several_arrays_follow_each_other) {
  // 3 members and 5 times in 24 rows, as above; then 2 members and 3 times, which lie in C order behind row 30.
  const std::vector<SampleGrid> grids = {SampleGrid({{3, 2, 12, 2}, {5, 2, 4, 1}}),
                                         SampleGrid({{2, 1, 3, 3}, {3, 3, 3, 1}})};
  const SampleGrid grid = SampleGrid::joined(grids, std::vector<int64_t>{0, 30});
  CHECK_EQ(grid.num_samples(), 21);
  for (int64_t sample = 0; sample < 21; ++sample) {
    CHECK_EQ(grid.row_of(sample), sample < 15 ? grids[0].row_of(sample) : 30 + sample - 15);
    CHECK_EQ(grid.sample_of(grid.row_of(sample)), sample);
  }
}

TEST(runs_and_pages_that_do_not_fit_together_are_refused) {
  const std::string why = "do not fit together";
  CHECK_THROWS(kConfig, why, runs({0, 3}, {4, 1}, 1));
  CHECK_THROWS(kConfig, why, runs({0, 3}, {0, 1}, 1));
  CHECK_THROWS(kConfig, why, runs({0, 3}, {2, 1}, 3));
  CHECK_THROWS(kConfig, why, runs({3, 0}, {1, 1}, 1));
  CHECK_THROWS(kConfig, why, runs({-1}, {1}, 1));
  CHECK_THROWS(kConfig, why, runs({0}, {1}, 0));
  CHECK_THROWS(kConfig, why, runs({0, 1}, {1}, 1));
  CHECK_THROWS(kConfig, why, pages({0, 1}));
  CHECK_THROWS(kConfig, why, pages({1, 2}));
  CHECK_THROWS(kConfig, why, pages({0, 3, 2}));
  CHECK_THROWS(kConfig, why, pages({}));
  CHECK_THROWS(kConfig, why, repeats({0, 2}, {}));
  CHECK_THROWS(kConfig, why, repeats({0, 1, 2}, {5, 4}));
  CHECK_THROWS(kConfig, why, repeats({0, 2}, {-1}));
  CHECK_THROWS(kConfig, why, repeats({}, {}));
}

}  // namespace zarrfeed::testing::sample_table_test
