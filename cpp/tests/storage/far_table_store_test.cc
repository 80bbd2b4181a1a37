// Chunks at offsets in files that something else reads: random tables against the bytes of the files, and the ranges that
// are read together.

#include "storage/far_table_store.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/support/check.h"

namespace zarrfeed::testing::far_table_store_test {
namespace {

using Content = std::vector<uint8_t>;

constexpr size_t kMaxBytes = 1 << 20;
const KeySpec kDots{"", '.'};

/// Files in memory, by "@" and a number; remembers which requests came together.
class Files : public ByteStore {
 public:
  explicit Files(Coalesce coalesce, bool has_parts = false) : coalesce_(coalesce), has_parts_(has_parts) {}

  ReadResult try_read(const std::string& /*key*/, const ByteRange& /*range*/, Buffer& /*room*/) override { return {}; }
  void read(std::vector<ReadRequest> requests) override {
    runs.push_back(requests.size());
    uint64_t before = 0;
    for (ReadRequest& request : requests) {
      CHECK_EQ(request.key, requests.front().key);
      const Content& content = at(request.key);
      const bool is_range = request.range.kind == ByteRange::Kind::kAt;
      CHECK(is_range || requests.size() == 1);
      const size_t size = is_range ? request.range.size : content.size();
      CHECK(request.range.offset >= before);
      before = request.range.offset;
      const auto copy = std::make_shared<Content>(content.begin() + static_cast<std::ptrdiff_t>(before),
                                                  content.begin() + static_cast<std::ptrdiff_t>(before + size));
      request.done({.status = ReadStatus::kOk, .bytes = *copy, .hold = copy});
    }
  }
  [[nodiscard]] Limits limits() const override {
    return {.can_try = false, .needs_room = false, .coalesce = coalesce_};
  }
  bool stop(std::chrono::steady_clock::time_point /*deadline*/) override { return true; }

  std::vector<Content> files;
  std::vector<size_t> runs;

 private:
  const Coalesce coalesce_;
  const bool has_parts_;

