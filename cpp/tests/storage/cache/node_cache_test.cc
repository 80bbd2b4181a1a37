// The node cache over a store that answers on a thread of its own: hits, misses, versions, claims, lifetimes, the end.

#include "storage/cache/node_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/error.h"
#include "storage/access/byte_store.h"
#include "storage/cache/cache_directory.h"
#include "storage/shard_reader.h"
#include "tests/support/check.h"
#include "tests/support/shards.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::node_cache_test {
namespace {

constexpr size_t kMaxBytes = 1 << 20;
constexpr uint64_t kLimit = 64 << 20;
constexpr std::chrono::seconds kLongest{60};

std::vector<uint8_t> content(const std::string& key, size_t size = 3000) {
  std::vector<uint8_t> out(size);
  for (size_t i = 0; i < size; ++i)
    out[i] = static_cast<uint8_t>(i * 7 + key.size() * 31 + static_cast<uint8_t>(key[0]));
  return out;
}

/// Objects in memory, answered by one thread. The bytes of an answer are overwritten as soon as nobody holds them.
class ForeignStore : public ByteStore {
 public:
  ForeignStore() : thread_([this] { serve(); }) {}
  ~ForeignStore() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ReadResult try_read(const std::string& /*key*/, const ByteRange& /*range*/, Buffer& /*room*/) override {
    return {.status = ReadStatus::kWouldBlock};
  }
  void read(std::vector<ReadRequest> requests) override {
    const std::lock_guard lock(mutex_);
    ++calls;
    for (ReadRequest& request : requests) requests_.push_back(std::move(request));
    changed_.notify_all();
  }
  [[nodiscard]] Limits limits() const override {
    return {.requests = 8, .can_try = false, .needs_room = false, .coalesce = coalesce, .retries = true};
  }
  bool stop(std::chrono::steady_clock::time_point /*deadline*/) override {
    std::unique_lock lock(mutex_);
    requests_.clear();
    changed_.wait(lock, [this] { return !busy_; });
    return true;
  }
  void put(const std::string& key, std::vector<uint8_t> bytes) {
    const std::lock_guard lock(mutex_);
    objects_[key] = std::move(bytes);
  }
  void pause(bool paused) {
    const std::lock_guard lock(mutex_);
    paused_ = paused;
    changed_.notify_all();
  }
  void fail_next(int errno_value) { next_error_ = errno_value; }

  std::atomic<int> reads{0};  ///< requests that were answered
  std::atomic<int> calls{0};  ///< of read()
  Coalesce coalesce{};

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || (!requests_.empty() && !paused_); });
      if (ending_) return;
      ReadRequest request = std::move(requests_.front());
      requests_.pop_front();
      busy_ = true;
      ReadResult result = answer(request);
      lock.unlock();
      request.done(std::move(result));
      request = {};
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }
  ReadResult answer(const ReadRequest& request) {
    ++reads;
    if (const int code = next_error_.exchange(0); code != 0) return {.error = Error::io("refused", code)};
    const auto object = objects_.find(request.key);
    if (object == objects_.end()) return {.status = ReadStatus::kMissing};
    const std::vector<uint8_t>& all = object->second;
    auto bytes = std::make_unique<std::vector<uint8_t>>(all);
    if (request.range.kind == ByteRange::Kind::kAt) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(request.range.offset);
      bytes->assign(begin, begin + static_cast<std::ptrdiff_t>(request.range.size));
    } else if (request.range.kind == ByteRange::Kind::kLast) {
      bytes->assign(all.end() - static_cast<std::ptrdiff_t>(request.range.size), all.end());
    }
    const auto drop = [](std::vector<uint8_t>* mine) {
      std::fill(mine->begin(), mine->end(), uint8_t{0xee});
      delete mine;
    };
    const std::shared_ptr<std::vector<uint8_t>> hold(bytes.release(), drop);
    return {.status = ReadStatus::kOk, .bytes = Bytes(*hold), .hold = hold};
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<ReadRequest> requests_;
  std::map<std::string, std::vector<uint8_t>> objects_;
  std::atomic<int> next_error_{0};
  bool paused_ = false;
  bool busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

