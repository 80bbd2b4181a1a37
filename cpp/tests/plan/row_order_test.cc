// The order: the generator, the permutation, and the position of every sample against the definition.

#include "plan/row_order.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "plan/placement.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::row_order_test {
namespace {

std::vector<int64_t> permutation(uint64_t key, size_t n) {
  std::vector<int64_t> out(n);
  const uint64_t words[] = {key};
  random_permutation(KeyedRandom(words), out);
  return out;
}

std::vector<int64_t> listed(const PlanSpec& spec) {
  const auto plan = build_plan(spec);
  std::vector<int64_t> out(static_cast<size_t>(spec.num_steps()), -1);
  list_order(plan->plan, out);
  return out;
}

/// Twenty samples in blocks of 6 (the last has 2), permuted blocks, and lanes that cut two of them.
PlanSpec hand_made() {
  PlanSpec spec;
  spec.seed = 42;
  spec.epoch = 3;
  spec.num_samples = 20;
  spec.block_rows = 6;
  spec.lanes = 3;
  spec.block_order = {2, 3, 0, 1};
  return spec;
}

}  // namespace

TEST(the_generator_without_a_key_is_splitmix64_of_seed_zero) {
  KeyedRandom random{std::span<const uint64_t>{}};
  for (const uint64_t expected :
       {0xe220a8397b1dcdafU, 0x6e789e6aa1b965f4U, 0x06c45d188009454fU, 0xf88bb8a8724c81ecU, 0x1b39896a51a8749bU}) {
    CHECK_EQ(random.next(), expected);
  }
}

TEST(keys_that_differ_in_one_word_give_other_streams) {
  std::set<uint64_t> seen;
  size_t keys = 0;
  for (uint64_t a = 0; a < 20; ++a) {
    for (uint64_t b = 0; b < 20; ++b) {
      for (uint64_t c = 0; c < 20; ++c) {
        const uint64_t words[] = {a, b, c};
        seen.insert(KeyedRandom(words).next());
        ++keys;
      }
    }
  }
  // A key of fewer words is another key, also where the missing ones are zero.
  for (size_t n = 0; n < 3; ++n) {
    const std::vector<uint64_t> zeros(n, 0);
    seen.insert(KeyedRandom(zeros).next());
    ++keys;
  }
  CHECK_EQ(seen.size(), keys);
}

TEST(equal_keys_give_equal_streams) {
  const uint64_t words[] = {7, 8};
  KeyedRandom a(words);
  KeyedRandom b(words);
  for (int i = 0; i < 100; ++i) CHECK_EQ(a.next(), b.next());
}

TEST(below_stays_in_range_and_is_uniform) {
  for (const uint64_t bound : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{10}, uint64_t{64}, uint64_t{97}}) {
    const Context context("bound = " + std::to_string(bound));
    const uint64_t words[] = {1234, bound};
    KeyedRandom random(words);
    std::vector<double> counts(bound, 0);
    const double draws = 100'000;
    for (int i = 0; i < 100'000; ++i) {
      const uint64_t value = random.below(bound);
      CHECK(value < bound);
      counts[value] += 1;
    }
    const double expected = draws / static_cast<double>(bound);
    double chi_square = 0;
    for (const double n : counts) chi_square += (n - expected) * (n - expected) / expected;
    // Mean k - 1 and variance 2 (k - 1): five standard deviations, and room for few degrees of freedom.
    const auto freedom = static_cast<double>(bound - 1);
    CHECK(chi_square < freedom + 5 * std::sqrt(2 * freedom) + 5);
  }
}

TEST(below_reaches_both_ends_of_a_large_range) {
  const uint64_t words[] = {5};
  KeyedRandom random(words);
  const uint64_t bound = (uint64_t{1} << 32) - 1;
  uint64_t smallest = bound;
  uint64_t largest = 0;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t value = random.below(bound);
    smallest = std::min(smallest, value);
    largest = std::max(largest, value);
  }
  CHECK(largest < bound);
  CHECK(smallest < bound / 1000);
  CHECK(largest > bound / 1000 * 999);
}

TEST(random_permutation_is_a_permutation) {
  for (size_t n = 0; n < 200; ++n) {
    std::vector<int64_t> got = permutation(n, n);
    std::sort(got.begin(), got.end());
    std::vector<int64_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    CHECK_EQ(got, all);
  }
}

