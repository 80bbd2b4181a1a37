// Inner chunks of shard files: found by the index, read once, missing, damaged, replaced, and read by many threads.

#include "storage/shard_reader.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "spec/shard_spec.h"
#include "storage/access/byte_store.h"
#include "storage/file_store.h"
#include "tests/support/check.h"
#include "tests/support/shards.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::shard_reader_test {
namespace {

constexpr size_t kMaxBytes = 1 << 16;

std::vector<uint8_t> content(size_t shard, size_t position) {
  std::vector<uint8_t> out(1 + position * 37 % 500);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(i + shard * 101 + position * 7);
  return out;
}

/// A directory of shards with 2 x 3 inner chunks, of which number 4 is missing, and an open source over it.
struct Store {
  explicit Store(ShardSpec of = {.chunks = {2, 3}, .index_has_crc32c = true}) : spec(std::move(of)) {
    write_file(root() / "zarr.json", std::vector<uint8_t>{1});
    local->open();
    shards = std::make_shared<ShardReader>(local, spec, kMaxBytes);
  }
  [[nodiscard]] std::filesystem::path root() const { return directory.path() / "array"; }
  void put(const std::string& key, size_t shard, size_t gap = 0) const {
    std::vector<std::optional<std::vector<uint8_t>>> chunks;
    for (size_t i = 0; i < 6; ++i) chunks.emplace_back(content(shard, i));
    chunks[4].reset();
    write_file(root() / key, make_shard(spec, chunks, gap));
  }
  [[nodiscard]] std::optional<std::vector<uint8_t>> read(const std::string& key, size_t position,
                                                         bool blocking = false) const {
    Buffer room;
    ReadResult result{.status = ReadStatus::kWouldBlock};
    if (!blocking) result = shards->try_read(key, position, room);
    if (result.status == ReadStatus::kWouldBlock) result = read_here(key, position, room);
    if (result.error) throw *result.error;
    if (result.status == ReadStatus::kMissing) return std::nullopt;
    CHECK_EQ(result.status, ReadStatus::kOk);
    return std::vector<uint8_t>(result.bytes.begin(), result.bytes.end());
  }
  /// Reads on this thread, since the store has none.
  [[nodiscard]] ReadResult read_here(const std::string& key, size_t position, Buffer& room) const {
    std::optional<ReadResult> result;
    std::vector<ReadRequest> requests;
    requests.push_back({.key = key, .inner_chunk = position, .room = &room, .done = [&](ReadResult got) {
                          CHECK(!result);
                          result = std::move(got);
                        }});
    shards->read(std::move(requests));
    CHECK(result.has_value());
    return std::move(*result);
  }
  void check_all(const std::string& key, size_t shard, bool blocking = false) const {
    for (size_t i = 0; i < 6; ++i) {
      const auto got = read(key, i, blocking);
      CHECK_EQ(got.has_value(), i != 4);
      if (got) CHECK_EQ(*got, content(shard, i));
    }
  }

  TempDir directory;
  ShardSpec spec;
  std::shared_ptr<FileStore> local = std::make_shared<FileStore>(root().string(), "zarr.json", kMaxBytes);
  std::shared_ptr<ShardReader> shards;
};

/// A shard in memory, of a store that reads ranges together; notes what comes in each read().
class TogetherStore : public ByteStore {
 public:
  TogetherStore(std::vector<uint8_t> shard, Coalesce coalesce) : shard_(std::move(shard)), coalesce_(coalesce) {}

  ReadResult try_read(const std::string& /*key*/, const ByteRange& /*range*/, Buffer& /*room*/) override {
    return {.status = ReadStatus::kWouldBlock};
  }
  void read(std::vector<ReadRequest> requests) override {
    if (requests.front().range.is_index) {
      ++indices;
      waiting = std::move(requests.front().done);
      return;
    }
    std::vector<ByteRange>& ranges = reads.emplace_back();
    for (const ReadRequest& request : requests) ranges.push_back(request.range);
    for (const ReadRequest& request : requests) {
      request.done(
          {.status = ReadStatus::kOk, .bytes = Bytes(shard_).subspan(request.range.offset, request.range.size)});
    }
  }
  [[nodiscard]] Limits limits() const override {
    return {.requests = 8, .can_try = false, .needs_room = false, .coalesce = coalesce_, .retries = true};
  }
  bool stop(std::chrono::steady_clock::time_point /*deadline*/) override { return true; }
  /// Answers the read of the index, whose completion holds the reader, which holds this.
  void answer_index(const ReadResult& result) { std::exchange(waiting, nullptr)(result); }
  void answer_index(size_t index_bytes) {
    answer_index({.status = ReadStatus::kOk, .bytes = Bytes(shard_).last(index_bytes), .object_bytes = shard_.size()});
  }

