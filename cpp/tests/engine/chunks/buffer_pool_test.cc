// Recycled buffers: who owns which, and when memory goes back to the system.

#include "engine/chunks/buffer_pool.h"

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::buffer_pool_test {

TEST(the_buffer_released_last_is_handed_out_first) {
  BufferPool memory(1000, false);
  uint8_t* const a = memory.acquire();
  uint8_t* const b = memory.acquire();
  uint8_t* const c = memory.acquire();
  memory.release(a);
  memory.release(c);
  memory.release(b);
  CHECK(memory.acquire() == b);
  CHECK(memory.acquire() == c);
  CHECK(memory.acquire() == a);
}

TEST(buffers_do_not_overlap_and_are_writable_to_their_end) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{4095}, size_t{4096}, size_t{4097},
                            (size_t{3} << 20) + 5, (size_t{9} << 20) + 1}) {
    const Context context("buffer_bytes = " + std::to_string(size));
    BufferPool memory(size, false);
    CHECK_EQ(memory.buffer_bytes(), size);
    std::vector<uint8_t*> held;
    for (uint8_t i = 0; i < 20; ++i) {
      held.push_back(memory.acquire());
      CHECK(held.back() != nullptr);
      CHECK_EQ(reinterpret_cast<uintptr_t>(held.back()) % 64, uintptr_t{0});
      std::memset(held.back(), i, size);
    }
    for (uint8_t i = 0; i < 20; ++i) {
      for (size_t at = 0; at < size; at += 997) CHECK_EQ(held[i][at], i);
      if (size > 0) CHECK_EQ(held[i][size - 1], i);
    }
  }
}

TEST(held_buffers_are_never_handed_out_again) {
  std::mt19937_64 random(3);
  for (const size_t size : {size_t{100}, size_t{5000}, size_t{3} << 20}) {
    BufferPool memory(size, false);
    std::vector<uint8_t*> held;
    std::set<uint8_t*> out;
    std::set<uint8_t*> ever;
    size_t most = 0;
    for (int i = 0; i < 5000; ++i) {
      if (held.empty() || (held.size() < 30 && random() % 2 == 0)) {
        held.push_back(memory.acquire());
        CHECK(out.insert(held.back()).second);
        ever.insert(held.back());
      } else {
        std::swap(held[random() % held.size()], held.back());
        memory.release(held.back());
        out.erase(held.back());
        held.pop_back();
      }
      most = std::max(most, out.size());
    }
    CHECK_EQ(ever.size(), most);  // nothing is mapped while something is free
  }
}

TEST(memory_is_mapped_once_and_recycled) {
  BufferPool memory(size_t{1} << 20, false);
  CHECK_EQ(memory.mapped_bytes(), size_t{0});
  memory.release(memory.acquire());
  const size_t mapped = memory.mapped_bytes();
  CHECK(mapped >= size_t{1} << 20);
  for (int i = 0; i < 100; ++i) memory.release(memory.acquire());
  CHECK_EQ(memory.mapped_bytes(), mapped);
}

TEST(releasing_what_is_not_out_changes_nothing) {
  BufferPool memory(100, false);
  uint8_t* const a = memory.acquire();
  memory.release(a);
  memory.release(a);
  std::array<uint8_t, 100> foreign{};
  memory.release(foreign.data());
  CHECK(memory.acquire() == a);
  CHECK(memory.acquire() != a);
}

TEST(retire_unmaps_free_memory_now_and_the_rest_when_it_comes_back) {
  BufferPool memory(size_t{8} << 20, false);  // one buffer a mapping
  uint8_t* const a = memory.acquire();
  uint8_t* const b = memory.acquire();
  memory.release(b);
  const size_t both = memory.mapped_bytes();
  memory.retire();
  CHECK_EQ(memory.mapped_bytes(), both / 2);
  std::memset(a, 1, memory.buffer_bytes());  // still ours
  memory.release(a);
  CHECK_EQ(memory.mapped_bytes(), size_t{0});
}

TEST(a_mapping_of_many_buffers_goes_when_the_last_one_is_back) {
  BufferPool memory(1000, false);
  std::vector<uint8_t*> held(20);
  for (uint8_t*& buffer : held) buffer = memory.acquire();
  memory.retire();
  for (uint8_t* const buffer : held) {
    CHECK(memory.mapped_bytes() > 0);
    std::memset(buffer, 1, 1000);
    memory.release(buffer);
  }
  CHECK_EQ(memory.mapped_bytes(), size_t{0});
  memory.retire();  // twice is once
}

TEST(lent_memory_is_handed_out_as_it_was_lent_and_never_mapped) {
  BufferPool memory(16, true);
  CHECK(memory.acquire() == nullptr);
  std::array<std::array<uint8_t, 16>, 2> mine{};
  memory.provide(mine[0].data());
  memory.provide(mine[1].data());
  CHECK(memory.acquire() == mine[1].data());
  CHECK(memory.acquire() == mine[0].data());
  CHECK(memory.acquire() == nullptr);
  memory.release(mine[0].data());
  CHECK(memory.acquire() == mine[0].data());
  memory.release(mine[0].data());
  memory.retire();
  CHECK(memory.acquire() == nullptr);
  memory.provide(mine[1].data());  // the next epoch's
  CHECK(memory.acquire() == mine[1].data());
  CHECK_EQ(memory.mapped_bytes(), size_t{0});
}

TEST(threads_may_acquire_and_release_at_once) {
  constexpr size_t kSize = 256;
  BufferPool memory(kSize, false);
  std::atomic<int> wrong{0};
  const auto work = [&](uint8_t mark) {
    std::mt19937_64 random(mark);
    std::vector<uint8_t*> held;
    for (int i = 0; i < 5000; ++i) {
      if (held.size() < 4 && random() % 2 == 0) {
        held.push_back(memory.acquire());
        std::memset(held.back(), mark, kSize);
      } else if (!held.empty()) {
        if (held.back()[0] != mark || held.back()[kSize - 1] != mark) ++wrong;
        memory.release(held.back());
        held.pop_back();
      }
      if (i % 1000 == 0) static_cast<void>(memory.mapped_bytes());
    }
    for (uint8_t* const buffer : held) memory.release(buffer);
  };
  std::thread a(work, uint8_t{1});
  std::thread b(work, uint8_t{2});
  a.join();
  b.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(one_thread_may_release_what_another_acquired) {
  BufferPool memory(64, false);
  std::atomic<uint8_t*> handed{nullptr};
  std::thread consumer([&] {
    for (int i = 0; i < 2000; ++i) {
      uint8_t* buffer = nullptr;
      while ((buffer = handed.exchange(nullptr)) == nullptr) std::this_thread::yield();
      memory.release(buffer);
    }
  });
  for (int i = 0; i < 2000; ++i) {
    uint8_t* const buffer = memory.acquire();
    buffer[0] = 1;
    while (handed.load() != nullptr) std::this_thread::yield();
    handed.store(buffer);
  }
  consumer.join();
  CHECK_EQ(memory.mapped_bytes() / (size_t{8} << 20), size_t{1});
}

TEST(a_forked_child_gives_nothing_back) {
  BufferPool memory(64, false);
  uint8_t* const buffer = memory.acquire();
  const int result = result_of_child([&] {
    memory.release(buffer);
    return memory.acquire() == buffer ? 1 : 0;
  });
  CHECK_EQ(result, 0);
}

}  // namespace zarrfeed::testing::buffer_pool_test
