#pragma once
// The rows of windows, found when they are needed. A list of them takes 16 bytes a row, which is more than the rows of
// many arrays have, so that tasks with many rows name their samples alone.
//
// Invariant: rows come in ascending order of their steps if the samples do. Row k of the window of a sample at step t
// has the step t * w + k, if windows have w rows.
//
// Pure. All functions are const, and may be called from several threads.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "plan/placement.h"
#include "plan/row_order.h"
#include "transform/output.h"

namespace zarrfeed {

/// `Task::chunk` of rows that lie in no chunk, in the order of chunks before all of them.
constexpr int64_t kNoChunk = -1;

class WindowRows {
 public:
  /// Borrows both.
  WindowRows(const Output& output, const EpochPlan& plan);

  /// Returns the rows of all windows; a row that is padded is -1. Throws Error(kConfig) if a window reaches beyond the
  /// array.
  [[nodiscard]] std::vector<Placement> list(std::span<const Placement> samples) const;
  /// Sets `out` to the rows that lie in a chunk, or in none; for outputs that are not stored, to all rows.
  void find(std::span<const Placement> samples, int64_t chunk, std::vector<RowStretch>& out) const;
  /// Returns the chunks that the rows lie in, each once, ascending; kNoChunk for rows that are padded.
  [[nodiscard]] std::vector<int64_t> find_chunks(std::span<const Placement> samples) const;
  /// Returns the chunk of a row, or kNoChunk if it is padded; kOfOther if another output has it. Throws Error(kConfig)
  /// if no output has it.
  [[nodiscard]] int64_t chunk_of(const Placement& row) const { return chunk_of(row.sample); }

  static constexpr int64_t kOfOther = -2;

 private:
  /// Calls take(stretch) with all rows, as many at a time as lie side by side.
  template <typename Take>
  void for_each(std::span<const Placement> samples, Take&& take) const;
  /// Calls take(stretch, chunk) with all rows of a stored output, as many at a time as lie side by side in a chunk.
  template <typename Take>
  void for_each_in_chunk(std::span<const Placement> samples, Take&& take) const;
  [[nodiscard]] int64_t chunk_of(int64_t row) const;

  const Output& output_;
  const EpochPlan& plan_;
  std::vector<int64_t> offsets_;
  std::vector<int64_t> followed_by_;  ///< offsets from each on, itself included, that are one behind the other
  /// True if the row at each offset is the row with that index, and offsets ascend: rows of one chunk are neighbours.
  bool is_plain_ = false;
};

}  // namespace zarrfeed