/// What one process has: a cache over a store.
struct Process {
  explicit Process(const std::string& path, const std::string& version = "v1", uint64_t limit = kLimit,
                   std::chrono::milliseconds timeout_with_others = NodeCache::kTimeout)
      : timeout(timeout_with_others), directory(CacheDirectory::open(path, limit)) {
    remake(std::make_shared<const ObjectVersions>(version));
  }
  ~Process() { end(); }
  void remake(std::shared_ptr<const ObjectVersions> versions) {
    if (cache != nullptr) end();
    cache = std::make_shared<NodeCache>(store, CachedArray{directory, "s3://b", "array/", std::move(versions)},
                                        kMaxBytes, 4, counters, timeout);
    cache->open();
  }
  void end() const { CHECK(cache->stop(std::chrono::steady_clock::now() + kLongest)); }

  struct Waiting {
    Buffer room;
    std::promise<ReadResult> result;
  };
  [[nodiscard]] std::shared_ptr<Waiting> ask(const std::string& key, const ByteRange& range = {}) const {
    const auto waiting = std::make_shared<Waiting>();
    std::vector<ReadRequest> requests;
    requests.push_back({.key = key, .range = range, .room = &waiting->room, .done = [waiting](ReadResult result) {
                          waiting->result.set_value(std::move(result));
                        }});
    cache->read(std::move(requests));
    return waiting;
  }
  static ReadResult wait(Waiting& waiting) {
    auto future = waiting.result.get_future();
    if (future.wait_for(kLongest) != std::future_status::ready) FAIL("no answer");
    return future.get();
  }
  /// Reads an object and waits until it is in the cache, if it is to be.
  [[nodiscard]] std::optional<std::vector<uint8_t>> get(const std::string& key, const ByteRange& range = {}) {
    const auto waiting = ask(key, range);
    const ReadResult result = wait(*waiting);
    if (result.error) throw *result.error;
    if (result.status == ReadStatus::kMissing) return std::nullopt;
    CHECK_EQ(result.status, ReadStatus::kOk);
    std::vector<uint8_t> bytes(result.bytes.begin(), result.bytes.end());
    return bytes;
  }
  /// Ends the epoch and begins another one: all entries are written.
  void settle() const {
    end();
    cache->open();
  }

  const std::chrono::milliseconds timeout;
  std::shared_ptr<ForeignStore> store = std::make_shared<ForeignStore>();
  std::shared_ptr<CacheDirectory> directory;
  std::shared_ptr<CacheCounters> counters = std::make_shared<CacheCounters>();
  std::shared_ptr<NodeCache> cache;
};

struct TempCache {
  TempDir directory;
  std::string path = (directory.path() / "cache").string();
};

}  // namespace

TEST(a_second_read_is_a_hit_in_every_process) {
  const TempCache temp;
  Process one(temp.path);
  for (const char* key : {"a", "bb", "ccc"}) one.store->put(key, content(key));
  for (const char* key : {"a", "bb", "ccc"}) CHECK_EQ(*one.get(key), content(key));
  one.settle();
  for (const char* key : {"a", "bb", "ccc"}) CHECK_EQ(*one.get(key), content(key));
  CHECK_EQ(one.store->reads.load(), 3);
  CHECK_EQ(one.counters->hits.load(), uint64_t{3});
  CHECK_EQ(one.counters->misses.load(), uint64_t{3});
  CHECK_EQ(one.counters->miss_bytes.load(), uint64_t{9000});
  CHECK_EQ(one.counters->written_bytes.load(), uint64_t{9000});
  Process two(temp.path);
  CHECK_EQ(*two.get("bb"), content("bb"));
  CHECK_EQ(two.store->reads.load(), 0);
  Buffer room;
  CHECK(two.cache->is_at_hand("a", {}));
  CHECK(!two.cache->is_at_hand("dddd", {}));
  const ReadResult tried = two.cache->try_read("a", {}, room);
  CHECK_EQ(tried.status, ReadStatus::kOk);
  CHECK_EQ(two.cache->try_read("dddd", {}, room).status, ReadStatus::kWouldBlock);
}

