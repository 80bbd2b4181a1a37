// The bridge to stores that only Python reads: requests out, answers back, and nothing after the end.

#include "storage/python_store.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/check.h"

namespace zarrfeed::testing::python_store_test {
namespace {

bool is_readable(int descriptor) {
  pollfd entry{descriptor, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

std::vector<ReadRequest> one(std::string key, Completion done) {
  std::vector<ReadRequest> requests;
  requests.push_back({.key = std::move(key), .done = std::move(done)});
  return requests;
}

void ignore(const ReadResult& /*result*/) {}

/// Takes all that there is to take.
struct Taken {
  explicit Taken(StoreBridge& bridge) { bridge.take(requests, finished); }
  [[nodiscard]] std::vector<uint64_t> ids() const {
    std::vector<uint64_t> all;
    for (const FetchRequest& request : requests) {
      for (const FetchPart& part : request.parts) all.push_back(part.request_id);
    }
    return all;
  }
  std::vector<FetchRequest> requests;
  std::vector<uint64_t> finished;
};

}  // namespace

TEST(the_bridge_is_readable_while_there_is_something_to_take) {
  const auto bridge = std::make_shared<StoreBridge>();
  CHECK(!is_readable(bridge->descriptor()));
  for (int round = 0; round < 3; ++round) {
    ReadResult result;
    bridge->post(0, one("a", [&](ReadResult got) { result = std::move(got); }));
    bridge->post(1, one("b", ignore));
    CHECK(is_readable(bridge->descriptor()));
    const Taken taken(*bridge);
    CHECK(!is_readable(bridge->descriptor()));
    CHECK_EQ(taken.requests.size(), size_t{2});
    CHECK_EQ(taken.requests[0].source, size_t{0});
    CHECK_EQ(taken.requests[1].key, std::string("b"));
    const std::vector<uint8_t> bytes = {1, 2, 3};
    const FetchAnswer answer{taken.ids()[0], Bytes(bytes)};
    bridge->answer({&answer, 1});
    CHECK_EQ(result.bytes.data(), bytes.data());
    CHECK(!is_readable(bridge->descriptor()));  // the bytes are in use
    result = {};
    CHECK(is_readable(bridge->descriptor()));
    const Taken after(*bridge);
    CHECK(after.requests.empty());
    CHECK_EQ(after.finished, std::vector<uint64_t>{answer.request_id});
  }
  bridge->post(0, one("c", ignore));
  bridge->clear();
  CHECK(!is_readable(bridge->descriptor()));
  CHECK(Taken(*bridge).requests.empty());
}

TEST(the_oldest_request_that_was_not_answered_is_known_by_field) {
  const auto bridge = std::make_shared<StoreBridge>();
  PythonStore store(bridge, 1, 8, {});
  CHECK(!store.oldest());
  bridge->post(0, one("of another field", ignore));
  std::vector<ReadRequest> requests;
  requests.push_back({.key = "a", .range = ByteRange::last(20).as_index(), .done = ignore});
  requests.push_back({.key = "b", .range = ByteRange::at(0, 4), .inner_chunk = 3, .done = ignore});
  store.read(std::move(requests));
  CHECK_EQ(store.oldest()->key, std::string("a"));
  CHECK(store.oldest()->is_index);
  const Taken taken(*bridge);
  const FetchAnswer answer{taken.ids()[1], std::nullopt};
  bridge->answer({&answer, 1});
  CHECK_EQ(store.oldest()->key, std::string("b"));
  CHECK_EQ(*store.oldest()->inner_chunk, size_t{3});
  bridge->clear();
  CHECK(!store.oldest());
}

TEST(requests_end_once_and_not_after_the_epoch) {
  const auto bridge = std::make_shared<StoreBridge>();
  std::vector<ReadResult> results;
  const auto keep = [&](ReadResult got) { results.push_back(std::move(got)); };
  for (const char* key : {"bytes", "missing", "io", "corrupt", "late"}) bridge->post(0, one(key, keep));
  const std::vector<uint64_t> ids = Taken(*bridge).ids();
  const std::vector<uint8_t> bytes = {1};
  const FetchAnswer answers[] = {
      {ids[0], Bytes(bytes)}, {ids[0], Bytes(bytes)}, {ids[1], std::nullopt}, {ids[4] + 1, Bytes(bytes)}};
  bridge->answer(answers);
  bridge->refuse(ids[2], Error::io("no luck", EACCES));
  bridge->refuse(ids[3], Error(ErrorKind::kCorrupt, "no sense"));
  bridge->refuse(ids[3], Error(ErrorKind::kCorrupt, "again"));
  CHECK_EQ(results.size(), size_t{4});
  CHECK_EQ(results[0].status, ReadStatus::kOk);
  CHECK_EQ(results[1].status, ReadStatus::kMissing);
  CHECK(results[2].error && results[2].error->errno_value() == EACCES);
  CHECK(results[3].error && results[3].error->kind() == ErrorKind::kCorrupt);
  bridge->clear();
  const FetchAnswer late{ids[4], Bytes(bytes)};
  bridge->answer({&late, 1});
  CHECK_EQ(results.size(), size_t{4});
  results.clear();  // bytes of the epoch that is over: nobody is told
  CHECK(!is_readable(bridge->descriptor()));
}

TEST(ranges_of_one_object_that_are_posted_together_are_one_request) {
  const auto bridge = std::make_shared<StoreBridge>();
  std::vector<ReadRequest> requests;
  requests.push_back({.key = "s", .range = ByteRange::last(20).as_index(), .done = ignore});
  requests.push_back({.key = "s", .range = ByteRange::at(0, 8), .done = ignore});
  requests.push_back({.key = "s", .range = ByteRange::at(8, 4), .done = ignore});
  requests.push_back({.key = "t", .range = ByteRange::at(12, 4), .done = ignore});
  requests.push_back({.key = "t", .done = ignore});
  requests.push_back({.key = "t", .done = ignore});
  bridge->post(3, std::move(requests));
  bridge->post(3, one("t", ignore));
  const std::vector<FetchRequest> taken = Taken(*bridge).requests;
  std::vector<size_t> parts;
  for (const FetchRequest& request : taken) {
    parts.push_back(request.parts.size());
    CHECK_EQ(request.source, size_t{3});
    CHECK_EQ(request.is_index, parts.size() == 1);
  }
  CHECK_EQ(parts, (std::vector<size_t>{1, 2, 1, 1, 1, 1}));
  CHECK_EQ(taken[1].parts[1].range.offset, uint64_t{8});
}

TEST(the_bridge_loses_nothing_between_threads) {
  const auto bridge = std::make_shared<StoreBridge>();
  constexpr uint64_t kEach = 20'000;
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&bridge, t] {
      for (uint64_t i = 0; i < kEach; ++i) bridge->post(t, one("key", ignore));
    });
  }
  std::vector<bool> seen(3 * kEach + 1);
  seen[0] = true;  // numbers begin with 1
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (size_t total = 0; total < 3 * kEach && std::chrono::steady_clock::now() < deadline;) {
    pollfd entry{bridge->descriptor(), POLLIN, 0};
    poll(&entry, 1, 1000);
    const Taken taken(*bridge);
    for (const uint64_t id : taken.ids()) seen[id] = true;
    total += taken.ids().size();
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::find(seen.begin(), seen.end(), false) == seen.end());
}

