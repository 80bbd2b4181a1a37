// The pipeline, one promise at a time: what arrives, where, and when. How it ends is in engine_end_test.cc; the same under
// random load in engine_stress_test.cc.

#include "engine/engine.h"

#include <algorithm>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_test {
namespace {

/// Buffers that the test owns and provides, a set a batch.
class Provider {
 public:
  explicit Provider(const Engine& engine, int64_t batch_size) : engine_(&engine), batch_size_(batch_size) {}
  void provide_buffers(Engine& engine) {
    std::vector<uint8_t*> addresses;
    for (const Output& field : engine_->outputs()) {
      auto& buffer = buffers_.emplace_back(field.sample_bytes() * static_cast<size_t>(batch_size_), uint8_t{0});
      addresses.push_back(buffer.data());
    }
    engine.provide_buffers(addresses);
  }
  [[nodiscard]] bool owns(const uint8_t* address) const {
    return std::any_of(buffers_.begin(), buffers_.end(), [&](const auto& b) { return b.data() == address; });
  }

 private:
  const Engine* engine_;
  int64_t batch_size_;
  std::vector<std::vector<uint8_t>> buffers_;
};

}  // namespace

TEST(batches_have_the_epoch_order_at_any_number_of_threads) {
  const Dataset data = rich_dataset();
  PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const size_t threads : {size_t{1}, size_t{2}, size_t{4}, size_t{8}}) {
    for (const int64_t batch_size : {1, 7, 32, 100, 1000}) {
      for (spec.mix = 1; spec.mix <= 3; spec.mix += 2) {
        const Context context(std::to_string(threads) + " threads, batch size " + std::to_string(batch_size));
        Engine engine(data.fields(), with_threads(threads, batch_size));
        start(engine, spec, batch_size);
        drain(engine, data, spec, batch_size);
        CHECK_EQ(take(engine), nullptr);  // the end stays the end
      }
    }
  }
}

TEST(every_packing_arrives) {
  for (int packing = 0; packing < kNumPackings; ++packing) {
    const Context context("packing " + std::to_string(packing));
    const Dataset data = simple_dataset(70, 8, static_cast<Packing>(packing));
    const PlanSpec spec = shuffled_plan_spec(data, 8, 3);
    Engine engine(data.fields(), with_threads(2, 16));
    start(engine, spec, 16);
    drain(engine, data, spec, 16);
  }
}

TEST(chunks_in_order_are_decoded_straight_into_the_batch_and_arrive_the_same) {
  for (const Packing packing : {Packing::kRaw, Packing::kZstd, Packing::kBlosc}) {
    const Dataset data = simple_dataset(64, 8, packing);
    PlanSpec spec = shuffled_plan_spec(data, 8, 1);
    spec.shuffle = false;
    std::sort(spec.block_order.begin(), spec.block_order.end());
    for (const int64_t batch_size : {8, 16, 12, 64}) {
      Engine engine(data.fields(), with_threads(2, batch_size));
      start(engine, spec, batch_size, 3);
      drain(engine, data, spec, batch_size);
    }
  }
}

TEST(consumers_of_a_stride_get_their_share) {
  const Dataset data = rich_dataset();
  PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const int64_t stride : {2, 3, 4, 5}) {
    for (int64_t first = 0; first < stride; ++first) {
      spec.stride = stride;
      spec.first = first;
      Engine engine(data.fields(), with_threads(2, 9));
      start(engine, spec, 9);
      drain(engine, data, spec, 9);
    }
  }
}

TEST(one_engine_reads_many_epochs_in_the_same_memory) {
  const Dataset data = rich_dataset();
  Engine engine(data.fields(), with_threads(2, 16));
  PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  size_t mapped = 0;
  size_t descriptors = 0;
  for (spec.epoch = 0; spec.epoch < 30; ++spec.epoch) {
    start(engine, spec, 16, 2);
    drain(engine, data, spec, 16);
    engine.stop();
    if (spec.epoch == 0) {
      mapped = engine.memory(0)->mapped_bytes();
      descriptors = open_descriptors();
    }
    CHECK_EQ(engine.memory(0)->mapped_bytes(), mapped);
    CHECK_EQ(open_descriptors(), descriptors);
  }
  CHECK_EQ(engine.stats().samples.load(), uint64_t{3000});
}

TEST(batches_outlive_their_engine) {
  const Dataset data = simple_dataset(64, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 2);
  const std::vector<int64_t> order = reference_order(spec);
  std::unique_ptr<ReadyBatch> batch;
  std::shared_ptr<BufferPool> memory;
  {
    Engine engine(data.fields(), with_threads(2, 16));
    start(engine, spec, 16);
    batch = take(engine);
    memory = engine.memory(0);
  }
  const std::vector<uint8_t> expected = data.expected(0, order[0]);
  CHECK(std::equal(expected.begin(), expected.end(), batch->buffers[0]));
  memory->release(batch->buffers[0]);
  CHECK_EQ(memory->mapped_bytes(), size_t{0});
}

