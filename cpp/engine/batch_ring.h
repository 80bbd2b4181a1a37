#pragma once
// The open batches of an epoch, in a ring: batch b is at ring index b % size, and step s has slot s % batch_size.
//
// Invariants:
//   * A slot is written by one task for each output and cell. Steps are claimed before tasks write; it is an error to
//     claim a step twice while its batch is open.
//   * A batch is complete when all pieces of its rows are finished. The count of unfinished pieces is the only thing
//     that orders the writes before the delivery: it is decreased with release after rows were written, and read with
//     acquire.
//   * The caller opens a batch only after the earlier batch at the same ring index was complete and taken, and before
//     any other call for the new batch.
// Threads that work for different lanes write to the same batches. To avoid false sharing, the marks of claimed steps
// are stored lane by lane. Counts and addresses of neighbouring batches are stored close together.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "plan/placement.h"
#include "transform/scatter.h"

namespace zarrfeed {

class BatchRing {
 public:
  /// An epoch of `steps` steps in batches of `batch_size`, of which at most `size` are open. Steps of one lane are
  /// `period` apart.
  BatchRing(int64_t steps, int64_t batch_size, int64_t size, int64_t period, size_t num_tensors);

  [[nodiscard]] int64_t num_batches() const { return num_batches_; }
  /// Rows of a batch: `batch_size`, or fewer in the last batch.
  [[nodiscard]] int64_t rows(int64_t batch) const;
  /// The buffers of a batch, one for each tensor.
  [[nodiscard]] std::span<uint8_t*> buffers(int64_t batch);

  /// Opens a batch, whose buffers were set, for rows of `pieces` pieces each.
  void open(int64_t batch, int64_t pieces);
  [[nodiscard]] bool is_complete(int64_t batch) const {
    return remaining_[index_of(batch)].load(std::memory_order_acquire) == 0;
  }

  /// Claims the steps of these rows. Throws Error(kConfig) if one was claimed before.
  void claim(std::span<const Placement> rows);
  /// The first step of an open batch that was not claimed; the last step of the batch if all were.
  [[nodiscard]] int64_t first_unclaimed(int64_t batch) const;

  /// Adds the addresses of `rows` in the buffers of `tensor` to `out`. Each sample has `in_sample` rows of `row_bytes`
  /// bytes, Placement::step counts rows, and the written bytes begin at `offset` in the row.
  void find_targets(std::span<const Placement> rows, size_t tensor, int64_t in_sample, size_t row_bytes, size_t offset,
                    std::vector<RowTarget>& out);

  /// The same for rows side by side, which belong to one sample.
  void find_targets(std::span<const RowStretch> rows, size_t tensor, int64_t in_sample, size_t row_bytes, size_t offset,
                    std::vector<StretchTarget>& out);

  /// Counts one more unfinished piece of each of these rows, whose samples have an unfinished piece already.
  template <typename Rows>
  void add(const Rows& rows, int64_t in_sample) {
    Cursor at(*this, in_sample);
    for (const auto& row : rows) {
      at.seek(step_of(row));
      remaining_[at.index].fetch_add(count_of(row), std::memory_order_relaxed);
    }
  }

  /// Counts rows, or stretches of them, as written, and calls on_complete(batch) for each batch whose last row is among them.
  template <typename Rows, typename OnComplete>
  void finish(const Rows& rows, int64_t in_sample, const OnComplete& on_complete) {
    Cursor at(*this, in_sample);
    for (size_t i = 0; i < rows.size();) {
      at.seek(step_of(rows[i]));
      int64_t done = 0;
      for (; i < rows.size() && at.has(step_of(rows[i])); ++i) done += count_of(rows[i]);
      if (remaining_[at.index].fetch_sub(done, std::memory_order_acq_rel) == done) on_complete(at.batch);
    }
  }

 private:
  /// Finds the batches of steps, one step after another. Going on to the next batch takes no division.
  struct Cursor {
    Cursor(const BatchRing& ring, int64_t in_sample)
        : in_batch(ring.batch_size_ * in_sample), size(static_cast<size_t>(ring.size_)), begin(-2 * in_batch) {}

    [[nodiscard]] bool has(int64_t step) const { return step >= begin && step - begin < in_batch; }

    void seek(int64_t step) {
      if (has(step)) return;
      if (has(step - in_batch)) {
        ++batch;
        begin += in_batch;
        if (++index == size) index = 0;
      } else {
        batch = step / in_batch;
        begin = batch * in_batch;
        index = static_cast<size_t>(batch) % size;
      }
    }

    const int64_t in_batch;
    const size_t size;
    int64_t begin;  ///< first step of the batch; before the first seek(), of no batch
    int64_t batch = 0;
    size_t index = 0;
  };

  static int64_t step_of(const Placement& row) { return row.step; }
  static int64_t step_of(const RowStretch& rows) { return rows.first.step; }
  static int64_t count_of(const Placement&) { return 1; }
  static int64_t count_of(const RowStretch& rows) { return rows.count; }

  [[nodiscard]] size_t index_of(int64_t batch) const { return static_cast<size_t>(batch % size_); }
  /// The index of the mark of a step, by the step modulo capacity_. Marks of one lane are adjacent.
  [[nodiscard]] size_t mark_of(int64_t step_in_ring) const {
    return static_cast<size_t>((step_in_ring % period_) * in_lane_ + step_in_ring / period_);
  }

  const int64_t steps_;
  const int64_t batch_size_;
  const int64_t size_;
  const int64_t period_;
  const int64_t capacity_;  ///< steps of all batches in the ring
  const int64_t in_lane_;   ///< marks of a lane
  const int64_t num_batches_;
  const size_t num_tensors_;
  std::vector<uint8_t*> buffers_;                      ///< buffers of each ring index, one tensor after another
  std::unique_ptr<std::atomic<int64_t>[]> remaining_;  ///< pieces of each ring index that are not finished
  std::unique_ptr<std::atomic<uint32_t>[]> claimed_;   ///< 1 + the last turn of the ring in which the step was claimed
};

}  // namespace zarrfeed