TEST(another_version_of_an_object_is_never_served) {
  const TempCache temp;
  Process old(temp.path, "v1");
  old.store->put("a", content("a"));
  CHECK_EQ(*old.get("a"), content("a"));
  old.settle();
  Process renewed(temp.path, "v2");
  renewed.store->put("a", content("b"));
  CHECK_EQ(*renewed.get("a"), content("b"));
  renewed.settle();
  CHECK_EQ(*renewed.get("a"), content("b"));
  CHECK_EQ(renewed.store->reads.load(), 1);
  CHECK_EQ(*old.get("a"), content("a"));  // from its own store, since the entry is of v2
  CHECK_EQ(old.store->reads.load(), 2);
}

TEST(an_object_whose_version_is_not_known_is_not_cached) {
  const TempCache temp;
  Process one(temp.path);
  one.remake(std::make_shared<const ObjectVersions>(
      std::vector<std::pair<std::string, std::string>>{{"a", "1"}, {"bb", "2"}}));
  for (const char* key : {"a", "bb", "new"}) one.store->put(key, content(key));
  for (int round = 0; round < 2; ++round) {
    for (const char* key : {"a", "bb", "new"}) CHECK_EQ(*one.get(key), content(key));
    one.settle();
  }
  CHECK_EQ(one.store->reads.load(), 4);
  CHECK_EQ(one.counters->unversioned.load(), uint64_t{2});
}

TEST(missing_objects_and_errors_are_those_of_the_store_and_not_cached) {
  const TempCache temp;
  Process one(temp.path);
  CHECK(!one.get("a"));
  one.store->put("a", content("a"));
  one.store->fail_next(ETIMEDOUT);
  CHECK_THROWS(kIo, "refused", one.get("a"));
  CHECK_EQ(*one.get("a"), content("a"));
  CHECK_EQ(one.counters->hits.load(), uint64_t{0});
}

TEST(processes_that_miss_the_same_object_fetch_it_once) {
  const TempCache temp;
  std::vector<std::unique_ptr<Process>> processes;
  for (int i = 0; i < 4; ++i) processes.push_back(std::make_unique<Process>(temp.path));
  std::vector<std::pair<std::string, std::shared_ptr<Process::Waiting>>> waiting;
  for (const auto& process : processes) process->store->pause(true);
  for (size_t k = 0; k < 20; ++k) {
    const std::string key(k + 1, 'k');
    for (const auto& process : processes) {
      process->store->put(key, content(key));
      waiting.emplace_back(key, process->ask(key));
      waiting.emplace_back(key, process->ask(key));
    }
  }
  for (const auto& process : processes) process->store->pause(false);
  for (const auto& [key, one] : waiting) {
    const ReadResult result = Process::wait(*one);
    CHECK_EQ(std::vector<uint8_t>(result.bytes.begin(), result.bytes.end()), content(key));
  }
  int reads = 0;
  for (const auto& process : processes) reads += process->store->reads;
  CHECK_EQ(reads, 20);
}

TEST(a_holder_that_fails_lets_the_next_one_try) {
  const TempCache temp;
  Process one(temp.path);
  Process two(temp.path);
  one.store->pause(true);
  one.store->fail_next(EIO);
  two.store->put("a", content("a"));
  const auto first = one.ask("a");
  const auto second = two.ask("a");
  one.store->pause(false);
  CHECK(Process::wait(*first).error.has_value());
  const ReadResult result = Process::wait(*second);
  CHECK_EQ(std::vector<uint8_t>(result.bytes.begin(), result.bytes.end()), content("a"));
}

