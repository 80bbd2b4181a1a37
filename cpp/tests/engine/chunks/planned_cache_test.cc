// The planned cache: which groups take its chunks, whose memory they get, and that it returns.

#include "engine/chunks/planned_cache.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/chunks/shared_chunks.h"
#include "tests/support/check.h"
#include "tests/support/patch_volume.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::planned_cache_test {
namespace {

constexpr size_t kChunkBytes = size_t{8} * 7 * 5 * 4;

/// How many chains need each chunk: groups that need it and are not handed it.
std::map<ChunkKey, size_t> chains_of(const PlannedVolume& c) {
  std::map<ChunkKey, size_t> chains;
  std::map<size_t, std::set<ChunkKey>> handed;
  for (size_t group = 0; group < c.num_groups(); ++group) {
    for (const ChunkKey& key : find_needed(c.plan->plan, c.outputs, group)) {
      if (!handed[group].contains(key)) ++chains[key];
    }
    for (const SharedChunk& one : find_shared(c.plan->plan, c.outputs, group)) {
      const int64_t next = c.plan->plan.next_group[group];
      if (one.next) handed[static_cast<size_t>(next)].insert({one.source, one.run, one.cell});
    }
  }
  return chains;
}

}  // namespace

TEST(all_chains_of_a_chunk_but_one_find_it_cached_if_there_is_memory) {
  for (const int64_t lanes : {1, 2, 5}) {
    const PlannedVolume c(lanes);
    const std::map<ChunkKey, size_t> chains = chains_of(c);
    PlannedCache cache({kChunkBytes, 0}, size_t{1} << 30);
    cache.open(c.plan->plan, c.outputs);
    size_t several = 0;
    for (const auto& [key, count] : chains) several += count > 1 ? 1 : 0;
    CHECK(several > 0);
    CHECK_EQ(cache.num_chunks(), several);
    std::map<ChunkKey, std::vector<std::shared_ptr<CarriedChunk>>> taken;
    for (size_t group = 0; group < c.num_groups(); ++group) {
      for (const auto& [key, chunk] : cache.take(group)) taken[key].push_back(chunk);
    }
    for (const auto& [key, chunks] : taken) {
      CHECK_EQ(chunks.size(), chains.at(key));
      for (const auto& chunk : chunks) CHECK(chunk == chunks.front());
      CHECK_EQ(static_cast<size_t>(chunks.front().use_count()), chunks.size());  // the last chain has taken it
      CHECK(chunks.front()->crop() == nullptr);
    }
    CHECK_EQ(taken.size(), several);
  }
}

TEST(no_more_is_cached_than_memory_has_room_for) {
  const PlannedVolume c(3);
  for (const size_t room : {size_t{0}, size_t{1}, size_t{2}, size_t{5}}) {
    PlannedCache cache({kChunkBytes, 0}, room * kChunkBytes + 7);
    cache.open(c.plan->plan, c.outputs);
    std::vector<std::weak_ptr<CarriedChunk>> made;
    for (size_t group = 0; group < c.num_groups(); ++group) {
      for (const auto& [key, chunk] : cache.take(group)) made.push_back(chunk);
      std::set<const CarriedChunk*> alive;
      for (const auto& one : made) {
        if (const auto chunk = one.lock()) alive.insert(chunk.get());
      }
      CHECK(alive.size() <= room);
    }
    CHECK_EQ(made.empty(), room == 0);
    for (const auto& one : made) CHECK(one.expired());
  }
}

TEST(memory_of_a_cached_chunk_is_there_until_its_last_task_ends) {
  const PlannedVolume c(3);
  PlannedCache cache({kChunkBytes, 0}, kChunkBytes);
  cache.open(c.plan->plan, c.outputs);
  std::shared_ptr<CarriedChunk> first;
  for (size_t group = 0; group < c.num_groups(); ++group) {
    for (const auto& [key, chunk] : cache.take(group)) {
      if (first == nullptr) first = chunk;
      CHECK(chunk == first);  // it has all memory, as long as we hold it
    }
  }
  CHECK(first != nullptr);
  uint8_t* const bytes = first->memory().acquire(0, first->crop_room());
  CHECK(bytes != nullptr);
  first->memory().release(0, bytes, first->crop_room());
  first.reset();
  cache.open(c.plan->plan, c.outputs);
  size_t taken = 0;
  for (size_t group = 0; group < c.num_groups(); ++group) taken += cache.take(group).size();
  CHECK(taken > 1);
}

