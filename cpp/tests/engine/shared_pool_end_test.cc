// A process knows a pool until nothing more can come from its owner, and never in place of another pool.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>

#include "base/process.h"
#include "engine/shared_pool.h"
#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/pools.h"

namespace zarrfeed::testing::shared_pool_end_test {
namespace {

/// A process that owns a pool, and has sent two handles of it.
class Worker {
 public:
  struct Sent {
    std::array<SharedPool::Handle, 2> handles;
    int descriptor;
  };

  Worker() : id_(next_id()), child_([this] { work(); }) { CHECK(sends_.receive(sent_)); }

  void retire_pool() {
    go_on_.send();
    retired_.wait();
  }
  void end() { child_.end(); }
  void open() const { SharedPool::open(open_file(), id_); }
  [[nodiscard]] std::shared_ptr<SharedPool> find() const { return SharedPool::find(id_); }
  [[nodiscard]] const SharedPool::Handle& handle(size_t number) const { return sent_.handles[number]; }
  [[nodiscard]] int open_file() const { return open_file_of(child_.process, sent_.descriptor); }
  [[nodiscard]] pid_t process() const { return child_.process; }

 private:
  void work() const {
    const auto pool = SharedPool::create(id_, kPlenty);
    std::array<SharedPool::Lease, 2> leases{filled(*pool, 1), filled(*pool, 2)};
    Sent sent{{*pool->share(leases[0].data, kBytes), *pool->share(leases[1].data, kBytes)}, pool->descriptor()};
    leases = {};
    sends_.send(sent);
    go_on_.wait();
    pool->retire();
    retired_.send();
    pause();
  }

  uint64_t id_;
  Signal sends_;
  Signal go_on_;
  Signal retired_;
  Sent sent_{};
  Child<std::function<void()>> child_;
};

}  // namespace

TEST(a_retired_pool_stays_while_its_messages_are_under_way) {
  Worker worker;
  worker.open();
  {
    const auto first = worker.find()->take_over(worker.handle(0));
    CHECK(holds(first.data, kBytes, 1));
    worker.retire_pool();
  }  // the end of a lease of a retired pool forgets pools that nothing more comes from
  CHECK(worker.find() != nullptr);
  SharedPool::forget_over();
  CHECK(worker.find() != nullptr);
  CHECK(holds(worker.find()->take_over(worker.handle(1)).data, kBytes, 2));
  CHECK(worker.find() == nullptr);
}

TEST(a_pool_of_a_worker_that_ended_is_forgotten_with_its_messages) {
  Worker worker;
  worker.open();
  worker.retire_pool();
  worker.end();
  SharedPool::forget_over();
  CHECK(worker.find() == nullptr);
}

TEST(a_pool_is_forgotten_where_another_process_has_the_id_of_its_owner) {
  Worker worker;
  worker.open();
  SharedPool::forget_over();
  CHECK(worker.find() != nullptr);
  const int file = worker.open_file();
  void* const page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK(page != MAP_FAILED);
  auto* const words = static_cast<uint64_t*>(page);
  const uint64_t start = process_start(worker.process());
  uint64_t* const written = std::find(words, words + 8, start);
  CHECK(written != words + 8);
  *written = start - 1;  // as if the owner had begun, and ended, before the process that has its id
  SharedPool::forget_over();
  CHECK(worker.find() == nullptr);
  munmap(page, 4096);
  close(file);
}

TEST(a_pool_that_was_retired_sends_nothing_more) {
  const auto pool = make_pool();
  const auto lease = filled(*pool, 1);
  CHECK(pool->share(lease.data, kBytes).has_value());
  pool->retire();
  CHECK(!pool->share(lease.data, kBytes).has_value());
}

TEST(a_pool_is_not_opened_in_place_of_another_one) {
  const auto pool = make_pool();
  const auto other = make_pool();
  CHECK_EQ(result_of_child([&] {
             CHECK_THROWS(kCorrupt, "another pool's now", SharedPool::open(dup(other->descriptor()), pool->id()));
             return 0;
           }),
           0);
  CHECK(!other->is_opened());
  CHECK_EQ(result_of_child([&] { return opened(*other)->id() == other->id() ? 0 : 1; }), 0);
}

}  // namespace zarrfeed::testing::shared_pool_end_test
