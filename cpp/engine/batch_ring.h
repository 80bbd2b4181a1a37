#pragma once
// The open batches of an epoch, in a ring: batch b has place b % size, and its step s has slot s % batch_size.
//
// What holds:
//   * A slot is written by one task a field and cell. Steps are claimed before that; a step that is claimed twice while its
//     batch is open is an error.
//   * A batch is complete when all pieces of its rows are finished. That count is the only thing that orders writing a
//     batch before its delivery: it is lowered with release after rows were written, and read with acquire.
//   * open() of a place comes after the batch that was there before was complete and taken; the caller orders these, and
//     open() before anything else for that batch.
// Threads that work for different lanes sweep over the same batches. So that they do not fight for cache lines, marks of
// claimed steps lie lane by lane, and counts and addresses of neighbouring batches close together.

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
  /// Of `steps` steps in batches of `batch_size`, at most `size` of them open. Steps of one lane are `period` apart.
  BatchRing(int64_t steps, int64_t batch_size, int64_t size, int64_t period, size_t num_fields);

  [[nodiscard]] int64_t num_batches() const { return num_batches_; }
  /// Rows of a batch: `batch_size`, but for the last one.
  [[nodiscard]] int64_t rows(int64_t batch) const;
  /// Where a batch lies, a buffer a field.
  [[nodiscard]] std::span<uint8_t*> buffers(int64_t batch);

  /// Opens a batch, whose buffers are set, for rows of `pieces` pieces each.
  void open(int64_t batch, int64_t pieces);
  [[nodiscard]] bool is_complete(int64_t batch) const {
    return remaining_[place(batch)].load(std::memory_order_acquire) == 0;
  }

  /// Takes the steps of rows for the caller. Throws Error(kConfig) for one that was taken before.
  void claim(std::span<const Placement> rows);
  /// The first step of an open batch that nobody claimed; its last one if there is none.
  [[nodiscard]] int64_t first_unclaimed(int64_t batch) const;

  /// Lists where rows go: `rows` of samples of `in_sample` rows each, of `row_bytes` bytes, which count in steps of rows.
  void find_targets(std::span<const Placement> rows, size_t field, int64_t in_sample, size_t row_bytes,
                    std::vector<RowTarget>& out);

  /// Says that these rows were written, and calls on_complete(batch) for each batch that this completes.
  template <typename OnComplete>
  void finish(std::span<const Placement> rows, int64_t in_sample, const OnComplete& on_complete) {
    Cursor at(*this, in_sample);
    for (size_t i = 0; i < rows.size();) {
      at.seek(rows[i].step);
      const size_t first = i;
      while (i < rows.size() && at.has(rows[i].step)) ++i;
      const auto done = static_cast<int64_t>(i - first);
      if (remaining_[at.place].fetch_sub(done, std::memory_order_acq_rel) == done) on_complete(at.batch);
    }
  }

 private:
  /// Finds the batches of steps, one after another: to go on to the next batch takes no division.
  struct Cursor {
    Cursor(const BatchRing& ring, int64_t in_sample)
        : in_batch(ring.batch_size_ * in_sample), size(static_cast<size_t>(ring.size_)), begin(-2 * in_batch) {}

    [[nodiscard]] bool has(int64_t step) const { return step >= begin && step - begin < in_batch; }

    void seek(int64_t step) {
      if (has(step)) return;
      if (has(step - in_batch)) {
        ++batch;
        begin += in_batch;
        if (++place == size) place = 0;
      } else {
        batch = step / in_batch;
        begin = batch * in_batch;
        place = static_cast<size_t>(batch) % size;
      }
    }

    const int64_t in_batch;
    const size_t size;
    int64_t begin;  ///< first step of the batch; at first of none
    int64_t batch = 0;
    size_t place = 0;
  };

  [[nodiscard]] size_t place(int64_t batch) const { return static_cast<size_t>(batch % size_); }
  /// Where the mark of a step lies: steps of one lane side by side.
  [[nodiscard]] size_t mark_of(int64_t place_of_step) const {
    return static_cast<size_t>((place_of_step % period_) * in_lane_ + place_of_step / period_);
  }

  const int64_t steps_;
  const int64_t batch_size_;
  const int64_t size_;
  const int64_t period_;
  const int64_t capacity_;  ///< steps that have a place in the ring
  const int64_t in_lane_;   ///< marks of a lane
  const int64_t num_batches_;
  const size_t num_fields_;
  std::vector<uint8_t*> buffers_;                      ///< of each place, a field after another
  std::unique_ptr<std::atomic<int64_t>[]> remaining_;  ///< of each place: pieces that are not finished
  std::unique_ptr<std::atomic<uint32_t>[]> claimed_;   ///< 1 + the last turn of the ring in which the step was claimed
};

}  // namespace zarrfeed
