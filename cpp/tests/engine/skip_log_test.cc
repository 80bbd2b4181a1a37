// The skip log: which slots of a batch hold no sample, and for want of which chunks.

#include "engine/skip_log.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/check.h"

namespace zarrfeed::testing::skip_log_test {
namespace {

SkippedChunk bad_chunk(size_t field, int64_t chunk) {
  return {field, chunk, "c/" + std::to_string(chunk), Error(ErrorKind::kCorrupt, "does not decode")};
}

}  // namespace

TEST(a_batch_gets_its_own_slots_and_chunks_once) {
  SkipLog log(4);
  log.add({100, 5}, bad_chunk(0, 25));
  log.add({33, 13}, bad_chunk(1, 8));
  const Skipped first = log.take(1);
  CHECK(first.slots == (std::vector<SkippedSlot>{{1, 100}}));
  CHECK_EQ(first.chunks.size(), size_t{1});
  CHECK_EQ(first.chunks[0].key, std::string("c/25"));
  CHECK_EQ(first.chunks[0].source, size_t{0});
  CHECK(log.take(1).slots.empty());  // take() removes
  CHECK(log.take(2).slots.empty());
  CHECK(log.take(3).slots == (std::vector<SkippedSlot>{{1, 33}}));
}

TEST(slots_are_ascending_and_listed_once_however_many_chunks_of_a_sample_are_bad) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 200; ++i) {
    const auto batch_size = static_cast<int64_t>(random() % 9 + 1);
    SkipLog log(batch_size);
    std::map<int64_t, std::set<SkippedSlot>> slots;
    std::map<int64_t, std::set<std::string>> keys;
    for (auto count = random() % 60; count > 0; --count) {
      const auto step = static_cast<int64_t>(random() % 40);
      const SkippedChunk chunk = bad_chunk(random() % 2, static_cast<int64_t>(random() % 3));
      log.add({1000 + step, step}, chunk);
      slots[step / batch_size].insert({step % batch_size, 1000 + step});
      keys[step / batch_size].insert(std::to_string(chunk.source) + chunk.key);
    }
    for (int64_t batch = 0; batch <= 40 / batch_size; ++batch) {
      const Skipped skipped = log.take(batch);
      CHECK(skipped.slots == std::vector<SkippedSlot>(slots[batch].begin(), slots[batch].end()));
      CHECK_EQ(skipped.slots.empty(), skipped.chunks.empty());
      std::set<std::string> listed;
      for (const SkippedChunk& chunk : skipped.chunks) listed.insert(std::to_string(chunk.source) + chunk.key);
      CHECK(listed == keys[batch]);
    }
  }
}

TEST(rows_of_one_chunk_list_it_once) {
  SkipLog log(64);
  for (int64_t step = 0; step < 64; ++step) log.add({step, step}, bad_chunk(0, 7));
  const Skipped skipped = log.take(0);
  CHECK_EQ(skipped.slots.size(), size_t{64});
  CHECK_EQ(skipped.chunks.size(), size_t{1});
}

TEST(chunks_of_several_stores_are_listed_though_they_have_one_key) {
  // The chunks of an array in several stores are numbered through; their keys begin anew in each store.
  SkipLog log(4);
  const Error error(ErrorKind::kCorrupt, "does not decode");
  log.add({10, 0}, {0, 3, "c/0", error});
  log.add({50, 1}, {0, 9, "c/0", error});
  const Skipped skipped = log.take(0);
  CHECK_EQ(skipped.chunks.size(), size_t{2});
  CHECK_EQ(skipped.chunks[0].chunk, int64_t{3});
  CHECK_EQ(skipped.chunks[1].chunk, int64_t{9});
}

TEST(a_cleared_log_is_empty) {
  SkipLog log(2);
  log.add({0, 0}, bad_chunk(0, 0));
  log.clear();
  CHECK(log.take(0).slots.empty());
}

}  // namespace zarrfeed::testing::skip_log_test