TEST(a_full_cache_serves_what_it_has_and_asks_the_store_for_the_rest) {
  const TempCache temp;
  Process one(temp.path, "v1", 5 * 4096);
  for (int round = 0; round < 3; ++round) {
    for (size_t k = 0; k < 10; ++k) {
      const std::string key(k + 1, 'k');
      one.store->put(key, content(key));
      CHECK_EQ(*one.get(key), content(key));
      if (round == 0) one.settle();
    }
  }
  CHECK_EQ(one.counters->hits.load(), uint64_t{10});
  CHECK_EQ(one.counters->misses.load(), uint64_t{20});
  CHECK(one.counters->refused.load() > 0);
}

TEST(a_damaged_entry_is_fetched_again) {
  const TempCache temp;
  {
    Process one(temp.path);
    one.store->put("a", content("a"));
    CHECK_EQ(*one.get("a"), content("a"));
  }
  for (const auto& item : std::filesystem::recursive_directory_iterator(temp.path + "/entries")) {
    if (!item.is_regular_file() || item.path().filename() == "store") continue;
    std::vector<uint8_t> bytes = read_file(item.path());
    bytes.back() ^= 1;
    write_file(item.path(), bytes);
  }
  Process two(temp.path);
  two.store->put("a", content("a"));
  CHECK_EQ(*two.get("a"), content("a"));
  two.settle();
  CHECK_EQ(*two.get("a"), content("a"));
  CHECK_EQ(two.store->reads.load(), 1);
  CHECK_EQ(two.counters->damaged.load(), uint64_t{1});
}