TEST(chunks_that_are_needed_sooner_are_cached_in_place_of_others) {
  const PlannedVolume c(1);  // one column after the other: a chunk at the wall is needed half an epoch later
  PlannedCache ample({kChunkBytes, 0}, size_t{1} << 30), scarce({kChunkBytes, 0}, 2 * kChunkBytes);
  ample.open(c.plan->plan, c.outputs);
  scarce.open(c.plan->plan, c.outputs);
  std::map<ChunkKey, size_t> first_take;
  size_t best = SIZE_MAX, found = SIZE_MAX;  // the least groups from one take to the next
  std::map<ChunkKey, size_t> last_scarce;
  for (size_t group = 0; group < c.num_groups(); ++group) {
    for (const auto& [key, chunk] : ample.take(group)) {
      if (first_take.contains(key)) best = std::min(best, group - first_take[key]);
      first_take[key] = group;
    }
    for (const auto& [key, chunk] : scarce.take(group)) {
      if (last_scarce.contains(key)) found = std::min(found, group - last_scarce[key]);
      last_scarce[key] = group;
    }
  }
  CHECK_EQ(found, best);
}

TEST(too_many_chunks_are_not_cached) {
  const PlannedVolume c(3);
  PlannedCache cache({kChunkBytes, 0}, size_t{1} << 30);
  cache.open(c.plan->plan, c.outputs, 10);
  CHECK_EQ(cache.num_chunks(), size_t{0});
  CHECK(cache.take(0).empty());
}

TEST(a_cached_chunk_gives_way_to_none_that_is_needed_later) {
  size_t gave_way = 0, stayed = 0;
  for (const int64_t lanes : {1, 2, 3, 5}) {
    const PlannedVolume c(lanes);
    PlannedCache ample({kChunkBytes, 0}, size_t{1} << 30), scarce({kChunkBytes, 0}, kChunkBytes);
    ample.open(c.plan->plan, c.outputs);
    scarce.open(c.plan->plan, c.outputs);
    std::map<ChunkKey, std::set<size_t>> takes;  // by all groups that need the chunk
    for (size_t group = 0; group < c.num_groups(); ++group) {
      for (const auto& [key, chunk] : ample.take(group)) takes[key].insert(group);
    }
    struct Cached {
      std::weak_ptr<CarriedChunk> chunk;
      size_t next;
    };
    std::optional<Cached> cache;  // there is room for one
    for (size_t group = 0; group < c.num_groups(); ++group) {
      std::optional<Cached> now;
      for (const auto& [key, chunk] : scarce.take(group)) {
        const auto next = takes.at(key).upper_bound(group);
        if (next != takes.at(key).end() && chunk.use_count() > 1) now = Cached{chunk, *next};
      }
      if (cache && cache->next > group) {
        if (cache->chunk.expired()) {
          CHECK(now.has_value() && now->next <= cache->next);
          ++gave_way;
        } else {
          ++stayed;
        }
      }
      if (now) cache = now;
    }
  }
  CHECK(gave_way > 0);
  CHECK(stayed > 0);
}

TEST(chunks_of_rows_are_those_that_the_plan_lists) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {40, 9}, .chunk_shape = {8, 5}});  // two cells
  const OutputTable outputs({array.field()});
  const size_t bytes = size_t{8} * 5 * 4;
  OwnedPlan owned;
  owned.group_begin = {0, 1, 2, 3};
  owned.next_group = {1, -1, -1};
  owned.take_begin = {0, 1, 1,
                      3};  // group 1 is handed chunk 2; group 2 is the first of its chain to need it, and chunk 4
  owned.take_source = {0, 0, 0};
  owned.take_chunk = {2, 2, 4};
  owned.bind();
  PlannedCache cache({bytes}, 4 * bytes);
  cache.open(owned.plan, outputs);
  CHECK_EQ(cache.num_chunks(), size_t{2});  // both cells of chunk 2; of chunk 4 there is one chain
  const CarriedChunks first = cache.take(0);
  CHECK_EQ(first.size(), size_t{2});
  CHECK(cache.take(1).empty());
  const CarriedChunks last = cache.take(2);
  CHECK_EQ(last.size(), size_t{2});
  for (const size_t cell : {size_t{0}, size_t{1}}) {
    CHECK(first.at({0, 2, cell}) == last.at({0, 2, cell}));
    CHECK_EQ(last.at({0, 2, cell}).use_count(), long{2});  // the cache has let go of it
  }
  cache.open(owned.plan, outputs, 2);  // there are more takes than this
  CHECK_EQ(cache.num_chunks(), size_t{0});
  owned.take_begin = {};
  owned.bind();
  cache.open(owned.plan, outputs);
  CHECK_EQ(cache.num_chunks(), size_t{0});
}

}  // namespace zarrfeed::testing::planned_cache_test
