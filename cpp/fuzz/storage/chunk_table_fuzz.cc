// Tables of the chunks of an array in a file and in memory, of arbitrary numbers, and arbitrary keys.
//
// What must hold: a table that is valid, by 128-bit arithmetic, is accepted, and no other one; a chunk is the bytes that
// the table says, with zeros behind them, or is missing; nothing is read outside of file and memory.

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "base/buffer.h"
#include "base/error.h"
#include "fuzz/support/fuzz.h"
#include "spec/chunk_table.h"
#include "storage/table_store.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::fuzzing::chunk_table_fuzz {
namespace {

using Wide = __int128;

constexpr size_t kMostBytes = 4096;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kFileBytes = 600;

/// One file for all inputs.
struct File {
  File() : content(testing::noise(kFileBytes, 1)) {
    testing::write_file(path(), content);
    struct stat info{};
    CHECK_EQ(stat(path().c_str(), &info), 0);
    modified_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
  }
  [[nodiscard]] std::string path() const { return directory.path() / "file"; }

  testing::TempDir directory;
  ByteVector content;
  int64_t modified_ns = 0;
};

int64_t draw_number(Draw& draw) {
  constexpr int64_t kTelling[] = {0, -1, 1, kFileBytes, kMost, kMost - kFileBytes, std::numeric_limits<int64_t>::min()};
  return draw.pick(0, 3) == 3 ? draw.one_of(kTelling) : draw.pick(0, 255);
}

template <typename T>
std::vector<T> draw_column(Draw& draw, size_t count) {
  if (draw.pick(0, 15) == 15) ++count;
  std::vector<T> column;
  while (column.size() < count) column.push_back(static_cast<T>(draw_number(draw)));
  return column;
}

ChunkTable draw_table(Draw& draw, const File& file) {
  ChunkTable table;
  table.files = {{file.path(), kFileBytes, file.modified_ns}};
  const Bytes memory = draw.take(static_cast<size_t>(draw.pick(0, 20)));
  table.in_memory.assign(memory.begin(), memory.end());
  for (int64_t axis = draw.pick(0, 3); axis > 0; --axis) table.grid.push_back(draw_number(draw));
  const auto count = static_cast<size_t>(draw.pick(0, 12));
  if (draw.coin()) table.numbers = draw_column<int64_t>(draw, count);
  if (draw.coin()) std::ranges::sort(table.numbers);
  table.offsets = draw_column<int64_t>(draw, count);
  table.lengths = draw_column<int64_t>(draw, table.offsets.size());
  if (draw.coin()) {
    table.file_indices = draw_column<int32_t>(draw, table.offsets.size());
    if (draw.coin()) {
      for (int32_t& index : table.file_indices) index = index % 2 == 0 ? 0 : ChunkTable::kInMemory;
    }
  }
  table.padded_bytes = draw.coin() ? static_cast<uint64_t>(draw_number(draw)) : 0;
  return table;
}

bool is_valid(const ChunkTable& table) {
  Wide chunks = 1;
  for (const int64_t along : table.grid) {
    if (along < 0) return false;
    chunks *= std::max<int64_t>(along, 1);
    if (chunks > kMost) return false;
  }
  const size_t count = table.offsets.size();
  if (table.lengths.size() != count || table.padded_bytes > static_cast<uint64_t>(kMost)) return false;
  if (!table.numbers.empty() && table.numbers.size() != count) return false;
  if (!table.file_indices.empty() && table.file_indices.size() != count) return false;
  for (size_t i = 0; i < count; ++i) {
    const int32_t at = table.file_indices.empty() ? 0 : table.file_indices[i];
    if (at != 0 && at != ChunkTable::kInMemory) return false;
    const Wide end = Wide{table.offsets[i]} + table.lengths[i];
    if (table.offsets[i] < 0 || table.lengths[i] < 0) return false;
    if (end > (at == 0 ? Wide{kFileBytes} : static_cast<Wide>(table.in_memory.size()))) return false;
    if (i > 0 && !table.numbers.empty() && table.numbers[i - 1] > table.numbers[i]) return false;
  }
  return true;
}

/// The entry of a chunk, by a look at all of them; nothing if it has none.
std::optional<size_t> entry_of(const ChunkTable& table, const std::vector<int64_t>& index) {
  if (index.size() != table.grid.size()) return std::nullopt;
  Wide number = 0;
  for (size_t axis = 0; axis < index.size(); ++axis) {
    if (index[axis] >= table.grid[axis]) return std::nullopt;
    number = number * table.grid[axis] + index[axis];
  }
  for (size_t i = 0; i < table.offsets.size(); ++i) {
    if (number == (table.numbers.empty() ? static_cast<Wide>(i) : Wide{table.numbers[i]})) return i;
  }
  return std::nullopt;
}

void check_chunk(const ChunkTable& table, const File& file, TableStore& store, const std::vector<int64_t>& index) {
  std::string key;
  for (const int64_t one : index) key += (key.empty() ? "" : ".") + std::to_string(one);
  const auto entry = entry_of(table, index);
  Buffer room;
  PendingRead pending;
  ReadStatus status = ReadStatus::kOk;
  try {
    status = store.read_blocking(key, room, pending);
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    CHECK(entry && std::max(table.padded_bytes, static_cast<uint64_t>(table.lengths[*entry])) > kMostBytes);
    return;
  }
  CHECK_EQ(status == ReadStatus::kMissing, !entry.has_value());
  if (!entry) return;
  const bool in_memory = !table.file_indices.empty() && table.file_indices[*entry] == ChunkTable::kInMemory;
  const ByteVector& from = in_memory ? table.in_memory : file.content;
  const auto begin = from.begin() + table.offsets[*entry];
  ByteVector expected(begin, begin + table.lengths[*entry]);
  if (table.padded_bytes > 0) expected.resize(static_cast<size_t>(table.padded_bytes));
  CHECK(std::ranges::equal(expected, pending.read.bytes));
}

void run_input(Bytes input) {
  static const File file;
  Draw draw(input);
  const ChunkTable table = draw_table(draw, file);
  const bool valid = is_valid(table);
  CHECK_EQ(table.is_valid(), valid);
  if (!valid) return;
  TableStore store(ChunkTables({std::make_shared<ChunkTable>(table)}, KeySpec{"", '.'}, false), kMostBytes, nullptr);
  for (int64_t reads = draw.pick(1, 8); reads > 0; --reads) {
    std::vector<int64_t> index;
    for (const int64_t along : table.grid) {
      index.push_back(draw.coin() ? draw.pick(0, 255) : std::max<int64_t>(0, along - draw.pick(0, 3)));
    }
    check_chunk(table, file, store, index);
  }
  const Bytes rest = draw.rest();
  Buffer room;
  PendingRead pending;
  try {
    static_cast<void>(store.read_blocking(std::string(rest.begin(), rest.end()), room, pending));
  } catch (const Error& error) {  // also one that says that it is no key
    CHECK(is_refusal(error) || error.kind() == ErrorKind::kConfig);
  }
}

/// Grids of two axes whose chunks lie side by side: all of them, or every other one; in the file, or some in memory.
std::vector<ByteVector> make_seeds() {
  std::vector<ByteVector> seeds;
  for (int64_t number = 0; number < 16; ++number) {
    const bool all = number % 2 == 0;
    const bool mixed = number / 2 % 2 == 1;
    const int64_t rows = 1 + number / 4;
    const int64_t count = all ? rows * 2 : rows;
    const auto plain = [](Pen& pen, int64_t value) { pen.pick(0, 0, 3).pick(value, 0, 255); };
    Pen pen;
    pen.pick(20, 0, 20).bytes(testing::noise(20, 2));
    pen.pick(2, 0, 3);
    plain(pen, rows);
    plain(pen, 2);
    pen.pick(count, 0, 12).byte(all ? 0 : 1);
    if (!all) {
      pen.pick(0, 0, 15);
      for (int64_t i = 0; i < count; ++i) plain(pen, i * 2);
    }
    pen.byte(0).pick(0, 0, 15);
    for (int64_t i = 0; i < count; ++i) plain(pen, mixed ? i : i * 17);
    pen.pick(0, 0, 15);
    for (int64_t i = 0; i < count; ++i) plain(pen, 10);
    pen.byte(mixed ? 1 : 0);
    if (mixed) {
      pen.pick(0, 0, 15);
      for (int64_t i = 0; i < count; ++i) plain(pen, i);
      pen.byte(1);
    }
    pen.byte(1);
    plain(pen, 16);
    pen.pick(8, 1, 8);
    for (int64_t i = 0; i < 8; ++i) pen.byte(1).pick(i / 2, 0, 255).byte(1).pick(i % 2, 0, 255);
    const std::string key = "1.0";
    pen.bytes(ByteVector(key.begin(), key.end()));
    seeds.push_back(pen.input());
  }
  return seeds;
}

std::vector<Finding> findings() {
  return {};
}

const Target target("chunk_table", run_input, make_seeds, findings, kQuickChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::chunk_table_fuzz
