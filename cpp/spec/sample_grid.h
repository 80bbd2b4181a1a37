#pragma once
// The sample grid: samples that several dimensions of an array number together, in C order, and the row that each has
// where the rows of a chunk lie side by side. A chunk of the array is then a box of samples.
//
// Invariants, for samples in the order of their numbers and rows in the order in which chunks hold them:
//   * Sample s has the index s / (product of the lengths of the inner dimensions) % length along a dimension.
//   * Its row is the sum over dimensions of  index / chunk * chunk_step + index % chunk * row_step.
//   * Grids of several arrays follow each other: sample s of a grid is sample first_sample + s of all of them, and its
//     row is behind the first row of the grid.
//   * sample_of() is the inverse of row_of(), for a grid whose rows differ for all samples. Rows that pad a chunk at an
//     edge of the array are rows of no sample, and nobody may ask for their sample.
// Pure arithmetic.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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
  /// `axes`: the outermost dimension first; lengths and chunks are at least 1.
  explicit SampleGrid(std::vector<SampleGridAxis> axes) {
    for (const SampleGridAxis& axis : axes) num_samples_ *= axis.length;
    parts_.push_back({std::move(axes), 0, 0});
  }

  /// Several grids, one after another; `first_rows` are the first row of each, ascending, as many as grids.
  static SampleGrid joined(std::span<const SampleGrid> grids, std::span<const int64_t> first_rows) {
    SampleGrid made;
    made.num_samples_ = 0;
    for (size_t i = 0; i < grids.size(); ++i) {
      for (const Part& part : grids[i].parts_) {
        made.parts_.push_back({part.axes, made.num_samples_ + part.first_sample, first_rows[i] + part.first_row});
      }
      made.num_samples_ += grids[i].num_samples_;
    }
    return made;
  }

  [[nodiscard]] int64_t num_samples() const { return num_samples_; }

  [[nodiscard]] int64_t row_of(int64_t sample) const {
    const Part& part = holding(sample, &Part::first_sample);
    sample -= part.first_sample;
    int64_t row = part.first_row;
    for (auto axis = part.axes.rbegin(); axis != part.axes.rend(); ++axis) {
      const int64_t index = sample % axis->length;
      sample /= axis->length;
      row += index / axis->chunk * axis->chunk_step + index % axis->chunk * axis->row_step;
    }
    return row;
  }

  [[nodiscard]] int64_t sample_of(int64_t row) const {
    const Part& part = holding(row, &Part::first_row);
    row -= part.first_row;
    int64_t sample = 0;
    for (const SampleGridAxis& axis : part.axes) {
      const int64_t chunks = (axis.length - 1) / axis.chunk + 1;
      const int64_t chunk = axis.chunk_step == 0 ? 0 : row / axis.chunk_step % chunks;
      const int64_t within = axis.row_step == 0 ? 0 : row / axis.row_step % axis.chunk;
      sample = sample * axis.length + chunk * axis.chunk + within;
    }
    return part.first_sample + sample;
  }

 private:
  SampleGrid() = default;

  struct Part {
    std::vector<SampleGridAxis> axes;
    int64_t first_sample = 0;
    int64_t first_row = 0;
  };

  /// The grid that has a sample, or a row: the last one that begins at it or before.
  [[nodiscard]] const Part& holding(int64_t number, int64_t Part::* first) const {
    if (parts_.size() == 1) return parts_.front();
    return *(std::ranges::upper_bound(parts_, number, {}, first) - 1);
  }

  std::vector<Part> parts_;
  int64_t num_samples_ = 1;
};

}  // namespace zarrfeed
