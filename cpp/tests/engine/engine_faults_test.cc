// Storage that fails, stalls, or holds what is no chunk: see faulty_calls.h.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/division.h"
#include "engine/engine.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/faulty_calls.h"
#include "tests/support/feeding.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Much longer than it takes on any machine, and much shorter than for ever.
constexpr milliseconds kSoon{10'000};

void damage(const Dataset& data, size_t array, const std::string& key) {
  write_file(data.arrays[array]->chunk_path(key), std::vector<uint8_t>(40, 1));
}

/// Takes all batches of an epoch; checks that those slots are listed that `is_bad` says, and that the others are right.
/// Returns how many were not.
template <typename IsBad>
int64_t drain_skipping(Engine& engine, const Dataset& data, const PlanSpec& spec, int64_t batch_size,
                       const IsBad& is_bad) {
  const std::vector<int64_t> order = reference_order(spec);
  int64_t skipped = 0;
  int64_t number = 0;
  for (; const auto batch = take(engine); ++number) {
    std::set<int64_t> listed;
    for (const SkippedSlot& one : batch->skipped.slots) {
      CHECK(listed.insert(one.slot).second);
      CHECK_EQ(one.sample, order[static_cast<size_t>(number * batch_size + one.slot)]);
    }
    CHECK_EQ(batch->skipped.chunks.empty(), listed.empty());
    for (int64_t slot = 0; slot < batch->rows; ++slot) {
      const int64_t sample = order[static_cast<size_t>(number * batch_size + slot)];
      CHECK_EQ(listed.contains(slot), is_bad(sample));
      if (is_bad(sample)) continue;
      for (size_t f = 0; f < batch->buffers.size(); ++f) {
        const std::vector<uint8_t> expected = data.expected(f, sample);
        const uint8_t* const got = batch->buffers[f] + static_cast<size_t>(slot) * expected.size();
        CHECK(std::equal(expected.begin(), expected.end(), got));
      }
    }
    skipped += std::ssize(listed);
    release(engine, *batch);
  }
  CHECK_EQ(number, ceil_div(std::ssize(order), batch_size));
  return skipped;
}

/// Has all reads fail as long as it is there; a test that fails leaves none to the next one.
struct FailingReads {
  FailingReads() {
    faults.error = EIO;
    faults.reads_to_fail = 1 << 30;
  }
  ~FailingReads() { faults.reads_to_fail = 0; }
  FailingReads(const FailingReads&) = delete;
  FailingReads& operator=(const FailingReads&) = delete;
};

}  // namespace

TEST(reads_that_fail_are_tried_again) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const size_t fetchers : {size_t{0}, size_t{1}, size_t{4}}) {
    for (const int error : {EIO, EMFILE, ESTALE}) {
      Engine engine(data.fields(), {.num_threads = 2, .num_fetch_threads = fetchers, .batch_size = 8});
      faults.error = error;
      faults.reads_to_fail = 2;
      faults.opens_to_fail = 2;
      start(engine, spec, 8);
      CHECK_EQ(drain(engine, data, spec, 8), int64_t{13});
      CHECK_EQ(faults.reads_to_fail.load(), 0);
      CHECK_EQ(faults.opens_to_fail.load(), 0);
      // To open a chunk is first tried where it need not wait; another try there is none of these.
      CHECK(engine.stats().retries >= 2 && engine.stats().retries <= 4);
    }
  }
}

TEST(an_error_that_stays_is_raised_with_the_chunk_after_so_many_tries) {
  const Dataset data = simple_dataset(40, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 1);
  for (const size_t retries : {size_t{0}, size_t{2}}) {
    Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = 1, .batch_size = 8, .max_retries = retries});
    faults.error = EIO;
    faults.reads_to_fail = 1 << 30;
    start(engine, spec, 8);
    CHECK_THROWS(kIo, "array0 chunk " + data.arrays[0]->keys()[static_cast<size_t>(spec.block_order[0])], take(engine));
    CHECK_EQ(engine.stats().retries.load(), retries);
    faults.reads_to_fail = 0;
  }
}

TEST(an_error_that_will_not_pass_is_raised_at_once) {
  const Dataset data = simple_dataset(40, 8);
  Engine engine(data.fields(), with_threads(2, 8));
  faults.error = EACCES;
  faults.opens_to_fail = 1;
  start(engine, shuffled_plan_spec(data, 8, 1), 8);
  CHECK_THROWS(kIo, "cannot be opened", take(engine));
  CHECK_EQ(engine.stats().retries.load(), uint64_t{0});
}

