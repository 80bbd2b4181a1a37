// Memory that processes share: who may write to it when, and what is left when one of them ends.

#include "engine/shared_pool.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/huge_pages.h"
#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/pools.h"

namespace zarrfeed::testing::shared_pool_test {

TEST(a_slot_is_used_again_when_its_last_lease_ends_and_not_before) {
  const auto pool = make_pool();
  auto first = pool->acquire(kBytes);
  CHECK(first.has_value());
  const uint8_t* const address = first->data;
  const auto copy = first->keeps;
  first.reset();
  CHECK(pool->acquire(kBytes)->data != address);  // the copy holds it
  CHECK_EQ(pool->num_leases(), size_t{1});
}

TEST(no_two_slots_share_a_page_of_the_system) {
  const auto pool = make_pool();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<SharedPool::Lease> leases;
  for (const size_t bytes : {size_t{1}, size_t{5000}, page + 1, kHugePage + 1, size_t{1}}) {
    leases.push_back(*pool->acquire(bytes));
    CHECK_EQ(reinterpret_cast<uintptr_t>(leases.back().data) % page, size_t{0});
  }
  CHECK_EQ(pool->num_slots(), leases.size());
}

TEST(a_free_slot_serves_what_is_a_little_smaller) {
  const auto pool = make_pool();
  const uint8_t* const address = pool->acquire(10 * kBytes)->data;
  CHECK(pool->acquire(10 * kBytes)->data == address);
  CHECK(pool->acquire(9 * kBytes)->data == address);  // a short last batch
  CHECK(pool->acquire(kBytes)->data != address);
  CHECK_EQ(pool->num_slots(), uint32_t{2});
}

TEST(what_was_sent_is_not_written_until_it_was_taken_over_and_dropped) {
  const auto pool = make_pool();
  auto lease = filled(*pool, 7);
  const uint8_t* const address = lease.data;
  const auto handle = pool->share(lease.data, kBytes);
  CHECK(handle.has_value());
  lease = {};
  CHECK(pool->acquire(kBytes)->data != address);  // under way
  Signal taken;
  Signal go_on;
  Signal dropped;
  const Child reader([&] {
    const auto own = opened(*pool);
    {
      const auto got = own->take_over(*handle);
      CHECK(holds(got.data, kBytes, 7));
      taken.send();
      go_on.wait();
      CHECK(holds(got.data, kBytes, 7));
    }
    dropped.send();
  });
  taken.wait();
  CHECK(pool->is_opened());
  CHECK(filled(*pool, 8).data != address);  // held by the other process
  go_on.send();
  dropped.wait();
  CHECK(pool->acquire(kBytes)->data == address);
}

TEST(who_opened_a_pool_keeps_no_descriptor) {
  const auto pool = make_pool();
  auto lease = filled(*pool, 5);
  const auto handle = *pool->share(lease.data, kBytes);
  CHECK_EQ(result_of_child([&] {
             const int descriptor = dup(pool->descriptor());
             const auto own = SharedPool::open(descriptor, pool->id());
             CHECK_EQ(fcntl(descriptor, F_GETFD), -1);
             CHECK_EQ(own->descriptor(), -1);
             return holds(own->take_over(handle).data, kBytes, 5) ? 0 : 1;
           }),
           0);
}

TEST(a_slot_that_was_sent_twice_is_free_after_both) {
  const auto pool = make_pool();
  auto lease = filled(*pool, 3);
  const uint8_t* const address = lease.data;
  const std::vector handles{*pool->share(lease.data, kBytes), *pool->share(lease.data + 100, 50)};
  lease = {};
  const auto take_over = [&](const SharedPool::Handle& handle) {
    return result_of_child([&] {
      const auto own = opened(*pool);
      own->take_over(handle);
      return own->num_leases() == 0 ? 0 : 1;
    });
  };
  CHECK_EQ(take_over(handles[0]), 0);
  CHECK(pool->acquire(kBytes)->data != address);
  CHECK_EQ(take_over(handles[1]), 0);
  CHECK(pool->acquire(kBytes)->data == address);
}

TEST(a_handle_says_where_in_the_slot_its_bytes_lie) {
  const auto pool = make_pool();
  const auto lease = filled(*pool, 1);
  lease.data[500] = 42;
  const auto handle = pool->share(lease.data + 500, 20);
  CHECK(handle.has_value());
  CHECK_EQ(handle->begin, size_t{500});
  CHECK_EQ(result_of_child([&] { return opened(*pool)->take_over(*handle).data[0] == 42 ? 0 : 1; }), 0);
  CHECK(!pool->share(lease.data + 500, kBytes).has_value());  // beyond the slot
  const std::vector<uint8_t> elsewhere(100);
  CHECK(!pool->share(elsewhere.data(), 100).has_value());
}

TEST(an_address_is_found_in_its_whole_slot_while_it_has_a_lease) {
  const auto pool = make_pool();
  const auto lease = filled(*pool, 1);
  const auto other = filled(*pool, 2);
  const auto handle = pool->share(lease.data + 500, 20);
  for (const uint8_t* inside : {lease.data, lease.data + 500}) {
    const auto slot = SharedPool::find_slot(inside);
    CHECK(slot.has_value());
    CHECK(slot->pool == pool);
    CHECK(slot->data == lease.data);
    CHECK(slot->bytes >= kBytes);
    CHECK(slot->data + slot->bytes <= other.data || other.data + kBytes <= slot->data);
  }
  const uint8_t* const left = pool->acquire(kBytes)->data;
  CHECK(!SharedPool::find_slot(left).has_value());  // nothing holds it any more
  const std::vector<uint8_t> elsewhere(100);
  CHECK(!SharedPool::find_slot(elsewhere.data()).has_value());
  const auto in_a_reader = [&] {
    const auto own = opened(*pool);
    const auto got = own->take_over(*handle);
    const auto slot = SharedPool::find_slot(got.data);
    return slot.has_value() && slot->pool == own && slot->data == got.data - 500 && slot->bytes >= kBytes ? 0 : 1;
  };
  CHECK_EQ(result_of_child(in_a_reader), 0);
}

TEST(a_handle_is_taken_over_once) {
  const auto pool = make_pool();
  auto lease = filled(*pool, 1);
  const auto handle = pool->share(lease.data, kBytes);
  CHECK(handle.has_value());
  const auto take_over_again = [&](bool at_first) {
    return result_of_child([&] {
      const auto own = opened(*pool);
      const auto got = at_first ? own->take_over(*handle) : SharedPool::Lease{};
      CHECK_THROWS(kConfig, "unpickled a second time", own->take_over(*handle));
      return 0;
    });
  };
  CHECK_EQ(take_over_again(true), 0);
  lease = {};
  lease = filled(*pool, 2);  // another generation
  const auto later = pool->share(lease.data, kBytes);
  CHECK_EQ(later->slot, handle->slot);
  CHECK_EQ(take_over_again(false), 0);
}

TEST(a_handle_that_no_pool_wrote_is_refused) {
  const auto pool = make_pool();
  const auto lease = filled(*pool, 1);
  const auto handle = *pool->share(lease.data, kBytes);
  const auto refuses = [&](SharedPool::Handle wrong) {
    return result_of_child([&] {
      const auto own = opened(*pool);
      CHECK_THROWS(kConfig, "", own->take_over(wrong));
      return own->num_leases() == 0 ? 0 : 1;
    });
  };
  CHECK_EQ(refuses({9, handle.generation, 0, kBytes}), 0);
  CHECK_EQ(refuses({handle.slot, handle.generation + 1, 0, kBytes}), 0);
  CHECK_EQ(refuses({handle.slot, handle.generation, kBytes, 1}), 0);
  CHECK_THROWS(kCorrupt, "has no batches",
               SharedPool::open(
                   [] {
                     char name[] = "/tmp/zarrfeed-no-pool-XXXXXX";
                     const int file = mkstemp(name);
                     unlink(name);
                     CHECK_EQ(ftruncate(file, 1 << 20), 0);
                     return file;
                   }(),
                   pool->id()));
  CHECK_THROWS(kIo, "cannot be mapped", SharedPool::open(-1, pool->id()));
}

TEST(a_forked_child_reads_and_writes_a_copy_of_its_own) {
  const auto pool = make_pool();
  auto lease = filled(*pool, 5);
  uint8_t* const address = lease.data;
  Signal written;
  const Signal result;
  const Child child([&] {
    written.wait();
    const bool is_unchanged = holds(lease.data, kBytes, 5);
    std::memset(lease.data, 9, kBytes);
    lease = {};
    const bool is_refused = !pool->acquire(kBytes).has_value() && !pool->share(address, kBytes).has_value() &&
                            SharedPool::find(0) == nullptr;
    result.send(is_unchanged && is_refused);
  });
  lease = {};
  std::optional<SharedPool::Lease> again;
  do {  // the child holds the slot until it has its copy
    again.emplace(filled(*pool, 6));
  } while (again->data != address);
  written.send();
  bool is_good = false;
  CHECK(result.receive(is_good));
  CHECK(is_good);
  CHECK(holds(again->data, kBytes, 6));
}

TEST(what_a_killed_reader_held_is_lost_and_bounded) {
  constexpr size_t kHeld = 3;
  const auto pool = make_pool((kHeld - 1) * kBytes);
  std::vector<SharedPool::Handle> handles;
  for (size_t i = 0; i < kHeld; ++i) {
    const auto lease = filled(*pool, static_cast<uint8_t>(i));
    handles.push_back(*pool->share(lease.data, kBytes));
  }
  const Signal taken;
  Child reader([&] {
    const auto own = opened(*pool);
    std::vector<SharedPool::Lease> held;
    for (const auto& handle : handles) held.push_back(own->take_over(handle));
    taken.send();
    pause();
  });
  taken.wait();
  reader.end();
  CHECK_EQ(pool->num_leases(), size_t{0});
  CHECK(!pool->acquire(kBytes).has_value());  // the others hold more than they may
  CHECK_EQ(pool->num_slots(), kHeld);
}

TEST(a_batch_outlives_the_worker_that_was_killed) {
  struct Sent {
    uint64_t id;
    int descriptor;
    SharedPool::Handle handle;
  };
  const Signal sent;
  Child owner([&] {
    const auto pool = make_pool();
    const auto lease = filled(*pool, 77);
    sent.send(Sent{pool->id(), pool->descriptor(), *pool->share(lease.data, kBytes)});
    pause();
  });
  Sent got{};
  CHECK(sent.receive(got));
  auto pool = SharedPool::open(open_file_of(owner.process, got.descriptor), got.id);
  CHECK_EQ(pool->owner(), owner.process);
  CHECK(!pool->is_over());
  CHECK(!pool->acquire(kBytes).has_value());
  owner.end();
  CHECK(pool->is_over());
  auto lease = pool->take_over(got.handle);
  const std::weak_ptr<SharedPool> watched = pool;
  pool.reset();
  SharedPool::forget_over();
  CHECK(holds(lease.data, kBytes, 77));
  CHECK(!watched.expired());
  lease = {};
  CHECK(watched.expired());  // unmapped
}

TEST(a_pool_that_was_retired_gives_its_memory_back_when_the_last_lease_ends) {
  const auto pool = make_pool();
  auto lease = filled(*pool, 1, 1 << 20);
  {
    const auto dropped = filled(*pool, 2, 1 << 20);
    CHECK(resident_bytes(*pool) >= size_t{2} << 20);
  }
  pool->retire();
  CHECK(!pool->acquire(kBytes).has_value());
  CHECK(resident_bytes(*pool) >= size_t{1} << 20);
  CHECK(resident_bytes(*pool) < size_t{2} << 20);
  CHECK(holds(lease.data, 1 << 20, 1));
  lease = {};
  CHECK(resident_bytes(*pool) < size_t{1} << 20);
}

TEST(batches_of_ever_other_sizes_take_bounded_memory) {
  constexpr size_t kMost = size_t{4} << 20;
  const auto pool = make_pool(kMost);
  std::mt19937_64 random(1);
  for (size_t i = 0; i < 300; ++i) {
    const size_t bytes = 1 + random() % (size_t{1} << 20);
    const auto lease = filled(*pool, static_cast<uint8_t>(i), bytes);
    CHECK(holds(lease.data, bytes, static_cast<uint8_t>(i)));
    CHECK(resident_bytes(*pool) <= 2 * kMost);
  }
  CHECK(pool->slot_bytes() <= 2 * kMost);
}

// The owner fills slots with numbers and sends them. Threads of this process hold some of them for a while, and look at
// them when they come and when they go: a slot that was written while somebody saw it has another number then.
TEST(no_slot_is_written_while_a_process_sees_it) {
  struct Begun {
    uint64_t id;
    int descriptor;
  };
  struct Sent {
    SharedPool::Handle handle;
    uint64_t number;
  };
  constexpr size_t kWords = 1024;
  const uint64_t batches = 4000 * static_cast<uint64_t>(stress());
  const Signal begun;
  Signal sent;
  const Signal done;  // so many batches may be under way
  Child owner([&] {
    const auto pool = make_pool();
    begun.send(Begun{pool->id(), pool->descriptor()});
    for (uint64_t number = 0; number < batches; ++number) {
      if (number >= 64) done.wait();
      std::optional<SharedPool::Lease> lease = pool->acquire(kWords * sizeof(uint64_t));
      if (!lease) _exit(1);
      std::fill_n(reinterpret_cast<uint64_t*>(lease->data), kWords, number);
      if (number % 500 == 250) {
        // A child that ends at once: the leases that it inherits end with its copy.
        const pid_t child = fork();
        if (child == 0) _exit(holds(lease->data, 1, static_cast<uint8_t>(number)) ? 0 : 1);
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0) _exit(1);
      }
      sent.send(Sent{*pool->share(lease->data, kWords * sizeof(uint64_t)), number});
    }
    sent.send(Sent{{}, pool->num_slots() + batches});
  });
  Begun opening{};
  CHECK(begun.receive(opening));
  sent.stop_sending();
  const auto pool = SharedPool::open(open_file_of(owner.process, opening.descriptor), opening.id);

  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> taken{0};
  std::atomic<uint64_t> slots{0};
  const auto is_whole = [](const SharedPool::Lease& lease, uint64_t number) {
    const auto* const words = reinterpret_cast<const uint64_t*>(lease.data);
    for (size_t i = 0; i < kWords; ++i) {
      if (words[i] != number) return false;
    }
    return true;
  };
  const auto read_all = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    std::deque<std::pair<SharedPool::Lease, uint64_t>> held;
    const auto drop = [&] {
      wrong += is_whole(held.front().first, held.front().second) ? 0 : 1;
      held.pop_front();
      done.send();
    };
    Sent got{};
    while (slots == 0 && sent.receive(got)) {  // a read of so few bytes is whole
      if (got.number >= batches) {
        slots = got.number - batches;
        owner.end();  // so that the other threads' reads end
        break;
      }
      held.emplace_back(pool->take_over(got.handle), got.number);
      wrong += is_whole(held.back().first, got.number) ? 0 : 1;
      ++taken;
      while (held.size() > random() % 12) drop();
    }
    while (!held.empty()) drop();
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i) threads.emplace_back(read_all, i);
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), uint64_t{0});
  CHECK_EQ(taken.load(), batches);
  CHECK(slots.load() >= 1);
  CHECK(slots.load() <= 66);  // what may be under way, what is written, and what a child held
  CHECK_EQ(pool->num_leases(), size_t{0});
}

}  // namespace zarrfeed::testing::shared_pool_test