  Completion waiting;
  size_t indices = 0;
  std::vector<std::vector<ByteRange>> reads;

 private:
  const std::vector<uint8_t> shard_;
  const Coalesce coalesce_;
};

}  // namespace

TEST(inner_chunks_are_read_by_the_index_in_every_encoding) {
  for (int encoding = 0; encoding < 8; ++encoding) {
    const Store store({.chunks = {2, 3},
                       .index_at_start = (encoding & 1) != 0,
                       .index_big_endian = (encoding & 2) != 0,
                       .index_has_crc32c = (encoding & 4) != 0});
    store.put("c/0/0", 1);
    store.put("c/0/1", 2, 11);
    for (const bool blocking : {false, true}) {
      store.check_all("c/0/0", 1, blocking);
      store.check_all("c/0/1", 2, blocking);
    }
    CHECK_EQ(store.shards->indices_read(), uint64_t{2});
  }
}

TEST(a_shard_that_is_missing_is_missing_altogether) {
  const Store store;
  for (size_t i = 0; i < 6; ++i) CHECK(!store.read("c/9/9", i, i % 2 == 0));
  CHECK_EQ(store.shards->indices_read(), uint64_t{0});
}

TEST(a_shard_that_is_missing_because_the_array_is_gone_is_an_error) {
  const Store store;
  std::filesystem::remove(store.root() / "zarr.json");
  CHECK_THROWS(kIo, "zarr.json is gone", store.read("c/9/9", 0));
}

TEST(no_more_indices_are_cached_than_there_is_memory_for) {
  Store store;
  store.spec.cache_bytes = 2 * (6 * 16 + 512);
  store.shards = std::make_shared<ShardReader>(store.local, store.spec, kMaxBytes);
  for (const char* key : {"a", "b", "c"}) store.put(key, 1);
  for (const char* key : {"a", "b", "a", "b"}) store.check_all(key, 1);
  CHECK_EQ(store.shards->indices_read(), uint64_t{2});
  store.check_all("c", 1);  // in the place of a, which was used before b
  store.check_all("b", 1);
  CHECK_EQ(store.shards->indices_read(), uint64_t{3});
  store.check_all("a", 1);
  CHECK_EQ(store.shards->indices_read(), uint64_t{4});
}

TEST(a_damaged_index_is_an_error_each_time) {
  const Store store;
  store.put("c/0/0", 1);
  std::vector<uint8_t> shard = read_file(store.root() / "c/0/0");
  shard[shard.size() - 20] ^= 1;
  write_file(store.root() / "c/0/0", shard);
  for (const bool blocking : {false, true, true}) {
    CHECK_THROWS(kCorrupt, "shard index: ", store.read("c/0/0", 0, blocking));
  }
}

TEST(a_shard_shorter_than_its_index_is_an_error) {
  for (const bool at_start : {false, true}) {
    const Store store({.chunks = {2, 3}, .index_at_start = at_start});
    for (const size_t size : {size_t{0}, size_t{95}}) {
      write_file(store.root() / "c/0/0", std::vector<uint8_t>(size, 0xff));
      CHECK_THROWS(kCorrupt, "shard index: the stored object has " + std::to_string(size) + " bytes, at least 96",
                   store.read("c/0/0", 0));
    }
  }
}

TEST(an_inner_chunk_that_is_too_large_for_one_is_refused_before_it_is_read) {
  const Store store({.chunks = {1, 2}});
  write_file(store.root() / "big", make_shard(store.spec, {std::nullopt, std::vector<uint8_t>(kMaxBytes + 1)}));
  CHECK_THROWS(kCorrupt, "inner chunk 0/1: the stored object has 65537 bytes", store.read("big", 1));
}

TEST(a_shard_that_is_replaced_is_read_by_its_own_index) {
  const Store store;
  store.put("c", 1);
  store.check_all("c", 1);
  for (const bool blocking : {false, true}) {
    const size_t version = blocking ? 3 : 2;
    store.put("new", version, version);  // other offsets
    std::filesystem::rename(store.root() / "new", store.root() / "c");
    store.check_all("c", version, blocking);
  }
  CHECK_EQ(store.shards->indices_read(), uint64_t{3});
  std::filesystem::remove(store.root() / "c");
  CHECK(!store.read("c", 0));
}

