// The chunks of an array: their keys, further tries, how long a read may take, and what errors say.

#include "storage/chunk_reader.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "spec/array_spec.h"
#include "spec/chunk_grid.h"
#include "storage/stores.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"
#include "tests/support/shards.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"
#include "tools/local_reader.h"

namespace zarrfeed::testing::chunk_reader_test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxBytes = 1000;

ArraySpec array_of(std::vector<int64_t> shape, std::vector<int64_t> chunk_shape, int sample_axis, KeySpec key) {
  ArraySpec array;
  array.name = "temperature";
  for (size_t axis = 0; axis < shape.size(); ++axis) array.storage_order.push_back(static_cast<int>(axis));
  array.shape = std::move(shape);
  array.chunk_shape = std::move(chunk_shape);
  array.sample_axis = sample_axis;
  array.item_bytes = 4;
  array.key = std::move(key);
  return array;
}

std::shared_ptr<ChunkReader> reader_of(const ArraySpec& array) {
  Stores stores(0, 1);
  return std::make_shared<ChunkReader>(array, stores.make(0, array, kMaxBytes), stores.io(), kMaxBytes, ReadPolicy{});
}

/// A store that does what it is told: it answers with the next of these, or keeps the request.
class ToldStore : public ByteStore {
 public:
  explicit ToldStore(Limits limits) : limits_(limits) {}

  ReadResult try_read(const std::string& /*key*/, const ByteRange& /*range*/, Buffer& /*room*/) override {
    const ReadResult result = next().value_or(ReadResult{.status = ReadStatus::kWouldBlock});
    if (result.error) throw *result.error;
    return result;
  }
  void read(std::vector<ReadRequest> requests) override {
    for (ReadRequest& request : requests) {
      ++reads;
      std::optional<ReadResult> result = next();
      if (result) {
        request.done(std::move(*result));
      } else {
        const std::lock_guard lock(mutex_);
        pending_.push_back(std::move(request));
      }
    }
  }
  [[nodiscard]] Limits limits() const override { return limits_; }
  [[nodiscard]] std::optional<Asked> oldest() const override { return asked; }
  bool stop(Clock::time_point /*deadline*/) override {
    const std::lock_guard lock(mutex_);
    pending_.clear();
    return true;
  }

  /// Ends the requests that were pending.
  void answer_pending(const ReadResult& result) {
    std::vector<ReadRequest> pending;
    {
      const std::lock_guard lock(mutex_);
      pending.swap(pending_);
    }
    for (const ReadRequest& request : pending) request.done(result);
  }

  void tell(ReadResult result) {
    const std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
  }
  void tell(const Error& error, size_t times = 1) {
    for (size_t i = 0; i < times; ++i) tell(ReadResult{.error = error});
  }

  std::atomic<size_t> reads{0};
  std::optional<Asked> asked;

