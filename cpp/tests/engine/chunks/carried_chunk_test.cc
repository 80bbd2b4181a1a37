// Carried chunks: one task decodes, the others wait and come back, and memory returns when nobody needs the chunk.

#include "engine/chunks/carried_chunk.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "plan/row_order.h"
#include "tests/support/check.h"

namespace zarrfeed::testing::carried_chunk_test {
namespace {

constexpr size_t kChunkBytes = 1000;

/// Memory for one chunk of source 0.
std::shared_ptr<CarryMemory> room_for_one() {
  return std::make_shared<CarryMemory>(std::vector<size_t>{kChunkBytes}, kChunkBytes);
}

/// A task that shares `chunk`; `cell` tells tasks apart.
Task sharing(const std::shared_ptr<CarriedChunk>& chunk, size_t cell) {
  Task task;
  task.cell = cell;
  task.carried = chunk;
  return task;
}

/// Four groups of one lane; each shares chunks [begin, begin + 2) of source 0, and passes the second one on.
struct SharingPlan {
  static CarriedChunks take(CarryTable& table, size_t group, size_t num_cells) {
    const auto chunk = static_cast<int64_t>(group);
    std::vector<SharedChunk> shared;
    for (size_t cell = 0; cell < num_cells; ++cell) {
      shared.push_back({0, chunk, cell, false});
      shared.push_back({0, chunk + 1, cell, group < 3});
    }
    return table.take(group, group < 3 ? chunk + 1 : -1, shared);
  }
};

}  // namespace

TEST(the_first_task_decodes_and_the_others_wait_for_it) {
  const auto memory = room_for_one();
  const auto chunk = std::make_shared<CarriedChunk>(SharedChunk{}, memory);
  Task first = sharing(chunk, 1), second = sharing(chunk, 2), third = sharing(chunk, 3);
  CHECK(!CarriedChunk::defer(first));
  CHECK(first.decodes_carried);
  CHECK(!CarriedChunk::defer(first));  // it stays the one that decodes, also if it is asked after its fetch
  CHECK(CarriedChunk::defer(second));
  CHECK(CarriedChunk::defer(third));
  CHECK_EQ(chunk.use_count(), 2L);  // ours and that of the first task
  uint8_t* const bytes = memory->acquire(0);
  const std::vector<Task> waiting = CarriedChunk::finish(first, bytes);
  CHECK(!first.decodes_carried);
  CHECK_EQ(waiting.size(), size_t{2});
  CHECK_EQ(waiting[0].cell, size_t{2});
  CHECK_EQ(waiting[1].cell, size_t{3});
  for (const Task& task : waiting) CHECK(task.carried == chunk && !task.decodes_carried);
  CHECK(chunk->bytes() == bytes);
  Task late = sharing(chunk, 4);
  CHECK(!CarriedChunk::defer(late));
  CHECK(!late.decodes_carried);
}

TEST(where_decoding_fails_the_next_task_decodes) {
  const auto chunk = std::make_shared<CarriedChunk>(SharedChunk{}, room_for_one());
  Task first = sharing(chunk, 1), second = sharing(chunk, 2), third = sharing(chunk, 3);
  CHECK(!CarriedChunk::defer(first));
  CHECK(CarriedChunk::defer(second));
  CHECK(CarriedChunk::defer(third));
  std::vector<Task> waiting = CarriedChunk::give_up(first);
  CHECK_EQ(waiting.size(), size_t{2});
  CHECK(!CarriedChunk::defer(waiting[0]));
  CHECK(waiting[0].decodes_carried);
  CHECK(CarriedChunk::defer(waiting[1]));
  CHECK_EQ(CarriedChunk::finish(waiting[0], nullptr).size(), size_t{1});
  CHECK(chunk->bytes() == nullptr);  // the store lacks the chunk
}

TEST(a_task_that_decodes_no_shared_chunk_ends_nothing) {
  const auto chunk = std::make_shared<CarriedChunk>(SharedChunk{}, room_for_one());
  Task first = sharing(chunk, 1), second = sharing(chunk, 2);
  CHECK(!CarriedChunk::defer(first));
  Task alone;
  CHECK(!CarriedChunk::defer(alone));
  CHECK(CarriedChunk::give_up(alone).empty());
  CHECK(CarriedChunk::give_up(second).empty());
  CHECK(CarriedChunk::defer(second));  // the first one still decodes
}

TEST(memory_returns_when_the_last_task_lets_go_of_the_chunk) {
  const auto memory = room_for_one();
  auto chunk = std::make_shared<CarriedChunk>(SharedChunk{}, memory);
  Task task = sharing(chunk, 1), other = sharing(chunk, 2);
  CHECK(!CarriedChunk::defer(task));
  CHECK(CarriedChunk::defer(other));
  std::vector<Task> waiting = CarriedChunk::finish(task, memory->acquire(0));
  chunk.reset();
  task = {};
  CHECK(memory->acquire(0) == nullptr);
  waiting.clear();
  CHECK(memory->acquire(0) != nullptr);
}

TEST(a_chunk_with_waiting_tasks_that_nobody_decodes_any_more_is_destroyed_with_them) {
  const auto memory = room_for_one();
  std::weak_ptr<CarriedChunk> seen;
  {
    const auto chunk = std::make_shared<CarriedChunk>(SharedChunk{}, memory);
    seen = chunk;
    Task first = sharing(chunk, 1), second = sharing(chunk, 2);
    CHECK(!CarriedChunk::defer(first));
    CHECK(CarriedChunk::defer(second));
  }
  CHECK(seen.expired());
}

TEST(a_group_shares_chunks_with_the_next_one_of_its_lane) {
  CarryTable table(room_for_one());
  CarriedChunks before;
  for (size_t group = 0; group < 4; ++group) {
    const auto first = static_cast<int64_t>(group);
    const CarriedChunks chunks = SharingPlan::take(table, group, 2);
    CHECK_EQ(chunks.size(), size_t{4});  // two chunks of two cells
    for (const size_t cell : {0, 1}) {
      CHECK(chunks.contains({0, first, cell}) && chunks.contains({0, first + 1, cell}));
      if (group > 0) CHECK(chunks.at({0, first, cell}) == before.at({0, first, cell}));
      CHECK(chunks.at({0, first, 0}) != chunks.at({0, first, 1}));
    }
    before = chunks;
  }
  CHECK_EQ(before.at({0, 4, 0}).use_count(), 1L);  // the table keeps nothing after the last group
}

TEST(the_table_lets_go_of_chunks_that_are_for_later_groups) {
  CarryTable table(room_for_one());
  const CarriedChunks chunks = SharingPlan::take(table, 0, 1);
  CHECK_EQ(chunks.at({0, 1, 0}).use_count(), 2L);
  table.clear();
  CHECK_EQ(chunks.at({0, 1, 0}).use_count(), 1L);
}

TEST(tasks_get_the_chunk_of_their_field_cell_and_number) {
  CarryTable table(room_for_one());
  const CarriedChunks chunks = SharingPlan::take(table, 0, 2);
  std::vector<Task> tasks(3);
  tasks[0].run = 1;
  tasks[0].cell = 1;
  tasks[1].run = 7;
  tasks[2].run = 1;
  tasks[2].source = 1;
  share_chunks(chunks, tasks);
  CHECK(tasks[0].carried == chunks.at({0, 1, 1}));
  CHECK(tasks[1].carried == nullptr && tasks[2].carried == nullptr);
}

TEST(carry_memory_has_a_limit_and_is_recycled) {
  CarryMemory memory({1000, 0, 3000}, 4500);
  uint8_t* const small = memory.acquire(0);
  uint8_t* const large = memory.acquire(2);
  CHECK(small != nullptr && large != nullptr);
  CHECK(memory.acquire(0) == nullptr);
  memory.release(2, large);
  CHECK(memory.acquire(2) == large);
  CHECK(memory.acquire(2) == nullptr);
}

TEST(crops_and_whole_chunks_share_the_limit) {
  CarryMemory memory({1000}, 2500);
  uint8_t* const whole = memory.acquire(0);
  uint8_t* const crop = memory.acquire(0, 1300);
  CHECK(whole != nullptr && crop != nullptr);
  CHECK(memory.acquire(0, 256) == nullptr);
  memory.release(0, whole);
  CHECK(memory.acquire(0, 1216) == nullptr);
  uint8_t* const other = memory.acquire(0, 1200);
  CHECK(other != nullptr);
  memory.release(0, crop, 1300);
  CHECK(memory.acquire(0) != nullptr);
  memory.release(0, other, 1200);
}

}  // namespace zarrfeed::testing::carried_chunk_test
