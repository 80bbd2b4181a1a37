// The node cache over files: one that was replaced since its version was listed is never cached, and never mixed with
// the old.

#include <chrono>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/cache/cache_directory.h"
#include "storage/cache/node_cache.h"
#include "storage/cache/object_versions.h"
#include "storage/file_store.h"
#include "storage/shard_reader.h"
#include "tests/support/check.h"
#include "tests/support/shards.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::staged_files_test {
namespace {

constexpr size_t kMaxBytes = 1 << 16;

/// A directory of files, and a node cache over it that knows the versions which they have now.
struct Staged {
  explicit Staged(const TempDir& temp, uint64_t limit = 1 << 20)
      : root(temp.path() / "array"), directory(CacheDirectory::open(temp.path() / "cache", limit)) {}
  ~Staged() {
    if (cache != nullptr) cache->stop(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  }
  void put(const std::string& key, const std::vector<uint8_t>& bytes) const {
    write_file(root / "new", bytes);
    std::filesystem::rename(root / "new", root / key);
  }
  void list(const std::vector<std::string>& keys) {
    if (cache != nullptr) cache->stop(std::chrono::steady_clock::now() + std::chrono::seconds(60));
    std::vector<std::pair<std::string, std::string>> listed;
    const auto files = std::make_shared<FileStore>(root.string(), "", kMaxBytes);
    files->open();
    for (const std::string& key : keys) {
      Buffer room;
      listed.emplace_back(key, version_text(*files->try_read(key, {}, room).version));
    }
    cache = std::make_shared<NodeCache>(
        files, CachedArray{directory, "file://", "array/", std::make_shared<const ObjectVersions>(listed)}, kMaxBytes,
        1, counters);
    cache->open();
  }
  /// Reads an object, and waits until it is in the cache, if it is to be.
  [[nodiscard]] std::vector<uint8_t> get(const std::string& key) {
    Buffer room;
    std::promise<std::vector<uint8_t>> got;
    std::vector<ReadRequest> requests;
    requests.push_back({.key = key, .room = &room, .done = [&](const ReadResult& result) {
                          got.set_value({result.bytes.begin(), result.bytes.end()});
                        }});
    cache->read(std::move(requests));
    auto bytes = got.get_future().get();
    settle();
    return bytes;
  }
  void settle() const {
    CHECK(cache->stop(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
    cache->open();
  }

  std::filesystem::path root;
  std::shared_ptr<CacheDirectory> directory;
  std::shared_ptr<CacheCounters> counters = std::make_shared<CacheCounters>();
  std::shared_ptr<NodeCache> cache;
};

std::vector<uint8_t> inner(size_t version, size_t position) {
  return std::vector<uint8_t>(10 + 20 * version + position, static_cast<uint8_t>(100 * version + position));
}

}  // namespace

TEST(a_file_is_cached_as_the_version_that_was_listed_or_not_at_all) {
  const TempDir temp;
  Staged staged(temp);
  const std::vector<uint8_t> old(100, 1), renewed(100, 2);
  staged.put("cached", old);
  staged.put("changed", old);
  staged.list({"cached", "changed"});
  CHECK_EQ(staged.get("cached"), old);
  staged.put("cached", renewed);
  staged.put("changed", renewed);
  CHECK_EQ(staged.get("cached"), old);  // the copy
  for (int i = 0; i < 2; ++i) CHECK_EQ(staged.get("changed"), renewed);
  CHECK_EQ(staged.counters->written_bytes.load(), uint64_t{100});
  CHECK_EQ(staged.counters->unversioned.load(), uint64_t{1});
  staged.list({"cached", "changed"});
  for (const char* key : {"cached", "changed"}) CHECK_EQ(staged.get(key), renewed);
  CHECK_EQ(staged.counters->written_bytes.load(), uint64_t{300});
  for (const char* key : {"cached", "changed"}) CHECK_EQ(staged.get(key), renewed);
  CHECK_EQ(staged.counters->written_bytes.load(), uint64_t{300});
}

TEST(a_shard_that_is_replaced_is_not_read_by_the_index_that_the_cache_has) {
  for (const bool index_at_start : {false, true}) {
    for (const uint64_t limit : {uint64_t{1} << 20, uint64_t{2} * 4096}) {
      const ShardSpec spec{.chunks = {6}, .index_at_start = index_at_start};
      const auto shard = [&](size_t version) {
        std::vector<std::optional<std::vector<uint8_t>>> chunks;
        for (size_t i = 0; i < 6; ++i) chunks.emplace_back(inner(version, i));
        return make_shard(spec, chunks, 3 * version);
      };
      const TempDir temp;
      Staged staged(temp, limit);
      staged.put("s", shard(1));
      staged.list({"s"});
      const auto read = [&](const std::shared_ptr<ShardReader>& reader, size_t position) {
        Buffer room;
        std::promise<std::vector<uint8_t>> got;
        std::vector<ReadRequest> requests;
        requests.push_back({.key = "s", .inner_chunk = position, .room = &room, .done = [&](const ReadResult& result) {
                              if (result.error) return got.set_exception(std::make_exception_ptr(*result.error));
                              got.set_value({result.bytes.begin(), result.bytes.end()});
                            }});
        reader->read(std::move(requests));
        return got.get_future().get();
      };
      CHECK_EQ(read(std::make_shared<ShardReader>(staged.cache, spec, kMaxBytes), 0), inner(1, 0));
      staged.settle();
      staged.put("s", shard(2));
      // A reader that has read no index finds the old one in the cache, and parts in the file alone.
      const auto reader = std::make_shared<ShardReader>(staged.cache, spec, kMaxBytes);
      for (size_t i = 5; i > 0; --i) CHECK_EQ(read(reader, i), inner(2, i));
      Buffer room;
      const ReadResult tried = reader->try_read("s", 3, room);
      if (tried.status == ReadStatus::kOk)
        CHECK(std::vector<uint8_t>(tried.bytes.begin(), tried.bytes.end()) == inner(2, 3));
    }
  }
}

}  // namespace zarrfeed::testing::staged_files_test