TEST(all_permutations_of_four_are_equally_likely) {
  std::map<std::vector<int64_t>, double> counts;
  const double draws = 48'000;
  for (uint64_t key = 0; key < 48'000; ++key) counts[permutation(key, 4)] += 1;
  CHECK_EQ(counts.size(), size_t{24});
  double chi_square = 0;
  for (const auto& [order, n] : counts) chi_square += (n - draws / 24) * (n - draws / 24) / (draws / 24);
  CHECK(chi_square < 53);  // 23 degrees of freedom: one key set in 3,000 would be above
}

TEST(the_order_of_a_seed_is_the_same_in_every_version) {
  PlanSpec spec = hand_made();
  spec.shuffle = true;
  CHECK_EQ(listed(spec), (std::vector<int64_t>{17, 19, 10, 14, 0, 7, 16, 2, 9, 13, 1, 8, 15, 3, 11, 12, 4, 6, 18, 5}));
  spec.mix = 2;
  CHECK_EQ(listed(spec), (std::vector<int64_t>{14, 2, 10, 15, 0, 7, 17, 19, 9, 12, 1, 8, 16, 3, 11, 13, 5, 6, 18, 4}));
}

TEST(lanes_cut_blocks_and_are_dealt_round_robin) {
  // The order of samples is 12..17, 18 19, 0..5, 6..11; the lanes have 7, 7 and 6 positions.
  const PlanSpec spec = hand_made();
  const std::vector<int64_t> by_hand = {12, 19, 6, 13, 0, 7, 14, 1, 8, 15, 2, 9, 16, 3, 10, 17, 4, 11, 18, 5};
  CHECK_EQ(listed(spec), by_hand);
  CHECK_EQ(reference_order(spec), by_hand);
}

TEST(a_stride_takes_every_nth_position_of_the_same_order) {
  PlanSpec spec = hand_made();
  spec.shuffle = true;
  spec.mix = 2;
  const std::vector<int64_t> whole = listed(spec);
  for (spec.stride = 1; spec.stride <= 8; ++spec.stride) {
    for (spec.first = 0; spec.first < spec.stride; ++spec.first) {
      std::vector<int64_t> expected;
      for (auto g = static_cast<size_t>(spec.first); g < whole.size(); g += static_cast<size_t>(spec.stride)) {
        expected.push_back(whole[g]);
      }
      CHECK_EQ(listed(spec), expected);
    }
  }
}

TEST(a_consumer_that_starts_later_sees_the_rest_of_the_same_order) {
  PlanSpec spec = hand_made();
  spec.shuffle = true;
  const std::vector<int64_t> whole = listed(spec);
  for (spec.first = 0; spec.first <= spec.num_samples; ++spec.first) {
    CHECK_EQ(listed(spec), std::vector<int64_t>(whole.begin() + spec.first, whole.end()));
  }
}

TEST(a_block_that_a_lane_ends_in_gives_each_of_its_rows_once) {
  PlanSpec spec = hand_made();
  spec.shuffle = true;
  spec.lanes = 7;
  std::vector<int64_t> got = listed(spec);
  std::sort(got.begin(), got.end());
  std::vector<int64_t> all(20);
  std::iota(all.begin(), all.end(), 0);
  CHECK_EQ(got, all);
}

TEST(epochs_and_seeds_give_other_orders) {
  PlanSpec spec = hand_made();
  spec.shuffle = true;
  const std::vector<int64_t> before = listed(spec);
  spec.epoch += 1;
  const std::vector<int64_t> other_epoch = listed(spec);
  CHECK(other_epoch != before);
  spec.epoch -= 1;
  spec.seed += 1;
  CHECK(listed(spec) != before);
  CHECK(listed(spec) != other_epoch);
}

TEST(every_step_gets_the_sample_that_the_definition_says) {
  std::mt19937_64 random(20'240'501);
  for (int i = 0; i < 2000; ++i) {
    PlanSpec spec = random_plan_spec(random, i % 10 == 0 ? 300 : 60);
    if (i % 2 == 0) spec.select(random);
    const Context context(describe(spec));
    CHECK_EQ(listed(spec), reference_order(spec));
  }
}

TEST(placements_of_a_segment_ascend_and_stay_within_the_steps_of_their_group) {
  std::mt19937_64 random(77);
  ShuffleScratch scratch;
  GroupPlacements placements;
  for (int i = 0; i < 500; ++i) {
    PlanSpec spec = random_plan_spec(random, 80);
    if (i % 2 == 0) spec.select(random);
    const Context context(describe(spec));
    const auto owned = build_plan(spec);
    const EpochPlan& plan = owned->plan;
    for (size_t g = 0; g < plan.num_groups(); ++g) {
      expand_group(plan, g, scratch, placements);
      const auto segments = static_cast<size_t>(plan.group_begin[g + 1] - plan.group_begin[g]);
      CHECK_EQ(placements.begin.size(), segments + 1);
      CHECK_EQ(placements.begin.front(), size_t{0});
      CHECK_EQ(placements.begin.back(), placements.rows.size());
      for (size_t s = 0; s < segments; ++s) {
        for (size_t r = placements.begin[s]; r < placements.begin[s + 1]; ++r) {
          const Placement& p = placements.rows[r];
          CHECK(p.step >= plan.first_step[g] && p.step <= plan.last_step[g]);
          CHECK(r == placements.begin[s] || placements.rows[r - 1].step < p.step);
          CHECK_EQ(p.sample / spec.block_rows, plan.segment_block[static_cast<size_t>(plan.group_begin[g]) + s]);
        }
      }
    }
  }
}

TEST(each_sample_is_of_the_segment_that_is_listed_for_it) {
  for (const int64_t mix : {1, 2}) {
    PlanSpec spec = hand_made();
    spec.shuffle = true;
    spec.mix = mix;
    const auto plan = build_plan(spec);
    std::vector<int64_t> samples(20, -1);
    std::vector<int64_t> segments(20, -1);
    list_order(plan->plan, samples);
    list_segments(plan->plan, segments);
    std::vector<int64_t> counts(plan->segment_block.size(), 0);
    for (size_t step = 0; step < samples.size(); ++step) {
      const auto segment = static_cast<size_t>(segments[step]);
      const SampleRange of_block = find_samples(plan->plan, segment);
      CHECK(of_block.first <= samples[step] && samples[step] <= of_block.last);
      ++counts[segment];
    }
    CHECK(counts == plan->segment_length);
  }
}

TEST(a_segment_outside_of_its_block_is_refused) {
  const auto broken = [](void (*damage)(OwnedPlan&)) {
    PlanSpec spec = hand_made();
    spec.shuffle = true;
    const auto plan = build_plan(spec);
    damage(*plan);
    plan->bind();
    std::vector<int64_t> out(20);
    list_order(plan->plan, out);
  };
  CHECK_THROWS(kConfig, "outside of block", broken([](OwnedPlan& p) { p.segment_start[0] = 1; }));
  CHECK_THROWS(kConfig, "outside of block", broken([](OwnedPlan& p) { p.segment_start[0] = -1; }));
  CHECK_THROWS(kConfig, "outside of block", broken([](OwnedPlan& p) { p.segment_length[0] = 7; }));
  CHECK_THROWS(kConfig, "outside of block", broken([](OwnedPlan& p) { p.segment_length[0] = 0; }));
  CHECK_THROWS(kConfig, "outside of block", broken([](OwnedPlan& p) { p.segment_rows[0] = 0; }));
}

TEST(a_segment_that_is_wrong_is_refused_before_the_rows_of_its_group_are_permuted) {
  for (const int64_t wrong : {int64_t{-1}, int64_t{-100}, INT64_MIN, INT64_MAX}) {
    for (const size_t segment : {0, 1}) {
      PlanSpec spec = hand_made();
      spec.shuffle = true;
      spec.lanes = 1;
      spec.mix = 2;
      const auto plan = build_plan(spec);
      plan->segment_length[segment] = wrong;
      plan->bind();
      std::vector<int64_t> out(20);
      CHECK_THROWS(kConfig, "outside of block", list_order(plan->plan, out));
    }
  }
}

namespace {

/// Lists the order of a plan after some damage to it.
[[gnu::noinline]] void list_damaged(bool listed, const std::function<void(OwnedPlan&)>& damage) {
  PlanSpec spec = hand_made();
  if (listed) spec.selected = {0, 1, 5, 12, 13, 18, 19};
  if (listed) spec.block_order = {0, 2, 3};
  const auto plan = build_plan(spec);
  damage(*plan);
  plan->bind();
  std::vector<int64_t> out(20);
  list_order(plan->plan, out);
}

}  // namespace

TEST(samples_outside_of_the_array_are_refused) {
  const std::string why = "outside of the array";
  for (const int64_t last : {int64_t{20}, int64_t{INT64_MAX}}) {
    CHECK_THROWS(kConfig, why, list_damaged(true, [last](OwnedPlan& p) {
                   p.selected = listed_table(std::vector<int64_t>{0, 1, 5, 12, 13, 18, last});
                 }));
  }
  CHECK_THROWS(kConfig, why, list_damaged(true, [](OwnedPlan& p) {
                 p.selected = listed_table(std::vector<int64_t>{-1, 1, 5, 12, 13, 18, 19});
               }));
}

TEST(a_block_outside_of_the_array_or_of_the_listed_samples_is_refused) {
  const auto broken = [](bool listed, void (*damage)(OwnedPlan&)) { list_damaged(listed, damage); };
  const std::string why = "outside of the array";
  CHECK_THROWS(kConfig, why, broken(false, [](OwnedPlan& p) { p.segment_first[0] = 15; }));
  CHECK_THROWS(kConfig, why, broken(false, [](OwnedPlan& p) { p.segment_first[0] = -1; }));
  CHECK_THROWS(kConfig, why, broken(false, [](OwnedPlan& p) { p.segment_first[0] = INT64_MAX; }));
  CHECK_THROWS(kConfig, why, broken(false, [](OwnedPlan& p) { p.plan.sample_step = 4; }));
  CHECK_THROWS(kConfig, why, broken(false, [](OwnedPlan& p) { p.plan.sample_step = 0; }));
  CHECK_THROWS(kConfig, why, broken(true, [](OwnedPlan& p) { p.segment_first[0] = 5; }));
  CHECK_THROWS(kConfig, why, broken(true, [](OwnedPlan& p) { p.segment_first[0] = -1; }));
}

TEST(a_plan_without_steps_lists_nothing) {
  PlanSpec spec = hand_made();
  spec.steps = 0;
  const auto plan = build_plan(spec);
  CHECK_EQ(plan->plan.num_groups(), size_t{0});
  CHECK(listed(spec).empty());
}

TEST(how_a_patch_is_turned_depends_on_seed_epoch_and_number_alone) {
  PatchTable table;
  table.num_dims = 2;
  table.volume_of.assign(100, 0);
  for (int64_t i = 0; i < 100; ++i) table.start_of.insert(table.start_of.end(), {i, 2});
  table.margin = {0, 0};
  table.period = {0, 0};
  table.stride = {1, 1000};
  table.volume_number = {0};
  EpochPlan plan;
  plan.seed = 3;
  plan.epoch = 5;
  plan.patches = &table;
  CHECK(draw_orientation(plan, 7) == nullptr);  // nothing is turned
  table.orientations.resize(3);
  table.orientations[1].source = {~0, 1};
  table.orientations[2].source = {1, 0};
  table.check();
  std::vector<Orientation> drawn;
  std::map<int, int> times;
  for (int64_t sample = 0; sample < 100; ++sample) {
    const Orientation* const of_sample = draw_orientation(plan, sample);
    const uint64_t key[] = {0x6f7269656e74, 3, 5, static_cast<uint64_t>(sample + 2000)};
    const auto expected = KeyedRandom(key).below(3);
    ++times[static_cast<int>(expected)];
    CHECK(of_sample == (expected == 0 ? nullptr : &table.orientations[expected]));  // the first one turns nothing
    drawn.push_back(of_sample == nullptr ? Orientation{} : *of_sample);
  }
  for (const auto& [number, count] : times) CHECK(number < 3 && count > 15);
  // Listed in another order, as other columns do, each patch is turned as it was.
  PatchTable backwards = table;
  for (size_t i = 0; i < 100; ++i) backwards.start_of[2 * i] = 99 - static_cast<int64_t>(i);
  plan.patches = &backwards;
  for (int64_t sample = 0; sample < 100; ++sample) {
    const Orientation* const of_sample = draw_orientation(plan, sample);
    CHECK((of_sample == nullptr ? Orientation{} : *of_sample) == drawn[static_cast<size_t>(99 - sample)]);
  }
  plan.patches = &table;
  plan.epoch = 6;
  int others = 0;
  for (int64_t sample = 0; sample < 100; ++sample) {
    const Orientation* const of_sample = draw_orientation(plan, sample);
    others += (of_sample == nullptr ? Orientation{} : *of_sample) != drawn[static_cast<size_t>(sample)] ? 1 : 0;
  }
  CHECK(others > 30);
}

TEST(steps_that_are_evenly_apart_are_those_that_are_looked_up_one_by_one) {
  std::mt19937_64 random(5);
  int even = 0;
  for (int i = 0; i < 400; ++i) {
    PlanSpec spec = random_plan_spec(random, 300);
    if (i % 2 == 0) spec.stride = 1;
    const Context context(describe(spec));
    const auto plan = build_plan(spec);
    EpochPlan looked_up = plan->plan;
    const int64_t nowhere[] = {std::numeric_limits<int64_t>::max()};
    const int64_t at_no_step[] = {0};
    if (looked_up.extra_position.empty()) {  // a position that no group has
      looked_up.extra_position = nowhere;
      looked_up.extra_step = at_no_step;
      ++even;
    }
    ShuffleScratch scratch;
    GroupPlacements got;
    GroupPlacements expected;
    for (size_t group = 0; group < looked_up.num_groups(); ++group) {
      expand_group(plan->plan, group, scratch, got);
      expand_group(looked_up, group, scratch, expected);
      CHECK_EQ(got.begin, expected.begin);
      CHECK_EQ(got.rows.size(), expected.rows.size());
      for (size_t row = 0; row < got.rows.size(); ++row) {
        CHECK_EQ(got.rows[row].sample, expected.rows[row].sample);
        CHECK_EQ(got.rows[row].step, expected.rows[row].step);
      }
    }
  }
  CHECK(even > 200);
}

}  // namespace zarrfeed::testing::row_order_test
