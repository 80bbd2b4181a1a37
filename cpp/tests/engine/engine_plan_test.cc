// Plans that are wrong: an error, never a wait without end, nor a row in a batch that it does not belong to.

#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_plan_test {
namespace {

/// Takes batches to the end.
void drain_unchecked(Engine& engine) {
  while (const auto batch = take(engine)) release(engine, *batch);
}

/// Leaves group `group` out.
void remove_group(OwnedPlan& plan, size_t group) {
  const auto at = static_cast<std::ptrdiff_t>(group);
  const auto begin = static_cast<std::ptrdiff_t>(plan.group_begin[group]);
  const auto end = static_cast<std::ptrdiff_t>(plan.group_begin[group + 1]);
  for (auto* segments :
       {&plan.segment_block, &plan.segment_first, &plan.segment_rows, &plan.segment_start, &plan.segment_length}) {
    segments->erase(segments->begin() + begin, segments->begin() + end);
  }
  for (auto* groups : {&plan.group_lane, &plan.group_offset, &plan.group_number, &plan.group_turn, &plan.first_step,
                       &plan.last_step}) {
    groups->erase(groups->begin() + at);
  }
  plan.group_begin.erase(plan.group_begin.begin() + at + 1);
  for (size_t g = group + 1; g < plan.group_begin.size(); ++g) plan.group_begin[g] -= end - begin;
  plan.bind();
}

/// Adds group `group` once more, in front of group `before`.
void double_group(OwnedPlan& plan, size_t group, size_t before) {
  const auto begin = static_cast<size_t>(plan.group_begin[group]);
  const auto count = static_cast<size_t>(plan.group_begin[group + 1]) - begin;
  const auto to = static_cast<std::ptrdiff_t>(plan.group_begin[before]);
  for (auto* segments :
       {&plan.segment_block, &plan.segment_first, &plan.segment_rows, &plan.segment_start, &plan.segment_length}) {
    const std::vector<int64_t> copy(segments->begin() + static_cast<std::ptrdiff_t>(begin),
                                    segments->begin() + static_cast<std::ptrdiff_t>(begin + count));
    segments->insert(segments->begin() + to, copy.begin(), copy.end());
  }
  for (auto* groups : {&plan.group_lane, &plan.group_offset, &plan.group_number, &plan.group_turn, &plan.first_step,
                       &plan.last_step}) {
    const int64_t copy = (*groups)[group];
    groups->insert(groups->begin() + static_cast<std::ptrdiff_t>(before), copy);
  }
  plan.group_begin.insert(plan.group_begin.begin() + static_cast<std::ptrdiff_t>(before), to);
  for (size_t g = before + 1; g < plan.group_begin.size(); ++g) plan.group_begin[g] += static_cast<int64_t>(count);
  plan.bind();
}

}  // namespace

TEST(a_plan_that_leaves_steps_out_is_an_error_at_any_number_of_threads) {
  const Dataset data = simple_dataset(64, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const size_t threads : {1, 2, 7}) {
    for (size_t group = 0; group < build_plan(spec)->plan.num_groups(); ++group) {
      for (const bool all_open : {true, false}) {  // false: other groups wait for the batch that lacks rows
        Engine engine(data.fields(), with_threads(threads, 4));
        auto plan = build_plan(spec);
        remove_group(*plan, group);
        const int64_t required = Engine::required_open_batches(plan->plan, 4);
        engine.start(std::move(plan), all_open ? 16 : required);
        CHECK_THROWS(kConfig, "plan: nothing serves step", drain_unchecked(engine));
      }
    }
  }
}

TEST(a_plan_that_leaves_steps_out_is_an_error_where_the_consumer_reads) {
  const Dataset data = simple_dataset(64, 8);
  EngineOptions options = with_threads(2, 4);
  options.caller_runs = true;
  for (const bool all_open : {true, false}) {
    Engine engine(data.fields(), options);
    auto plan = build_plan(shuffled_plan_spec(data, 8, 4));
    remove_group(*plan, 1);
    const int64_t required = Engine::required_open_batches(plan->plan, 4);
    engine.start(std::move(plan), all_open ? 16 : required);
    CHECK_THROWS(kConfig, "plan: nothing serves step", drain_unchecked(engine));
  }
}

TEST(a_plan_that_serves_nothing_is_an_error_at_its_first_step) {
  const Dataset data = simple_dataset(64, 8);
  Engine engine(data.fields(), with_threads(2, 4));
  auto plan = build_plan(shuffled_plan_spec(data, 8, 4));
  while (plan->plan.num_groups() > 0) remove_group(*plan, 0);
  engine.start(std::move(plan), 16);
  CHECK_THROWS(kConfig, "plan: nothing serves step 0", drain_unchecked(engine));
}

