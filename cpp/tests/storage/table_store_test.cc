// Chunks at offsets in a file: random tables against the bytes of the file, zeros behind its end, and files that change.

#include "storage/table_store.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/stored_bytes.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::table_store_test {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
const KeySpec kDots{"", '.'};

std::vector<uint8_t> noise(size_t n) {
  std::mt19937_64 random(7);
  std::vector<uint8_t> out(n);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

/// A file with noise.
struct File {
  explicit File(size_t bytes) : content(noise(bytes)) { write_file(path(), content); }
  [[nodiscard]] std::filesystem::path path() const { return directory.path() / "data.h5"; }
  /// A table of the file as it is, of one axis, all of whose chunks are stored.
  [[nodiscard]] ChunkTable table(std::vector<int64_t> offsets, std::vector<int64_t> lengths) const {
    struct stat info{};
    CHECK_EQ(stat(path().c_str(), &info), 0);
    const int64_t modified_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
    const auto chunks = static_cast<int64_t>(offsets.size());
    return {.files = {{path(), content.size(), modified_ns}},
            .in_memory = {},
            .grid = {chunks},
            .numbers = {},
            .offsets = std::move(offsets),
            .lengths = std::move(lengths),
            .file_indices = {}};
  }
  [[nodiscard]] std::vector<uint8_t> part(int64_t offset, int64_t length) const {
    return {content.begin() + offset, content.begin() + offset + length};
  }

  TempDir directory;
  std::vector<uint8_t> content;
};

TableStore store_of(const ChunkTable& table, KeySpec key = kDots) {
  return {ChunkTables({std::make_shared<ChunkTable>(table)}, std::move(key), false), kMaxBytes, nullptr};
}

/// As the engine reads: what is at hand, and else by waiting. Nothing if the chunk is missing.
std::optional<std::vector<uint8_t>> read(TableStore& store, const std::string& key, const ByteRange& range = {}) {
  Buffer room;
  ReadResult result = store.try_read(key, range, room);
  if (result.status == ReadStatus::kWouldBlock) {
    std::vector<ReadRequest> one;
    one.push_back(
        {.key = key, .range = range, .room = &room, .done = [&](ReadResult got) { result = std::move(got); }});
    store.read(std::move(one));
  }
  if (result.error) throw *result.error;
  if (result.status == ReadStatus::kMissing) return std::nullopt;
  CHECK_EQ(result.status, ReadStatus::kOk);
  return std::vector<uint8_t>(result.bytes.begin(), result.bytes.end());
}

}  // namespace

