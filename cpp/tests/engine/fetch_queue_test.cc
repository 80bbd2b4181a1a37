// The fetch queue: limits of pools, the order in which tasks are fetched, and what neighbours in a shard wait for.

#include "engine/fetch_queue.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/check.h"

namespace zarrfeed::testing::fetch_queue_test {
namespace {

Task task_of(size_t field, int64_t chunk) {
  Task task;
  task.source = field;
  task.chunk = chunk;
  return task;
}

bool never_together(const Task& /*one*/, const Task& /*other*/) {
  return false;
}

std::vector<int64_t> chunks_of(const FetchQueue::Tasks& tasks) {
  std::vector<int64_t> chunks;
  for (const auto& task : tasks) chunks.push_back(task->chunk);
  return chunks;
}

}  // namespace

TEST(no_more_tasks_of_a_pool_are_in_flight_than_its_limit_and_each_is_fetched_once_in_order) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    const std::vector<size_t> limits = {random() % 5 + 1, random() % 5 + 1};
    FetchQueue queue;  // fields 0 and 2 share pool 0
    queue.set_sources({{0, true}, {1, false}, {0, false}}, limits);
    std::vector<std::shared_ptr<Task>> flying;
    std::vector<int64_t> begun[2];
    int64_t added[2] = {0, 0};
    const auto note = [&](const FetchQueue::Tasks& fetches) {
      for (const auto& task : fetches) {
        CHECK(task->is_fetched);
        CHECK_EQ(task->room != nullptr, task->source == 0);
        begun[task->source % 2].push_back(task->chunk);
        flying.push_back(task);
      }
    };
    const auto check = [&] {
      size_t in_flight[2] = {0, 0};
      for (const auto& task : flying) ++in_flight[task->source % 2];
      CHECK_EQ(queue.in_flight(), flying.size());
      bool has_room = true;
      for (const size_t pool : {0, 1}) {
        CHECK(in_flight[pool] <= limits[pool]);
        has_room = has_room && in_flight[pool] < limits[pool] && std::ssize(begun[pool]) == added[pool];
      }
      CHECK_EQ(queue.has_room(), has_room);
    };
    for (int k = 0; k < 200 || !flying.empty(); ++k) {
      FetchQueue::Tasks fetches;
      if (k < 200 && random() % 2 == 0) {
        const size_t field = random() % 3;
        queue.add(task_of(field, added[field % 2]++), fetches);
      } else if (!flying.empty()) {
        std::swap(flying[random() % flying.size()], flying.back());
        const std::shared_ptr<Task> done = std::move(flying.back());
        flying.pop_back();
        queue.finish(*done);
        queue.next(done->source, never_together, fetches);
      }
      note(fetches);
      check();
    }
    for (const size_t pool : {0, 1}) {
      CHECK_EQ(std::ssize(begun[pool]), added[pool]);
      CHECK(std::is_sorted(begun[pool].begin(), begun[pool].end()));
    }
  }
}

TEST(neighbours_wait_until_half_of_the_pool_is_free_and_are_handed_out_together) {
  FetchQueue queue;
  queue.set_sources({{0, false}}, {4});
  FetchQueue::Tasks flying;
  for (int64_t chunk = 0; chunk < 8; ++chunk) queue.add(task_of(0, chunk), flying);
  CHECK(chunks_of(flying) == (std::vector<int64_t>{0, 1, 2, 3}));
  const auto together = [](const Task& one, const Task& other) { return one.chunk / 4 == other.chunk / 4; };
  FetchQueue::Tasks fetches;
  queue.finish(*flying[0]);
  queue.next(0, together, fetches);
  CHECK(fetches.empty());  // one of four requests has ended
  queue.finish(*flying[1]);
  queue.next(0, together, fetches);
  CHECK(chunks_of(fetches) == (std::vector<int64_t>{4, 5}));
}

TEST(a_task_without_a_neighbour_does_not_wait_for_half_of_the_pool) {
  FetchQueue queue;
  queue.set_sources({{0, false}}, {4});
  FetchQueue::Tasks flying;
  for (const int64_t chunk : {0, 1, 2, 3, 7, 8}) queue.add(task_of(0, chunk), flying);
  const auto together = [](const Task& one, const Task& other) { return one.chunk / 4 == other.chunk / 4; };
  FetchQueue::Tasks fetches;
  queue.finish(*flying[0]);
  queue.next(0, together, fetches);
  CHECK(chunks_of(fetches) == (std::vector<int64_t>{7}));
}

TEST(buffers_are_used_again_and_are_counted_while_no_task_has_them) {
  FetchQueue queue;
  queue.set_sources({{0, true}}, {1});
  FetchQueue::Tasks flying;
  queue.add(task_of(0, 0), flying);
  const Buffer* const buffer = flying[0]->room.get();
  static_cast<void>(flying[0]->room->reserve(1000));
  CHECK_EQ(queue.spare_bytes(), size_t{0});
  queue.finish(*flying[0]);
  CHECK(queue.spare_bytes() >= 1000);
  queue.add(task_of(0, 1), flying);
  CHECK(flying[1]->room.get() == buffer);
  CHECK_EQ(queue.spare_bytes(), size_t{0});
}

TEST(an_epoch_begins_with_nothing_in_flight) {
  FetchQueue queue;
  queue.set_sources({{0, false}}, {0});  // a limit is at least 1
  FetchQueue::Tasks flying;
  for (const int64_t chunk : {0, 1}) queue.add(task_of(0, chunk), flying);
  CHECK_EQ(flying.size(), size_t{1});
  queue.clear();
  queue.begin_epoch();
  CHECK_EQ(queue.in_flight(), size_t{0});
  CHECK(queue.has_room());
  FetchQueue::Tasks fetches;
  queue.next(0, never_together, fetches);
  CHECK(fetches.empty());
}

}  // namespace zarrfeed::testing::fetch_queue_test