TEST(a_shard_that_is_replaced_by_one_of_equal_size_is_read_by_its_own_index) {
  const Store store;
  store.put("c", 1);
  store.check_all("c", 1);
  const auto size = std::filesystem::file_size(store.root() / "c");
  // The same contents at other positions, so at other offsets in as many bytes.
  const std::vector<size_t> from = {5, 3, 1, 2, 4, 0};
  std::vector<std::optional<std::vector<uint8_t>>> chunks;
  for (const size_t position : from) chunks.emplace_back(content(1, position));
  chunks[4].reset();
  for (const bool blocking : {false, true}) {
    write_file(store.root() / "new", make_shard(store.spec, chunks, 0));
    CHECK_EQ(std::filesystem::file_size(store.root() / "new"), size);
    std::filesystem::rename(store.root() / "new", store.root() / "c");
    for (size_t i = 0; i < 6; ++i) {
      const auto got = store.read("c", i, blocking);
      CHECK_EQ(got.has_value(), i != 4);
      if (got) CHECK_EQ(*got, content(1, from[i]));
    }
    store.put("new", 1);
    std::filesystem::rename(store.root() / "new", store.root() / "c");
    store.check_all("c", 1, blocking);
  }
}

TEST(names_of_inner_chunks_are_their_grid_indices) {
  const ShardSpec spec{.chunks = {2, 3, 4}};
  CHECK_EQ(inner_chunk_name(spec, 0), std::string("0/0/0"));
  CHECK_EQ(inner_chunk_name(spec, 23), std::string("1/2/3"));
  CHECK_EQ(inner_chunk_name(spec, 6), std::string("0/1/2"));
}

TEST(many_threads_read_each_index_once) {
  const Store store;
  constexpr size_t kShards = 20;
  for (size_t s = 0; s < kShards; ++s) store.put(std::to_string(s), s, s);
  static_cast<void>(drop_from_page_cache(store.root()));
  std::atomic<size_t> wrong{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      try {
        for (size_t i = 0; i < kShards; ++i) {
          const size_t s = (i + t / 4) % kShards;
          store.check_all(std::to_string(s), s, t % 2 == 0);
        }
      } catch (const std::exception&) {
        ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), size_t{0});
  CHECK_EQ(store.shards->indices_read(), uint64_t{kShards});
}

TEST(a_failed_index_fails_all_who_wait_for_it_and_holds_up_nobody) {
  const Store store;
  write_file(store.root() / "bad", std::vector<uint8_t>(300, 0x17));
  std::atomic<size_t> refused{0};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      try {
        static_cast<void>(store.read("bad", 0, true));
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::kCorrupt) ++refused;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(refused.load(), size_t{8});
}

TEST(inner_chunks_are_read_together_within_gap_and_limit) {
  std::mt19937 random(5);
  const auto draw = [&](size_t most) { return static_cast<size_t>(random() % (most + 1)); };
  for (int round = 0; round < 300; ++round) {
    const size_t count = 1 + draw(30);
    const ShardSpec spec{.chunks = {static_cast<int64_t>(count)}};
    std::vector<std::optional<std::vector<uint8_t>>> chunks(count);
    for (size_t i = 0; i < count; ++i) {
      if (draw(5) != 0) chunks[i] = content(0, i);
    }
    const size_t gap_stored = draw(40);
    const Coalesce coalesce{.gap = draw(600), .limit = draw(2) == 0 ? 0 : draw(3000)};
    const auto store = std::make_shared<TogetherStore>(make_shard(spec, chunks, gap_stored), coalesce);
    const auto reader = std::make_shared<ShardReader>(store, spec, kMaxBytes);
    std::vector<ReadRequest> requests;
    std::vector<int> ends(count);
    size_t found = 0;
    for (size_t i = 0; i < count; ++i) {
      if (draw(2) == 0) continue;
      found += chunks[i] ? 1U : 0U;
      requests.push_back({.key = "s", .inner_chunk = i, .done = [&, i](const ReadResult& got) {
                            ++ends[i];
                            CHECK(!got.error);
                            CHECK_EQ(got.status == ReadStatus::kOk, chunks[i].has_value());
                            if (chunks[i]) CHECK(std::ranges::equal(got.bytes, *chunks[i]));
                          }});
    }
    if (requests.empty()) continue;
    std::ranges::shuffle(requests, random);
    const size_t asked = requests.size();
    reader->read(std::move(requests));
    CHECK_EQ(store->indices, size_t{1});
    store->answer_index(stored_index_bytes(spec));
    CHECK_EQ(static_cast<size_t>(std::ranges::count(ends, 1)), asked);
    CHECK_EQ(static_cast<size_t>(std::ranges::count(ends, 0)), count - asked);
    std::vector<ByteRange> spans;  // what each read() spans
    size_t parts = 0;
    for (const std::vector<ByteRange>& ranges : store->reads) {
      for (size_t i = 1; i < ranges.size(); ++i) {
        const uint64_t end = ranges[i - 1].offset + ranges[i - 1].size;
        CHECK(ranges[i].offset >= end && ranges[i].offset - end <= coalesce.gap);
      }
      const uint64_t begin = ranges.front().offset;
      spans.push_back(ByteRange::at(begin, ranges.back().offset + ranges.back().size - begin));
      CHECK(ranges.size() == 1 || spans.back().size <= coalesce.limit);
      parts += ranges.size();
    }
    CHECK_EQ(parts, found);
    for (size_t i = 1; i < spans.size() && coalesce.limit > 0; ++i) {  // no two of them could have been one
      const uint64_t end = spans[i - 1].offset + spans[i - 1].size;
      const auto& next = store->reads[i].front();
      CHECK(next.offset - end > coalesce.gap || next.offset + next.size - spans[i - 1].offset > coalesce.limit);
    }
  }
}