TEST(chunks_are_the_bytes_at_their_offsets) {
  const File file(100'000);
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    const Context context("round " + std::to_string(round));
    const int64_t rows = 1 + static_cast<int64_t>(random() % 5);
    const int64_t columns = 1 + static_cast<int64_t>(random() % 5);
    ChunkTable table = file.table({}, {});
    table.grid = {rows, columns};
    std::vector<std::optional<std::vector<uint8_t>>> expected(static_cast<size_t>(rows * columns));
    for (size_t number = 0; number < expected.size(); ++number) {
      if (random() % 3 == 0) continue;  // never written
      const auto offset = static_cast<int64_t>(random() % 100'000);
      const auto length = static_cast<int64_t>(random() % static_cast<uint64_t>(100'000 - offset + 1));
      table.numbers.push_back(static_cast<int64_t>(number));
      table.offsets.push_back(offset);
      table.lengths.push_back(length);
      expected[number] = file.part(offset, length);
    }
    const bool is_v3 = random() % 2 == 0;
    TableStore store = store_of(table, is_v3 ? KeySpec{"c", '/'} : kDots);
    for (int64_t row = 0; row <= rows; ++row) {
      for (int64_t column = 0; column <= columns; ++column) {
        const std::string key =
            (is_v3 ? "c/" : "") + std::to_string(row) + (is_v3 ? "/" : ".") + std::to_string(column);
        const bool is_inside = row < rows && column < columns;
        const auto wanted = is_inside ? expected[static_cast<size_t>(row * columns + column)] : std::nullopt;
        CHECK(read(store, key) == wanted);
      }
    }
  }
}

TEST(zeros_follow_where_the_file_has_less_than_a_chunk) {
  const File file(1'000);
  ChunkTable table = file.table({0, 400, 800}, {400, 400, 200});
  table.padded_bytes = 400;
  TableStore store = store_of(table);
  std::vector<uint8_t> last = file.part(800, 200);
  last.resize(400);
  CHECK(read(store, "1") == file.part(400, 400));
  CHECK(read(store, "2") == last);
  CHECK(read(store, "2", ByteRange::at(150, 100)) == std::vector<uint8_t>(last.begin() + 150, last.begin() + 250));
  CHECK(read(store, "2", ByteRange::at(200, 200)) == std::vector<uint8_t>(200));
  CHECK(read(store, "2", ByteRange::last(250)) == std::vector<uint8_t>(last.begin() + 150, last.end()));
  CHECK_THROWS(kCorrupt, "has 400 bytes", read(store, "2", ByteRange::at(300, 101)));
}

TEST(chunks_of_one_array_lie_in_several_files_and_in_memory) {
  const File one(500);
  const File other(700);
  ChunkTable table = one.table({10, 600, 3, 0, 5}, {20, 100, 4, 0, 500 - 5});
  table.files.push_back(other.table({}, {}).files[0]);
  table.in_memory = noise(9);
  table.file_indices = {0, 1, ChunkTable::kInMemory, ChunkTable::kInMemory, 0};
  TableStore store = store_of(table);
  CHECK(read(store, "0") == one.part(10, 20));
  CHECK(read(store, "1") == other.part(600, 100));
  CHECK(read(store, "2") == std::vector<uint8_t>(table.in_memory.begin() + 3, table.in_memory.begin() + 7));
  CHECK(read(store, "2", ByteRange::last(2)) ==
        std::vector<uint8_t>(table.in_memory.begin() + 5, table.in_memory.begin() + 7));
  CHECK_THROWS(kCorrupt, "has 4 bytes", read(store, "2", ByteRange::at(3, 2)));
  CHECK(read(store, "3") == std::vector<uint8_t>());
  CHECK(read(store, "4") == one.part(5, 495));
  table.padded_bytes = 8;
  TableStore padded = store_of(table);
  std::vector<uint8_t> expected(table.in_memory.begin() + 3, table.in_memory.begin() + 7);
  expected.resize(8);
  CHECK(read(padded, "2") == expected);
  table.in_memory.clear();
  TableStore empty = store_of(table);
  CHECK(read(empty, "3") == std::vector<uint8_t>(8));
}

TEST(a_chunk_of_a_part_is_one_of_its_own_file) {
  const File one(500);
  const File other(700);
  std::vector<std::shared_ptr<const ChunkTable>> tables;
  tables.push_back(std::make_shared<ChunkTable>(one.table({10}, {20})));
  tables.push_back(std::make_shared<ChunkTable>(other.table({600, 5}, {100, 7})));
  TableStore store(ChunkTables(std::move(tables), kDots, true), kMaxBytes, nullptr);
  CHECK(read(store, "0/0") == one.part(10, 20));
  CHECK(read(store, "1/0") == other.part(600, 100));
  CHECK(read(store, "1/1") == other.part(5, 7));
  CHECK(!read(store, "0/1"));
  for (const char* key : {"2/0", "0", "", "x/0", "-1/0", "0/", "0/0.", "0/a"}) {
    const Context context(key);
    try {
      CHECK(!read(store, key));  // no chunk, and an index of another length is none either
    } catch (const Error& error) {
      CHECK_EQ(error.kind(), ErrorKind::kConfig);
    }
  }
}

TEST(a_file_that_changed_is_an_error_that_no_other_try_mends) {
  const File file(1'000);
  const ChunkTable table = file.table({0}, {1'000});
  for (const int changed : {0, 1}) {
    ChunkTable other = table;
    if (changed == 0) other.files[0].bytes += 1;
    if (changed == 1) other.files[0].modified_ns -= 1;
    TableStore store = store_of(other);
    try {
      read(store, "0");
    } catch (const Error& error) {
      CHECK_EQ(error.errno_value(), EINVAL);
      CHECK(std::string(error.what()).find("data.h5 has changed since it was opened") != std::string::npos);
      continue;
    }
    FAIL("was read");
  }
  TableStore store = store_of(table);
  std::filesystem::remove(file.path());
  CHECK_THROWS(kIo, "data.h5 is gone", read(store, "0"));
}

TEST(a_chunk_larger_than_the_array_allows_is_refused) {
  const File file(kMaxBytes + 10);
  TableStore store = store_of(file.table({0}, {kMaxBytes + 1}));
  CHECK_THROWS(kCorrupt, "are plausible", read(store, "0"));
}

}  // namespace zarrfeed::testing::table_store_test
