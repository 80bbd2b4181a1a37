#pragma once
// The task builder: makes the tasks of one group of the plan. Pure: it reads no chunk, and knows no batch and no
// thread.
//
// Invariants, for the tasks that one call of build() adds:
//   * For each field and each cell of it, every row that a sample of the group needs is in exactly one task; of fields
//     that have different parts of one array, in a task of the field whose part it is. No two tasks write the same bytes
//     of a slot. So the tasks of a sample have pieces_per_sample() rows in all, unless fields with different parts have
//     different numbers of cells: the engine then counts the rows of the tasks.
//   * The rows of a task lie in one read chunk, `Task::chunk`. Rows of a field that is not stored lie in no chunk; one
//     task has all rows of a segment, and its `chunk` is 0.
//   * Rows that are padded, which Placement::sample says by -1, are tasks of their own (`Task::pads`) if the field is
//     stored; the task of cell 0 writes them whole.
//   * Of patches, a task has one chunk, cell included, and each patch of the group with items in it; each patch with
//     items in no chunk is in one task that pads.
//   * A task with many rows of windows names its samples alone (`Task::rows` is null): window_rows.h finds the rows.
//   * The rows of a task are in ascending order of their steps, and of one step in the order of their cells.
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
#include "transform/field_decoder.h"

namespace zarrfeed {

class TaskBuilder {
 public:
  using Rows = std::shared_ptr<const std::vector<Placement>>;

  /// Of more rows than these, a task names the samples alone, unless a row has so many bytes that a list of rows is small
  /// beside them. Such rows may be decoded straight into the batch (field_decoder.cc).
  static constexpr size_t kMostListed = size_t{1} << 14;
  static constexpr size_t kSmallRow = 4096;

  /// Borrows both, for as long as the builder lives.
  TaskBuilder(const std::vector<FieldDecoder>& fields, const EpochPlan& plan, size_t most_listed = kMostListed)
      : fields_(fields), plan_(plan), most_listed_(most_listed) {}

  /// Appends the tasks of a group to `out`. Returns the samples of the group, each with its step.
  /// Throws Error(kConfig) if the plan contradicts itself, or if a window reaches beyond the array.
  Rows build(size_t group, ShuffleScratch& scratch, std::vector<Task>& out) const;

  /// Rows that one sample needs, counted once in each cell that they lie in, over all fields; nothing if fields that
  /// have different parts of one array have different numbers of cells.
  static std::optional<int64_t> pieces_per_sample(const std::vector<FieldDecoder>& fields);

 private:
  void add_field(size_t field, const Rows& samples, size_t begin, size_t end, const SampleRange& of_block,
                 std::vector<Task>& out) const;
  void add_patches(size_t field, const Rows& samples, size_t begin, size_t end, std::vector<Task>& out) const;
  void add_rows(size_t field, const Rows& samples, const Rows& rows, size_t begin, size_t end, int64_t chunk,
                std::vector<Task>& out) const;

  const std::vector<FieldDecoder>& fields_;
  const EpochPlan& plan_;
  const size_t most_listed_;
};

}  // namespace zarrfeed
