#pragma once
// Runs of rows: pieces that the chunks of a source are cut into along the sample axis. Where blocks are slabs of
// chunks, a task reads and decodes one run, and lanes and the planned cache hold runs: memory for the rows that other
// groups need, and not for the chunk around them.
//
// Invariants:
//   * The runs of a chunk partition its rows. Each has EpochPlan::run_rows rows, but for the last one of a chunk, which
//     may have fewer. A chunk that is not cut is one run.
//   * A run is known by one number: that of its chunk, times the runs of a chunk, plus the run's number in it.
//   * The rows of a run lie side by side in the decoded chunk: the sample axis is the outermost one there.
// Pure.

#include <cstddef>
#include <cstdint>

#include "engine/chunks/shared_chunks.h"
#include "plan/row_order.h"
#include "transform/array_source.h"

namespace zarrfeed {

class RowRuns {
 public:
  /// Borrows the source, which the plan knows by `number`. Throws Error(kConfig) if the plan cuts chunks whose rows do
  /// not lie side by side.
  RowRuns(const EpochPlan& plan, const ArraySource& source, size_t number);

  /// True if a run is a whole chunk.
  [[nodiscard]] bool are_chunks() const { return rows_ == 0; }
  /// The run that a row of a chunk lies in. A number below 0, which is no chunk, is returned as it is.
  [[nodiscard]] int64_t run_of(int64_t chunk, int64_t row) const {
    return rows_ == 0 || chunk < 0 ? chunk : chunk * runs_of_chunk_ + (row - source_.first_row(chunk)) / rows_;
  }
  /// The chunk that a run is of.
  [[nodiscard]] int64_t chunk_of(int64_t run) const { return rows_ == 0 || run < 0 ? run : run / runs_of_chunk_; }
  /// A run as tasks share it: with its crop and the memory for it, if chunks are cut.
  [[nodiscard]] SharedChunk shared(int64_t run, size_t cell, bool next) const;
  /// Decoded bytes of a run, at most.
  [[nodiscard]] size_t bytes() const;

 private:
  [[nodiscard]] ChunkCrop crop_of(int64_t run) const;

  const ArraySource& source_;
  const size_t number_;
  int64_t rows_ = 0;  ///< rows of a run; 0: runs are whole chunks
  int64_t runs_of_chunk_ = 1;
};

}  // namespace zarrfeed
