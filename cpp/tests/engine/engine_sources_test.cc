// Arrays that several outputs draw from: each chunk is read and decoded once for all of them, in every way to read, and
// each output has its rows.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/feeding.h"
#include "tests/support/plans.h"
#include "tests/support/reading.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::engine_sources_test {
namespace {

/// How often each object of each array was read.
struct ReadLog {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, int> reads;
  int stores = 0;

  void add(const std::string& array, const std::string& key) {
    const std::lock_guard lock(mutex);
    ++reads[{array, key}];
  }
  [[nodiscard]] int most() {
    const std::lock_guard lock(mutex);
    int most = 0;
    for (const auto& [object, count] : reads) most = std::max(most, count);
    return most;
  }
};

/// A store that notes which objects are had from it.
class LoggedStore : public ByteStore {
 public:
  LoggedStore(std::shared_ptr<ByteStore> inner, std::string array, std::shared_ptr<ReadLog> log)
      : inner_(std::move(inner)), array_(std::move(array)), log_(std::move(log)) {}

  void open() override { inner_->open(); }
  void close() override { inner_->close(); }
  ReadResult try_read(const std::string& key, const ByteRange& range, Buffer& room) override {
    ReadResult result = inner_->try_read(key, range, room);
    if (result.status != ReadStatus::kWouldBlock) log_->add(array_, key);
    return result;
  }
  void read(std::vector<ReadRequest> requests) override {
    for (const ReadRequest& request : requests) log_->add(array_, request.key);
    inner_->read(std::move(requests));
  }
  [[nodiscard]] Limits limits() const override { return inner_->limits(); }
  bool stop(std::chrono::steady_clock::time_point deadline) override { return inner_->stop(deadline); }

 private:
  const std::shared_ptr<ByteStore> inner_;
  const std::string array_;
  const std::shared_ptr<ReadLog> log_;
};

class LoggedStores : public Stores {
 public:
  explicit LoggedStores(std::shared_ptr<ReadLog> log) : Stores(4, 16), log_(std::move(log)) {}

  std::shared_ptr<ByteStore> make(size_t source, const ArraySpec& array, size_t max_chunk_bytes) override {
    ++log_->stores;
    return std::make_shared<LoggedStore>(Stores::make(source, array, max_chunk_bytes), array.name, log_);
  }

 private:
  const std::shared_ptr<ReadLog> log_;
};

}  // namespace

TEST(each_chunk_is_read_once_for_all_outputs_and_each_array_is_opened_once) {
  Dataset data = rich_dataset();
  data.again = {0, 1, 0};
  PlanSpec spec = shuffled_plan_spec(data, 104, 1);  // one block: each chunk is in one segment
  const size_t chunks = data.arrays[0]->keys().size() + data.arrays[1]->keys().size();
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    for (const bool is_cold : {false, true}) {
      for (const bool caller_runs : {false, true}) {
        const auto log = std::make_shared<ReadLog>();
        EngineOptions options = with_threads(threads, 8);
        options.caller_runs = caller_runs;
        Engine engine(data.fields(), options, std::make_shared<LoggedStores>(log));
        CHECK_EQ(log->stores, 2);
        if (is_cold) data.drop_from_page_cache();
        start(engine, spec, 8, 4);
        drain(engine, data, spec, 8);
        CHECK_EQ(log->most(), 1);
        CHECK_EQ(log->reads.size(), chunks);
        CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{chunks});
      }
    }
  }
}

TEST(outputs_of_one_array_have_their_rows_in_every_way_to_read) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Dataset data({random_layout(random, 60), random_layout(random, 60)}, random() % 2 == 0, random() % 2 == 0);
    for (int64_t count = pick(random, 1, 3); count > 0; --count) data.again.push_back(random() % 2);
    if (random() % 2 == 0)
      data.arrays[0]->remove_chunk(data.arrays[0]->keys()[random() % data.arrays[0]->keys().size()]);
    data.add_windows(random);
    if (data.first_window >= data.end_window) continue;
    EngineOptions options = with_threads(1 + random() % 4, 7);
    options.num_fetch_threads = random() % 3;
    options.cache_bytes = std::array{size_t{0}, size_t{3000}, size_t{1} << 30}[random() % 3];
    options.carry_bytes = std::array{size_t{0}, size_t{1}, size_t{3000}, size_t{1} << 30}[random() % 4];
    options.caller_runs = random() % 3 == 0;
    Engine engine(data.fields(), options);
    for (int epoch = 0; epoch < 3; ++epoch) {
      PlanSpec spec = plan_spec_of_windows(data, std::array{int64_t{1}, int64_t{8}, int64_t{60}}[random() % 3]);
      if (epoch > 0) {
        spec.shuffle = true;
        spec.lanes = std::min<int64_t>(1 + static_cast<int64_t>(random() % 3), spec.length());
        spec.mix = 1 + static_cast<int64_t>(random() % 2);
        std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
      }
      if (random() % 3 == 0) data.drop_from_page_cache();
      options.carry_bytes > 0 ? start_shared(engine, spec, 7, 20) : start(engine, spec, 7, 20);
      drain(engine, data, spec, 7);
    }
  }
}

