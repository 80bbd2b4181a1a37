// The fetcher: every task that it takes comes back once, with bytes or an error, and nothing is requested after cancel().

#include "engine/fetcher.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::fetcher_test {
namespace {

/// A store that answers when the test says so. The bytes of an object are its key.
class HeldStore : public ByteStore {
 public:
  explicit HeldStore(Limits limits) : limits_(limits) {}

  ReadResult try_read(const std::string& key, const ByteRange& /*range*/, Buffer& /*room*/) override {
    ++tries;
    if (would_block) return {.status = ReadStatus::kWouldBlock};
    return answer(key);
  }
  void read(std::vector<ReadRequest> requests) override {
    if (on_read) std::exchange(on_read, nullptr)();
    calls.push_back(requests.size());
    for (ReadRequest& request : requests) {
      asked->push_back(source + request.key);
      open.push_back(std::move(request));
    }
  }
  [[nodiscard]] bool is_at_hand(const std::string& key, const ByteRange& /*range*/) const override {
    return at_hand.contains(key);
  }
  [[nodiscard]] Limits limits() const override { return limits_; }
  bool stop(std::chrono::steady_clock::time_point /*deadline*/) override {
    open.clear();
    return true;
  }

  /// Answers an open request.
  void complete(size_t number, std::optional<Error> error = {}) {
    const ReadRequest request = std::move(open[number]);
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(number));
    request.done(error ? ReadResult{.error = std::move(error)} : answer(request.key));
  }

  std::string source;                               ///< what `asked` calls it
  std::shared_ptr<std::vector<std::string>> asked;  ///< the keys that stores were asked for, in order
  std::function<void()> on_read;                    ///< called once, at the beginning of the next read()
  std::vector<ReadRequest> open;
  std::vector<size_t> calls;  ///< requests that came together
  std::set<std::string> at_hand;
  int tries = 0;
  bool would_block = true;

 private:
  static ReadResult answer(const std::string& key) {
    const auto bytes = std::make_shared<const std::string>(key);
    return {.status = ReadStatus::kOk,
            .bytes = {reinterpret_cast<const uint8_t*>(bytes->data()), bytes->size()},
            .hold = bytes};
  }

  const Limits limits_;
};

class HeldStores : public Stores {
 public:
  explicit HeldStores(ByteStore::Limits limits) : Stores(1, 1), limits_(limits) {}
  std::shared_ptr<ByteStore> make(size_t source, const ArraySpec& /*array*/, size_t /*max_chunk_bytes*/) override {
    made[source] = std::make_shared<HeldStore>(limits_);
    made[source]->source = std::to_string(source) + "/";
    made[source]->asked = asked;
    return made[source];
  }

  const std::shared_ptr<std::vector<std::string>> asked = std::make_shared<std::vector<std::string>>();
  std::map<size_t, std::shared_ptr<HeldStore>> made;

 private:
  const ByteStore::Limits limits_;
};

/// A fetcher over two arrays of 40 chunks.
struct Case {
  explicit Case(ByteStore::Limits limits)
      : data({{.shape = {40, 3}, .chunk_shape = {1, 3}}, {.shape = {40, 3}, .chunk_shape = {1, 3}}}, false, false),
        outputs(data.fields()),
        stores(std::make_shared<HeldStores>(limits)),
        fetcher(outputs, stores, {}, mutex, stats, [this] {
          const std::unique_lock lock(mutex, std::try_to_lock);
          if (!lock.owns_lock()) ++signals_under_mutex;
          ++signals;
        }) {
    fetcher.begin_epoch(false);
  }
  ~Case() { fetcher.stop(Fetcher::Clock::now()); }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  [[nodiscard]] HeldStore& store(size_t source) { return *stores->made.at(source); }
  [[nodiscard]] Task take() {
    const std::lock_guard lock(mutex);
    CHECK(fetcher.has_fetched());
    return fetcher.take_fetched();
  }
  [[nodiscard]] uint64_t take_turn() {
    const std::lock_guard lock(mutex);
    return fetcher.take_turn();
  }
  [[nodiscard]] bool has_fetched() {
    const std::lock_guard lock(mutex);
    return fetcher.has_fetched();
  }

