#pragma once
// The sample grid: samples that several dimensions of an array number together, in C order, and the row that each has
// where the rows of a chunk lie side by side. A chunk of the array is then a box of samples.
//
// Invariants, for samples in the order of their numbers and rows in the order in which chunks hold them:
//   * Sample s has the index s / (product of the lengths of the inner dimensions) % length along a dimension.
//   * Its row is the sum over dimensions of  index / chunk * chunk_step + index % chunk * row_step.
//   * sample_of() is the inverse of row_of(), for a grid whose rows differ for all samples. Rows that pad a chunk at an
//     edge of the array are rows of no sample, and nobody may ask for their sample.
// Pure arithmetic.

#include <cstdint>
#include <utility>
#include <vector>

namespace zarrfeed {

struct SampleGridAxis {
  int64_t length = 1;
  int64_t chunk = 1;       ///< of the dimension: how many of its indices a chunk has
  int64_t chunk_step = 0;  ///< rows from a chunk to the next one along the dimension
  int64_t row_step = 0;    ///< rows from an index to the next one inside of a chunk
};

class SampleGrid {
 public:
  SampleGrid() = default;
  /// `axes`: the outermost dimension first; lengths and chunks are at least 1.
  explicit SampleGrid(std::vector<SampleGridAxis> axes) : axes_(std::move(axes)) {
    for (const SampleGridAxis& axis : axes_) num_samples_ *= axis.length;
  }

  [[nodiscard]] int64_t num_samples() const { return num_samples_; }

  [[nodiscard]] int64_t row_of(int64_t sample) const {
    int64_t row = 0;
    for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
      const int64_t index = sample % axis->length;
      sample /= axis->length;
      row += index / axis->chunk * axis->chunk_step + index % axis->chunk * axis->row_step;
    }
    return row;
  }

  [[nodiscard]] int64_t sample_of(int64_t row) const {
    int64_t sample = 0;
    for (const SampleGridAxis& axis : axes_) {
      const int64_t chunks = (axis.length - 1) / axis.chunk + 1;
      const int64_t chunk = axis.chunk_step == 0 ? 0 : row / axis.chunk_step % chunks;
      const int64_t within = axis.row_step == 0 ? 0 : row / axis.row_step % axis.chunk;
      sample = sample * axis.length + chunk * axis.chunk + within;
    }
    return sample;
  }

 private:
  std::vector<SampleGridAxis> axes_;
  int64_t num_samples_ = 1;
};

}  // namespace zarrfeed