TEST(storage_that_does_not_answer_is_an_error_and_holds_nobody_up) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const bool at_open : {false, true}) {
    for (const size_t fetchers : {size_t{0}, size_t{3}}) {
      {
        Engine engine(data.fields(),
                      {.num_threads = 2, .num_fetch_threads = fetchers, .batch_size = 8, .timeout = milliseconds(150)});
        start(engine, spec, 8);
        CHECK_EQ(drain(engine, data, spec, 8), int64_t{13});
        for (int again = 0; again < 2; ++again) {
          (at_open ? faults.stalls_open : faults.stalls) = true;
          auto begin = Clock::now();
          start(engine, spec, 8);
          CHECK_THROWS(kIo, "did not answer within 0.15 s (timeout)", take(engine));
          CHECK(Clock::now() - begin >= milliseconds(150));
          begin = Clock::now();
          engine.stop();
          CHECK(Clock::now() - begin < kSoon);
          CHECK(faults.stalled > 0);
          // Those who are held up stay so, and the engine goes on.
          faults.stalls = faults.stalls_open = false;
          start(engine, spec, 8);
          CHECK_EQ(drain(engine, data, spec, 8), int64_t{13});
        }
      }
      faults.release();  // the engine is gone
    }
  }
}

TEST(an_epoch_is_given_up_at_once_though_storage_does_not_answer) {
  const Dataset data = rich_dataset();
  for (int i = 0; i < 4; ++i) {
    auto engine = std::make_unique<Engine>(data.fields(), with_threads(3, 8));
    faults.stalls = true;
    start(*engine, shuffled_plan_spec(data, 8, 4), 8);
    std::this_thread::sleep_for(milliseconds(5 * i));
    const auto begin = Clock::now();
    if (i % 2 == 0) engine->stop();
    engine.reset();
    CHECK(Clock::now() - begin < kSoon);
    faults.release();
  }
}

TEST(pauses_between_tries_end_with_the_epoch) {
  const Dataset data = simple_dataset(40, 8);
  Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = 2, .batch_size = 8, .max_retries = 1000});
  faults.error = EIO;
  faults.reads_to_fail = 1 << 30;
  start(engine, shuffled_plan_spec(data, 8, 1), 8);
  while (engine.stats().retries < 3) std::this_thread::sleep_for(milliseconds(1));
  const auto begin = Clock::now();
  engine.stop();
  CHECK(Clock::now() - begin < kSoon);
  faults.reads_to_fail = 0;
}

TEST(tries_end_with_the_time_that_a_read_may_take) {
  const Dataset data = simple_dataset(40, 8);
  Engine engine(
      data.fields(),
      {.num_threads = 1, .num_fetch_threads = 1, .batch_size = 8, .max_retries = 1000, .timeout = milliseconds(300)});
  const FailingReads failing;
  start(engine, shuffled_plan_spec(data, 8, 1), 8);
  // On a machine that is busy for so long, the store did not answer: that error comes in place of EIO.
  CHECK_THROWS(kIo, "array0 chunk", take(engine));
  CHECK(engine.stats().retries <= 5);
}

TEST(requests_that_nobody_answers_are_an_error) {
  const Dataset data = simple_dataset(64, 8);
  Engine engine(fed_fields(data), {.num_threads = 2, .max_requests = 4, .batch_size = 8, .timeout = milliseconds(150)});
  start(engine, shuffled_plan_spec(data, 8, 2), 8);
  CHECK_THROWS(kIo, "array0 chunk", take(engine));
}

TEST(bad_chunks_are_skipped_and_what_lacks_them_is_listed) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  // Two cells of one chunk of the first array, and one of the second.
  const std::vector<std::string>& first = data.arrays[0]->keys();
  damage(data, 0, first[6]);
  damage(data, 0, first[7]);
  damage(data, 1, data.arrays[1]->keys()[4]);
  const auto is_bad = [](int64_t sample) { return sample / 8 == 3 || sample / 13 == 4; };
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    for (const bool cached : {false, true}) {
      EngineOptions options = with_threads(threads, 8);
      options.skip_bad = true;
      options.cache_bytes = cached ? size_t{1} << 20 : 0;
      Engine engine(data.fields(), options);
      for (int epoch = 0; epoch < 2; ++epoch) {
        start(engine, spec, 8);
        CHECK_EQ(drain_skipping(engine, data, spec, 8, is_bad), int64_t{8 + 13});
      }
    }
  }
}

