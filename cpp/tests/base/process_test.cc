// A process is told from a later one with the same id by its start.

#include "base/process.h"

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/check.h"
#include "tests/support/child.h"

namespace zarrfeed::testing::process_test {

TEST(the_start_of_a_process_is_the_same_for_all_who_ask) {
  const pid_t process = getpid();
  const uint64_t start = process_start(process);
  CHECK(start > 0);
  CHECK_EQ(process_start(process), start);
  CHECK_EQ(result_of_child([&] {
             const bool is_younger = process_start(getpid()) >= start;
             return process_start(process) == start && is_younger ? 0 : 1;
           }),
           0);
}

TEST(an_id_that_another_process_has_now_is_not_the_process_that_had_it) {
  const uint64_t start = process_start(getpid());
  CHECK(is_running(getpid(), start));
  CHECK(!is_running(getpid(), start - 1));
  CHECK(is_running(getpid(), 0));  // nobody wrote the start down: the id decides
}

TEST(a_process_that_ended_is_not_running) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  const uint64_t start = process_start(child);
  CHECK_EQ(waitpid(child, nullptr, 0), child);
  CHECK(!is_running(child, start));
  CHECK(!is_running(child, 0));
  CHECK_EQ(process_start(child), uint64_t{0});
}

}  // namespace zarrfeed::testing::process_test
