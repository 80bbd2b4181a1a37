// One field: decoding and scattering together.

#include "transform/output.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "spec/array_spec.h"
#include "spec/codec_spec.h"
#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/compress.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/plans.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"
#include "tools/local_reader.h"

namespace zarrfeed::testing::output_test {
namespace {

/// Reads, decodes and scatters the rows of one chunk's samples through the reader, as a decode thread does.
void read_rows(const Output& reader, int64_t chunk, const std::vector<RowTarget>& targets, Stats& stats) {
  const std::shared_ptr<ChunkReader> chunks = open_local(reader);
  WorkerScratch scratch;
  for (size_t cell = 0; cell < reader.num_cells(); ++cell) {
    std::vector<RowTarget> rows = targets;
    const ReadResult read = read_chunk(*chunks, chunk, cell, scratch.stored);
    if (read.status == ReadStatus::kMissing) {
      reader.scatter_fill(cell, rows);
    } else {
      const OutputRows of_output{&reader, rows.size()};
      decode_and_scatter(chunk, cell, read.bytes, {&of_output, 1}, rows, chunk % 2 == 0, scratch, stats);
    }
  }
}

}  // namespace

TEST(samples_arrive_whole_from_all_their_cells) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 150; ++i) {
    const TempDir directory;
    const ArrayLayout layout = random_layout(random, pick(random, 1, 40));
    const Context context(zarrfeed::testing::describe(layout));
    TestArray array(directory.path() / "a", layout);
    if (random() % 3 == 0) array.remove_chunk(array.keys()[random() % array.keys().size()]);
    const Output reader(array.field());
    Stats stats;
    const int64_t rows = reader.source()->rows_per_chunk();
    for (int64_t chunk = 0; chunk * rows < array.num_samples(); ++chunk) {
      const int64_t end = std::min((chunk + 1) * rows, array.num_samples());
      const bool backwards = random() % 2 == 0;
      const GuardedBytes out(static_cast<size_t>(end - chunk * rows) * array.sample_bytes());
      std::vector<RowTarget> targets;
      for (int64_t s = chunk * rows; s < end; ++s) {
        const auto slot = static_cast<size_t>(backwards ? end - 1 - s : s - chunk * rows);
        targets.push_back({s, out.span().data() + slot * array.sample_bytes()});
      }
      read_rows(reader, chunk, targets, stats);
      for (const RowTarget& t : targets) {
        CHECK(std::vector<uint8_t>(t.dest, t.dest + array.sample_bytes()) == array.sample(t.row));
      }
    }
  }
}

TEST(a_chunk_that_is_decoded_in_place_equals_one_that_is_copied) {
  for (int packing = 0; packing < kNumPackings; ++packing) {
    const Context context("packing " + std::to_string(packing));
    const TempDir directory;
    const TestArray array(directory.path() / "a",
                          {.shape = {16, 6}, .chunk_shape = {8, 6}, .packing = static_cast<Packing>(packing)});
    const Output reader(array.field());
    Stats stats;
    const size_t bytes = array.sample_bytes();
    const GuardedBytes in_order(8 * bytes);
    const GuardedBytes apart(16 * bytes);
    std::vector<RowTarget> direct;
    std::vector<RowTarget> copied;
    for (int64_t s = 8; s < 16; ++s) {
      const auto slot = static_cast<size_t>(s - 8);
      direct.push_back({s, in_order.span().data() + slot * bytes});
      copied.push_back({s, apart.span().data() + 2 * slot * bytes});
    }
    read_rows(reader, 1, direct, stats);
    read_rows(reader, 1, copied, stats);
    for (size_t slot = 0; slot < 8; ++slot) {
      CHECK_EQ(std::memcmp(direct[slot].dest, copied[slot].dest, bytes), 0);
      CHECK(std::vector<uint8_t>(direct[slot].dest, direct[slot].dest + bytes) == array.sample(direct[slot].row));
    }
    CHECK_EQ(stats.chunks_read.load(), uint64_t{2});
    CHECK_EQ(stats.bytes_decoded.load(), uint64_t{2} * 8 * bytes);
    CHECK_EQ(stats.bytes_scattered.load(), uint64_t{2} * 8 * bytes);
  }
}