  [[nodiscard]] const Content& at(const std::string& key) const {
    const size_t slash = key.find('/');
    const std::string part = has_parts_ ? key.substr(0, slash) : "0";
    const std::string name = has_parts_ ? key.substr(slash + 1) : key;
    CHECK_EQ(name.front(), kBeforeFileNumber);
    return files.at(std::stoul(part) + std::stoul(name.substr(1)));
  }
};

Content noise(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Content out(n);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

ChunkTable table_of(const std::vector<Content>& files) {
  ChunkTable table;
  for (const Content& file : files) table.files.push_back({.path = {}, .bytes = file.size()});
  return table;
}

FarTableStore store_of(const std::shared_ptr<Files>& files, const ChunkTable& table) {
  return {files, ChunkTables({std::make_shared<ChunkTable>(table)}, kDots, false), kMaxBytes};
}

/// The answers to requests that come together; an error is its text.
std::vector<std::pair<std::optional<Content>, std::string>> read(FarTableStore& store,
                                                                 const std::vector<std::string>& keys) {
  std::vector<std::pair<std::optional<Content>, std::string>> found(keys.size());
  std::vector<ReadRequest> requests;
  size_t answers = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    requests.push_back({.key = keys[i], .done = [&found, &answers, i](const ReadResult& result) {
                          ++answers;
                          if (result.error) {
                            found[i].second = result.error->what();
                          } else if (result.status == ReadStatus::kOk) {
                            found[i].first = Content(result.bytes.begin(), result.bytes.end());
                          }
                        }});
  }
  store.read(std::move(requests));
  CHECK_EQ(answers, keys.size());
  return found;
}

}  // namespace

TEST(chunks_are_the_bytes_at_their_offsets_however_they_are_read_together) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    const Context context("round " + std::to_string(round));
    const auto files = std::make_shared<Files>(Coalesce{random() % 200, random() % 3 == 0 ? 0 : random() % 2'000});
    for (uint64_t file = 0; file < 3; ++file) files->files.push_back(noise(3'000, file));
    ChunkTable table = table_of(files->files);
    table.in_memory = noise(50, 9);
    table.grid = {20};
    table.padded_bytes = random() % 2 == 0 ? 300 : 0;
    std::vector<std::optional<Content>> expected(20);
    for (size_t number = 0; number < expected.size(); ++number) {
      if (random() % 5 == 0) continue;  // never written
      const auto file = static_cast<int32_t>(random() % 4) - 1;
      const Content& content =
          file == ChunkTable::kInMemory ? table.in_memory : files->files[static_cast<size_t>(file)];
      const bool is_whole = file >= 0 && table.padded_bytes == 0 && random() % 6 == 0;
      const size_t offset = is_whole ? 0 : random() % content.size();
      const size_t length = is_whole ? content.size() : random() % std::min<size_t>(300, content.size() - offset + 1);
      table.numbers.push_back(static_cast<int64_t>(number));
      table.offsets.push_back(static_cast<int64_t>(offset));
      table.lengths.push_back(is_whole ? ChunkTable::kWhole : static_cast<int64_t>(length));
      table.file_indices.push_back(file);
      const auto begin = content.begin() + static_cast<std::ptrdiff_t>(offset);
      expected[number] = Content(begin, begin + static_cast<std::ptrdiff_t>(length));
      if (table.padded_bytes > 0) expected[number]->resize(table.padded_bytes);
    }
    FarTableStore store = store_of(files, table);
    std::vector<std::string> keys;
    for (int i = 0; i < 30; ++i) keys.push_back(std::to_string(random() % 21));
    const auto found = read(store, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      const size_t number = std::stoul(keys[i]);
      CHECK_EQ(found[i].second, "");
      CHECK(found[i].first == (number < expected.size() ? expected[number] : std::nullopt));
    }
  }
}

TEST(neighbours_in_a_file_are_read_together_within_gap_and_limit) {
  const auto files = std::make_shared<Files>(Coalesce{10, 100});
  files->files = {noise(1'000, 0), noise(1'000, 1)};
  ChunkTable table = table_of(files->files);
  table.grid = {7};
  //               0   1   2    3   4   5: another file, 6: more than the limit
  table.offsets = {40, 0, 25, 150, 70, 75, 200};
  table.lengths = {30, 15, 15, 20, 30, 5, 300};
  table.file_indices = {0, 0, 0, 0, 0, 1, 0};
  FarTableStore store = store_of(files, table);
  read(store, {"3", "0", "6", "4", "5", "1", "2"});
  CHECK(files->runs == (std::vector<size_t>{4, 1, 1, 1}));  // 1 2 0 4, 3, 6; 5
  CHECK(store.are_near("1", "2") && store.are_near("2", "1") && store.are_near("2", "0"));
  CHECK(!store.are_near("0", "1"));  // 25 bytes between them
  CHECK(!store.are_near("4", "5"));  // another file
  CHECK(!store.are_near("3", "6"));
}

TEST(each_part_has_files_of_its_own) {
  const auto files = std::make_shared<Files>(Coalesce{10, 1'000}, true);
  files->files = {noise(100, 0), noise(100, 1)};
  std::vector<std::shared_ptr<const ChunkTable>> tables;
  for (int part = 0; part < 2; ++part) {
    ChunkTable table = table_of({files->files[static_cast<size_t>(part)]});
    table.grid = {2};
    table.offsets = {10, 20};
    table.lengths = {10, 10};
    tables.push_back(std::make_shared<ChunkTable>(table));
  }
  FarTableStore store(files, ChunkTables(tables, kDots, true), kMaxBytes);
  const auto found = read(store, {"1/0", "0/1", "1/1", "0/0"});
  CHECK(files->runs == (std::vector<size_t>{2, 2}));
  CHECK(found[0].first == Content(files->files[1].begin() + 10, files->files[1].begin() + 20));
  CHECK(found[1].first == Content(files->files[0].begin() + 20, files->files[0].begin() + 30));
  CHECK(!store.are_near("0/1", "1/0"));
}

TEST(a_chunk_that_is_too_large_is_not_asked_for_and_harms_no_other) {
  const auto files = std::make_shared<Files>(Coalesce{10, 1'000});
  files->files = {noise(100, 0)};
  ChunkTable table = table_of(files->files);
  table.files[0].bytes = kMaxBytes * 4;
  table.grid = {2};
  table.offsets = {0, 10};
  table.lengths = {kMaxBytes + 1, 10};
  FarTableStore store = store_of(files, table);
  const auto found = read(store, {"0", "1", "x"});
  CHECK(found[0].second.find("1048577 bytes") != std::string::npos);
  CHECK(found[1].first == Content(files->files[0].begin() + 10, files->files[0].begin() + 20));
  CHECK(found[2].second.find("no key of a chunk") != std::string::npos);
  CHECK(files->runs == std::vector<size_t>{1});
}

}  // namespace zarrfeed::testing::far_table_store_test
