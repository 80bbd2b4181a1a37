// Chunks of which an engine reads the parts that a task wants: the same batches, errors and skipped samples, from less bytes.

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "codecs/blosc_table.h"
#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/compress.h"
#include "tests/support/faulty_calls.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_read_parts_test {
namespace {

constexpr size_t kRow = 32'768;
constexpr size_t kChunk = 32 * kRow;

ArrayLayout layout_of(Packing packing, bool in_shards) {
  ArrayLayout layout{.shape = {96, kRow / 4}, .chunk_shape = {32, kRow / 4}, .packing = packing};
  if (in_shards) layout.shard_chunks = {2, 1};
  return layout;
}

/// Three chunks of 32 rows of 32 KiB, with one Blosc block a row.
struct LargeChunks : Dataset {
  explicit LargeChunks(Packing packing, bool in_shards = false)
      : Dataset({layout_of(packing, in_shards)}, false, false) {
    for (int64_t chunk = 0; chunk < 3 && packing == Packing::kBlosc; ++chunk) {
      ByteVector bytes;
      for (int64_t row = 32 * chunk; row < 32 * (chunk + 1); ++row) {
        const auto sample = arrays[0]->sample(row);
        bytes.insert(bytes.end(), sample.begin(), sample.end());
      }
      const Blosc1Options options{.shuffle = Blosc1Shuffle::kNone, .blocksize = kRow, .reverse_blocks = chunk == 1};
      const auto path = arrays[0]->chunk_path(arrays[0]->keys()[static_cast<size_t>(chunk)]);
      write_file(path, compress_blosc1(bytes, options));
      CHECK(std::filesystem::file_size(path) > kChunk / 2);
    }
  }
};

PlanSpec plan_of(const Dataset& data, std::vector<int64_t> selected, std::vector<int64_t> blocks) {
  PlanSpec spec = shuffled_plan_spec(data, 32, 1);
  spec.shuffle = false;
  spec.selected = std::move(selected);
  spec.block_order = std::move(blocks);
  return spec;
}

/// Rows 3, 4 and 20 of the first chunk, row 7 of the last one.
PlanSpec some_rows(const Dataset& data) {
  return plan_of(data, {3, 4, 20, 71}, {0, 2});
}

}  // namespace

TEST(a_task_reads_the_bytes_of_its_rows) {
  for (const bool in_shards : {false, true}) {
    for (const Packing packing : {Packing::kRaw, Packing::kBlosc}) {
      if (in_shards && packing == Packing::kBlosc) continue;  // its blocks are those of the test's own chunk files
      const LargeChunks data(packing, in_shards);
      for (const size_t fetchers : {size_t{0}, size_t{2}}) {
        const Context context(std::string(in_shards ? "shards " : "") + std::to_string(static_cast<int>(packing)));
        Engine engine(data.fields(), {.num_threads = 2, .num_fetch_threads = fetchers, .batch_size = 2});
        const PlanSpec spec = some_rows(data);
        start(engine, spec, 2);
        CHECK_EQ(drain(engine, data, spec, 2), int64_t{2});
        const Stats& stats = engine.stats();
        CHECK_EQ(stats.chunks_read.load(), uint64_t{2});
        CHECK_EQ(stats.bytes_decoded.load(), uint64_t{4} * kRow);
        CHECK_EQ(stats.chunk_bytes.load(), uint64_t{2} * kChunk);
        if (packing == Packing::kRaw) CHECK_EQ(stats.bytes_read.load(), uint64_t{4} * kRow);
        // Blosc: the first bytes of two chunks, and what a stream takes more.
        CHECK(stats.bytes_read <= 4 * kRow + 2 * 16'384 + 1024);
        engine.stop();
        CHECK(engine.scratch_bytes() < kChunk / 2);
      }
    }
  }
}

TEST(all_rows_of_a_chunk_are_read_at_once) {
  const LargeChunks data(Packing::kRaw);
  Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = 0, .batch_size = 8});
  const PlanSpec spec = shuffled_plan_spec(data, 32, 1);
  start(engine, spec, 8);
  drain(engine, data, spec, 8);
  CHECK_EQ(engine.stats().bytes_read.load(), uint64_t{3} * kChunk);
}

TEST(each_read_of_a_part_that_fails_is_tried_again) {
  for (const Packing packing : {Packing::kRaw, Packing::kBlosc}) {
    const LargeChunks data(packing);
    const PlanSpec spec = some_rows(data);
    for (const size_t fetchers : {size_t{0}, size_t{2}}) {
      for (int number = 0;; ++number) {
        const Context context("read " + std::to_string(number));
        Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = fetchers, .batch_size = 2});
        faults.error = EIO;
        faults.reads_to_pass = number;
        faults.reads_to_fail = 1;
        start(engine, spec, 2);
        CHECK_EQ(drain(engine, data, spec, 2), int64_t{2});
        const bool has_failed = faults.reads_to_fail == 0;
        faults.reads_to_pass = faults.reads_to_fail = 0;
        CHECK_EQ(engine.stats().retries.load(), uint64_t{has_failed ? 1U : 0U});
        if (has_failed) continue;
        CHECK(number >= 3);  // two parts of the first chunk, one of the last
        break;
      }
    }
  }
}

