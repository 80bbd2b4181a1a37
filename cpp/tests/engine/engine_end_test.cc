// How reading ends: early, by stop(), in an error, or in another process.

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_end_test {

TEST(an_epoch_may_be_given_up_at_any_batch) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  const std::vector<int64_t> order = reference_order(spec);
  Engine engine(data.fields(), with_threads(4, 8));
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    start(engine, spec, 8, static_cast<int64_t>(random() % 4));
    const int64_t batches = pick(random, 0, 13);
    for (int64_t b = 0; b < batches; ++b) {
      const auto batch = take(engine);
      CHECK(batch != nullptr);
      check_batch(engine, data, *batch, b, 8, order);
      release(engine, *batch);
    }
    if (random() % 2 == 0) engine.stop();  // else start() gives it up
  }
  start(engine, spec, 8);
  drain(engine, data, spec, 8);
}

TEST(the_memory_of_batches_that_nobody_took_comes_back) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  std::vector<std::shared_ptr<BufferPool>> memory;
  {
    Engine engine(data.fields(), with_threads(4, 8));
    for (size_t f = 0; f < data.num_fields(); ++f) memory.push_back(engine.memory(f));
    for (int i = 0; i < 10; ++i) {
      start(engine, spec, 8, 3);
      release(engine, *take(engine));
    }
  }
  // Mappings go when the engine is gone and no buffer of theirs is out.
  for (const auto& pool : memory) CHECK_EQ(pool->mapped_bytes(), size_t{0});
}

TEST(an_engine_may_be_destroyed_in_the_middle_of_an_epoch) {
  const Dataset data = rich_dataset();
  const size_t descriptors = open_descriptors();
  for (int i = 0; i < 30; ++i) {
    Engine engine(data.fields(), with_threads(4, 8));
    start(engine, shuffled_plan_spec(data, 8, 4), 8);
    if (i % 3 == 0) continue;
    release(engine, *take(engine));
  }
  CHECK_EQ(open_descriptors(), descriptors);
}

TEST(an_epoch_may_be_given_up_while_chunks_are_waited_for) {
  const Dataset data({{.shape = {256, 1500}, .chunk_shape = {8, 1000}}}, false, false);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const size_t fetchers : {size_t{0}, size_t{4}}) {
    Engine engine(data.fields(), {.num_threads = 2, .num_fetch_threads = fetchers, .batch_size = 16});
    const size_t descriptors = open_descriptors();
    for (int i = 0; i < 6; ++i) {
      data.drop_from_page_cache();
      start(engine, spec, 16);
      if (i % 2 == 1) release(engine, *take(engine));
      engine.stop();
      CHECK_EQ(open_descriptors(), descriptors);
    }
  }
}

TEST(an_error_in_a_chunk_reaches_next_with_array_and_key) {
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    for (const bool cold : {false, true}) {
      const Dataset data = simple_dataset(400, 8, Packing::kZstd);
      const std::string key = data.arrays[0]->keys()[37];
      write_file(data.arrays[0]->chunk_path(key), std::vector<uint8_t>(40, 1));
      if (cold) data.drop_from_page_cache();
      const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
      Engine engine(data.fields(), with_threads(threads, 16));
      start(engine, spec, 16);
      const auto drained = [&] { drain(engine, data, spec, 16); };
      CHECK_THROWS(kCorrupt, "array0 chunk " + key + ": zstd", drained());
      CHECK_THROWS(kCorrupt, "array0 chunk " + key, take(engine));  // and again
      engine.stop();
      CHECK_THROWS(kClosed, "no epoch", take(engine));
    }
  }
}

TEST(after_an_error_the_engine_reads_the_next_epoch) {
  const Dataset data = simple_dataset(64, 8);
  const std::string key = data.arrays[0]->keys()[3];
  const std::vector<uint8_t> good = read_file(data.arrays[0]->chunk_path(key));
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), with_threads(4, 16));
  for (int i = 0; i < 10; ++i) {
    write_file(data.arrays[0]->chunk_path(key), std::vector<uint8_t>(39));
    start(engine, spec, 16);
    const auto drained = [&] { drain(engine, data, spec, 16); };
    CHECK_THROWS(kCorrupt, "decodes to 39 bytes, the metadata implies 160", drained());
    write_file(data.arrays[0]->chunk_path(key), good);
    start(engine, spec, 16);
    drain(engine, data, spec, 16);
  }
}

TEST(a_directory_in_the_place_of_a_chunk_reaches_next) {
  const Dataset data = simple_dataset(64, 8);
  const std::string key = data.arrays[0]->keys()[5];
  std::filesystem::remove(data.arrays[0]->chunk_path(key));
  std::filesystem::create_directory(data.arrays[0]->chunk_path(key));
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), with_threads(2, 16));
  start(engine, spec, 16);
  const auto drained = [&] { drain(engine, data, spec, 16); };
  CHECK_THROWS(kIo, "array0 chunk 5.0: is a directory", drained());
}

TEST(a_store_that_was_deleted_between_epochs_is_an_error_at_start) {
  const Dataset data = simple_dataset(64, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), with_threads(2, 16));
  start(engine, spec, 16);
  drain(engine, data, spec, 16);
  std::filesystem::rename(data.arrays[0]->root(), data.directory.path() / "elsewhere");
  CHECK_THROWS(kIo, "cannot be opened", start(engine, spec, 16));
  CHECK_THROWS(kClosed, "no epoch", take(engine));
  std::filesystem::rename(data.directory.path() / "elsewhere", data.arrays[0]->root());
  start(engine, spec, 16);
  drain(engine, data, spec, 16);
}