TEST(a_chunk_that_one_output_needs_now_and_another_one_in_the_next_group_is_carried) {
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    Dataset data({{.shape = {64, 16'384}, .chunk_shape = {8, 16'384}, .packing = Packing::kBlosc}}, false, true);
    data.again = {0};
    data.offsets = {{-1, 0}, {}, {4}};  // samples, index, targets
    data.first_window = 1;
    data.end_window = 60;
    EngineOptions options = with_threads(threads, 32);
    options.carry_bytes = size_t{1} << 30;
    Engine engine(data.fields(), options);
    for (const int64_t block_rows : {1, 8, 16}) {
      const uint64_t before = engine.stats().chunks_read;
      const PlanSpec spec = plan_spec_of_windows(data, block_rows);
      start_shared(engine, spec, 32, 40);
      drain(engine, data, spec, 32);
      CHECK_EQ(engine.stats().chunks_read - before, uint64_t{8});
    }
  }
}

TEST(a_cached_chunk_serves_all_outputs) {
  Dataset data = simple_dataset(64, 8, Packing::kZstd);
  data.again = {0};
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  EngineOptions options = with_threads(3, 16);
  options.cache_bytes = size_t{1} << 20;
  Engine engine(data.fields(), options);
  for (int epoch = 0; epoch < 3; ++epoch) {
    start(engine, spec, 16);
    drain(engine, data, spec, 16);
  }
  CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{8});
}

TEST(inner_chunks_and_indices_of_shards_are_read_once) {
  Dataset data({{.shape = {64, 5}, .chunk_shape = {4, 5}, .packing = Packing::kZstd, .shard_chunks = {4, 1}}}, false,
               true);
  data.again = {0, 0};
  const PlanSpec spec = shuffled_plan_spec(data, 4, 2);
  Engine engine(data.fields(), with_threads(2, 8));
  start(engine, spec, 8, 4);
  drain(engine, data, spec, 8);
  CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{16});
  CHECK_EQ(engine.indices_read(), uint64_t{4});
}

TEST(python_is_asked_for_a_chunk_once) {
  Dataset data = rich_dataset();
  data.again = {0, 1, 0};
  const PlanSpec spec = shuffled_plan_spec(data, 104, 1);
  Engine engine(fed_fields(data), {.num_threads = 3, .max_requests = 8, .batch_size = 8});
  TestFeeder feeder(engine, data);
  start(engine, spec, 8, 2);
  drain(engine, data, spec, 8);
  engine.stop();
  CHECK_EQ(feeder.total(), data.arrays[0]->keys().size() + data.arrays[1]->keys().size());
}

TEST(rows_of_several_outputs_come_straight_from_blosc_blocks) {
  std::mt19937_64 random(3);
  for (const Packing packing : {Packing::kBlosc, Packing::kBloscBit, Packing::kBloscThenCrc32c, Packing::kRaw}) {
    for (const int64_t width : {1023, 1024, 1500}) {  // rows of a bit below 4 KiB, exactly as much, and above
      Dataset data({{.shape = {40, width}, .chunk_shape = {8, width}, .packing = packing}}, false, true);
      data.again = {0, 0};
      data.add_windows(random);
      const PlanSpec spec = plan_spec_of_windows(data, 8);
      Engine engine(data.fields(), with_threads(2, 300));  // more than 32 MiB of open batches for some
      start(engine, spec, 300, 20);
      drain(engine, data, spec, 300);
    }
  }
}