  Dataset data;
  OutputTable outputs;
  std::shared_ptr<HeldStores> stores;
  std::mutex mutex;
  Stats stats;
  int signals = 0;
  int signals_under_mutex = 0;
  Fetcher fetcher;
};

Task task_of(size_t source, int64_t chunk) {
  Task task;
  task.source = source;
  task.chunk = chunk;
  return task;
}

std::vector<Task> tasks_of(const std::vector<std::pair<size_t, int64_t>>& chunks) {
  std::vector<Task> tasks;
  for (const auto& [source, chunk] : chunks) tasks.push_back(task_of(source, chunk));
  return tasks;
}

std::string text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

constexpr auto kNone = [](const Task&) { return false; };

}  // namespace

TEST(every_task_comes_back_once_with_the_bytes_of_its_chunk) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const size_t limit = 1 + random() % 5;
    Case c({.requests = limit, .can_try = false, .needs_room = false});
    std::set<std::pair<size_t, int64_t>> back;
    int64_t next = 0;
    int errors = 0;
    for (int turn = 0; back.size() < 80; ++turn) {
      CHECK(turn < 10'000);
      if (next < 40 && random() % 2 == 0) {
        std::vector<Task> tasks;
        const auto end = std::min<int64_t>(40, next + 1 + static_cast<int64_t>(random() % 4));
        for (; next < end; ++next) {
          for (const size_t source : {0, 1}) tasks.push_back(task_of(source, next));
        }
        c.fetcher.fetch(tasks);
      }
      for (const size_t source : {0, 1}) {
        HeldStore& store = c.store(source);
        CHECK(store.open.size() <= limit);
        if (store.open.empty() || random() % 2 == 0) continue;
        const bool fails = random() % 8 == 0;
        errors += fails ? 1 : 0;
        store.complete(random() % store.open.size(),
                       fails ? std::optional<Error>(Error(ErrorKind::kCorrupt, "is damaged")) : std::nullopt);
        Task task = c.take();
        CHECK(!c.has_fetched());
        CHECK_EQ(task.source, source);
        CHECK_EQ(task.error.has_value(), fails);
        if (!fails) CHECK_EQ(text_of(task.stored.whole()), std::to_string(task.chunk) + ".0");
        CHECK(back.insert({source, task.chunk}).second);
        CHECK_EQ(task.hold != nullptr, !fails);
        c.fetcher.finish(task);
        CHECK(task.hold == nullptr);
      }
    }
    const std::lock_guard lock(c.mutex);
    CHECK_EQ(c.fetcher.in_flight(), size_t{0});
    CHECK(c.fetcher.has_room());
    CHECK_EQ(c.signals, 80);
    CHECK_EQ(c.signals_under_mutex, 0);
    CHECK(errors > 0 || seed % 3 != 0);
  }
}

TEST(neighbours_of_one_source_are_requested_together) {
  Case c({.requests = 10, .can_try = false, .needs_room = false});
  std::vector<Task> tasks;
  for (const size_t source : {1, 0}) {
    for (int64_t chunk = 0; chunk < 4; ++chunk) tasks.push_back(task_of(source, chunk));
  }
  tasks.emplace_back().has_chunk = false;
  c.fetcher.fetch_ahead(tasks, c.take_turn(), kNone);
  CHECK_EQ(tasks.size(), size_t{1});
  CHECK(!tasks.front().has_chunk);
  for (const size_t source : {0, 1}) CHECK(c.store(source).calls == std::vector<size_t>{4});
}

