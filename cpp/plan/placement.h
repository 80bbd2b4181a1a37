#pragma once
// A placement: which sample a batch slot gets.

#include <cstdint>

namespace zarrfeed {

/// A sample and the step that gets it. In a task whose field has windows: a row of the array, and the step counted in
/// rows.
struct Placement {
  int64_t sample;  ///< global sample index
  int64_t
      step;  ///< number of the sample in what this consumer reads: batch = step / batch_size, slot = step % batch_size
};

/// Rows of a window, side by side in the array and in the slot: row i of `count` is the row first.sample + i * row_step,
/// and has the step first.step + i.
struct RowStretch {
  Placement first;  ///< the row -1: all of them are padded
  int64_t count = 1;
  int64_t row_step = 0;  ///< 1, or 0 if they are the same row

  [[nodiscard]] Placement row(int64_t i) const { return {first.sample + i * row_step, first.step + i}; }
};

}  // namespace zarrfeed
