#pragma once
// The planned cache: decoded chunks that several chains of groups need. A chain is a sequence of groups of a lane each
// of which hands a chunk to the next one (shared_chunks.h). A chunk of patches that a wall between two columns cuts,
// one that windows of two strips of blocks reach into, or one at the end of a lane or of a run, is needed by several
// chains: without this cache, each would decode it. The plan says which chains need which chunk, so the cache holds no
// other chunk, and evicts the one that is needed last.
//
// Invariants:
//   * A chunk, or a run of its rows (row_runs.h), is cached whole, in one CarriedChunk for all chains that take it
//     while it is cached. So the guarantees of that class hold here, too: one task decodes, others wait, and failures
//     are each task's own.
//   * Memory for every cached chunk is reserved before the first task may decode it, and free again when the last task
//     and the last group let go of it. So there is memory for it, and the memory of the lanes is not touched.
//   * A chunk is evicted when the last chain has taken it, or for a chunk that is needed sooner. Where no memory is
//     left, a chain decodes a chunk itself.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/chunks/carried_chunk.h"
#include "plan/row_order.h"
#include "transform/output_table.h"

namespace zarrfeed {

/// Not thread-safe: the engine calls it under its mutex, but for open().
class PlannedCache {
 public:
  /// `chunk_bytes` has the size of a decoded chunk of each source.
  PlannedCache(const std::vector<size_t>& chunk_bytes, size_t max_bytes);

  /// Borrows both. Finds the chunks of an epoch that several chains need, and forgets those of the epoch before. It
  /// finds none for listed patches, and for more than `most_takes` chunks and chains. Throws Error(kConfig) if the plan
  /// contradicts itself.
  void open(const EpochPlan& plan, const OutputTable& outputs, size_t most_takes = kMostTakes);
  /// Returns the cached chunks of those that a group is the first of its chain to need. Called once for each group, in
  /// the order of admission.
  CarriedChunks take(size_t group);
  /// Evicts all chunks.
  void clear();

  [[nodiscard]] size_t max_bytes() const { return max_bytes_; }
  /// Number of chunks that several chains need.
  [[nodiscard]] size_t num_chunks() const { return chunks_.size(); }
  /// Bytes that were mapped, in use or free.
  [[nodiscard]] size_t mapped_bytes() const { return memory_->mapped_bytes(); }

 private:
  /// The default limit of chunks and chains: finding so many takes about a second.
  static constexpr size_t kMostTakes = size_t{1} << 21;

  struct Chunk {
    ChunkKey key;
    std::vector<size_t> takes;  ///< the groups that take it, the last one first; those to come
    std::shared_ptr<CarriedChunk> cached = {};
  };

  /// Caches a chunk that groups will take, if memory can be reserved, also that of chunks that are taken later.
  void insert(uint32_t number);
  void evict(uint32_t number);

  const EpochPlan* plan_ = nullptr;
  const OutputTable* outputs_ = nullptr;
  const size_t max_bytes_;
  const std::shared_ptr<CarryMemory> memory_;
  std::vector<Chunk> chunks_;
  std::vector<size_t> begin_;  ///< (groups + 1): the begin in `taken_` of the chunks that each group takes
  std::vector<uint32_t> taken_;
  std::set<std::pair<size_t, uint32_t>> by_next_use_;  ///< the cached chunks, by the group that takes each next
};

}  // namespace zarrfeed
