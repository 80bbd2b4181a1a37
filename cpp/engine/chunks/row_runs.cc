#include "engine/chunks/row_runs.h"

#include <algorithm>

#include "base/error.h"

namespace zarrfeed {

RowRuns::RowRuns(const EpochPlan& plan, const ArraySource& source, size_t number) : source_(source), number_(number) {
  const int64_t rows = number < plan.run_rows.size() ? plan.run_rows[number] : 0;
  if (rows <= 0 || rows >= source.rows_per_chunk()) return;
  rows_ = rows;
  runs_of_chunk_ = (source.rows_per_chunk() - 1) / rows + 1;
  if (source.array().shape.size() > kMaxAxes || !is_one_run(source.array(), crop_of(0))) {
    throw Error(ErrorKind::kConfig, "plan: the rows of " + source.array().name + " do not lie side by side in a chunk");
  }
}

ChunkCrop RowRuns::crop_of(int64_t run) const {
  ChunkCrop crop = whole_chunk(source_.array());
  const auto axis = static_cast<size_t>(source_.array().sample_axis);
  crop.begin[axis] = run % runs_of_chunk_ * rows_;
  crop.end[axis] = std::min(crop.begin[axis] + rows_, crop.end[axis]);
  return crop;
}

SharedChunk RowRuns::shared(int64_t run, size_t cell, bool next) const {
  SharedChunk shared{number_, run, cell, next};
  if (rows_ == 0) return shared;
  shared.crop = crop_of(run);
  shared.crop_room = bytes();
  return shared;
}

size_t RowRuns::bytes() const {
  const auto rows = static_cast<size_t>(source_.rows_per_chunk());
  return rows_ == 0 ? source_.decoded_bytes() : source_.decoded_bytes() / rows * static_cast<size_t>(rows_);
}

}  // namespace zarrfeed
