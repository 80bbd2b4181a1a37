// Admission: batches open in order and only for a group that needs them, and no plan that fits comes to a halt.

#include "engine/admission.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/owned_plan.h"
#include "plan/row_order.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::admission_test {
namespace {

/// Groups that serve these steps, as far as admission looks at them.
struct Groups {
  Groups(std::vector<int64_t> first, std::vector<int64_t> last) : owned(std::make_shared<OwnedPlan>()) {
    owned->first_step = std::move(first);
    owned->last_step = std::move(last);
    owned->group_lane.resize(owned->first_step.size());
    owned->bind();
    plan().steps = last_step().empty() ? 0 : std::ranges::max(last_step()) + 1;
  }

  [[nodiscard]] EpochPlan& plan() const { return owned->plan; }
  [[nodiscard]] const std::vector<int64_t>& last_step() const { return owned->last_step; }

  std::shared_ptr<OwnedPlan> owned;
};

/// Opens batches, and checks that they are opened in order, without a gap.
struct Opened {
  int64_t count = 0;
  void operator()(int64_t batch) {
    CHECK_EQ(batch, count);
    ++count;
  }
};

/// Delivers the oldest open batch if no group that is not admitted serves it.
bool deliver_if_complete(Admission& admission, const EpochPlan& plan, size_t admitted, int64_t batch_size) {
  if (admission.delivered() == admission.opened()) return false;
  for (size_t g = admitted; g < plan.num_groups(); ++g) {
    if (plan.first_step[g] / batch_size <= admission.delivered()) return false;
  }
  admission.deliver();
  return true;
}

}  // namespace

TEST(every_plan_is_read_to_its_end_with_as_few_open_batches_as_it_requires) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 300; ++i) {
    PlanSpec spec = random_plan_spec(random, 200);
    if (i % 2 == 0) spec.select(random);
    const Context context(describe(spec));
    const std::shared_ptr<const OwnedPlan> owned = build_plan(spec);
    const EpochPlan& plan = owned->plan;
    const int64_t batch_size = pick(random, 1, 20);
    const int64_t max_open = Admission::required_open_batches(plan, batch_size) + (i % 3 == 0 ? pick(random, 0, 4) : 0);
    Admission admission(batch_size, false);
    for (int epoch = 0; epoch < 2; ++epoch) {
      admission.begin_epoch(owned, max_open);
      Opened opened;
      size_t admitted = 0;
      while (!admission.is_done()) {
        if (admission.can_admit()) {
          const size_t group = admission.admit([&](int64_t batch) { opened(batch); }).number;
          CHECK_EQ(group, admitted);
          ++admitted;
          CHECK(plan.last_step[group] / batch_size < admission.opened());
          CHECK(plan.first_step[group] / batch_size >= admission.delivered());
          CHECK(admission.opened() - admission.delivered() <= max_open);
          CHECK_EQ(admission.opened(), opened.count);
        } else if (!deliver_if_complete(admission, plan, admitted, batch_size)) {
          FAIL("neither a group can be admitted nor a batch be delivered");
        }
      }
      CHECK_EQ(admitted, plan.num_groups());
    }
  }
}

TEST(with_one_open_batch_less_than_required_a_group_never_fits) {
  const Groups groups({0, 4}, {11, 19});  // batches of 4: the groups serve batches 0 to 2 and 1 to 4
  CHECK_EQ(Admission::required_open_batches(groups.plan(), 4), int64_t{4});
  for (const int64_t max_open : {3, 4}) {
    Admission admission(4, false);
    admission.begin_epoch(groups.owned, max_open);
    admission.admit([](int64_t) {});
    admission.deliver();  // batch 1 needs the second group
    CHECK_EQ(admission.can_admit(), max_open == 4);
  }
}

TEST(groups_that_begin_out_of_order_or_serve_steps_that_the_plan_lacks_are_refused) {
  Admission::check(Groups({}, {}).plan());
  Admission::check(Groups({0, 0, 4}, {7, 3, 4}).plan());
  CHECK_THROWS(kConfig, "group 1 serves the steps 3 to 9 of 10, after step 4",
               Admission::check(Groups({4, 3}, {7, 9}).plan()));
  CHECK_THROWS(kConfig, "group 0 serves the steps -1 to 7", Admission::check(Groups({-1}, {7}).plan()));
  CHECK_THROWS(kConfig, "group 1 serves the steps 5 to 4", Admission::check(Groups({0, 5}, {7, 4}).plan()));
  Groups beyond({0, 4}, {7, 9});
  beyond.plan().steps = 9;
  CHECK_THROWS(kConfig, "group 1 serves the steps 4 to 9 of 9", Admission::check(beyond.plan()));
}

TEST(the_batches_that_the_next_group_waits_for_are_those_that_are_open_too_long) {
  const Groups groups({0, 4}, {11, 19});  // batches of 4: the groups serve batches 0 to 2 and 1 to 4
  Admission admission(4, false);
  admission.begin_epoch(groups.owned, 4);
  admission.admit([](int64_t) {});
  CHECK_EQ(admission.needed_batches(5), int64_t{1});  // batch 4 opens when batch 0 is delivered
  CHECK(!admission.can_admit());
  admission.deliver();
  CHECK(admission.can_admit());
  CHECK_EQ(admission.needed_batches(5), admission.delivered());
  admission.admit([](int64_t) {});
  CHECK_EQ(admission.needed_batches(5), int64_t{5});
}

