// An engine over a store that it knows nothing of.

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/packed_store.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_store_test {
namespace {

/// Moves the chunks of an array into one file.
void pack(const TestArray& array) {
  const std::filesystem::path to = array.root() / "packed";
  std::filesystem::create_directory(to);
  std::ofstream data(to / "data", std::ios::binary);
  std::ofstream index(to / "index");
  for (const std::string& key : array.keys()) {
    if (!std::filesystem::exists(array.chunk_path(key))) continue;
    const std::vector<uint8_t> bytes = read_file(array.chunk_path(key));
    index << key << ' ' << data.tellp() << ' ' << bytes.size() << '\n';
    data.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    std::filesystem::remove(array.chunk_path(key));
  }
}

class PackedStores : public Stores {
 public:
  PackedStores(bool waits, size_t threads) : Stores(threads, 1), waits_(waits), threads_(threads) {}
  std::shared_ptr<ByteStore> make(size_t /*field*/, const ArraySpec& array, size_t /*max_chunk_bytes*/) override {
    return std::make_shared<PackedStore>(std::filesystem::path(array.root) / "packed", waits_, threads_);
  }

 private:
  const bool waits_;
  const size_t threads_;
};

}  // namespace

TEST(epochs_are_read_from_a_store_of_another_kind) {
  Dataset data = rich_dataset();
  data.arrays[0]->remove_chunk(data.arrays[0]->keys()[2]);
  for (const auto& array : data.arrays) pack(*array);
  const PlanSpec spec = shuffled_plan_spec(data, 8, 4);
  for (const bool waits : {false, true}) {
    for (const size_t threads : {size_t{0}, size_t{1}, size_t{5}}) {
      for (const bool caller_runs : {false, true}) {
        EngineOptions options = with_threads(3, 8);
        options.caller_runs = caller_runs;
        Engine engine(data.fields(), options, std::make_shared<PackedStores>(waits, threads));
        for (int epoch = 0; epoch < 2; ++epoch) {
          start(engine, spec, 8);
          CHECK_EQ(drain(engine, data, spec, 8), int64_t{13});
          engine.stop();
        }
        CHECK(engine.stats().chunks_missing >= 2);
        CHECK_EQ(engine.stats().chunks_waited > 0, waits);
      }
    }
  }
}

TEST(an_error_of_such_a_store_has_the_array_and_the_key) {
  const Dataset data = simple_dataset(64, 8);
  pack(*data.arrays[0]);
  const auto packed = data.arrays[0]->root() / "packed";
  std::filesystem::resize_file(packed / "data", std::filesystem::file_size(packed / "data") - 1);
  for (const bool waits : {false, true}) {
    EngineOptions options = with_threads(2, 8);
    options.max_retries = 0;
    Engine engine(data.fields(), options, std::make_shared<PackedStores>(waits, 2));
    start(engine, shuffled_plan_spec(data, 8, 2), 8);
    const auto drained = [&] {
      while (const auto batch = take(engine)) release(engine, *batch);
    };
    CHECK_THROWS(kIo, "array0 chunk 7.0: cannot be read", drained());
  }
}

}  // namespace zarrfeed::testing::engine_store_test
