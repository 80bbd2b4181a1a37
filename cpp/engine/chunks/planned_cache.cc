#include "engine/chunks/planned_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/chunks/row_runs.h"
#include "engine/chunks/shared_chunks.h"

namespace zarrfeed {
namespace {

/// A group, and a chunk that it is the first of its chain to need.
struct Take {
  ChunkKey key;
  size_t group = 0;
};

/// The takes that a plan of rows lists; none if there are more than `most`.
std::vector<Take> listed_takes(const EpochPlan& plan, const OutputTable& outputs, size_t most) {
  std::vector<Take> takes;
  if (plan.take_begin.empty()) return takes;
  for (size_t group = 0; group + 1 < plan.take_begin.size(); ++group) {
    for (auto i = static_cast<size_t>(plan.take_begin[group]); i < static_cast<size_t>(plan.take_begin[group + 1]);
         ++i) {
      const auto source = static_cast<size_t>(plan.take_source[i]);
      for (size_t cell = 0; cell < outputs.source(source)->num_cells(); ++cell) {
        takes.push_back({ChunkKey(source, plan.take_chunk[i], cell), group});
      }
    }
    if (takes.size() > most) return {};
  }
  return takes;
}

/// All takes of an epoch of patches, by group; none if there are more than `most`.
std::vector<Take> find_takes(const EpochPlan& plan, const OutputTable& outputs, size_t most) {
  std::vector<Take> takes;
  const size_t num_groups = plan.group_begin.size() - 1;
  std::vector<std::vector<ChunkKey>> received(num_groups);  // from the group before it in its lane, ascending
  for (size_t group = 0; group < num_groups; ++group) {
    const std::vector<ChunkKey> from_before = std::exchange(received[group], {});
    for (const ChunkKey& key : find_needed(plan, outputs, group)) {
      if (!std::ranges::binary_search(from_before, key)) takes.push_back({key, group});
    }
    if (takes.size() > most) return {};
    const int64_t next = plan.next_group[group];
    if (next < 0) continue;
    std::vector<ChunkKey>& of_next = received[static_cast<size_t>(next)];
    for (const SharedChunk& one : find_shared(plan, outputs, group)) {
      if (one.next) of_next.emplace_back(one.source, one.run, one.cell);
    }
    std::ranges::sort(of_next);
  }
  return takes;
}

}  // namespace

PlannedCache::PlannedCache(const std::vector<size_t>& chunk_bytes, size_t max_bytes)
    : max_bytes_(max_bytes), memory_(std::make_shared<CarryMemory>(chunk_bytes, max_bytes)) {}

void PlannedCache::open(const EpochPlan& plan, const OutputTable& outputs, size_t most_takes) {
  clear();
  plan_ = &plan;
  outputs_ = &outputs;
  if (plan.next_group.empty() || (plan.patches != nullptr && plan.patches->is_listed())) return;
  const size_t most = std::min<size_t>(most_takes, std::numeric_limits<uint32_t>::max());
  std::vector<Take> takes =
      plan.patches == nullptr ? listed_takes(plan, outputs, most) : find_takes(plan, outputs, most);
  std::ranges::stable_sort(takes, {}, &Take::key);
  begin_.assign(plan.group_begin.size(), 0);
  std::vector<std::pair<size_t, uint32_t>> of_groups;  // group, chunk
  for (auto at = takes.begin(); at != takes.end();) {
    const auto end = std::upper_bound(at, takes.end(), *at, [](const Take& a, const Take& b) { return a.key < b.key; });
    if (end - at > 1) {
      Chunk& chunk = chunks_.emplace_back();
      chunk.key = at->key;
      for (auto one = end; one-- != at;) {
        chunk.takes.push_back(one->group);
        of_groups.emplace_back(one->group, static_cast<uint32_t>(chunks_.size() - 1));
      }
    }
    at = end;
  }
  std::ranges::sort(of_groups);
  taken_.reserve(of_groups.size());
  for (const auto& [group, chunk] : of_groups) {
    ++begin_[group + 1];
    taken_.push_back(chunk);
  }
  for (size_t group = 1; group < begin_.size(); ++group) begin_[group] += begin_[group - 1];
}

CarriedChunks PlannedCache::take(size_t group) {
  CarriedChunks of_group;
  if (chunks_.empty()) return of_group;
  for (size_t i = begin_[group]; i < begin_[group + 1]; ++i) {
    const uint32_t number = taken_[i];
    Chunk& chunk = chunks_[number];
    if (chunk.cached != nullptr) by_next_use_.erase({chunk.takes.back(), number});
    chunk.takes.pop_back();
    if (!chunk.takes.empty()) insert(number);
    if (chunk.cached == nullptr) continue;
    of_group.emplace(chunk.key, chunk.cached);
    if (chunk.takes.empty()) chunk.cached.reset();
  }
  return of_group;
}

void PlannedCache::clear() {
  chunks_.clear();
  begin_.clear();
  taken_.clear();
  by_next_use_.clear();
}

void PlannedCache::insert(uint32_t number) {
  Chunk& chunk = chunks_[number];
  const std::pair<size_t, uint32_t> next_use{chunk.takes.back(), number};
  if (chunk.cached == nullptr) {
    const auto& [source, run, cell] = chunk.key;
    const RowRuns runs(*plan_, *outputs_->source(source), source);
    const size_t bytes = runs.bytes();
    while (!memory_->reserve(bytes)) {
      // Memory of the others that a lane still holds is not free at once.
      if (by_next_use_.empty() || *by_next_use_.rbegin() < next_use) return;
      evict(by_next_use_.rbegin()->second);
    }
    SharedChunk shared = runs.shared(run, cell, false);
    shared.crop_room = bytes;
    chunk.cached = {new CarriedChunk(shared, memory_), [memory = memory_, bytes](const CarriedChunk* one) {
                      delete one;
                      memory->free_reserved(bytes);
                    }};
  }
  by_next_use_.insert(next_use);
}

void PlannedCache::evict(uint32_t number) {
  by_next_use_.erase({chunks_[number].takes.back(), number});
  chunks_[number].cached.reset();
}

}  // namespace zarrfeed
