// Memory for crops: it has a limit, whatever sizes come, and is recycled.

#include "engine/chunks/crop_memory.h"

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::crop_memory_test {

TEST(room_is_at_most_a_sixteenth_more_than_is_needed) {
  CHECK_EQ(CropMemory::room_for(1), size_t{64});
  for (size_t bytes = 1024; bytes < 300'000; bytes += 77) {
    const size_t room = CropMemory::room_for(bytes);
    CHECK(room >= bytes && (room - bytes) * 16 < bytes);
    CHECK_EQ(CropMemory::room_for(room), room);
  }
}

TEST(crop_memory_that_is_released_last_is_handed_out_first) {
  CropMemory memory(1000);
  uint8_t* const first = memory.acquire(400);
  uint8_t* const second = memory.acquire(400);
  CHECK(first != nullptr && second != nullptr && first != second);
  CHECK(memory.acquire(400) == nullptr);
  memory.release(first, 400);
  memory.release(second, 400);
  CHECK(memory.acquire(400) == second);
  CHECK(memory.acquire(400) == first);
  memory.release(first, 400);
  memory.release(second, 400);
}

TEST(free_memory_of_other_sizes_is_given_back_where_the_limit_is_reached) {
  CropMemory memory(1000);
  uint8_t* const small = memory.acquire(300);
  memory.release(memory.acquire(600), 600);
  CHECK_EQ(memory.held_bytes(), size_t{900});
  uint8_t* const large = memory.acquire(700);  // instead of the 600
  CHECK(large != nullptr);
  CHECK_EQ(memory.held_bytes(), size_t{1000});
  CHECK(memory.acquire(600) == nullptr);  // both are in use
  memory.release(small, 300);
  memory.release(large, 700);
  uint8_t* const again = memory.acquire(700);  // 300 was released before
  CHECK(again == large);
  memory.release(again, 700);
}

TEST(no_more_is_held_than_the_limit_and_no_memory_has_two_owners) {
  constexpr size_t kLimit = size_t{5} << 20;
  CropMemory memory(kLimit);
  std::mt19937_64 random(1);
  std::vector<std::pair<uint8_t*, size_t>> in_use;
  size_t in_use_bytes = 0;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    if (random() % 2 == 0 && !in_use.empty()) {
      std::swap(in_use[random() % in_use.size()], in_use.back());
      const auto [bytes, size] = in_use.back();
      in_use.pop_back();
      in_use_bytes -= size;
      CHECK_EQ(bytes[0], bytes[size - 1]);
      memory.release(bytes, size);
    } else {
      const size_t size = CropMemory::room_for(static_cast<size_t>(pick(random, 1, 20)) * 70'000);
      uint8_t* const bytes = memory.acquire(size);
      CHECK_EQ(bytes == nullptr, in_use_bytes + size > kLimit);
      refused += bytes == nullptr ? 1 : 0;
      if (bytes == nullptr) continue;
      bytes[0] = bytes[size - 1] = static_cast<uint8_t>(i);
      in_use.emplace_back(bytes, size);
      in_use_bytes += size;
    }
    CHECK(memory.held_bytes() <= kLimit && memory.held_bytes() >= in_use_bytes);
  }
  CHECK(refused > 50);
  for (const auto& [bytes, size] : in_use) memory.release(bytes, size);
}

}  // namespace zarrfeed::testing::crop_memory_test