TEST(a_store_that_is_deleted_in_an_epoch_is_an_error_and_never_fill_values) {
  const Dataset data = simple_dataset(800, 4);
  const PlanSpec spec = shuffled_plan_spec(data, 4, 1);
  Engine engine(data.fields(), with_threads(2, 4));
  start(engine, spec, 4);
  release(engine, *take(engine));
  std::filesystem::remove(data.arrays[0]->root() / ".zarray");  // first: else chunks are missing for a moment
  std::filesystem::remove_all(data.arrays[0]->root());
  const std::vector<int64_t> order = reference_order(spec);
  const auto rest = [&] {
    for (int64_t b = 1; const auto batch = take(engine); ++b) check_batch(engine, data, *batch, b, 4, order);
  };
  CHECK_THROWS(kIo, "is gone", rest());
}

TEST(a_plan_that_contradicts_itself_reaches_next) {
  const Dataset data = simple_dataset(64, 8);
  for (const auto damage :
       {+[](OwnedPlan& p) { p.segment_first[4] = 1000; }, +[](OwnedPlan& p) { p.segment_length[4] = 9; },
        +[](OwnedPlan& p) { p.group_offset[4] = 1; }}) {
    Engine engine(data.fields(), with_threads(2, 16));
    auto plan = build_plan(shuffled_plan_spec(data, 8, 4));
    damage(*plan);
    plan->bind();
    engine.start(std::move(plan), 4);
    const auto drained = [&] {
      while (take(engine)) {
      }
    };
    CHECK_THROWS(kConfig, "plan: ", drained());
  }
}

TEST(a_plan_that_needs_more_open_batches_is_refused_and_one_that_needs_as_many_is_read) {
  const Dataset data = simple_dataset(128, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), with_threads(2, 8));
  const int64_t required = Engine::required_open_batches(build_plan(spec)->plan, 8);
  CHECK_EQ(required, int64_t{4});  // blocks of 8 rows, dealt over 4 lanes
  CHECK_THROWS(kBudget, "needs 4 batches open at once, the memory budget has room for 3",
               engine.start(build_plan(spec), required - 1));
  CHECK_THROWS(kClosed, "no epoch", take(engine));
  engine.start(build_plan(spec), required);
  drain(engine, data, spec, 8);
}

TEST(next_returns_at_its_timeout) {
  const Dataset data = simple_dataset(16, 8);
  Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = 1, .batch_size = 8, .provided_memory = true});
  start(engine, shuffled_plan_spec(data, 8, 2), 8);
  ReadyBatch batch;
  CHECK_EQ(engine.next(batch, std::chrono::milliseconds(1)), NextStatus::kTimeout);  // no memory was provided yet
}

TEST(stop_may_be_called_at_any_time_and_twice) {
  const Dataset data = simple_dataset(64, 8);
  Engine engine(data.fields(), with_threads(2, 8));
  engine.stop();
  CHECK(!engine.is_running());
  start(engine, shuffled_plan_spec(data, 8, 2), 8);
  CHECK(engine.is_running());
  engine.stop();
  engine.stop();
  CHECK(!engine.is_running());
}

TEST(a_stop_on_another_thread_ends_the_wait_of_the_consumer) {
  const Dataset data = simple_dataset(64, 8);
  for (int i = 0; i < 10; ++i) {
    Engine engine(data.fields(), {.num_threads = 2, .num_fetch_threads = 1, .batch_size = 8, .provided_memory = true});
    start(engine, shuffled_plan_spec(data, 8, 2), 8);
    std::thread stopper([&] { engine.stop(); });
    // No memory is provided, hence there is never a batch: only stop() can end this before the minute is over.
    CHECK_THROWS(kClosed, "", take(engine));
    stopper.join();
  }
}

TEST(threads_that_the_system_does_not_start_are_an_error_at_start) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // they need address space without a limit
#endif
  const Dataset data = simple_dataset(64, 1);  // no more threads are started than there are chunks
  const PlanSpec spec = shuffled_plan_spec(data, 1, 2);
  const int result = result_of_child([&] {
    Engine engine(data.fields(), with_threads(64, 8));
    // Room for some stacks and not for all of them.
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t room = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{40} << 20);
    const rlimit limit{room, room};
    setrlimit(RLIMIT_AS, &limit);
    try {
      start(engine, spec, 8);
    } catch (const Error& error) {
      return !engine.is_running() && error.kind() == ErrorKind::kIo && error.errno_value() == EAGAIN ? 0 : 2;
    }
    return 1;
  });
  CHECK_EQ(result, 0);
}

TEST(two_threads_may_stop_at_once) {
  // A consumer that gives up while close() is called elsewhere.
  const Dataset data = simple_dataset(64, 2);
  const PlanSpec spec = shuffled_plan_spec(data, 2, 4);
  const int result = result_of_child([&] {
    for (int i = 0; i < 50; ++i) {
      Engine engine(data.fields(), with_threads(8, 8));
      start(engine, spec, 8);
      std::thread other([&] { engine.stop(); });
      engine.stop();
      other.join();
    }
    return 0;
  });
  CHECK_EQ(result, 0);
}

TEST(a_forked_child_is_refused_rather_than_left_waiting) {
  const Dataset data = simple_dataset(64, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 2);
  Engine engine(data.fields(), with_threads(2, 8));
  start(engine, spec, 8);
  const auto batch = take(engine);
  const int result = result_of_child([&] {
    int wrong = engine.is_owner() ? 1 : 0;
    release(engine, *batch);
    engine.stop();
    ReadyBatch next;
    try {
      static_cast<void>(engine.next(next, std::chrono::milliseconds(1)));
      wrong += 2;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kClosed) wrong += 4;
    }
    return wrong;
  });
  CHECK_EQ(result, 0);
  check_batch(engine, data, *batch, 0, 8, reference_order(spec));
}

}  // namespace zarrfeed::testing::engine_end_test
