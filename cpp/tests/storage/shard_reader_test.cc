// Inner chunks of shard files: found by the index, read once, missing, damaged, replaced, and read by many threads.

#include "storage/shard_reader.h"

#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "spec/shard_spec.h"
#include "storage/file_store.h"
#include "tests/support/check.h"
#include "tests/support/shards.h"
#include "tests/support/temp_dir.h"

using namespace zarrfeed;
using namespace zarrfeed::testing;

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

TEST(no_more_indices_are_kept_than_there_is_memory_for) {
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

TEST(names_of_inner_chunks_are_their_places) {
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