TEST(batches_that_are_held_are_never_overwritten) {
  const Dataset data = rich_dataset();
  PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), with_threads(4, 8));
  std::mt19937_64 random(6);
  struct Held {
    std::unique_ptr<ReadyBatch> batch;
    int64_t number;
    std::vector<int64_t> order;
  };
  std::vector<Held> held;
  for (spec.epoch = 0; spec.epoch < 6; ++spec.epoch) {
    start(engine, spec, 8, 2);
    const std::vector<int64_t> order = reference_order(spec);
    for (int64_t b = 0; auto batch = take(engine); ++b) {
      held.push_back({std::move(batch), b, order});
      if (held.size() > 10) {
        std::swap(held[random() % held.size()], held.back());
        check_batch(engine, data, *held.back().batch, held.back().number, 8, held.back().order);
        release(engine, *held.back().batch);
        held.pop_back();
      }
    }
  }
  for (const Held& h : held) check_batch(engine, data, *h.batch, h.number, 8, h.order);
}

TEST(a_consumer_that_waits_long_holds_the_engine_back) {
  const Dataset data = simple_dataset(400, 4);
  const PlanSpec spec = shuffled_plan_spec(data, 4, 2);
  Engine engine(data.fields(), with_threads(4, 4));
  start(engine, spec, 4, 1);
  const int64_t open = Engine::required_open_batches(build_plan(spec)->plan, 4) + 1;
  // However long nobody takes a batch, no more than the open batches are written.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(engine.stats().bytes_scattered.load() <= static_cast<uint64_t>(open * 4) * data.arrays[0]->sample_bytes());
  drain(engine, data, spec, 4);
}

TEST(a_missing_chunk_is_the_fill_value_and_is_counted) {
  const Dataset data = rich_dataset();
  data.arrays[0]->remove_chunk("0.1.0");
  data.arrays[0]->remove_chunk("12.0.0");
  data.arrays[1]->remove_chunk("1.7");
  const PlanSpec spec = shuffled_plan_spec(data, 8, 1);
  Engine engine(data.fields(), with_threads(2, 10));
  start(engine, spec, 10);
  drain(engine, data, spec, 10);
  CHECK(engine.stats().chunks_missing.load() >= 3);
}

TEST(counters_say_what_was_read) {
  const Dataset data = simple_dataset(60, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 1);
  Engine engine(data.fields(), with_threads(2, 8));
  start(engine, spec, 8);
  drain(engine, data, spec, 8);
  const Stats& stats = engine.stats();
  CHECK_EQ(stats.chunks_read.load(), uint64_t{8});
  CHECK_EQ(stats.chunks_missing.load(), uint64_t{0});
  CHECK_EQ(stats.bytes_read.load(), uint64_t{8} * 8 * 20);
  CHECK_EQ(stats.chunk_bytes.load(), uint64_t{8} * 8 * 20);
  CHECK_EQ(stats.bytes_decoded.load(), uint64_t{60} * 20);  // chunks without codecs: of the last one, half of its rows
  CHECK_EQ(stats.bytes_scattered.load(), uint64_t{60} * 20);
  CHECK_EQ(stats.batches.load(), uint64_t{8});
  CHECK_EQ(stats.samples.load(), uint64_t{60});
}

TEST(chunks_that_are_not_in_the_page_cache_are_waited_for) {
  for (const Packing packing : {Packing::kRaw, Packing::kBlosc}) {
    const Dataset data({{.shape = {256, 1500}, .chunk_shape = {8, 1000}, .packing = packing}}, true, true);
    data.arrays[0]->remove_chunk("3.1");
    const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
    for (const size_t fetchers : {size_t{0}, size_t{1}, size_t{4}, size_t{16}}) {
      Engine engine(data.fields(), {.num_threads = 2, .num_fetch_threads = fetchers, .batch_size = 16});
      for (int epoch = 0; epoch < 2; ++epoch) {
        const bool cold = data.drop_from_page_cache();
        const uint64_t before = engine.stats().chunks_waited.load();
        start(engine, spec, 16);
        drain(engine, data, spec, 16);
        CHECK(!cold || engine.stats().chunks_waited.load() > before);
      }
    }
  }
}