TEST(ranges_that_are_missing_are_read_together_and_the_others_come_from_the_cache) {
  const TempCache temp;
  Process one(temp.path);
  const auto all = content("shard", 1000);
  one.store->put("shard", all);
  CHECK_EQ(one.get("shard", ByteRange::at(100, 50))->size(), size_t{50});
  one.settle();
  one.store->coalesce = {.gap = 10, .limit = 500};
  one.remake(std::make_shared<const ObjectVersions>("v1"));
  one.store->calls = 0;
  std::vector<ReadRequest> requests;
  std::atomic<int> good{0};
  std::vector<Buffer> rooms(6);
  for (size_t i = 0; i < 6; ++i) {
    const ByteRange range = ByteRange::at(i * 50, 50);
    requests.push_back({.key = "shard", .range = range, .room = &rooms[i], .done = [&, range](ReadResult result) {
                          const auto begin = all.begin() + static_cast<std::ptrdiff_t>(range.offset);
                          if (std::equal(result.bytes.begin(), result.bytes.end(), begin, begin + 50)) ++good;
                        }});
  }
  one.cache->read(std::move(requests));
  const auto until = std::chrono::steady_clock::now() + kLongest;
  while (good < 6 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  one.settle();
  CHECK_EQ(good.load(), 6);
  CHECK_EQ(one.store->calls.load(), 2);  // in front of the hit, and behind it
}

TEST(shards_and_their_indices_are_cached) {
  const TempCache temp;
  const ShardSpec spec{.chunks = {4}, .index_has_crc32c = true};
  std::vector<std::optional<std::vector<uint8_t>>> chunks;
  for (size_t i = 0; i < 4; ++i) chunks.emplace_back(content(std::string(i + 1, 'x'), 300));
  const std::vector<uint8_t> shard = make_shard(spec, chunks, 0);
  for (int round = 0; round < 3; ++round) {
    Process one(temp.path);
    one.store->put("c/0", shard);
    const auto reader = std::make_shared<ShardReader>(one.cache, spec, kMaxBytes);
    if (round > 0) CHECK(!reader->is_at_hand("c/0", 1));
    for (size_t i = 0; i < 4; ++i) {
      const auto waiting = std::make_shared<Process::Waiting>();
      std::vector<ReadRequest> requests;
      requests.push_back({.key = "c/0", .inner_chunk = i, .room = &waiting->room, .done = [waiting](ReadResult result) {
                            waiting->result.set_value(std::move(result));
                          }});
      reader->read(std::move(requests));
      const ReadResult result = Process::wait(*waiting);
      CHECK_EQ(std::vector<uint8_t>(result.bytes.begin(), result.bytes.end()), *chunks[i]);
      if (round > 0) CHECK(reader->is_at_hand("c/0", i));
    }
    CHECK_EQ(one.store->reads.load(), round == 0 ? 5 : 0);
    CHECK(reader->stop(std::chrono::steady_clock::now() + kLongest));
  }
}

TEST(nothing_completes_and_nothing_is_asked_after_the_end) {
  const TempCache temp;
  for (int round = 0; round < 20; ++round) {
    Process one(temp.path, std::to_string(round));
    Process two(temp.path, std::to_string(round));
    std::atomic<bool> ended{false};
    std::atomic<int> late{0};
    std::vector<std::shared_ptr<Buffer>> rooms;
    for (size_t k = 0; k < 40; ++k) {
      const std::string key(k % 20 + 1, 'k');
      const Process& process = k < 20 ? one : two;
      process.store->put(key, content(key));
      const auto room = std::make_shared<Buffer>();
      std::vector<ReadRequest> requests;
      requests.push_back({.key = key, .room = room.get(), .done = [&, room](const ReadResult& /*result*/) {
                            if (ended) ++late;
                          }});
      process.cache->read(std::move(requests));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(round * 100));
    two.end();
    one.end();
    ended = true;
    const int asked = one.store->calls + two.store->calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK_EQ(late.load(), 0);
    CHECK_EQ(one.store->calls + two.store->calls, asked);
  }
}

TEST(a_holder_that_is_stopped_holds_up_the_others_for_their_timeout_alone) {
  // The default is that of decision 0025, and well below the timeouts of reads.
  static_assert(NodeCache::kTimeout == std::chrono::seconds(20));
  const TempCache temp;
  Process stopped(temp.path), other(temp.path, "v1", kLimit, std::chrono::milliseconds(30));
  stopped.store->put("a", content("a"));
  other.store->put("a", content("a"));
  stopped.store->pause(true);
  const auto never = stopped.ask("a");  // has the claim
  while (stopped.store->calls == 0) std::this_thread::yield();
  CHECK_EQ(*other.get("a"), content("a"));
  CHECK_EQ(other.store->reads.load(), 1);
  stopped.store->pause(false);
  CHECK_EQ(Process::wait(*never).status, ReadStatus::kOk);
}

TEST(entries_that_were_written_hold_up_neither_the_next_ones_nor_the_end) {
  const TempCache temp;
  Process one(temp.path, "v1", uint64_t{1} << 30);
  for (size_t k = 0; k < 80; ++k) {  // more than may wait to be written at once
    const std::string key(k + 1, 'k');
    one.store->put(key, content(key, kMaxBytes));
    CHECK_EQ(one.get(key)->size(), kMaxBytes);
  }
  one.settle();
  CHECK_EQ(one.counters->written_bytes.load(), uint64_t{80} * kMaxBytes);
  // Writers wait for the counter of used bytes, which somebody else has: the store's thread must not be one of them.
  one.store->pause(true);
  std::vector<std::shared_ptr<Process::Waiting>> waiting;
  for (const char* key : {"a", "bb", "ccc"}) {
    one.store->put(key, content(key, kMaxBytes));
    waiting.push_back(one.ask(key));
  }
  const int state = open((temp.path + "/state").c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  CHECK_EQ(fcntl(state, F_OFD_SETLKW, &lock), 0);
  one.store->pause(false);
  for (const auto& asked : waiting) CHECK_EQ(Process::wait(*asked).bytes.size(), kMaxBytes);
  CHECK_EQ(one.counters->written_bytes.load(), uint64_t{80} * kMaxBytes);
  close(state);
  const auto begin = std::chrono::steady_clock::now();
  one.settle();
  CHECK(std::chrono::steady_clock::now() - begin < kLongest / 2);
  CHECK_EQ(one.counters->written_bytes.load(), uint64_t{83} * kMaxBytes);
}

}  // namespace zarrfeed::testing::node_cache_test