TEST(chunks_that_cannot_be_read_are_skipped_and_missing_ones_only_where_they_are_errors) {
  for (const bool missing_is_error : {false, true}) {
    Dataset data = rich_dataset();
    data.arrays[0]->remove_chunk(data.arrays[0]->keys()[2]);  // of samples 8 to 15
    const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
    EngineOptions options = with_threads(2, 8);
    options.missing_is_error = missing_is_error;
    {
      Engine strict(data.fields(), options);
      start(strict, spec, 8);
      if (missing_is_error) {
        CHECK_THROWS(kIo, "is missing from the store", drain(strict, data, spec, 8));
      } else {
        CHECK_EQ(drain(strict, data, spec, 8), int64_t{13});
      }
    }
    options.skip_bad = true;
    Engine engine(data.fields(), options);
    start(engine, spec, 8);
    const auto is_bad = [&](int64_t sample) { return missing_is_error && sample / 8 == 1; };
    CHECK_EQ(drain_skipping(engine, data, spec, 8, is_bad), int64_t{missing_is_error ? 8 : 0});
    options.max_retries = 0;
    Engine failing(data.fields(), options);
    faults.error = EIO;
    faults.reads_to_fail = 1 << 30;
    start(failing, spec, 8);
    CHECK_EQ(drain_skipping(failing, data, spec, 8, [](int64_t) { return true; }), int64_t{100});
    faults.error = EMFILE;  // says nothing of the chunks
    start(failing, spec, 8);
    CHECK_THROWS(kIo, "Too many open files", take(failing));
    faults.reads_to_fail = 0;
  }
}

TEST(refused_requests_are_skipped) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  EngineOptions options = with_threads(2, 8);
  options.max_requests = 8;
  options.skip_bad = true;
  Engine engine(fed_fields(data), options);
  start(engine, spec, 8);
  const TestFeeder feeder(engine, data, 1, /*refusing=*/true);
  CHECK_EQ(drain_skipping(engine, data, spec, 8, [](int64_t) { return true; }), int64_t{100});
}

TEST(rows_that_memory_lacks_are_skipped) {
  const Dataset data = rich_dataset();
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  std::vector<FieldSpec> fields = data.fields();
  fields[2].bad_rows = {{10, 14, 5, "c/5", Error(ErrorKind::kCorrupt, "no number")},
                        {60, 61, 30, "c/30", Error::io("unreadable", EIO)}};
  const auto is_bad = [](int64_t sample) { return (sample >= 10 && sample < 14) || sample == 60; };
  EngineOptions options = with_threads(2, 8);
  Engine trusting(fields, options);
  start(trusting, spec, 8);
  CHECK_EQ(drain(trusting, data, spec, 8), int64_t{13});
  options.skip_bad = true;
  Engine engine(fields, options);
  start(engine, spec, 8);
  CHECK_EQ(drain_skipping(engine, data, spec, 8, is_bad), int64_t{5});
}

TEST(random_windows_that_lack_a_row_are_skipped) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 30; ++i) {
    const Context context("case " + std::to_string(i));
    Dataset data = rich_dataset();
    data.add_windows(random);
    PlanSpec spec = shuffled_plan_spec(data, 8, 1);
    for (int64_t sample = data.first_window; sample < data.end_window; ++sample) spec.selected.push_back(sample);
    std::erase_if(spec.block_order, [&](int64_t block) { return spec.samples_of(block).empty(); });
    const int64_t chunk = pick(random, 0, 12);
    damage(data, 0, data.arrays[0]->keys()[static_cast<size_t>(2 * chunk + pick(random, 0, 1))]);
    const std::vector<int64_t> offsets = data.offsets[0].empty() ? std::vector<int64_t>{0} : data.offsets[0];
    EngineOptions options = with_threads(3, 7);
    options.skip_bad = true;
    Engine engine(data.fields(), options);
    start(engine, spec, 7);
    drain_skipping(engine, data, spec, 7, [&](int64_t sample) {
      return std::any_of(offsets.begin(), offsets.end(),
                         [&](int64_t offset) { return (sample + offset) / 8 == chunk; });
    });
  }
}

}  // namespace zarrfeed::testing::engine_faults_test
