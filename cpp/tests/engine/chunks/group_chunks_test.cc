// The chunks of groups: one object for all groups that share a chunk, for as long as it is kept.

#include "engine/chunks/group_chunks.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/chunks/shared_chunks.h"
#include "tests/support/check.h"
#include "tests/support/patch_volume.h"
#include "tests/support/stores.h"

namespace zarrfeed::testing::group_chunks_test {
namespace {

constexpr size_t kMuch = size_t{1} << 30;

/// How many objects there are of each chunk over an epoch, all of which are kept meanwhile. Checks that what a group
/// hands on arrives.
std::map<ChunkKey, size_t> objects_of(const PlannedVolume& c, GroupChunks& chunks) {
  std::vector<CarriedChunks> of_group;
  for (size_t group = 0; group < c.num_groups(); ++group) of_group.push_back(chunks.take(group));
  std::map<ChunkKey, std::set<const CarriedChunk*>> objects;
  for (size_t group = 0; group < c.num_groups(); ++group) {
    const int64_t next = c.plan->plan.next_group[group];
    for (const SharedChunk& one : find_shared(c.plan->plan, c.outputs, group)) {
      const ChunkKey key(one.source, one.run, one.cell);
      CHECK(of_group[group].contains(key));
      if (one.next) CHECK(of_group[static_cast<size_t>(next)].at(key) == of_group[group].at(key));
    }
    for (const auto& [key, chunk] : of_group[group]) objects[key].insert(chunk.get());
  }
  std::map<ChunkKey, size_t> counts;
  for (const auto& [key, of_key] : objects) counts[key] = of_key.size();
  return counts;
}

size_t most_of(const std::map<ChunkKey, size_t>& counts) {
  size_t most = 0;
  for (const auto& [key, count] : counts) most = std::max(most, count);
  return most;
}

}  // namespace

TEST(groups_that_share_a_chunk_get_one_object_in_every_epoch) {
  for (const int64_t lanes : {1, 3}) {
    const PlannedVolume c(lanes);
    GroupChunks chunks(c.outputs, kMuch);
    for (int epoch = 0; epoch < 2; ++epoch) {
      chunks.begin_epoch(c.plan->plan, kMuch);
      CHECK_EQ(most_of(objects_of(c, chunks)), size_t{1});
      chunks.clear();
    }
    chunks.begin_epoch(c.plan->plan, 0);  // each chain of groups decodes a chunk for itself
    CHECK(most_of(objects_of(c, chunks)) > 1);
  }
}

TEST(without_memory_for_lanes_groups_share_no_chunks) {
  const PlannedVolume c(2);
  GroupChunks chunks(c.outputs, 0);
  chunks.begin_epoch(c.plan->plan, kMuch);
  for (size_t group = 0; group < c.num_groups(); ++group) CHECK(chunks.take(group).empty());
  CHECK_EQ(chunks.mapped_bytes(), size_t{0});
}

TEST(a_cleared_epoch_keeps_no_chunk) {
  const PlannedVolume c(2);
  GroupChunks chunks(c.outputs, kMuch);
  chunks.begin_epoch(c.plan->plan, kMuch);
  std::vector<std::weak_ptr<CarriedChunk>> seen;
  for (size_t group = 0; group + 1 < c.num_groups(); ++group) {
    for (const auto& [key, chunk] : chunks.take(group)) seen.push_back(chunk);
  }
  CHECK(std::ranges::any_of(seen, [](const auto& one) { return !one.expired(); }));
  chunks.clear();
  for (const auto& one : seen) CHECK(one.expired());
}

}  // namespace zarrfeed::testing::group_chunks_test
