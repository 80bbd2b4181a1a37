// The pipeline under random load: anything may be combined with anything. A sanitizer makes it sharp; a longer run is
//   ZARRFEED_STRESS=20 engine_stress_test

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/division.h"
#include "engine/engine.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/reading.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::engine_stress_test {
namespace {

std::unique_ptr<Dataset> random_dataset(std::mt19937_64& random) {
  const int64_t num_samples = pick(random, 1, 200);
  std::vector<ArrayLayout> layouts;
  const int64_t arrays = pick(random, 1, 2);
  for (int64_t i = 0; i < arrays; ++i) {
    ArrayLayout& layout = layouts.emplace_back(random_layout(random, num_samples));
    if (random() % 3 != 0) continue;
    for (size_t axis = 0; axis < layout.shape.size(); ++axis) layout.shard_chunks.push_back(pick(random, 1, 5));
  }
  auto data = std::make_unique<Dataset>(std::move(layouts), random() % 2 == 0, random() % 2 == 0);
  for (const auto& array : data->arrays) {
    if (random() % 3 == 0) array->remove_chunk(array->keys()[random() % array->keys().size()]);
  }
  while (random() % 3 == 0) data->again.push_back(random() % data->arrays.size());
  if (random() % 3 == 0) data->add_windows(random);
  return data;
}

/// Lets groups share all chunks, or the runs that these are cut into, with the next group of their lane, and some also
/// with groups of other lanes.
void share_chunks_at_random(OwnedPlan& plan, const Engine& engine, std::mt19937_64& random) {
  if (random() % 2 == 0) cut_chunks(plan, engine.outputs(), random);
  share_all_chunks(plan, engine);
  const size_t shared = plan.carry_chunk.size() / std::max<size_t>(1, plan.group_lane.size());
  plan.take_begin.assign(1, 0);
  for (size_t group = 0; group < plan.group_lane.size(); ++group) {
    for (size_t i = 0; i < shared; ++i) {
      if (random() % 8 != 0) continue;
      plan.take_source.push_back(plan.carry_source[i]);
      plan.take_chunk.push_back(plan.carry_chunk[i]);
    }
    plan.take_begin.push_back(std::ssize(plan.take_chunk));
  }
  plan.bind();
}

PlanSpec plan_spec_over(const Dataset& data, std::mt19937_64& random) {
  PlanSpec spec = random_plan_spec(random, 200);
  spec.num_samples = data.num_samples();
  spec.block_rows =
      random() % 2 == 0
          ? data.arrays[0]->field().array.chunk_shape[static_cast<size_t>(data.arrays[0]->field().array.sample_axis)]
          : pick(random, 1, 30);
  spec.block_rows = std::min(spec.block_rows, spec.num_samples);
  spec.lanes = std::min(spec.lanes, spec.num_samples);
  spec.block_order.clear();
  for (int64_t block = 0; block < spec.num_blocks(); ++block) spec.block_order.push_back(block);
  if (spec.shuffle) std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
  if (!data.offsets.empty()) {
    spec.select(random, data.first_window, data.end_window);
  } else if (random() % 3 == 0) {
    spec.select(random);
  }
  spec.steps = random() % 4 == 0 ? pick(random, 0, spec.num_samples) : -1;
  return spec;
}

/// A consumer with whims: it stops early, sleeps, keeps batches, and has memory of its own.
class Consumer {
 public:
  Consumer(const Dataset& data, std::mt19937_64& random)
      : data_(&data),
        random_(&random),
        options_{.num_threads = static_cast<size_t>(pick(random, 1, 8)),
                 .num_fetch_threads = static_cast<size_t>(pick(random, 0, 6)),
                 .batch_size = pick(random, 1, 40),
                 .provided_memory = random() % 3 == 0,
                 .cache_bytes = random() % 3 == 0 ? static_cast<size_t>(pick(random, 1, 20'000)) : 0,
                 .carry_bytes = random() % 3 == 0 ? static_cast<size_t>(pick(random, 1, 50'000)) : 0,
                 .caller_runs = random() % 3 == 0},
        engine_(data.fields(), options_) {}
  ~Consumer() {
    for (const Held& held : held_) give_back(held);
  }
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;

  void read_epoch(const PlanSpec& spec) {
    const Context context(zarrfeed::testing::describe(spec) + ", batch size " + std::to_string(options_.batch_size) +
                          ", threads " + std::to_string(options_.num_threads) + ", provided " +
                          std::to_string(static_cast<int>(options_.provided_memory)) + ", cache " +
                          std::to_string(options_.cache_bytes) + ", carry " + std::to_string(options_.carry_bytes) +
                          ", consumer works " + std::to_string(static_cast<int>(options_.caller_runs)));
    std::mt19937_64& random = *random_;
    auto plan = build_plan(spec);
    const auto order = std::make_shared<const std::vector<int64_t>>(reference_order(spec));
    const int64_t required = Engine::required_open_batches(plan->plan, options_.batch_size);
    const int64_t open = required + pick(random, 0, 3);
    const int64_t batches = ceil_div(spec.num_steps(), options_.batch_size);
    const int64_t stop_after = random() % 3 == 0 ? pick(random, 0, batches) : batches + 1;
    const bool slow = random() % 8 == 0;
    // Each group lists every chunk: not for plans of many groups.
    if (options_.carry_bytes > 0 && plan->group_lane.size() <= 40) share_chunks_at_random(*plan, engine_, random);
    engine_.start(std::move(plan), open, false, static_cast<size_t>(pick(random, 0, 50'000)));
    if (options_.provided_memory) {
      for (int64_t i = 0; i < open; ++i) provide_buffers();
    }
    int64_t taken = 0;
    while (taken < stop_after) {
      auto batch = take(engine_);
      if (batch == nullptr) break;
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      held_.push_back({std::move(batch), taken++, order});
      if (options_.provided_memory) provide_buffers();
      while (held_.size() > random() % 6) check_one_and_let_go();
    }
    CHECK_EQ(taken, std::min(stop_after, batches));
    if (random() % 2 == 0) engine_.stop();
  }

 private:
  struct Held {
    std::unique_ptr<ReadyBatch> batch;
    int64_t number;
    std::shared_ptr<const std::vector<int64_t>> order;
  };

  void provide_buffers() {
    std::vector<uint8_t*> addresses;
    for (const Output& field : engine_.outputs()) {
      provided_.push_back(std::make_unique<uint8_t[]>(field.sample_bytes() * static_cast<size_t>(options_.batch_size)));
      addresses.push_back(provided_.back().get());
    }
    engine_.provide_buffers(addresses);
  }
  void check_one_and_let_go() {
    std::swap(held_[(*random_)() % held_.size()], held_.back());
    check_batch(engine_, *data_, *held_.back().batch, held_.back().number, options_.batch_size, *held_.back().order);
    give_back(held_.back());
    held_.pop_back();
  }
  void give_back(const Held& held) const {
    if (!options_.provided_memory) release(engine_, *held.batch);
  }

  const Dataset* data_;
  std::mt19937_64* random_;
  EngineOptions options_;
  std::vector<std::unique_ptr<uint8_t[]>> provided_;  ///< kept to the end: the engine may write to it until it stops
  Engine engine_;
  std::vector<Held> held_;
};

}  // namespace

TEST(random_datasets_read_in_random_ways_arrive_as_the_definition_says) {
  const int64_t rounds = 60 * stress();
  for (int64_t round = 0; round < rounds; ++round) {
    const Context context("round " + std::to_string(round));
    std::mt19937_64 random(static_cast<uint64_t>(round));
    const auto data = random_dataset(random);
    Consumer consumer(*data, random);
    for (int epoch = 0; epoch < 4; ++epoch) {
      if (random() % 6 == 0) data->drop_from_page_cache();
      consumer.read_epoch(plan_spec_over(*data, random));
    }
  }
}

TEST(threads_share_the_indices_of_shards_in_the_page_cache_and_out_of_it) {
  // 60 shards and room for the indices of a few: they are dropped and read again while others use them.
  const Dataset data({{.shape = {600, 5}, .chunk_shape = {2, 5}, .packing = Packing::kLz4, .shard_chunks = {5, 1}}},
                     false, true);
  PlanSpec spec = shuffled_plan_spec(data, 2, 8);
  std::vector<FieldSpec> fields = data.fields();
  fields[0].array.shard.cache_bytes = 4096;
  Engine engine(std::move(fields), {.num_threads = 4, .num_fetch_threads = 4, .batch_size = 8});
  for (spec.epoch = 0; spec.epoch < static_cast<uint64_t>(6 * stress()); ++spec.epoch) {
    if (spec.epoch % 2 == 1) data.drop_from_page_cache();
    start(engine, spec, 8, 3);
    drain(engine, data, spec, 8);
  }
}

TEST(small_chunks_on_many_threads_are_neither_lost_nor_doubled) {
  // One row a chunk and one row a batch: all the time goes to the queue, the claims and the batches.
  const Dataset data({{.shape = {300, 3}, .chunk_shape = {1, 3}}}, false, true);
  PlanSpec spec = shuffled_plan_spec(data, 1, 12);
  Engine engine(data.fields(), {.num_threads = 8, .num_fetch_threads = 2, .batch_size = 1});
  for (spec.epoch = 0; spec.epoch < static_cast<uint64_t>(10 * stress()); ++spec.epoch) {
    start(engine, spec, 1, static_cast<int64_t>(spec.epoch % 5));
    drain(engine, data, spec, 1);
  }
}

TEST(large_groups_are_shared_between_threads) {
  // More than a claim's worth of decoded bytes in a group, in many cells.
  const Dataset data({{.shape = {96, 400, 10}, .chunk_shape = {16, 50, 5}, .packing = Packing::kLz4}}, true, true);
  PlanSpec spec = shuffled_plan_spec(data, 16, 2);
  Engine engine(data.fields(), {.num_threads = 8, .num_fetch_threads = 3, .batch_size = 24});
  for (spec.epoch = 0; spec.epoch < static_cast<uint64_t>(2 * stress()); ++spec.epoch) {
    if (spec.epoch % 2 == 1) data.drop_from_page_cache();
    start(engine, spec, 24, 1);
    drain(engine, data, spec, 24);
  }
}

TEST(more_open_batches_than_the_cache_holds_arrive_whole) {
  const Dataset data({{.shape = {600, 16'384}, .chunk_shape = {8, 16'384}, .packing = Packing::kBlosc}}, false, true);
  PlanSpec spec = shuffled_plan_spec(data, 8, 6);
  Engine engine(data.fields(), {.num_threads = 4, .num_fetch_threads = 2, .batch_size = 64});
  for (spec.epoch = 0; spec.epoch < static_cast<uint64_t>(stress()); ++spec.epoch) {
    start(engine, spec, 64, 10);
    drain(engine, data, spec, 64);
  }
}

TEST(many_engines_come_and_go) {
  const Dataset data = simple_dataset(120, 8, Packing::kBlosc);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 6);
  const size_t descriptors = open_descriptors();
  for (int64_t i = 0; i < 30 * stress(); ++i) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (int e = 0; e < 3; ++e) {
      engines.push_back(std::make_unique<Engine>(
          data.fields(), EngineOptions{.num_threads = 3, .num_fetch_threads = 2, .batch_size = 7}));
      start(*engines.back(), spec, 7);
    }
    drain(*engines[static_cast<size_t>(i % 3)], data, spec, 7);
  }
  CHECK_EQ(open_descriptors(), descriptors);
}

namespace {

/// One of many readers at once, on a thread of its own: checks fail there by what it returns.
class Neighbour {
 public:
  explicit Neighbour(uint64_t seed) : random_(seed), data_(random_dataset(random_)) {
    for (int64_t sample = 0; sample < data_->num_samples(); ++sample) {
      const bool whole = data_->offsets.empty() || (sample >= data_->first_window && sample < data_->end_window);
      expected_.push_back(whole ? data_->expected(0, sample) : std::vector<uint8_t>{});
    }
  }

  /// Reads epochs of a store that is whole, or has a damaged chunk; some are given up, some by another thread, some are
  /// read slowly; some readers skip bad chunks. Returns what went wrong.
  std::string read_epochs(int64_t count) {
    Engine engine(data_->fields(), {.num_threads = static_cast<size_t>(pick(random_, 1, 4)),
                                    .num_fetch_threads = static_cast<size_t>(pick(random_, 1, 3)),
                                    .batch_size = batch_size_,
                                    .caller_runs = random_() % 3 == 0,
                                    .skip_bad = skips_});
    const std::filesystem::path chunk = data_->arrays[0]->root() / first_file();
    const std::vector<uint8_t> content = read_file(chunk);
    for (int64_t epoch = 0; epoch < count; ++epoch) {
      const bool broken = random_() % 3 == 0;
      if (broken) write_file(chunk, std::vector<uint8_t>(content.size() / 2, 0xff));
      const std::string wrong = read_epoch(engine, broken);
      if (broken) write_file(chunk, content);
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  [[nodiscard]] std::string first_file() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(data_->arrays[0]->root())) {
      if (!entry.is_regular_file() || entry.path().filename() == ".zarray") continue;
      return std::filesystem::relative(entry.path(), data_->arrays[0]->root()).string();
    }
    return ".zarray";  // the only chunk was removed
  }

  std::string read_epoch(Engine& engine, bool broken) {
    const PlanSpec spec = plan_spec_over(*data_, random_);
    const std::vector<int64_t> order = reference_order(spec);
    start(engine, spec, batch_size_, pick(random_, 0, 2));
    const int64_t stop_after = random_() % 3 == 0 ? pick(random_, 0, 5) : std::ssize(order) + 1;
    const bool slow = random_() % 4 == 0;
    std::thread stopper;
    if (random_() % 5 == 0) stopper = std::thread([&engine] { engine.stop(); });
    const std::string wrong = take_all(engine, order, {broken, slow, stopper.joinable(), stop_after});
    if (stopper.joinable()) stopper.join();
    if (random_() % 2 == 0) engine.stop();
    return wrong;
  }

  struct Whims {
    bool broken;
    bool slow;
    bool is_stopped;
    int64_t stop_after;
  };

  std::string take_all(Engine& engine, const std::vector<int64_t>& order, const Whims& whims) const {
    int64_t step = 0;
    try {
      for (int64_t taken = 0; taken < whims.stop_after; ++taken) {
        ReadyBatch batch;
        const NextStatus status = engine.next(batch, std::chrono::seconds(60));
        if (status == NextStatus::kTimeout) return "no batch within a minute";
        if (status == NextStatus::kEnd) return step == std::ssize(order) ? "" : "the epoch ended early";
        if (whims.slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const size_t bytes = engine.outputs()[0].sample_bytes();
        for (int64_t slot = 0; slot < batch.rows; ++slot, ++step) {
          const auto& expected = expected_[static_cast<size_t>(order[static_cast<size_t>(step)])];
          const bool same =
              std::equal(expected.begin(), expected.end(), batch.buffers[0] + static_cast<size_t>(slot) * bytes);
          const bool is_skipped = std::any_of(batch.skipped.slots.begin(), batch.skipped.slots.end(),
                                              [slot](const SkippedSlot& one) { return one.slot == slot; });
          if (!whims.broken && is_skipped) return "step " + std::to_string(step) + " was skipped";
          if (!same && !whims.broken) return "step " + std::to_string(step) + " is another sample";
        }
        release(engine, batch);
      }
    } catch (const Error& error) {
      const bool is_expected = (whims.broken && !skips_ && error.kind() != ErrorKind::kConfig) ||
                               (whims.is_stopped && error.kind() == ErrorKind::kClosed);
      if (!is_expected) return error.what();
    }
    return "";
  }

  std::mt19937_64 random_;
  int64_t batch_size_ = pick(random_, 1, 20);
  bool skips_ = random_() % 2 == 0;
  std::unique_ptr<Dataset> data_;
  std::vector<std::vector<uint8_t>> expected_;  ///< of field 0
};

}  // namespace

TEST(many_datasets_are_read_at_once_with_errors_early_ends_and_slow_consumers) {
  for (uint64_t round = 0; round < static_cast<uint64_t>(3 * stress()); ++round) {
    const Context context("round " + std::to_string(round));
    constexpr uint64_t kReaders = 5;
    std::vector<std::string> wrong(kReaders);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kReaders; ++i) {
      threads.emplace_back([&wrong, round, i] {
        try {
          wrong[i] = Neighbour(1000 * round + i).read_epochs(8);
        } catch (const std::exception& error) {
          wrong[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& what : wrong) CHECK_EQ(what, std::string());
  }
}

}  // namespace zarrfeed::testing::engine_stress_test