 private:
  std::optional<ReadResult> next() {
    const std::lock_guard lock(mutex_);
    if (results_.empty()) return std::nullopt;
    ReadResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

  const Limits limits_;
  std::mutex mutex_;
  std::deque<ReadResult> results_;
  std::vector<ReadRequest> pending_;
};

/// A reader over such a store, and what becomes of reads.
struct Told {
  explicit Told(ByteStore::Limits limits = {}, ReadPolicy policy = {},
                const ArraySpec& array = array_of({100, 30}, {10, 10}, 0, {"c", '/'}))
      : store(std::make_shared<ToldStore>(limits)),
        io(std::make_shared<IoThreads>(1)),
        reader(std::make_shared<ChunkReader>(array, store, io, kMaxBytes, policy, &retries)) {}
  ~Told() { reader->stop(Clock::now()); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  void ask(int64_t chunk = 0) {
    std::vector<ChunkRequest> requests;
    requests.push_back({reader->locate(chunk, 1), &room, [this](ReadResult got) {
                          const std::lock_guard lock(mutex);
                          results.push_back(std::move(got));
                          ended.notify_all();
                        }});
    reader->read(std::move(requests));
  }
  /// Waits for a read to end, at most a minute.
  ReadResult take() {
    std::unique_lock lock(mutex);
    CHECK(ended.wait_for(lock, std::chrono::minutes(1), [this] { return !results.empty(); }));
    ReadResult result = std::move(results.front());
    results.pop_front();
    return result;
  }

  std::atomic<uint64_t> retries{0};
  std::shared_ptr<ToldStore> store;
  std::shared_ptr<IoThreads> io;
  std::shared_ptr<ChunkReader> reader;
  Buffer room;
  std::mutex mutex;
  std::condition_variable ended;
  std::deque<ReadResult> results;
};

const std::vector<uint8_t> kBytes = {1, 2, 3};

ReadResult good() {
  return {.status = ReadStatus::kOk, .bytes = kBytes};
}

std::string message_of(const ReadResult& result) {
  CHECK(result.error.has_value());
  return result.error->what();
}

}  // namespace

TEST(keys_follow_both_encodings_and_separators) {
  const std::vector<int64_t> shape = {100, 30, 20};
  const std::vector<int64_t> chunks = {10, 10, 10};
  const auto key = [&](int sample_axis, KeySpec spec) {
    return reader_of(array_of(shape, chunks, sample_axis, std::move(spec)))
        ->locate(7, 1)
        .key;  // cell 1 is the next one along the last axis that is not the samples'
  };
  CHECK_EQ(key(0, {"", '.'}), std::string("7.0.1"));
  CHECK_EQ(key(0, {"", '/'}), std::string("7/0/1"));
  CHECK_EQ(key(0, {"c", '/'}), std::string("c/7/0/1"));
  CHECK_EQ(key(0, {"c", '.'}), std::string("c.7.0.1"));
  CHECK_EQ(key(1, {"c", '/'}), std::string("c/0/7/1"));
  CHECK_EQ(reader_of(array_of({100}, {10}, 0, {"", '.'}))->locate(0, 0).key, std::string("0"));
  CHECK_EQ(reader_of(array_of({100}, {10}, 0, {"c", '/'}))->locate(9, 0).key, std::string("c/9"));
}

TEST(a_sample_axis_that_stands_for_several_splits_its_index_in_keys) {
  KeySpec key{"c", '/'};
  key.indices = {{0, 4, 3}, {1, 1, 2}, {0, 1, 4}};  // of 3 x 4 chunks along the samples, with another axis between
  ArraySpec array = array_of({120, 20}, {10, 10}, 0, key);
  CHECK_EQ(reader_of(array)->locate(7, 1).key, std::string("c/1/1/3"));
  array.shard.chunks = {1, 2, 2};
  const ChunkLocation at = reader_of(array)->locate(7, 1);
  CHECK_EQ(at.key, std::string("c/1/0/1"));
  CHECK_EQ(at.inner_chunk.value(), size_t{3});
}

TEST(cells_cover_the_grid_without_the_sample_axis) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 100; ++i) {
    const TempDir directory;
    ArrayLayout layout = random_layout(random, 10);
    const Context context(zarrfeed::testing::describe(layout));
    const TestArray array(directory.path() / "a", layout);
    const ArraySpec spec = array.field().array;
    const std::shared_ptr<ChunkReader> reader = reader_of(spec);
    std::set<std::string> keys;
    const auto samples = static_cast<size_t>(layout.sample_axis);
    for (int64_t chunk = 0; chunk * layout.chunk_shape[samples] < layout.shape[samples]; ++chunk) {
      for (size_t cell = 0; cell < CellGrid(spec).num_cells(); ++cell) keys.insert(reader->label(chunk, cell));
    }
    CHECK(keys == std::set<std::string>(array.keys().begin(), array.keys().end()));
  }
}

TEST(an_error_that_may_pass_is_tried_again_and_one_that_may_not_is_not) {
  Told told;
  told.store->tell(Error::io("gone for now", EIO), 2);
  told.store->tell(good());
  told.ask();
  CHECK_EQ(told.take().bytes.data(), kBytes.data());
  CHECK_EQ(told.retries.load(), uint64_t{2});
  for (const Error& error : {Error::io("no", EACCES), Error(ErrorKind::kCorrupt, "no")}) {
    told.store->tell(error);
    told.ask();
    CHECK_EQ(message_of(told.take()), std::string("temperature chunk c/0/1: no"));
    CHECK_EQ(told.retries.load(), uint64_t{2});
  }
}

TEST(an_error_that_stays_is_that_of_the_last_try) {
  for (const size_t retries : {size_t{0}, size_t{2}}) {
    Told told({}, {.max_retries = retries});
    told.store->tell(Error::io("at first", EIO), retries);
    told.store->tell(Error::io("at last", ESTALE));
    told.ask(3);
    CHECK_EQ(message_of(told.take()), std::string("temperature chunk c/3/1: at last"));
    CHECK_EQ(told.retries.load(), uint64_t{retries});
    CHECK_EQ(told.store->reads.load(), retries + 1);
  }
}

TEST(a_store_that_tries_again_itself_is_asked_once) {
  Told told({.retries = true});
  told.store->tell(Error::io("gone", EIO));
  told.ask();
  CHECK_EQ(message_of(told.take()), std::string("temperature chunk c/0/1: gone"));
  CHECK_EQ(told.store->reads.load(), size_t{1});
}