TEST(threads_take_each_request_once_and_all_that_was_finished) {
  const auto bridge = std::make_shared<StoreBridge>();
  constexpr uint64_t kRequests = 20'000;
  const uint64_t epoch = bridge->epoch();
  const std::vector<uint8_t> bytes = {1, 2, 3};
  std::atomic<uint64_t> answered{0};
  std::mutex mutex;
  std::vector<int> taken(kRequests + 1, 0);
  std::vector<int> finished(kRequests + 1, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (const std::optional<TakenRequest> one = bridge->take_one(epoch)) {
        const uint64_t id = one->request.parts.at(0).request_id;
        {
          const std::lock_guard lock(mutex);
          ++taken[id];
          for (const uint64_t done : one->finished) ++finished[done];
        }
        const FetchAnswer answer{id, Bytes(bytes)};
        bridge->answer({&answer, 1});
      }
    });
  }
  for (uint64_t i = 0; i < kRequests; ++i) {
    bridge->post(0, one("key", [&](const ReadResult& /*result*/) { ++answered; }));
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto is_over = [&] { return std::chrono::steady_clock::now() >= deadline; };
  while (answered < kRequests && !is_over()) std::this_thread::yield();
  // A request is finished when its bytes are let go of, which the thread that answers does after it counted.
  const auto count_finished = [&] {
    const std::lock_guard lock(mutex);
    return std::accumulate(finished.begin(), finished.end(), uint64_t{0});
  };
  while (count_finished() < kRequests && !is_over()) {
    std::vector<FetchRequest> none;
    std::vector<uint64_t> rest;
    bridge->take(none, rest);
    CHECK(none.empty());
    const std::lock_guard lock(mutex);
    for (const uint64_t done : rest) ++finished[done];
  }
  bridge->clear();
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(std::count(taken.begin() + 1, taken.end(), 1), std::ptrdiff_t{kRequests});
  CHECK_EQ(std::count(finished.begin() + 1, finished.end(), 1), std::ptrdiff_t{kRequests});
}

TEST(a_thread_that_waits_for_a_request_of_an_epoch_is_woken_by_its_end) {
  const auto bridge = std::make_shared<StoreBridge>();
  for (int round = 0; round < 200; ++round) {
    const uint64_t epoch = bridge->epoch();
    std::thread waiting([&] { CHECK(!bridge->take_one(epoch)); });
    bridge->clear();
    waiting.join();
    bridge->post(0, one("of the next epoch", ignore));
    CHECK(!bridge->take_one(epoch));  // and leaves the next epoch's requests alone
    CHECK_EQ(bridge->take_one(bridge->epoch())->request.key, std::string("of the next epoch"));
  }
}

TEST(nothing_ends_after_clear_while_another_thread_answers) {
  const auto bridge = std::make_shared<StoreBridge>();
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> is_over{false};
    std::atomic<int> after{0};
    for (int i = 0; i < 8; ++i) {
      bridge->post(0, one("key", [&](const ReadResult& /*result*/) { after += is_over ? 1 : 0; }));
    }
    const std::vector<uint64_t> ids = Taken(*bridge).ids();
    std::thread other([&] {
      for (const uint64_t id : ids) {
        const FetchAnswer answer{id, std::nullopt};
        bridge->answer({&answer, 1});
      }
    });
    bridge->clear();
    is_over = true;
    other.join();
    CHECK_EQ(after.load(), 0);
  }
}

}  // namespace zarrfeed::testing::python_store_test