TEST(chunks_are_requested_in_the_order_of_the_turns_of_their_groups) {
  for (const size_t limit : {2, 100}) {
    Case c({.requests = limit, .can_try = false, .needs_room = false});
    std::mt19937_64 random(limit);
    std::vector<std::pair<uint64_t, std::vector<Task>>> turns;
    std::vector<std::string> expected;
    for (int64_t chunk = 0; chunk < 40; ++chunk) {
      if (random() % 3 == 0) turns.emplace_back(c.take_turn(), std::vector<Task>{});  // a group without such a chunk
      auto& [turn, tasks] = turns.emplace_back(c.take_turn(), std::vector<Task>{});
      for (const size_t source : {1, 0}) {
        tasks.push_back(task_of(source, chunk));
        expected.push_back(std::to_string(source) + "/" + std::to_string(chunk) + ".0");
      }
    }
    std::ranges::shuffle(turns, random);
    for (auto& [turn, tasks] : turns) {
      c.fetcher.fetch_ahead(tasks, turn, kNone);
      CHECK(tasks.empty());
    }
    size_t done = 0;
    for (; done < 80; ++done) {
      HeldStore& store = c.store(c.store(0).open.empty() ? 1 : 0);
      store.complete(0);
      Task task = c.take();
      c.fetcher.finish(task);
    }
    if (limit == 100) CHECK(*c.stores->asked == expected);
    for (const char source : {'0', '1'}) {  // sources do not share the limit, so each has an order of its own
      const auto is_of = [source](const std::string& key) { return key[0] == source; };
      std::vector<std::string> of_source, expected_of_source;
      std::ranges::copy_if(*c.stores->asked, std::back_inserter(of_source), is_of);
      std::ranges::copy_if(expected, std::back_inserter(expected_of_source), is_of);
      CHECK(of_source == expected_of_source);
    }
    const std::lock_guard lock(c.mutex);
    CHECK(c.fetcher.has_room());
  }
}

TEST(a_turn_that_is_due_lets_no_group_be_admitted_before_it) {
  Case c({.requests = 10, .can_try = false, .needs_room = false});
  const uint64_t first = c.take_turn();
  std::vector<Task> late = tasks_of({{0, 1}});
  c.fetcher.fetch_ahead(late, c.take_turn(), kNone);
  CHECK(c.stores->asked->empty());
  {
    const std::lock_guard lock(c.mutex);
    CHECK(!c.fetcher.has_room());
  }
  std::vector<Task> none;
  c.fetcher.fetch_ahead(none, first, kNone);
  CHECK(*c.stores->asked == std::vector<std::string>{"0/1.0"});
  const std::lock_guard lock(c.mutex);
  CHECK(c.fetcher.has_room());
}

TEST(requests_that_are_found_while_others_are_made_come_after_these) {
  Case c({.requests = 10, .can_try = false, .needs_room = false});
  std::vector<Task> tasks = tasks_of({{0, 0}, {1, 0}});
  std::vector<Task> later = tasks_of({{1, 1}, {0, 1}});
  const uint64_t turn = c.take_turn();
  const uint64_t next = c.take_turn();
  c.store(0).on_read = [&] { c.fetcher.fetch_ahead(later, next, kNone); };  // as a thread does that is quicker
  c.fetcher.fetch_ahead(tasks, turn, kNone);
  CHECK(*c.stores->asked == (std::vector<std::string>{"0/0.0", "1/0.0", "1/1.0", "0/1.0"}));
}

TEST(tasks_that_need_no_stored_bytes_or_wait_for_another_task_are_not_requested_ahead) {
  Case c({.requests = 10, .can_try = false, .needs_room = false});
  const auto memory = std::make_shared<CarryMemory>(std::vector<size_t>{12, 12}, 100);
  const auto shared = std::make_shared<CarriedChunk>(SharedChunk{}, memory);
  std::vector<Task> tasks;
  for (int64_t chunk = 0; chunk < 4; ++chunk) tasks.push_back(task_of(0, chunk));
  tasks[1].carried = tasks[2].carried = shared;
  c.fetcher.fetch_ahead(tasks, c.take_turn(), [](const Task& task) { return task.chunk == 3; });
  CHECK_EQ(tasks.size(), size_t{1});
  CHECK_EQ(tasks.front().chunk, int64_t{3});
  CHECK_EQ(c.store(0).open.size(), size_t{2});  // of the two that share a chunk, one
  c.store(0).complete(1);
  Task first = c.take();
  CHECK(first.decodes_carried);
  CHECK_EQ(CarriedChunk::give_up(first).size(), size_t{1});
}