TEST(the_last_error_of_a_store_that_tries_again_is_that_of_all_who_waited) {
  const ShardSpec spec{.chunks = {4}};
  const auto store = std::make_shared<TogetherStore>(std::vector<uint8_t>{}, Coalesce{});
  const auto reader = std::make_shared<ShardReader>(store, spec, kMaxBytes);
  size_t failed = 0;
  for (size_t i = 0; i < 4; ++i) {
    std::vector<ReadRequest> one;
    one.push_back({.key = "s", .inner_chunk = i, .done = [&](const ReadResult& got) {
                     CHECK(got.error.has_value());
                     CHECK_EQ(std::string(got.error->what()), std::string("shard index: gone"));
                     ++failed;
                   }});
    reader->read(std::move(one));
  }
  CHECK_EQ(store->indices, size_t{1});
  store->answer_index({.error = Error::io("gone", EIO)});
  CHECK_EQ(failed, size_t{4});
  CHECK_EQ(store->indices, size_t{1});
}

TEST(what_waited_for_an_index_that_is_not_read_any_more_lets_go_of_its_memory) {
  const ShardSpec spec{.chunks = {4}};
  const auto store = std::make_shared<TogetherStore>(std::vector<uint8_t>{}, Coalesce{});
  const auto reader = std::make_shared<ShardReader>(store, spec, kMaxBytes);
  std::weak_ptr<int> held;
  for (size_t i = 0; i < 3; ++i) {
    const auto memory = std::make_shared<int>(0);
    held = memory;
    std::vector<ReadRequest> one;
    one.push_back({.key = "s", .inner_chunk = i, .done = [memory](const ReadResult& /*got*/) {}});
    reader->read(std::move(one));
  }
  CHECK(!held.expired());
  CHECK(reader->stop(std::chrono::steady_clock::now()));
  store->waiting = nullptr;  // as a store drops its requests
  CHECK(held.expired());
}

TEST(a_shard_that_was_replaced_loses_its_old_index_and_not_the_new_one) {
  const ShardSpec spec{.chunks = {4}};
  std::vector<std::optional<std::vector<uint8_t>>> chunks(4, std::vector<uint8_t>(10, 1));
  const std::vector<uint8_t> shard = make_shard(spec, chunks);
  /// Parts of the first version are changed; answers when it is told.
  class ReplacedStore : public TogetherStore {
   public:
    using TogetherStore::TogetherStore;
    void read(std::vector<ReadRequest> requests) override {
      if (requests.front().range.is_index) {
        TogetherStore::read(std::move(requests));
        return;
      }
      for (ReadRequest& request : requests) parts.push_back(std::move(request));
    }
    std::vector<ReadRequest> parts;
  };
  const auto store = std::make_shared<ReplacedStore>(shard, Coalesce{});
  const auto reader = std::make_shared<ShardReader>(store, spec, kMaxBytes);
  size_t done = 0;
  for (size_t i = 0; i < 2; ++i) {
    std::vector<ReadRequest> one;
    one.push_back({.key = "s", .inner_chunk = i, .done = [&](const ReadResult& /*got*/) { ++done; }});
    reader->read(std::move(one));
  }
  const size_t index_bytes = stored_index_bytes(spec);
  store->answer_index(index_bytes);
  CHECK_EQ(store->parts.size(), size_t{2});
  std::vector<ReadRequest> old = std::exchange(store->parts, {});
  old[0].done({.status = ReadStatus::kChanged});
  CHECK_EQ(store->indices, size_t{2});
  store->answer_index(index_bytes);
  old[1].done({.status = ReadStatus::kChanged});  // of the first version still: the second index is good
  CHECK_EQ(store->indices, size_t{2});
  CHECK_EQ(store->parts.size(), size_t{2});
  for (ReadRequest& part : std::exchange(store->parts, {})) part.done({.status = ReadStatus::kOk});
  CHECK_EQ(done, size_t{2});
}

}  // namespace zarrfeed::testing::shard_reader_test
