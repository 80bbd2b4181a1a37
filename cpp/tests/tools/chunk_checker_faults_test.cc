// What `verify` finds where storage fails for a while, for ever, or does not answer: see faulty_calls.h.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/faulty_calls.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"
#include "tools/chunk_checker.h"

namespace zarrfeed::testing::chunk_checker_faults_test {
namespace {

using std::chrono::milliseconds;

/// 7 x 3 chunks, in a directory of their own or in 3 x 2 shards.
struct Store {
  explicit Store(bool sharded)
      : array(directory.path() / "a", {.shape = {50, 9},
                                       .chunk_shape = {8, 4},
                                       .shard_chunks = sharded ? std::vector<int64_t>{3, 2} : std::vector<int64_t>{}}) {
  }
  [[nodiscard]] ArraySpec spec() const { return array.field().array; }

  TempDir directory;
  TestArray array;
};

constexpr int64_t kChunks = 7 * 3;

}  // namespace

TEST(reads_that_fail_for_a_while_are_tried_again) {
  for (const bool sharded : {false, true}) {
    for (const int error : {EIO, ESTALE, EMFILE}) {
      const Store store(sharded);
      ChunkChecker checker(store.spec(), {.max_retries = 3});
      faults.error = error;
      faults.opens_to_fail = 2;
      faults.reads_to_fail = 1;
      const ChunkCheck all = checker.check(0, checker.num_numbers());
      CHECK_EQ(faults.opens_to_fail.load() + faults.reads_to_fail.load(), 0);
      CHECK_EQ(all.good, kChunks);
      CHECK(all.findings.empty());
    }
  }
}

TEST(an_error_that_stays_is_a_finding_and_the_rest_is_checked) {
  const Store store(false);
  ChunkChecker checker(store.spec(), {.max_retries = 1});
  faults.error = EIO;
  faults.reads_to_fail = 2;
  const ChunkCheck all = checker.check(0, checker.num_numbers());
  CHECK_EQ(all.good, kChunks - 1);
  CHECK_EQ(all.findings.size(), size_t{1});
  CHECK_EQ(all.findings[0].number, int64_t{0});
  CHECK_EQ(all.findings[0].bad->errno_value(), EIO);
  CHECK_EQ(std::string(all.findings[0].bad->what()), std::string("cannot be read: Input/output error"));
}

TEST(a_chunk_that_storage_does_not_answer_for_is_a_finding_and_the_rest_is_checked) {
  for (const bool at_open : {false, true}) {
    const Store store(false);
    {
      ChunkChecker checker(store.spec(), {.timeout = milliseconds(150)});
      CHECK_EQ(checker.check(0, 5).good, int64_t{5});
      (at_open ? faults.stalls_open : faults.stalls) = true;
      std::thread healing([&] {
        while (faults.stalled == 0) std::this_thread::sleep_for(milliseconds(1));
        faults.stalls = faults.stalls_open = false;  // who is held up stays so
      });
      const ChunkCheck all = checker.check(0, checker.num_numbers());
      healing.join();
      CHECK_EQ(all.good, kChunks - 1);
      CHECK_EQ(all.findings.size(), size_t{1});
      CHECK_EQ(all.findings[0].key, std::string("0.0"));
      CHECK_EQ(all.findings[0].bad->errno_value(), ETIMEDOUT);
      CHECK_EQ(all.findings[0].chunks, int64_t{1});
      CHECK_EQ(checker.check(0, checker.num_numbers()).good, kChunks);  // and again, while the thread still hangs
    }
    faults.release();  // the checker is gone
  }
}

TEST(a_shard_whose_index_does_not_come_is_one_finding) {
  const Store store(true);
  {
    ChunkChecker checker(store.spec(), {.timeout = milliseconds(150)});
    faults.stalls = true;
    const ChunkCheck all = checker.check(0, checker.num_numbers());
    CHECK_EQ(all.good, int64_t{0});
    CHECK_EQ(all.findings.size(), size_t{3 * 2});
    int64_t chunks = 0;
    for (const ChunkFinding& finding : all.findings) {
      chunks += finding.chunks;
      CHECK_EQ(finding.inner, std::string());
      CHECK(std::string(finding.bad->what()).find("did not answer within 0.15 s (timeout)") != std::string::npos);
    }
    CHECK_EQ(chunks, kChunks);
  }
  faults.release();
}

}  // namespace zarrfeed::testing::chunk_checker_faults_test
