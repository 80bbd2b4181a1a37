// A consumer that works: what next() does itself, and with whom.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/feeding.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_caller_runs_test {
namespace {

EngineOptions alone(int64_t batch_size, size_t num_threads = 4, size_t cache_bytes = 0) {
  EngineOptions options = with_threads(num_threads, batch_size);
  options.cache_bytes = cache_bytes;
  options.caller_runs = true;
  return options;
}

size_t num_threads_now() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

}  // namespace

TEST(batches_are_the_same_when_the_consumer_works) {
  const Dataset data = rich_dataset();
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    for (const size_t cache : {size_t{0}, size_t{3000}, size_t{1} << 30}) {
      Engine engine(data.fields(), alone(16, threads, cache));
      for (uint64_t epoch = 0; epoch < 4; ++epoch) {
        if (epoch == 2) data.drop_from_page_cache();
        const PlanSpec spec = shuffled_plan_spec(data, 8, 4, epoch);
        start(engine, spec, 16, static_cast<int64_t>(epoch));
        drain(engine, data, spec, 16);
      }
    }
  }
}

TEST(chunks_that_a_feeder_brings_arrive_when_the_consumer_works) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    EngineOptions options = alone(8, threads, 4000);
    options.max_requests = 3;
    Engine engine(fed_fields(data), options);
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      TestFeeder feeder(engine, data, epoch);
      start(engine, spec, 8, 2);
      drain(engine, data, spec, 8);
      engine.stop();
    }
  }
}

TEST(no_thread_is_started_for_little_work_and_for_chunks_that_are_cached) {
  const Dataset little = simple_dataset(64, 8, Packing::kZstd);
  const Dataset much({{.shape = {64, 16'384}, .chunk_shape = {8, 16'384}, .packing = Packing::kBlosc}}, false, false);
  const size_t before = num_threads_now();
  const auto most_threads = [&](const Dataset& data, Engine& engine) {
    const PlanSpec spec = shuffled_plan_spec(data, 8, 1);
    start(engine, spec, 8);
    size_t most = num_threads_now();
    while (const auto batch = take(engine)) {
      most = std::max(most, num_threads_now());
      release(engine, *batch);
    }
    engine.stop();
    // The system lists a thread for a moment after it was joined.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (num_threads_now() > before && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    return most - before;
  };
  // Where reads cannot tell what is cached (tmpfs, some network file systems), an I/O thread reads.
  EngineOptions options = alone(8);
  if (!tells_what_is_cached(little.directory.path())) options.num_fetch_threads = 0;
  Engine first(little.fields(), options);
  CHECK_EQ(most_threads(little, first), size_t{0});
  options.cache_bytes = size_t{1} << 30;
  Engine second(much.fields(), options);
  CHECK_EQ(most_threads(much, second), size_t{3});
  CHECK_EQ(most_threads(much, second), size_t{0});
}

TEST(an_error_in_the_work_of_the_consumer_reaches_it_with_array_and_key) {
  const Dataset data = simple_dataset(64, 8, Packing::kZstd);
  const std::string key = data.arrays[0]->keys()[5];
  const std::vector<uint8_t> good = read_file(data.arrays[0]->chunk_path(key));
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), alone(16));
  for (int i = 0; i < 3; ++i) {
    write_file(data.arrays[0]->chunk_path(key), std::vector<uint8_t>(40, 1));
    start(engine, spec, 16);
    const auto drained = [&] { drain(engine, data, spec, 16); };
    CHECK_THROWS(kCorrupt, "array0 chunk " + key + ": zstd", drained());
    CHECK_THROWS(kCorrupt, "array0 chunk " + key, take(engine));  // and again
    write_file(data.arrays[0]->chunk_path(key), good);
    start(engine, spec, 16);
    drain(engine, data, spec, 16);
  }
}

TEST(a_plan_that_leaves_a_step_out_reaches_the_consumer_that_works) {
  const Dataset data = simple_dataset(64, 8);
  auto plan = build_plan(shuffled_plan_spec(data, 8, 4));
  ++plan->plan.steps;
  plan->bind();
  Engine engine(data.fields(), alone(16));
  engine.start(std::move(plan), 5);
  const auto drained = [&] {
    while (const auto batch = take(engine)) release(engine, *batch);
  };
  CHECK_THROWS(kConfig, "plan: nothing serves step 64", drained());
}

TEST(a_consumer_that_works_returns_at_its_timeout) {
  const Dataset data = simple_dataset(16, 8);
  EngineOptions options = alone(8);
  options.provided_memory = true;
  Engine waiting(data.fields(), options);
  start(waiting, shuffled_plan_spec(data, 8, 2), 8);
  ReadyBatch batch;
  CHECK_EQ(waiting.next(batch, std::chrono::milliseconds(1)), NextStatus::kTimeout);  // no memory was provided yet
  Engine fed(fed_fields(data), alone(8));
  start(fed, shuffled_plan_spec(data, 8, 2), 8);
  CHECK_EQ(fed.next(batch, std::chrono::milliseconds(1)), NextStatus::kTimeout);  // nobody answers
}

TEST(a_stop_on_another_thread_waits_for_the_consumer_and_ends_its_work) {
  const Dataset data({{.shape = {256, 4096}, .chunk_shape = {4, 4096}, .packing = Packing::kZstd}}, false, false);
  const PlanSpec spec = shuffled_plan_spec(data, 4, 8);
  for (int i = 0; i < 20; ++i) {
    Engine engine(data.fields(), alone(16, 2));
    start(engine, spec, 16);
    std::atomic<bool> began{false};
    std::thread stopper([&] {
      while (!began) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::microseconds(100 * i));
      engine.stop();
    });
    began = true;
    try {
      while (const auto batch = take(engine)) release(engine, *batch);
    } catch (const Error& error) {
      CHECK_EQ(error.kind(), ErrorKind::kClosed);
    }
    stopper.join();
    start(engine, spec, 16);
    drain(engine, data, spec, 16);
  }
}

}  // namespace zarrfeed::testing::engine_caller_runs_test
