// The sample stream: the samples of a listed order, some at a time.

#include "plan/sample_stream.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::sample_stream_test {

TEST(a_stream_lists_the_samples_of_the_order) {
  for (const uint64_t seed : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    std::mt19937_64 random(seed);
    PlanSpec spec;
    spec.num_samples = static_cast<int64_t>(random() % 200 + 1);
    spec.block_rows = static_cast<int64_t>(random() % 12 + 1);
    spec.lanes = std::min<int64_t>(static_cast<int64_t>(random() % 6 + 1), spec.num_samples);
    spec.mix = static_cast<int64_t>(random() % 3 + 1);
    spec.shuffle = random() % 2 == 0;
    spec.seed = seed;
    spec.stride = static_cast<int64_t>(random() % 3 + 1);
    for (int64_t block = 0; block < spec.num_blocks(); ++block) spec.block_order.push_back(block);
    if (spec.shuffle) std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
    if (random() % 2 == 0) spec.select(random);
    const std::shared_ptr<const OwnedPlan> plan = build_plan(spec);
    std::vector<int64_t> listed(static_cast<size_t>(plan->plan.steps));
    list_order(plan->plan, listed);
    SampleStream stream(plan);
    std::vector<int64_t> found;
    while (stream.left() > 0) {
      std::vector<int64_t> some(
          static_cast<size_t>(std::min<int64_t>(stream.left(), static_cast<int64_t>(random() % 9))));
      stream.next(some);
      found.insert(found.end(), some.begin(), some.end());
    }
    CHECK(found == listed);
  }
}

TEST(a_plan_that_lacks_a_step_is_refused) {
  PlanSpec spec;
  spec.num_samples = 8;
  spec.block_rows = 4;
  spec.block_order = {0, 1};
  const std::shared_ptr<OwnedPlan> plan = build_plan(spec);
  plan->plan.steps = 9;
  SampleStream stream(plan);
  std::vector<int64_t> out(9);
  CHECK_THROWS(kConfig, "nothing serves step 8", stream.next(out));
}

}  // namespace zarrfeed::testing::sample_stream_test
