// Samples that are windows of rows: what arrives, and how often chunks are decoded for it.

#include <memory>
#include <random>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_window_test {

TEST(windows_over_all_kinds_of_fields_arrive_row_by_row) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Dataset data = rich_dataset();
    data.arrays[0]->remove_chunk(data.arrays[0]->keys().front());
    data.add_windows(random);
    EngineOptions options = with_threads(3, 7);
    options.cache_bytes = seed % 2 == 0 ? 0 : 3000;
    Engine engine(data.fields(), options);
    for (const int64_t block_rows : {1, 8, 20, 100}) {
      PlanSpec spec = plan_spec_of_windows(data, block_rows);
      start(engine, spec, 7, 1);
      drain(engine, data, spec, 7);
      spec.shuffle = true;
      spec.lanes = std::min<int64_t>(3, spec.length());
      spec.mix = 2;
      std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
      start(engine, spec, 7, 1);
      drain(engine, data, spec, 7);
    }
  }
}

TEST(rows_of_large_windows_are_taken_from_one_decoded_chunk) {
  // Rows that are copied past the cache, straight from Blosc blocks, and wanted up to three times each.
  Dataset data({{.shape = {64, 16'384}, .chunk_shape = {8, 16'384}, .packing = Packing::kBlosc}}, false, true);
  data.offsets = {{-1, 0, 1}};
  data.first_window = 1;
  data.end_window = 63;
  const PlanSpec spec = plan_spec_of_windows(data, 16);
  Engine engine(data.fields(), with_threads(2, 32));
  start(engine, spec, 32, 40);
  drain(engine, data, spec, 32);
  // Four blocks of two chunks, and one chunk on either side of each that is not at an end of the array.
  CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{4 * 2 + 2 * 3});
}

TEST(an_offset_alone_shifts_rows) {
  Dataset data({{.shape = {40, 5}, .chunk_shape = {8, 5}}}, true, true);
  data.offsets = {{3}, {-2}};
  data.first_window = 2;
  data.end_window = 37;
  const PlanSpec spec = plan_spec_of_windows(data, 8);
  Engine engine(data.fields(), with_threads(2, 4));
  start(engine, spec, 4);
  drain(engine, data, spec, 4);
}

TEST(a_window_that_reaches_beyond_the_array_is_an_error_and_reads_nothing_there) {
  for (const int64_t offset : {-1, 1}) {
    Dataset data({{.shape = {64, 5}, .chunk_shape = {8, 5}}}, true, false);
    for (const size_t field : {0, 1}) {
      data.offsets.assign(2, {});
      data.offsets[field] = {offset};
      Engine engine(data.fields(), with_threads(2, 64));
      start(engine, shuffled_plan_spec(data, 8, 4), 64);
      CHECK_THROWS(kConfig, "reaches beyond the array", take(engine));
    }
  }
}

}  // namespace zarrfeed::testing::engine_window_test