TEST(the_step_that_is_left_out_is_named_after_the_batches_before_it) {
  const Dataset data = simple_dataset(32, 8);
  PlanSpec spec = shuffled_plan_spec(data, 8, 1);
  spec.shuffle = false;
  Engine engine(data.fields(), with_threads(2, 4));
  auto plan = build_plan(spec);
  remove_group(*plan, 2);
  engine.start(std::move(plan), 16);
  for (int batch = 0; batch < 4; ++batch) release(engine, *take(engine));
  CHECK_THROWS(kConfig, "plan: nothing serves step 16", drain_unchecked(engine));
}

TEST(a_plan_that_serves_a_step_twice_is_an_error) {
  const Dataset data = simple_dataset(64, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  const size_t groups = build_plan(spec)->plan.num_groups();
  for (const size_t threads : {1, 2, 7}) {
    for (size_t group = 0; group < groups; ++group) {
      for (const size_t before : {group, groups}) {  // at once, and after the batches that it serves were delivered
        Engine engine(data.fields(), with_threads(threads, 4));
        auto plan = build_plan(spec);
        const bool is_in_order = before == group || plan->first_step[group] == plan->first_step.back();
        double_group(*plan, group, before);
        const int64_t required = Engine::required_open_batches(plan->plan, 4);
        if (!is_in_order) {
          CHECK_THROWS(kConfig, "after step", engine.start(std::move(plan), required));
          continue;
        }
        engine.start(std::move(plan), required);
        CHECK_THROWS(kConfig, "is served twice", drain_unchecked(engine));
      }
    }
  }
}

TEST(a_plan_of_more_samples_than_a_field_has_rows_is_refused) {
  const std::vector<uint8_t> rows(64);
  for (const int64_t num_rows : {63, 64, 0}) {  // 0: whoever made the field answers for it
    FieldSpec field;
    field.kind = FieldSpec::Kind::kResident;
    field.rows = rows.data();
    field.sample_bytes = 1;
    field.num_rows = num_rows;
    const Dataset data = simple_dataset(64, 8);
    std::vector<FieldSpec> fields = data.fields();
    fields.push_back(field);
    Engine engine(fields, with_threads(2, 4));
    const auto begin = [&] { start(engine, shuffled_plan_spec(data, 8, 4), 4); };
    if (num_rows != 63) {
      begin();
      drain_unchecked(engine);
      continue;
    }
    CHECK_THROWS(kConfig, "plan: is of 64 samples, field " + std::to_string(fields.size() - 1) + " has 63 rows",
                 begin());
  }
  const Dataset small = simple_dataset(56, 8);
  Engine engine(small.fields(), with_threads(2, 4));
  CHECK_THROWS(kConfig, "plan: is of 64 samples, field 0 has 56 rows",
               start(engine, shuffled_plan_spec(simple_dataset(64, 8), 8, 4), 4));
}

TEST(a_plan_whose_groups_are_out_of_order_is_refused) {
  const Dataset data = simple_dataset(64, 8);
  Engine engine(data.fields(), with_threads(2, 4));
  auto plan = build_plan(shuffled_plan_spec(data, 8, 4));
  plan->last_step.back() = 64;
  plan->bind();
  CHECK_THROWS(kConfig, "serves the steps", engine.start(std::move(plan), 16));
}

TEST(plans_that_are_right_are_never_refused) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 60; ++i) {
    PlanSpec spec = random_plan_spec(random, 120);
    if (i % 2 == 0) spec.select(random);
    const Dataset data = simple_dataset(spec.num_samples, std::max<int64_t>(1, spec.block_rows));
    const int64_t batch_size = pick(random, 1, 20);
    Engine engine(data.fields(), with_threads(static_cast<size_t>(pick(random, 1, 4)), batch_size));
    for (int epoch = 0; epoch < 3; ++epoch) {
      start(engine, spec, batch_size, pick(random, 0, 3));
      drain(engine, data, spec, batch_size);
    }
  }
}

TEST(memory_that_one_field_does_not_get_is_an_error_and_the_others_give_theirs_back) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // they end the process where mmap fails
#endif
  const Dataset data = simple_dataset(64, 8);
  std::vector<FieldSpec> fields = data.fields();
  const uint8_t byte = 0;
  FieldSpec& huge = fields.emplace_back();
  huge.kind = FieldSpec::Kind::kResident;
  huge.rows = &byte;
  huge.sample_bytes = size_t{1} << 58;
  Engine engine(std::move(fields), with_threads(2, 4));
  start(engine, shuffled_plan_spec(data, 8, 4), 4);
  bool refused = false;
  try {
    static_cast<void>(take(engine));
  } catch (const std::bad_alloc&) {
    refused = true;
  }
  CHECK(refused);
  engine.stop();
  engine.memory(0)->retire();  // keeps what is out
  CHECK_EQ(engine.memory(0)->mapped_bytes(), size_t{0});
}

}  // namespace zarrfeed::testing::engine_plan_test