TEST(a_store_with_some_chunks_at_hand_is_asked_for_the_others_alone) {
  Case c({.requests = 10, .has_some_at_hand = true, .needs_room = false});
  CHECK(c.fetcher.asks_first());
  c.store(0).at_hand = {"1.0", "2.0"};
  std::vector<Task> tasks = tasks_of({{0, 0}, {0, 1}, {0, 2}, {0, 3}});
  c.fetcher.fetch_ahead(tasks, c.take_turn(), kNone);
  CHECK_EQ(tasks.size(), size_t{2});
  CHECK(tasks[0].chunk == 1 && tasks[1].chunk == 2);
  CHECK_EQ(c.store(0).open.size(), size_t{2});
}

TEST(a_store_that_decode_threads_read_is_not_asked_ahead) {
  Case c({.requests = 10, .needs_room = false});
  CHECK(!c.fetcher.asks_first());
  std::vector<Task> tasks = tasks_of({{0, 0}, {1, 1}});
  c.fetcher.fetch_ahead(tasks, c.take_turn(), kNone);
  CHECK_EQ(tasks.size(), size_t{2});
  CHECK(c.store(0).open.empty() && c.store(1).open.empty());
}

TEST(after_cancel_nothing_is_requested) {
  Case c({.requests = 1, .can_try = false, .needs_room = false});
  std::vector<Task> tasks = tasks_of({{0, 0}, {0, 1}});
  c.fetcher.fetch(tasks);
  c.store(0).complete(0);
  Task task = c.take();
  {
    const std::lock_guard lock(c.mutex);
    c.fetcher.cancel();
  }
  c.fetcher.finish(task);  // the second one waited for this
  CHECK(c.store(0).open.empty());
  std::vector<Task> more = tasks_of({{0, 2}, {1, 2}});
  c.fetcher.fetch(more);
  CHECK(c.store(0).open.empty() && c.store(1).open.empty());
  CHECK(c.fetcher.stop(Fetcher::Clock::now()));
  {
    const std::lock_guard lock(c.mutex);
    c.fetcher.clear();
  }
  c.fetcher.begin_epoch(false);
  c.fetcher.fetch({more.data(), 1});
  CHECK_EQ(c.store(0).open.size(), size_t{1});
}

TEST(after_a_chunk_that_had_to_be_waited_for_others_are_fetched_without_a_try) {
  Case c({.requests = 4, .needs_room = false});
  Buffer room;
  StallWatch watch;
  Task task = task_of(0, 5);
  int fetched = 0;
  for (; !c.fetcher.read(task, room, watch); ++fetched) {
    c.store(0).would_block = false;
    CHECK_EQ(c.store(0).tries, 1);
    CHECK(fetched < 1000);
  }
  CHECK(fetched > 4);
  CHECK_EQ(c.store(0).tries, 2);
  CHECK_EQ(text_of(task.stored.whole()), std::string("5.0"));
}

TEST(new_readers_leave_the_old_ones_to_the_threads_that_hold_them) {
  Case c({.requests = 4, .needs_room = false});
  const std::weak_ptr<HeldStore> old = c.stores->made.at(0);
  auto held = c.fetcher.hold();
  c.fetcher.renew();
  CHECK(!old.expired());
  held.reset();
  CHECK(old.expired());
  c.fetcher.begin_epoch(false);
  std::vector<Task> tasks = tasks_of({{0, 0}});
  c.fetcher.fetch(tasks);
  CHECK_EQ(c.store(0).open.size(), size_t{1});
}

}  // namespace zarrfeed::testing::fetcher_test