TEST(a_bad_chunk_is_bad_for_all_outputs_and_listed_once) {
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    for (const bool is_carried : {false, true}) {
      for (const bool is_cached : {false, true}) {
        Dataset data = simple_dataset(64, 8, Packing::kZstd);
        data.again = {0};
        data.offsets = {{0}, {4}};
        data.end_window = 60;
        write_file(data.arrays[0]->chunk_path("3.0"), std::vector<uint8_t>(40, 1));
        const PlanSpec spec = plan_spec_of_windows(data, 8);
        EngineOptions options = with_threads(threads, 8);
        options.skip_bad = true;
        options.carry_bytes = is_carried ? size_t{1} << 20 : 0;
        options.cache_bytes = is_cached ? size_t{1} << 20 : 0;
        Engine engine(data.fields(), options);
        is_carried ? start_shared(engine, spec, 8, 4) : start(engine, spec, 8, 4);
        int64_t sample = 0;
        for (int64_t number = 0; const auto batch = take(engine); ++number) {
          std::set<int64_t> listed;
          for (const SkippedSlot& one : batch->skipped.slots) CHECK(listed.insert(one.slot).second);
          for (const SkippedChunk& one : batch->skipped.chunks) {
            CHECK_EQ(one.source, size_t{0});
            CHECK_EQ(one.chunk, int64_t{3});
          }
          for (int64_t slot = 0; slot < batch->rows; ++slot, ++sample) {
            const bool is_bad = sample / 8 == 3 || (sample + 4) / 8 == 3;
            CHECK_EQ(listed.contains(slot), is_bad);
            if (is_bad) continue;
            for (size_t f = 0; f < 2; ++f) {
              const std::vector<uint8_t> expected = data.expected(f, sample);
              CHECK_EQ(std::memcmp(batch->buffers[f] + static_cast<size_t>(slot) * expected.size(), expected.data(),
                                   expected.size()),
                       0);
            }
          }
          release(engine, *batch);
        }
        CHECK_EQ(sample, int64_t{60});
      }
    }
  }
}

TEST(an_error_of_a_chunk_ends_the_epoch_once) {
  Dataset data = simple_dataset(64, 8, Packing::kZstd);
  data.again = {0};
  write_file(data.arrays[0]->chunk_path("3.0"), std::vector<uint8_t>(40, 1));
  const PlanSpec spec = shuffled_plan_spec(data, 8, 2);
  Engine engine(data.fields(), with_threads(2, 8));
  start(engine, spec, 8, 20);
  CHECK_THROWS(kCorrupt, "array0 chunk 3.0", drain(engine, data, spec, 8));
}

TEST(outputs_of_one_array_may_convert_its_items_in_their_own_way) {
  Dataset data({{.shape = {64, 6}, .chunk_shape = {8, 6}, .packing = Packing::kBlosc}}, false, false);
  data.again = {0, 0};
  std::vector<FieldSpec> fields = data.fields();
  const auto converted = [](ItemType to, double scale) {
    ConversionSpec spec;
    spec.from = ItemType::kUint32;
    spec.to = to;
    spec.scale = scale;
    return spec;
  };
  fields[1].conversion = converted(ItemType::kFloat64, 0.5);
  fields[2].conversion = converted(ItemType::kFloat64, 2);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  const std::vector<int64_t> order = reference_order(spec);
  for (const size_t carry : {size_t{0}, size_t{1} << 20}) {
    EngineOptions options = with_threads(2, 64);
    options.carry_bytes = carry;
    Engine engine(fields, options);
    carry > 0 ? start_shared(engine, spec, 64) : start(engine, spec, 64);
    const auto batch = take(engine);
    for (size_t slot = 0; slot < 64; ++slot) {
      for (size_t item = 0; item < 6; ++item) {
        uint32_t number = 0;
        std::memcpy(&number, data.expected(0, order[slot]).data() + item * 4, 4);
        uint32_t plain = 0;
        std::memcpy(&plain, batch->buffers[0] + (slot * 6 + item) * 4, 4);
        CHECK_EQ(plain, number);
        double half = 0;
        double twice = 0;
        std::memcpy(&half, batch->buffers[1] + (slot * 6 + item) * 8, 8);
        std::memcpy(&twice, batch->buffers[2] + (slot * 6 + item) * 8, 8);
        CHECK_EQ(half, number * 0.5);
        CHECK_EQ(twice, number * 2.0);
      }
    }
    CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{8});
    release(engine, *batch);
  }
}

}  // namespace zarrfeed::testing::engine_sources_test
