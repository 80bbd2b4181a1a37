// Transcoded chunks in the node cache: decoded once, kept as Blosc, and never kept if they do not decode.

#include "storage/cache/transcoder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "codecs/blosc_table.h"
#include "codecs/codec.h"
#include "storage/access/byte_store.h"
#include "storage/cache/cache_directory.h"
#include "storage/cache/node_cache.h"
#include "tests/support/check.h"
#include "tests/support/compress.h"
#include "tests/support/decoding.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::transcoder_test {
namespace {

constexpr size_t kDecoded = 3000;
constexpr std::chrono::seconds kLongest{60};

/// Objects in memory, each answered at once.
class MemoryStore : public ByteStore {
 public:
  ReadResult try_read(const std::string& /*key*/, const ByteRange& /*range*/, Buffer& /*room*/) override {
    return {.status = ReadStatus::kWouldBlock};
  }
  void read(std::vector<ReadRequest> requests) override {
    for (const ReadRequest& request : requests) {
      ++reads;
      Bytes all(objects[request.key]);
      if (request.range.kind == ByteRange::Kind::kAt) all = all.subspan(request.range.offset, request.range.size);
      request.done({.status = ReadStatus::kOk, .bytes = all});
    }
  }
  [[nodiscard]] Limits limits() const override { return {.requests = 8, .can_try = false, .needs_room = false}; }
  bool stop(std::chrono::steady_clock::time_point /*deadline*/) override { return true; }

  std::map<std::string, ByteVector> objects;
  std::atomic<int> reads{0};
};

/// The cache of one process over a store whose chunks are compressed by zlib.
struct Process {
  explicit Process(const std::string& path, const std::string& form = "lz4")
      : directory(CacheDirectory::open(path, size_t{64} << 20)),
        cache(std::make_shared<NodeCache>(
            store, CachedArray{directory, "s3://b", "array/", std::make_shared<const ObjectVersions>("v1"), form},
            size_t{1} << 20, 4, counters, NodeCache::kTimeout,
            std::make_shared<const Transcoder>(std::vector<CodecSpec>{{.name = "zlib"}}, kDecoded, 4))) {
    cache->open();
  }
  ~Process() { CHECK(cache->stop(std::chrono::steady_clock::now() + kLongest)); }

  /// Ends the epoch and begins another one: all entries are written.
  void settle() const {
    CHECK(cache->stop(std::chrono::steady_clock::now() + kLongest));
    cache->open();
  }
  /// Reads a chunk. `room` holds a hit.
  [[nodiscard]] ReadResult ask(const std::string& key, Buffer& room, const ByteRange& range = {}) const {
    ReadResult found;
    std::atomic<bool> is_done{false};
    std::vector<ReadRequest> requests;
    requests.push_back({.key = key, .range = range, .room = &room, .done = [&](ReadResult result) {
                          found = std::move(result);
                          is_done = true;
                        }});
    cache->read(std::move(requests));
    while (!is_done) std::this_thread::yield();
    return found;
  }
  /// Returns what a chunk decodes to.
  [[nodiscard]] ByteVector get(const std::string& key, const ByteRange& range = {}) const {
    Buffer room;
    DecodeScratch scratch;
    const ReadResult result = ask(key, room, range);
    if (result.error) throw *result.error;
    const Bytes blosc = result.undecoded != nullptr ? result.undecoded->decode(result.bytes, scratch) : result.bytes;
    ByteVector out(BloscHeader::read(blosc, blosc.size(), kDecoded).decoded_bytes);
    CHECK_EQ(decode_blosc(blosc, out, scratch), out.size());
    if (result.undecoded != nullptr) result.undecoded->keep();
    return out;
  }

  const std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  const std::shared_ptr<CacheDirectory> directory;
  const std::shared_ptr<CacheCounters> counters = std::make_shared<CacheCounters>();
  const std::shared_ptr<NodeCache> cache;
};

struct TempCache {
  TempDir directory;
  std::string path = (directory.path() / "cache").string();
};

}  // namespace

