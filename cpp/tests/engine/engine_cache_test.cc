// The pipeline with a cache of decoded chunks: the same batches, and fewer reads.

#include <filesystem>
#include <random>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_cache_test {
namespace {

EngineOptions with_cache(size_t cache_bytes) {
  EngineOptions options = with_threads(3, 16);
  options.cache_bytes = cache_bytes;
  return options;
}

}  // namespace

TEST(batches_are_the_same_with_a_cache_of_any_size) {
  const Dataset data = rich_dataset();
  data.arrays[0]->remove_chunk(data.arrays[0]->keys().front());
  std::mt19937_64 random(5);
  for (const size_t bytes : {size_t{1}, size_t{2000}, size_t{5000}, size_t{1} << 30}) {
    Engine engine(data.fields(), with_cache(bytes));
    for (uint64_t epoch = 0; epoch < 4; ++epoch) {
      PlanSpec spec = shuffled_plan_spec(data, 8, 4, epoch);
      if (epoch % 2 == 1) spec.select(random);
      start(engine, spec, 16);
      drain(engine, data, spec, 16);
    }
  }
}

TEST(a_chunk_that_is_cached_is_not_read_again) {
  const Dataset data = simple_dataset(64, 8, Packing::kZstd);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), with_cache(size_t{1} << 20));
  for (int epoch = 0; epoch < 3; ++epoch) {
    start(engine, spec, 16);
    drain(engine, data, spec, 16);
  }
  CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{8});
}

TEST(without_a_cache_chunks_are_read_in_every_epoch) {
  const Dataset data = simple_dataset(64, 8, Packing::kZstd);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), with_cache(0));
  for (int epoch = 0; epoch < 3; ++epoch) {
    start(engine, spec, 16);
    drain(engine, data, spec, 16);
  }
  CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{24});
}

TEST(a_sample_may_be_delivered_many_times_in_one_plan) {
  for (const Packing packing : {Packing::kRaw, Packing::kZstd, Packing::kBlosc}) {
    for (const size_t cache : {size_t{0}, size_t{1} << 20}) {
      const Dataset data = simple_dataset(20, 8, packing);
      PlanSpec spec = shuffled_plan_spec(data, 8, 1);
      spec.shuffle = false;
      spec.block_order = {0, 1, 2};
      spec.steps = 0;
      // Positions 3, 11 and 19 of the epoch order, which are the samples, at the steps 0 ... 6.
      const std::vector<int64_t> order = {11, 3, 11, 19, 3, 3, 19};
      auto plan = build_plan(spec);
      plan->group_begin = {0, 1, 2, 3};
      plan->group_lane = plan->group_turn = {0, 0, 0};
      plan->group_offset = {8, 0, 16};
      plan->group_number = {1, 0, 2};
      plan->first_step = {0, 1, 3};
      plan->last_step = {2, 5, 6};
      plan->segment_block = {1, 0, 2};
      plan->segment_first = {8, 0, 16};
      plan->segment_rows = plan->segment_length = {8, 8, 4};
      plan->segment_start = {0, 0, 0};
      plan->extra_position = {3, 3, 3, 11, 11, 19, 19};
      plan->extra_step = {1, 4, 5, 0, 2, 3, 6};
      plan->plan.steps = 7;
      plan->bind();
      Engine engine(data.fields(), with_cache(cache));
      engine.start(std::move(plan), 1);
      const auto batch = take(engine);
      CHECK(batch != nullptr);
      check_batch(engine, data, *batch, 0, 16, order);
      release(engine, *batch);
      CHECK(take(engine) == nullptr);
    }
  }
}

}  // namespace zarrfeed::testing::engine_cache_test
