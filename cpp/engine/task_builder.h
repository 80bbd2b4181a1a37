#pragma once
// The task builder: makes the tasks of one group of the plan. Pure: it reads no chunk, and knows no batch and no
// thread.
//
// Invariants, for the tasks that one call of build() adds:
//   * For each output and each cell of it, every row that a sample of the group needs is in exactly one task; if
//     outputs have different parts of one array, the rows belong to the output whose part it is. No two tasks, and no
//     two outputs of a task, write the same bytes of a slot. So the tasks of a sample have pieces_per_sample() rows in
//     all, unless outputs with different parts have different numbers of cells: the engine then counts the rows of the
//     tasks.
//   * The rows of a task lie in one run of rows (row_runs.h) of one read chunk, `Task::run` and `Task::chunk`. No two
//     tasks of a segment of the group have the same run, cell included, of the same source: all outputs take a run by
//     one task, which decodes it once.
//   * Rows of an output that is not stored lie in no chunk (`Task::has_chunk`); one task has all rows of a segment.
//   * Rows that are padded, which Placement::sample says by -1, are tasks of their own (`Task::pads`) without a chunk
//     if the output is stored; the task of cell 0 writes them whole.
//   * A task of patches has one chunk, cell included, and each patch of the group with items in it; each patch with
//     items in no chunk is in one task that pads.
//   * A task with many rows of windows names their samples alone (`TaskRows::rows` is null): window_rows.h finds them.
//   * The rows of an output are in ascending order of their steps, and rows of one step in the order of their cells.
// All functions are thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/chunks/task.h"
#include "plan/placement.h"
#include "plan/row_order.h"
#include "transform/output_table.h"

namespace zarrfeed {

class TaskBuilder {
 public:
  using Rows = std::shared_ptr<const std::vector<Placement>>;

  /// A task with more rows than these names the samples alone, unless a row has so many bytes that a list of rows is
  /// small beside them. Such rows may be decoded straight into the batch (output.cc).
  static constexpr size_t kMostListed = size_t{1} << 14;
  static constexpr size_t kSmallRow = 4096;

  /// Borrows both, for as long as the builder lives.
  TaskBuilder(const OutputTable& outputs, const EpochPlan& plan, size_t most_listed = kMostListed)
      : outputs_(outputs), plan_(plan), most_listed_(most_listed) {}

  /// Appends the tasks of a group to `out`. Returns the samples of the group, each with its step.
  /// Throws Error(kConfig) if the plan contradicts itself, or if a window reaches beyond the array.
  Rows build(size_t group, ShuffleScratch& scratch, std::vector<Task>& out) const;

  /// The number of pairs of a row that one sample needs and a cell that the row lies in, over all outputs. Nothing if
  /// outputs of one array have rows in different numbers of cells.
  static std::optional<int64_t> pieces_per_sample(const OutputTable& outputs);

 private:
  /// The tasks that are made of one segment.
  class Tasks;

  void add_output(size_t output, size_t begin, size_t end, const SampleRange& of_block, Tasks& out) const;
  void add_patches(size_t output, size_t begin, size_t end, Tasks& out) const;

  const OutputTable& outputs_;
  const EpochPlan& plan_;
  const size_t most_listed_;
};

}  // namespace zarrfeed