TEST(memory_of_containers_is_used_again_and_outlives_whoever_lent_it) {
  auto rooms = std::make_shared<BloscRooms>(100);
  BloscRoom first = rooms->take();
  const BloscRoom second = rooms->take();
  CHECK(first.get() != second.get());
  const uint8_t* const used = first.get();
  first.reset();
  first = rooms->take();
  CHECK(first.get() == used);
  rooms.reset();
  first[99] = 1;
}

TEST(transcoded_chunks_are_decoded_once_and_then_read_as_blosc) {
  const TempCache temp;
  const Process one(temp.path);
  const ByteVector hard = noise(kDecoded, 1);
  const ByteVector zeros(kDecoded);
  one.store->objects = {{"hard", compress_zlib(hard)}, {"zeros", compress_zlib(zeros)}};
  for (int round = 0; round < 3; ++round) {
    CHECK(one.get("hard") == hard);
    CHECK(one.get("zeros") == zeros);
    one.settle();
  }
  CHECK_EQ(one.store->reads.load(), 2);
  CHECK_EQ(one.counters->transcoded.load(), uint64_t{2});
  CHECK_EQ(one.counters->transcoded_bytes.load(), uint64_t{2 * kDecoded});
  CHECK_EQ(one.counters->transcoded_hits.load(), uint64_t{4});
  CHECK(one.counters->written_bytes.load() < kDecoded + 500);
  const Process other(temp.path, "lz4 of something else");
  other.store->objects = {{"zeros", compress_zlib(hard)}};
  CHECK(other.get("zeros") == hard);
  CHECK(one.get("zeros") == zeros);
}

TEST(a_chunk_that_does_not_decode_is_not_kept_and_frees_its_claim) {
  const TempCache temp;
  const Process one(temp.path);
  one.store->objects["a"] = noise(100, 1);
  CHECK_THROWS(kCorrupt, "", one.get("a"));
  one.store->objects["a"] = compress_zlib(ByteVector(kDecoded - 1));
  CHECK_THROWS(kCorrupt, "decodes to 2999", one.get("a"));
  {
    Buffer room;
    const ReadResult dropped = one.ask("a", room);
    CHECK(dropped.undecoded != nullptr);
  }
  one.store->objects["a"] = compress_zlib(ByteVector(kDecoded));
  CHECK(one.get("a") == ByteVector(kDecoded));
  one.settle();
  CHECK_EQ(one.counters->transcoded.load(), uint64_t{1});
  CHECK_EQ(one.counters->hits.load(), uint64_t{0});
}

TEST(processes_that_miss_the_same_inner_chunk_decode_it_once_and_indices_stay_as_they_are) {
  const TempCache temp;
  const Process one(temp.path);
  const Process two(temp.path);
  const ByteVector data = smooth(kDecoded, 3);
  const ByteVector stored = compress_zlib(data);
  const ByteRange range = ByteRange::at(0, stored.size());
  for (const Process* process : {&one, &two}) process->store->objects["shard"] = stored;
  std::thread second;
  {
    Buffer room;
    DecodeScratch scratch;
    const ReadResult first = one.ask("shard", room, range);
    second = std::thread([&] { CHECK(two.get("shard", range) == data); });
    CHECK_EQ(first.undecoded->decode(first.bytes, scratch).size(), kDecoded + BloscHeader::kBytes);
    first.undecoded->keep();
  }
  one.settle();
  second.join();
  CHECK_EQ(two.store->reads.load(), 0);
  for (int round = 0; round < 2; ++round) {
    Buffer room;
    const ReadResult index = one.ask("shard", room, ByteRange::at(0, 10).as_index());
    CHECK(index.undecoded == nullptr);
    CHECK(std::ranges::equal(index.bytes, Bytes(stored).first(10)));
    one.settle();
  }
  CHECK_EQ(one.store->reads.load(), 2);
}

}  // namespace zarrfeed::testing::transcoder_test