TEST(fetch_threads_may_be_started_while_decode_threads_still_are) {
  // The first decode thread found a chunk that is not in the page cache, and start() was still adding its siblings.
  const Dataset data = simple_dataset(64, 2);
  const PlanSpec spec = shuffled_plan_spec(data, 2, 4);
  for (int i = 0; i < 40; ++i) {
    data.drop_from_page_cache();
    Engine engine(data.fields(), {.num_threads = 16, .num_fetch_threads = 8, .batch_size = 8});
    start(engine, spec, 8);
    release(engine, *take(engine));
  }
}

TEST(an_epoch_without_samples_ends_at_once) {
  const Dataset data = simple_dataset(16, 8);
  PlanSpec spec = shuffled_plan_spec(data, 8, 2);
  spec.steps = 0;
  Engine engine(data.fields(), with_threads(2, 8));
  start(engine, spec, 8);
  CHECK_EQ(take(engine), nullptr);
}

TEST(lent_memory_is_what_batches_are_written_to_and_held_batches_stay) {
  const Dataset data = rich_dataset();
  PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), {.num_threads = 4, .num_fetch_threads = 4, .batch_size = 8, .provided_memory = true});
  for (spec.epoch = 0; spec.epoch < 5; ++spec.epoch) {
    Provider provider(engine, 8);
    const std::vector<int64_t> order = reference_order(spec);
    start(engine, spec, 8);
    const int64_t open = Engine::required_open_batches(build_plan(spec)->plan, 8);
    for (int64_t i = 0; i < open; ++i) provider.provide_buffers(engine);
    std::vector<std::unique_ptr<ReadyBatch>> held;
    std::set<uint8_t*> seen;
    const bool give_up = spec.epoch % 2 == 1;
    while (!give_up || held.size() < 5) {
      auto batch = take(engine);
      if (batch == nullptr) break;
      for (uint8_t* const buffer : batch->buffers) {
        CHECK(provider.owns(buffer));
        CHECK(seen.insert(buffer).second);
      }
      held.push_back(std::move(batch));
      provider.provide_buffers(engine);
    }
    engine.stop();
    CHECK_EQ(std::ssize(held), give_up ? 5 : 13);
    for (size_t b = 0; b < held.size(); ++b) {
      check_batch(engine, data, *held[b], static_cast<int64_t>(b), 8, order);
    }
    for (size_t f = 0; f < data.num_fields(); ++f) CHECK_EQ(engine.memory(f)->mapped_bytes(), size_t{0});
  }
}

TEST(lent_memory_may_come_one_set_at_a_time_from_another_thread) {
  const Dataset data = simple_dataset(256, 8);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  Engine engine(data.fields(), {.num_threads = 4, .num_fetch_threads = 4, .batch_size = 8, .provided_memory = true});
  start(engine, spec, 8, 2);
  Provider provider(engine, 8);
  std::thread other([&] {
    for (int i = 0; i < 32; ++i) {
      provider.provide_buffers(engine);
      std::this_thread::yield();
    }
  });
  const std::vector<int64_t> order = reference_order(spec);
  std::vector<std::unique_ptr<ReadyBatch>> held;
  try {
    while (auto batch = take(engine)) held.push_back(std::move(batch));
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  CHECK_EQ(held.size(), size_t{32});
  for (size_t b = 0; b < held.size(); ++b) check_batch(engine, data, *held[b], static_cast<int64_t>(b), 8, order);
}

TEST(two_engines_read_at_once) {
  const Dataset data = rich_dataset();
  const PlanSpec a = shuffled_plan_spec(data, 8, 4, 1);
  const PlanSpec b = shuffled_plan_spec(data, 10, 2, 2);
  Engine first(data.fields(), with_threads(2, 8));
  Engine second(data.fields(), with_threads(2, 5));
  const std::vector<int64_t> order_a = reference_order(a);
  const std::vector<int64_t> order_b = reference_order(b);
  start(first, a, 8);
  start(second, b, 5);
  for (int64_t i = 0; i < 20; ++i) {
    if (i < 13) {
      const auto batch = take(first);
      check_batch(first, data, *batch, i, 8, order_a);
      release(first, *batch);
    }
    const auto batch = take(second);
    check_batch(second, data, *batch, i, 5, order_b);
    release(second, *batch);
  }
  CHECK_EQ(take(first), nullptr);
  CHECK_EQ(take(second), nullptr);
}

TEST(blocks_need_not_be_chunks) {
  const Dataset data = rich_dataset();
  for (const int64_t block_rows : {1, 3, 8, 20, 100}) {
    const Context context("block_rows = " + std::to_string(block_rows));
    PlanSpec spec = shuffled_plan_spec(data, block_rows, 5);
    for (spec.mix = 1; spec.mix <= 2; ++spec.mix) {
      Engine engine(data.fields(), with_threads(2, 11));
      start(engine, spec, 11);
      drain(engine, data, spec, 11);
    }
  }
}

}  // namespace zarrfeed::testing::engine_test
