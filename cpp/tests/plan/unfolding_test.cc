// Plans that are unfolded: the groups of a plan whose groups are all listed, which is made position by position.

#include "plan/unfolding.h"

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::unfolding_test {
namespace {

/// The same plan without groups.
std::shared_ptr<OwnedPlan> without_groups(const PlanSpec& spec) {
  std::shared_ptr<OwnedPlan> plan = build_plan(spec);
  for (auto* of : {&plan->group_begin, &plan->group_lane, &plan->group_offset, &plan->group_number, &plan->group_turn,
                   &plan->first_step, &plan->last_step, &plan->segment_block, &plan->segment_first, &plan->segment_rows,
                   &plan->segment_start, &plan->segment_length}) {
    of->clear();
  }
  plan->group_begin.push_back(0);
  plan->bind();
  plan->mix = spec.mix;
  std::vector<int64_t> ascending = spec.block_order, first, rows, indices;
  std::ranges::sort(ascending);
  int64_t before = 0;
  for (const int64_t block : ascending) {
    const std::vector<int64_t> samples = spec.samples_of(block);
    first.push_back(plan->selected == nullptr ? samples.front() : before);
    rows.push_back(std::ssize(samples));
    before += std::ssize(samples);
  }
  for (const int64_t block : spec.block_order) {
    indices.push_back(std::ranges::lower_bound(ascending, block) - ascending.begin());
  }
  plan->block_order = BlockOrder::listed(BlockTable::of_list(ascending, first, rows), indices);
  return plan;
}

template <typename T>
void extend(std::vector<T>& all, std::span<const T> more) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

TEST(unfolded_groups_are_those_that_a_plan_lists) {
  std::mt19937_64 random(3);
  for (int64_t i = 0; i < draws(400); ++i) {
    PlanSpec spec = random_plan_spec(random, 300);
    if (i % 3 == 1) spec.select(random);
    const Context context(describe(spec));
    const auto listed = build_plan(spec);
    const auto plan = without_groups(spec);
    OwnedPlan all;
    Unfolding unfolding(plan);
    const auto most = static_cast<size_t>(pick(random, 1, 40));
    while (const auto window = unfolding.next(most)) {
      const EpochPlan& w = window->plan;
      CHECK(w.num_groups() >= 1 && w.num_groups() <= most);
      for (size_t g = 0; g < w.num_groups(); ++g) {
        all.group_begin.push_back(std::ssize(all.segment_block) + w.group_begin[g]);
      }
      extend(all.group_lane, w.group_lane);
      extend(all.group_offset, w.group_offset);
      extend(all.group_number, w.group_number);
      extend(all.group_turn, w.group_turn);
      extend(all.first_step, w.first_step);
      extend(all.last_step, w.last_step);
      extend(all.segment_block, w.segment_block);
      extend(all.segment_first, w.segment_first);
      extend(all.segment_rows, w.segment_rows);
      extend(all.segment_start, w.segment_start);
      extend(all.segment_length, w.segment_length);
    }
    all.group_begin.push_back(std::ssize(all.segment_block));
    CHECK(all.group_begin == listed->group_begin);
    CHECK(all.group_lane == listed->group_lane);
    CHECK(all.group_offset == listed->group_offset);
    CHECK(all.group_number == listed->group_number);
    CHECK(all.group_turn == listed->group_turn);
    CHECK(all.first_step == listed->first_step);
    CHECK(all.last_step == listed->last_step);
    CHECK(all.segment_block == listed->segment_block);
    CHECK(all.segment_first == listed->segment_first);
    CHECK(all.segment_rows == listed->segment_rows);
    CHECK(all.segment_start == listed->segment_start);
    CHECK(all.segment_length == listed->segment_length);
    std::vector<int64_t> order(static_cast<size_t>(spec.num_steps()), -1);
    list_unfolded(plan, order);
    CHECK(order == reference_order(spec));
  }
}

TEST(a_plan_that_contradicts_its_block_order_is_refused) {
  std::mt19937_64 random(4);
  PlanSpec spec = random_plan_spec(random, 300);
  while (spec.num_steps() < 3 || spec.stride < 2) spec = random_plan_spec(random, 300);
  const auto broken = [&](auto damage) {
    const auto plan = without_groups(spec);
    damage(*plan);
    plan->bind();
    Unfolding{plan};
  };
  CHECK_THROWS(kConfig, "another number of samples", broken([](OwnedPlan& p) { ++p.plan.length; }));
  CHECK_THROWS(kConfig, "cannot be unfolded", broken([](OwnedPlan& p) { p.plan.lanes = 0; }));
  CHECK_THROWS(kConfig, "cannot be unfolded", broken([](OwnedPlan& p) { p.plan.stride = 0; }));
  CHECK_THROWS(kConfig, "cannot be unfolded", broken([](OwnedPlan& p) { p.mix = 0; }));
  CHECK_THROWS(kConfig, "ends before its stride", broken([](OwnedPlan& p) { p.plan.count = p.plan.length + 1; }));
  const auto with_extra = [&](int64_t position, int64_t step) {
    broken([&](OwnedPlan& p) {
      p.extra_position = {position};
      p.extra_step = {step};
    });
  };
  CHECK_THROWS(kConfig, "below 0", with_extra(-1, spec.num_steps()));
  CHECK_THROWS(kConfig, "ascending order", with_extra(spec.first, spec.num_steps()));
}

}  // namespace zarrfeed::testing::unfolding_test
