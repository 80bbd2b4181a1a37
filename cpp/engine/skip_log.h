#pragma once
// The skip log: the batch slots of the open batches that hold no sample, and the bad chunks that caused them. It
// is empty unless EngineOptions::skip_bad is set.
//
// Invariants:
//   * take() returns every skipped slot of a batch once, in ascending order, also if several chunks of the sample are
//     bad.
//   * Every skipped slot of a batch comes with at least one chunk.
//   * A batch is complete only after all its slots were added: the engine adds the slots of a task before it counts the
//     rows of the task as finished.
// The log is not thread-safe: the engine calls it under its own mutex. It has no mutex of its own because
// Engine::take_ready(), which reads it, must never wait.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/placement.h"

namespace zarrfeed {

/// A chunk that could not be read or decoded, with the error.
struct SkippedChunk {
  size_t source = 0;  ///< number of the source; for rows in memory, of the output that they were read for first
  int64_t chunk = 0;  ///< index of the chunk along the sample axis
  std::string key;    ///< key of the chunk below the array; for an inner chunk, also its index in the shard
  Error error;
};

/// A batch slot without its sample, because at least one chunk of the sample could not be read or decoded.
/// The bytes of the slot are undefined: the engine wrote some of them or none.
struct SkippedSlot {
  int64_t slot = 0;    ///< index of the slot in its batch
  int64_t sample = 0;  ///< global index of the sample that belongs there

  auto operator<=>(const SkippedSlot&) const = default;
};

/// The skipped slots of one batch, and the chunks that caused them.
struct Skipped {
  std::vector<SkippedSlot> slots;    ///< ascending; each slot once
  std::vector<SkippedChunk> chunks;  ///< in any order; a chunk may be listed several times
};

class SkipLog {
 public:
  explicit SkipLog(int64_t batch_size) : batch_size_(batch_size) {}

  /// Adds the slot of `sample`, whose chunk could not be read or decoded. A chunk is copied only if the batch does not
  /// list it last.
  void add(const Placement& sample, const SkippedChunk& chunk);
  /// Removes the entries of a batch and returns them; both lists are empty if nothing of the batch was skipped.
  Skipped take(int64_t batch);
  /// Removes all entries.
  void clear() { batches_.clear(); }

 private:
  const int64_t batch_size_;
  std::map<int64_t, Skipped> batches_;  ///< batch -> its entries; slots in the order of add(), perhaps several times
};

}  // namespace zarrfeed