TEST(rows_that_come_straight_from_blosc_blocks_equal_those_that_are_copied) {
  std::mt19937_64 random(6);
  for (const Packing packing : {Packing::kBlosc, Packing::kBloscBit, Packing::kBloscThenCrc32c, Packing::kRaw}) {
    for (const int64_t width : {1023, 1024, 1500}) {  // rows of a bit below 4 KiB, exactly as much, and above
      const TempDir directory;
      const TestArray array(directory.path() / "a",
                            {.shape = {21, width}, .chunk_shape = {8, width}, .packing = packing});
      const Output reader(array.field());
      Stats stats;
      const size_t bytes = array.sample_bytes();
      for (int64_t chunk = 0; chunk < 3; ++chunk) {
        const GuardedBytes out(8 * bytes);
        std::vector<RowTarget> targets;
        for (int64_t s = 8 * chunk; s < std::min<int64_t>(8 * chunk + 8, 21); ++s) {
          if (random() % 4 != 0) targets.push_back({s, out.span().data() + static_cast<size_t>(7 - s % 8) * bytes});
        }
        std::shuffle(targets.begin(), targets.end(), random);
        read_rows(reader, chunk, targets, stats);
        for (const RowTarget& t : targets) {
          CHECK(std::vector<uint8_t>(t.dest, t.dest + bytes) == array.sample(t.row));
        }
      }
    }
  }
}

TEST(a_checksum_inside_of_the_compression_is_undone_where_chunks_are_decoded_in_place) {
  // v3 codecs [bytes, crc32c, zstd]: what the decompressor writes is longer than the chunk.
  const TempDir directory;
  const TestArray plain(directory.path() / "plain", {.shape = {8, 6}, .chunk_shape = {8, 6}});
  const std::vector<uint8_t> chunk = read_file(plain.chunk_path("0.0"));
  FieldSpec field = plain.field();
  field.array.codecs = {{"zstd"}, {"crc32c"}};
  const Output reader(std::move(field));
  const size_t bytes = plain.sample_bytes();
  const GuardedBytes out(8 * bytes);
  std::vector<RowTarget> targets;
  for (int64_t s = 0; s < 8; ++s) targets.push_back({s, out.span().data() + static_cast<size_t>(s) * bytes});
  WorkerScratch scratch;
  Stats stats;
  const OutputRows of_output{&reader, targets.size()};
  decode_and_scatter(0, 0, compress_zstd(append_crc32c(chunk)), {&of_output, 1}, targets, false, scratch, stats);
  CHECK(out.copy() == chunk);
}

TEST(fields_that_are_not_stored_give_their_rows) {
  const std::vector<uint8_t> rows = {0, 1, 10, 11, 20, 21, 30, 31};
  FieldSpec spec;
  spec.kind = FieldSpec::Kind::kResident;
  spec.rows = rows.data();
  spec.sample_bytes = 2;
  const Output resident(spec);
  CHECK(!resident.is_stored());
  CHECK_EQ(resident.sample_bytes(), size_t{2});
  CHECK(resident.source() == nullptr);
  std::vector<uint8_t> out(4);
  std::vector<RowTarget> targets = {{3, out.data()}, {1, out.data() + 2}};
  resident.scatter_resident(targets);
  CHECK_EQ(out, (std::vector<uint8_t>{30, 31, 10, 11}));

  // A tensor without items has no memory, and torch says so: memcpy() from there is undefined, even of 0 bytes.
  spec.rows = nullptr;
  spec.sample_bytes = 0;
  const Output nothing(spec);
  CHECK_EQ(nothing.sample_bytes(), size_t{0});
  nothing.scatter_resident(targets);
  CHECK_EQ(out, (std::vector<uint8_t>{30, 31, 10, 11}));

  spec = {};
  spec.kind = FieldSpec::Kind::kIndex;
  const Output index(spec);
  CHECK_EQ(index.sample_bytes(), sizeof(int64_t));
  int64_t number = 0;
  targets = {{int64_t{1} << 40, reinterpret_cast<uint8_t*>(&number)}};
  index.scatter_resident(targets);
  CHECK_EQ(number, int64_t{1} << 40);
}

}  // namespace zarrfeed::testing::output_test
