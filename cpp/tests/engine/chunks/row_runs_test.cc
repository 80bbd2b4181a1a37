// Runs of rows: how chunks are cut, and which memory a run takes.

#include "engine/chunks/row_runs.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::row_runs_test {
namespace {

constexpr int64_t kRows = 30;
constexpr int64_t kRowsPerChunk = 8;

EpochPlan plan_with(const std::vector<int64_t>& run_rows) {
  EpochPlan plan;
  plan.run_rows = run_rows;
  return plan;
}

}  // namespace

TEST(runs_partition_the_rows_of_each_chunk) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {kRows, 9}, .chunk_shape = {kRowsPerChunk, 5}});
  const ArraySource source(array.field().array);
  const size_t row_bytes = source.decoded_bytes() / kRowsPerChunk;
  for (int64_t rows = 1; rows < kRowsPerChunk; ++rows) {
    const std::vector<int64_t> run_rows{0, rows};
    const EpochPlan plan = plan_with(run_rows);
    const RowRuns runs(plan, source, 1);
    CHECK(!runs.are_chunks());
    CHECK_EQ(runs.bytes(), row_bytes * static_cast<size_t>(rows));
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t chunk = row / kRowsPerChunk;
      const int64_t run = runs.run_of(chunk, row);
      CHECK_EQ(runs.chunk_of(run), chunk);
      const SharedChunk shared = runs.shared(run, 1, true);
      CHECK_EQ(shared.source, size_t{1});
      CHECK_EQ(shared.run, run);
      CHECK(shared.next);
      CHECK(shared.crop.has_value());
      const int64_t in_chunk = row % kRowsPerChunk;
      CHECK_EQ(shared.crop->begin[0], in_chunk / rows * rows);
      CHECK_EQ(shared.crop->end[0], std::min(kRowsPerChunk, shared.crop->begin[0] + rows));
      CHECK(crop_bytes(source.array(), *shared.crop) <= shared.crop_room);
      if (in_chunk == 0 && row > 0) CHECK(run > runs.run_of(chunk - 1, row - 1));
    }
    CHECK_EQ(runs.run_of(-1, -1), int64_t{-1});
  }
}

TEST(a_chunk_that_is_not_cut_is_one_run) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {kRows, 9}, .chunk_shape = {kRowsPerChunk, 5}});
  const ArraySource source(array.field().array);
  for (const std::vector<int64_t>& run_rows :
       {std::vector<int64_t>{}, {0}, {kRowsPerChunk}, {kRowsPerChunk + 1}, {-3}}) {
    const EpochPlan plan = plan_with(run_rows);
    const RowRuns runs(plan, source, 0);
    CHECK(runs.are_chunks());
    CHECK_EQ(runs.run_of(2, 17), int64_t{2});
    CHECK_EQ(runs.chunk_of(2), int64_t{2});
    CHECK_EQ(runs.bytes(), source.decoded_bytes());
    CHECK(!runs.shared(2, 0, false).crop.has_value());
  }
}

TEST(chunks_whose_rows_do_not_lie_side_by_side_are_refused) {
  const TempDir directory;
  const TestArray array(directory.path() / "a",
                        {.shape = {9, kRows}, .chunk_shape = {5, kRowsPerChunk}, .sample_axis = 1});
  const ArraySource source(array.field().array);
  const std::vector<int64_t> run_rows{3};
  const EpochPlan plan = plan_with(run_rows);
  CHECK_THROWS(kConfig, "do not lie side by side", RowRuns(plan, source, 0));
}

}  // namespace zarrfeed::testing::row_runs_test
