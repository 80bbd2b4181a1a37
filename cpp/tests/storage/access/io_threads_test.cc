// Threads that wait for storage: jobs and times, an end at any moment, and threads that have to be left behind.

#include "storage/access/io_threads.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "tests/support/check.h"

namespace zarrfeed::testing::io_threads_test {
namespace {

using std::chrono::milliseconds;
using Clock = IoThreads::Clock;

/// Holds threads until it is opened.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      is_open_ = true;
    }
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting;
    changed_.wait(lock, [this] { return is_open_; });
    --waiting;
  }

  std::atomic<int> waiting{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

void wait_until(const auto& holds) {
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  while (!holds() && Clock::now() < deadline) std::this_thread::sleep_for(milliseconds(1));
  CHECK(holds());
}

}  // namespace

TEST(jobs_are_done_once_by_no_more_threads_than_allowed) {
  IoThreads threads(3);
  std::atomic<int> inside{0};
  std::atomic<int> most{0};
  std::atomic<int> done{0};
  for (int round = 0; round < 3; ++round) {
    done = 0;
    for (int i = 0; i < 100; ++i) {
      threads.post({.in_storage =
                        [&] {
                          const int now = ++inside;
                          int seen = most;
                          while (seen < now && !most.compare_exchange_weak(seen, now)) {
                          }
                          std::this_thread::yield();
                          --inside;
                        },
                    .done = [&] { ++done; }});
    }
    wait_until([&] { return done == 100; });
    CHECK(threads.stop(Clock::now()));  // and can be used again
  }
  CHECK(most <= 3);
}

TEST(functions_are_called_at_their_time_and_not_before) {
  for (const size_t max_threads : {size_t{0}, size_t{2}}) {
    IoThreads threads(max_threads);
    std::mutex mutex;
    std::vector<int> order;
    const auto begin = Clock::now();
    for (const int ms : {60, 20, 40}) {
      threads.post_at(begin + milliseconds(ms), [&, ms] {
        CHECK(Clock::now() >= begin + milliseconds(ms));
        const std::lock_guard lock(mutex);
        order.push_back(ms);
      });
    }
    wait_until([&] {
      const std::lock_guard lock(mutex);
      return order.size() == 3;
    });
    CHECK(threads.stop(Clock::now()));
  }
}

TEST(what_was_cancelled_is_dropped_and_ends_all_sleep) {
  IoThreads threads(1);
  std::atomic<bool> ran{false};
  threads.post_at(Clock::now() + std::chrono::hours(1), [&] { ran = true; });
  std::atomic<bool> slept{true};
  std::thread sleeper([&] { slept = threads.sleep_until(Clock::now() + std::chrono::hours(1)); });
  threads.cancel();
  sleeper.join();
  CHECK(!slept.load());
  threads.post({.in_storage = [&] { ran = true; }, .done = [] {}});
  CHECK(threads.stop(Clock::now()));
  CHECK(!ran.load());
  CHECK(threads.sleep_until(Clock::now()));
}

TEST(a_thread_in_storage_is_left_behind_and_says_nothing_afterwards) {
  const auto gate = std::make_shared<Gate>();
  const auto said = std::make_shared<std::atomic<int>>(0);
  {
    IoThreads threads(2);
    threads.post({.in_storage = [gate] { gate->pass(); }, .done = [said] { ++*said; }});
    threads.post({.in_storage = [] {}, .done = [said] { *said += 10; }});
    wait_until([&] { return gate->waiting == 1 && *said == 10; });
    CHECK(!threads.stop(Clock::now()));
  }
  gate->open();
  wait_until([&] { return gate.use_count() == 1; });
  CHECK_EQ(said->load(), 10);
}

TEST(an_end_waits_for_what_is_not_in_storage) {
  const auto gate = std::make_shared<Gate>();
  IoThreads threads(1);
  std::atomic<bool> is_done{false};
  threads.post({.in_storage = [] {},
                .done =
                    [&] {
                      gate->pass();
                      is_done = true;
                    }});
  wait_until([&] { return gate->waiting == 1; });
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(30));
    gate->open();
  });
  CHECK(threads.stop(Clock::now()));
  CHECK(is_done.load());
  opener.join();
}

}  // namespace zarrfeed::testing::io_threads_test