TEST(a_read_of_a_part_that_keeps_failing_is_an_error_that_names_the_chunk) {
  const LargeChunks data(Packing::kBlosc);
  Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = 1, .batch_size = 4, .max_retries = 1});
  faults.error = EIO;
  faults.reads_to_pass = 1;
  faults.reads_to_fail = 1 << 30;
  start(engine, some_rows(data), 4);
  CHECK_THROWS(kIo, "array0 chunk 0.0: cannot be read", take(engine));
  faults.reads_to_pass = faults.reads_to_fail = 0;
}

TEST(damage_is_the_same_error_whether_parts_or_all_of_the_chunk_are_read) {
  struct Damage {
    const char* error;  ///< null: the wanted rows are right
    size_t at;
    uint32_t word;
    size_t shorter = 0;
  };
  const size_t table = BloscHeader::kBytes;
  const std::array damages{
      Damage{"Blosc format version = 1", 0, 0x00000001},
      Damage{"Blosc blocksize = 32768, must be between 1 and nbytes = 77", 4, 77},
      Damage{"Blosc header declares", 12, 0x7fffffff},
      Damage{"Blosc block begins outside of the chunk", table + 4 * 31, 0x7fffffff},
      Damage{"Blosc block begins outside of the chunk", table + 4 * 31, 3},
      // Into the block of row 3: by the table, that block ends there; by its stream, it does not.
      Damage{nullptr, table + 4 * 31, 0},
      Damage{"Blosc header declares", 0, 0x04010102, 100'000},
  };
  for (const Damage& damage : damages) {
    const Context context(damage.error != nullptr ? damage.error : "rows");
    const LargeChunks data(Packing::kBlosc);
    const auto path = data.arrays[0]->chunk_path("0.0");
    ByteVector stored = read_file(path);
    const uint32_t version = stored[0] | stored[1] << 8U | stored[2] << 16U | static_cast<uint32_t>(stored[3]) << 24U;
    const BloscHeader header = BloscHeader::read(stored, stored.size(), kChunk);
    const BloscTable blocks(header, ByteView(stored).subspan(table));
    const auto in_row_3 = static_cast<uint32_t>(blocks.range_of(3).begin + 1000);
    CHECK(blocks.range_of(3).end - in_row_3 > 16'384);  // so large a gap is not read
    store_le32(stored, damage.at, damage.error == nullptr ? in_row_3 : damage.shorter > 0 ? version : damage.word);
    stored.resize(stored.size() - damage.shorter);
    write_file(path, stored);
    for (const bool all_rows : {false, true}) {
      Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = 1, .batch_size = 4});
      if (damage.error == nullptr) {
        if (all_rows) continue;
        const PlanSpec spec = some_rows(data);
        start(engine, spec, 4);
        CHECK_EQ(drain(engine, data, spec, 4), int64_t{1});
        continue;
      }
      std::vector<int64_t> rows;
      for (int64_t row = 0; row < 32; ++row) rows.push_back(row);
      start(engine, all_rows ? plan_of(data, rows, {0}) : some_rows(data), 4);
      CHECK_THROWS(kCorrupt, "array0 chunk 0.0: " + std::string(damage.error), take(engine));
    }
  }
}

TEST(a_damaged_block_is_bad_for_the_tasks_that_want_it_alone) {
  const LargeChunks data(Packing::kBlosc);
  const auto path = data.arrays[0]->chunk_path("0.0");
  ByteVector stored = read_file(path);
  const BloscHeader header = BloscHeader::read(stored, stored.size(), kChunk);
  store_le32(stored, BloscTable(header, ByteView(stored).subspan(BloscHeader::kBytes)).range_of(3).begin, 0x7fffffff);
  write_file(path, stored);
  for (const auto& [rows, are_bad] : {std::pair<std::vector<int64_t>, bool>{{3, 20}, true}, {{4, 20}, false}}) {
    for (const size_t fetchers : {size_t{0}, size_t{2}}) {
      Engine engine(data.fields(),
                    {.num_threads = 2, .num_fetch_threads = fetchers, .batch_size = 2, .skip_bad = true});
      const PlanSpec spec = plan_of(data, rows, {0});
      start(engine, spec, 2);
      const auto batch = take(engine);
      CHECK_EQ(batch->skipped.slots.size(), size_t{are_bad ? 2U : 0U});
      if (!are_bad) check_batch(engine, data, *batch, 0, 2, rows);
      release(engine, *batch);
      CHECK(take(engine) == nullptr);
    }
  }
}

TEST(a_chunk_that_is_wanted_again_is_read_whole_and_cached) {
  const LargeChunks data(Packing::kBlosc);
  Engine engine(data.fields(), {.num_threads = 1, .num_fetch_threads = 0, .batch_size = 1, .cache_bytes = 8 * kChunk});
  std::vector<uint64_t> read;
  std::vector<uint64_t> decoded;
  for (const int64_t row : {3, 9, 9, 20}) {
    const PlanSpec spec = plan_of(data, {row}, {0});
    start(engine, spec, 1);
    drain(engine, data, spec, 1);
    read.push_back(engine.stats().bytes_read);
    decoded.push_back(engine.stats().bytes_decoded);
  }
  CHECK(read[0] < 2 * kRow + 16'384);
  CHECK(read[1] > kChunk / 2);
  CHECK_EQ(read[3], read[1]);
  CHECK_EQ(decoded[0], uint64_t{kRow});
  CHECK_EQ(decoded[3], uint64_t{kRow} + kChunk);
}

}  // namespace zarrfeed::testing::engine_read_parts_test