TEST(batches_are_opened_for_the_group_that_is_admitted_and_not_ahead) {
  const Groups groups({0, 0, 9}, {2, 7, 11});
  Admission admission(4, false);
  admission.begin_epoch(groups.owned, 10);
  CHECK_EQ(admission.opened(), int64_t{0});
  admission.admit([](int64_t) {});
  CHECK_EQ(admission.opened(), int64_t{1});
  admission.admit([](int64_t) {});
  CHECK_EQ(admission.opened(), int64_t{2});
  admission.admit([](int64_t) {});
  CHECK_EQ(admission.opened(), int64_t{3});
  CHECK(admission.is_done());
  CHECK(!admission.can_admit());
}

TEST(each_batch_takes_one_set_of_provided_buffers) {
  const Groups groups({0, 4, 12}, {3, 11, 15});
  Admission admission(4, true);
  admission.begin_epoch(groups.owned, 10);
  CHECK(!admission.can_admit());
  admission.provide();
  CHECK(admission.can_admit());
  admission.admit([](int64_t) {});
  admission.provide();
  CHECK(!admission.can_admit());  // the next group serves two batches
  admission.provide();
  CHECK(admission.can_admit());
  admission.admit([](int64_t) {});
  CHECK(!admission.can_admit());
  admission.deliver();  // the receiver has the buffers now
  CHECK(!admission.can_admit());
  admission.provide();
  CHECK(admission.can_admit());
}

TEST(buffers_that_were_provided_for_one_epoch_do_not_count_in_the_next) {
  const Groups groups({0}, {3});
  Admission admission(4, true);
  admission.begin_epoch(groups.owned, 1);
  admission.provide();
  admission.begin_epoch(groups.owned, 1);
  CHECK(!admission.can_admit());
}

TEST(a_group_whose_batch_does_not_open_is_not_admitted) {
  const Groups groups({0}, {11});
  Admission admission(4, false);
  admission.begin_epoch(groups.owned, 3);
  bool threw = false;
  try {
    admission.admit([](int64_t batch) {
      if (batch == 1) throw Error(ErrorKind::kBudget, "no memory");
    });
  } catch (const Error&) {
    threw = true;
  }
  CHECK(threw);
  CHECK_EQ(admission.opened(), int64_t{1});
  CHECK(!admission.is_done());
  Opened rest{1};
  CHECK_EQ(admission.admit([&](int64_t batch) { rest(batch); }).number, size_t{0});
  CHECK_EQ(admission.opened(), int64_t{3});
}

TEST(a_plan_that_is_unfolded_is_admitted_part_by_part) {
  std::vector<Groups> parts = {Groups({0, 0}, {3, 5}), Groups({2}, {9}), Groups({8, 9}, {11, 11})};
  const std::vector<const OwnedPlan*> names = {parts[0].owned.get(), parts[1].owned.get(), parts[2].owned.get()};
  size_t next = 0;
  Admission admission(4, false);
  const auto more = [&]() -> std::shared_ptr<const OwnedPlan> {
    return next < 3 ? std::move(parts[next++].owned) : nullptr;
  };
  admission.begin_epoch(Groups({}, {}).owned, 3, more);
  std::vector<std::pair<const OwnedPlan*, size_t>> admitted;
  while (!admission.is_done()) {
    if (!admission.can_admit()) admission.deliver();
    if (!admission.can_admit()) continue;
    const Admission::Group group = admission.admit([](int64_t) {});
    CHECK(group.number < group.part->first_step.size());  // a part that nobody kept alive has no groups any more
    admitted.emplace_back(group.part.get(), group.number);
  }
  CHECK(admitted == (std::vector<std::pair<const OwnedPlan*, size_t>>{
                        {names[0], 0}, {names[0], 1}, {names[1], 0}, {names[2], 0}, {names[2], 1}}));
  CHECK_EQ(admission.opened(), int64_t{3});
}

TEST(a_part_that_begins_too_early_or_needs_more_batches_is_refused) {
  const Groups first({4}, {7}), early({3}, {7}), wide({4}, {15});
  Admission admission(4, false);
  const auto admit = [&](const Groups& second, int64_t max_open) {
    std::vector<std::shared_ptr<const OwnedPlan>> parts = {second.owned, first.owned};
    admission.begin_epoch(first.owned, max_open, [parts]() mutable {
      auto part = std::move(parts.back());
      parts.pop_back();
      return part;
    });
    admission.admit([](int64_t) {});
  };
  CHECK_THROWS(kConfig, "group 0 serves the steps 3 to 7", admit(early, 9));
  CHECK_THROWS(kBudget, "needs 3 batches open at once", admit(wide, 2));
  admit(wide, 3);
}

}  // namespace zarrfeed::testing::admission_test