TEST(tries_end_with_the_time_that_a_read_may_take) {
  Told told({}, {.max_retries = 1000, .timeout = milliseconds(300)});
  told.store->tell(Error::io("gone", EIO), 1000);
  told.ask();
  CHECK_EQ(message_of(told.take()), std::string("temperature chunk c/0/1: gone"));
  CHECK(told.retries <= 5);
}

TEST(the_oldest_read_that_has_not_ended_is_overdue_after_the_timeout) {
  Told told({}, {.timeout = milliseconds(250)});
  const auto begin = Clock::now();
  CHECK(!told.reader->find_overdue(begin + milliseconds(10'000)));
  told.ask(4);
  told.ask(5);
  CHECK(!told.reader->find_overdue(begin));
  const auto overdue = told.reader->find_overdue(begin + milliseconds(10'000));
  CHECK(overdue.has_value());
  CHECK_EQ(overdue->errno_value(), ETIMEDOUT);
  CHECK_EQ(std::string(overdue->what()),
           std::string("temperature chunk c/4/1: the store did not answer within 0.25 s (timeout)"));
}

TEST(reads_that_wait_behind_others_are_overdue_only_when_storage_answers_none) {
  Told told({}, {.timeout = milliseconds(250)});
  told.ask(4);
  const auto asked = Clock::now();
  std::this_thread::sleep_for(milliseconds(20));
  told.store->tell(good());
  told.ask(5);
  CHECK(!told.take().error);
  CHECK(!told.reader->find_overdue(asked + milliseconds(265)));
  CHECK(told.reader->find_overdue(Clock::now() + milliseconds(250)).has_value());
}

TEST(an_overdue_read_is_named_by_what_storage_was_asked_for) {
  Told told({}, {.timeout = milliseconds(250)});
  told.ask(4);
  const auto later = Clock::now() + milliseconds(10'000);
  told.store->asked = Asked{.key = "c/7/1"};
  CHECK_EQ(std::string(told.reader->find_overdue(later)->what()),
           std::string("temperature chunk c/7/1: the store did not answer within 0.25 s (timeout)"));
  told.store->asked = Asked{.key = "c/8/1", .is_index = true};
  CHECK_EQ(std::string(told.reader->find_overdue(later)->what()),
           std::string("temperature chunk c/8/1: shard index: the store did not answer within 0.25 s (timeout)"));
}

TEST(an_overdue_read_of_several_stores_is_named_by_its_store) {
  ArraySpec array = array_of({100, 30}, {10, 10}, 0, {"c", '/'});
  array.parts = std::make_shared<const ArrayParts>([] {
    ArrayParts parts{.begin = {0, 40},
                     .end = {40, 100},
                     .prefix = {"1/", "12/"},
                     .name = {"2015.zarr", "2016.zarr"},
                     .rows_per_chunk = 10,
                     .first_chunk = {}};
    parts.number_chunks();
    return parts;
  }());
  Told told({}, {.timeout = milliseconds(250)}, array);
  told.ask(5);
  const auto later = Clock::now() + milliseconds(10'000);
  const std::string text = ": the store did not answer within 0.25 s (timeout)";
  CHECK_EQ(std::string(told.reader->find_overdue(later)->what()), "2016.zarr chunk c/1/1" + text);
  told.store->asked = Asked{.key = "1/c/3/1"};
  CHECK_EQ(std::string(told.reader->find_overdue(later)->what()), "2015.zarr chunk c/3/1" + text);
  told.store->asked = Asked{.key = "12/c/0/1", .is_index = true};
  CHECK_EQ(std::string(told.reader->find_overdue(later)->what()), "2016.zarr chunk c/0/1: shard index" + text);
}

TEST(what_was_stopped_does_not_end_any_more) {
  Told told({}, {.max_retries = 1000});
  told.store->tell(Error::io("gone", EIO));
  told.ask();  // waits for its next try
  told.ask();  // waits for the store
  CHECK(told.reader->stop(Clock::now()));
  CHECK(told.results.empty());
  CHECK(!told.reader->find_overdue(Clock::now() + std::chrono::hours(2)));
  told.store->tell(good());  // and the next epoch is read
  told.ask();
  CHECK_EQ(told.take().status, ReadStatus::kOk);
}

TEST(more_bytes_than_a_chunk_may_have_are_refused) {
  Told told;
  const std::vector<uint8_t> much(kMaxBytes + 1);
  for (int i = 0; i < 2; ++i) told.store->tell({.status = ReadStatus::kOk, .bytes = much});
  told.ask();
  const std::string expected = "temperature chunk c/0/1: the stored object has 1001 bytes, at most 1000 are plausible";
  CHECK_EQ(message_of(told.take()).substr(0, expected.size()), expected);
  CHECK_THROWS(kCorrupt, expected, told.reader->try_read(told.reader->locate(0, 1), told.room));
}

TEST(where_nothing_may_take_time_an_error_that_may_pass_is_left_to_others) {
  Told told;
  told.store->tell(Error::io("gone for now", ESTALE));
  CHECK_EQ(told.reader->try_read(told.reader->locate(0, 1), told.room).status, ReadStatus::kWouldBlock);
  told.store->tell(Error::io("no", EACCES));
  CHECK_THROWS(kIo, "temperature chunk c/0/1: no", told.reader->try_read(told.reader->locate(0, 1), told.room));
}

TEST(who_waits_himself_tries_again_and_is_seen_to_wait) {
  Told told({.requests = 0});
  told.store->tell(Error::io("gone for now", EIO));
  told.store->tell(good());
  StallWatch watch;
  CHECK_EQ(told.reader->read_here(told.reader->locate(0, 1), told.room, watch, {}).status, ReadStatus::kOk);
  CHECK_EQ(told.retries.load(), uint64_t{1});
  CHECK(!watch.waiting());
  // Left behind while the store keeps the request.
  auto held = std::make_shared<StallWatch>();
  std::atomic<bool> was_left{false};
  std::thread waiting([&] {
    try {
      told.reader->read_here(told.reader->locate(7, 1), told.room, *held, {.chunk = 7, .since = {}});
    } catch (const LeftBehind&) {
      was_left = true;
    }
  });
  while (!held->waiting()) std::this_thread::sleep_for(milliseconds(1));
  CHECK_EQ(held->waiting()->chunk, int64_t{7});
  CHECK(held->abandon());
  told.store->answer_pending(good());
  waiting.join();
  CHECK(was_left.load());
}

TEST(errors_name_the_array_and_the_key) {
  const TempDir directory;
  const TestArray array(directory.path() / "temperature", {.shape = {16, 6}, .chunk_shape = {8, 3}});
  const std::shared_ptr<ChunkReader> reader = open_local(Output(array.field()));
  std::filesystem::remove(array.chunk_path("0.0"));
  std::filesystem::create_directory(array.chunk_path("0.0"));
  Buffer room;
  CHECK_THROWS(kIo, "temperature chunk 0.0: is a directory", reader->try_read(reader->locate(0, 0), room));
  CHECK_THROWS(kIo, "temperature chunk 0.0: is a directory", reader->read_here(reader->locate(0, 0), room));
}

TEST(inner_chunks_are_read_on_threads_that_share_indices) {
  const TempDir directory;
  TestArray array(directory.path() / "a", {.shape = {96, 9}, .chunk_shape = {8, 4}, .shard_chunks = {3, 2}});
  array.remove_chunk("4.1");
  const ArraySpec spec = array.field().array;
  for (const size_t threads : {size_t{1}, size_t{4}}) {
    static_cast<void>(drop_from_page_cache(array.root()));
    Stores stores(threads, 1);
    const auto reader =
        std::make_shared<ChunkReader>(spec, stores.make(0, spec, kMaxBytes), stores.io(), kMaxBytes, ReadPolicy{});
    reader->open();
    std::mutex mutex;
    std::condition_variable changed;
    size_t found = 0;
    size_t missing = 0;
    std::vector<Buffer> rooms(12 * 3);
    std::vector<ChunkRequest> requests;
    for (size_t i = 0; i < rooms.size(); ++i) {
      requests.push_back({reader->locate(static_cast<int64_t>(i / 3), i % 3), &rooms[i], [&](const ReadResult& result) {
                            const std::lock_guard lock(mutex);
                            if (result.error) FAIL(result.error->what());
                            ++(result.status == ReadStatus::kOk ? found : missing);
                            changed.notify_all();
                          }});
    }
    reader->read(std::move(requests));
    {
      std::unique_lock lock(mutex);
      CHECK(changed.wait_for(lock, std::chrono::minutes(1), [&] { return found + missing == rooms.size(); }));
    }
    CHECK_EQ(missing, size_t{1});
    CHECK_EQ(reader->indices_read(), uint64_t{8});
    CHECK(reader->stop(Clock::now() + std::chrono::minutes(1)));
    reader->close();
  }
}

}  // namespace zarrfeed::testing::chunk_reader_test
