// Tasks of fields whose rows lie in several stores, are mapped, or are padded. The invariant: of each row of a window,
// every cell is in exactly one task, of the field whose part has the row; a padded row is in tasks of its own, of the
// field that is no variant.

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "engine/task_builder.h"
#include "engine/window_rows.h"
#include "tests/support/check.h"
#include "tests/support/many_stores.h"
#include "tests/support/plans.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::task_builder_parts_test {
namespace {

/// Field, cell, row or -1, and the step in rows of the field.
using Piece = std::tuple<size_t, size_t, int64_t, int64_t>;

OutputTable outputs_of(const ManyStores& many, const WindowRows& window) {
  std::vector<FieldSpec> fields = many.fields({.tensor = 0, .row_bytes = ManyStores::kRowBytes, .offset = 0});
  for (FieldSpec& field : fields) window.apply(field);
  return OutputTable(std::move(fields));
}

/// The pieces that these samples need, by the definition.
std::vector<Piece> needed(const OutputTable& fields, const ManyStores& many, const WindowRows& window,
                          const std::vector<Placement>& samples) {
  std::vector<Piece> pieces;
  for (const Placement& p : samples) {
    const std::vector<int64_t> rows = window.rows(p.sample);
    for (size_t k = 0; k < rows.size(); ++k) {
      const size_t field = rows[k] < 0 ? 0 : many.store_of(rows[k]).layout;
      for (size_t cell = 0; cell < fields[field].num_cells(); ++cell) {
        pieces.emplace_back(field, cell, rows[k], p.step * std::ssize(rows) + static_cast<int64_t>(k));
      }
    }
  }
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

/// Checks the tasks of all groups; returns how many rows they have that are padded.
int64_t check_tasks(const OutputTable& fields, const ManyStores& many, const WindowRows& window,
                    const EpochPlan& plan) {
  const TaskBuilder builder(fields, plan);
  ShuffleScratch scratch;
  int64_t padded = 0;
  for (size_t group = 0; group < plan.num_groups(); ++group) {
    std::vector<Task> tasks;
    const TaskBuilder::Rows samples = builder.build(group, scratch, tasks);
    std::vector<Piece> pieces;
    for (const Task& task : tasks) {
      CHECK(!task.of_outputs.front().placements().empty());
      CHECK(task.samples == samples);
      int64_t last_step = -1;
      for (const Placement& row : task.of_outputs.front().placements()) {
        CHECK(row.step > last_step);
        last_step = row.step;
        CHECK_EQ(row.sample < 0, task.pads);
        if (row.sample >= 0) CHECK_EQ(task.chunk, many.chunk_of(row.sample));
        if (task.pads && task.cell == 0) ++padded;
        pieces.emplace_back(task.of_outputs.front().output, task.cell, row.sample, row.step);
      }
    }
    std::sort(pieces.begin(), pieces.end());
    CHECK(pieces == needed(fields, many, window, *samples));
    if (const auto in_sample = TaskBuilder::pieces_per_sample(fields)) {
      CHECK_EQ(std::ssize(pieces), std::ssize(*samples) * *in_sample);
    }
  }
  return padded;
}

/// A field of 20 rows in stores of these rows, in chunks of (2, cells of `width` of 6 items).
FieldSpec part_of_field(std::vector<int64_t> begin, std::vector<int64_t> end, int64_t width, const SlotSpec& slot) {
  auto parts = std::make_shared<ArrayParts>();
  parts->prefix.resize(begin.size());
  parts->name.resize(begin.size());
  parts->begin = std::move(begin);
  parts->end = std::move(end);
  parts->rows_per_chunk = 2;
  parts->number_chunks();
  FieldSpec field;
  field.array.shape = {20, 6};
  field.array.chunk_shape = {2, width};
  field.array.storage_order = {0, 1};
  field.array.item_bytes = 1;
  field.array.fill = {0};
  field.array.parts = std::move(parts);
  field.slot = slot;
  return field;
}

}  // namespace

TEST(every_row_is_in_a_task_of_the_field_whose_part_has_it) {
  int64_t padded = 0;
  int64_t with_counts = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const PlanSpec spec = random_plan_spec(random, 50);
    const int64_t num_rows = random() % 2 == 0 ? spec.num_samples : pick(random, 1, 50);
    const TempDir directory;
    const ManyStores many(random, directory.path(), num_rows, random() % 3 + 1);
    WindowRows window = random_rows(random, spec.num_samples, num_rows, pick(random, 0, 4));
    const OutputTable fields = outputs_of(many, window);
    padded += check_tasks(fields, many, window, build_plan(spec)->plan);
    if (!TaskBuilder::pieces_per_sample(fields)) ++with_counts;
  }
  CHECK(padded > 50);
  CHECK(with_counts > 5);
}

TEST(a_window_over_two_stores_is_a_task_of_each) {
  const SlotSpec slot{.tensor = 0, .row_bytes = 6, .offset = 0};
  std::vector<FieldSpec> specs = {part_of_field({0, 10}, {5, 20}, 6, slot), part_of_field({5}, {10}, 6, slot)};
  specs[1].is_variant = true;
  for (FieldSpec& field : specs) {
    field.offsets = {0, 1};
    field.pad.mode = PadSpec::Mode::kFill;
  }
  const OutputTable fields(std::move(specs));
  PlanSpec spec;
  spec.num_samples = 20;
  spec.block_rows = 1;
  for (int64_t block = 0; block < 20; ++block) spec.block_order.push_back(block);
  const auto plan = build_plan(spec);
  ShuffleScratch scratch;
  std::vector<Task> tasks;
  TaskBuilder(fields, plan->plan).build(4, scratch, tasks);  // rows 4 and 5
  CHECK_EQ(tasks.size(), size_t{2});
  CHECK_EQ(tasks[0].source, size_t{0});
  CHECK_EQ(tasks[0].chunk, int64_t{2});
  CHECK_EQ(tasks[0].of_outputs.front().placements().front().step, int64_t{8});
  CHECK_EQ(tasks[1].source, size_t{1});
  CHECK_EQ(tasks[1].chunk, int64_t{0});
  CHECK_EQ(tasks[1].of_outputs.front().placements().front().step, int64_t{9});
  tasks.clear();
  TaskBuilder(fields, plan->plan).build(19, scratch, tasks);  // row 19, and one behind the last
  CHECK_EQ(tasks.size(), size_t{2});
  for (const Task& task : tasks) CHECK_EQ(task.source, size_t{0});
  CHECK(tasks[0].pads);
  CHECK_EQ(tasks[0].of_outputs.front().placements().front().step, int64_t{39});
  CHECK(!tasks[1].pads);
  CHECK_EQ(tasks[1].chunk, int64_t{7});
}

TEST(borders_beyond_the_samples_end_at_the_samples) {
  FieldSpec field;
  field.kind = FieldSpec::Kind::kResident;
  field.sample_bytes = 1;
  field.num_rows = 20;
  field.offsets = {-9, 9};
  field.pad.mode = PadSpec::Mode::kEdge;
  field.pad.borders = std::make_shared<const std::vector<int64_t>>(std::vector<int64_t>{-3, 8, 30});
  const OutputTable fields({field});
  PlanSpec spec;
  spec.num_samples = 20;
  spec.block_rows = 20;
  spec.block_order = {0};
  const auto plan = build_plan(spec);
  ShuffleScratch scratch;
  std::vector<Task> tasks;
  const TaskBuilder::Rows samples = TaskBuilder(fields, plan->plan).build(0, scratch, tasks);
  int64_t pieces = 0;
  for (const Task& task : tasks) {
    CHECK(task.of_outputs.front().rows == nullptr);
    for (const Placement& row : zarrfeed::WindowRows(fields[0], plan->plan).list(*samples)) {
      const int64_t sample = row.step / 2;
      const bool is_first = sample < 8;
      const int64_t expected = row.step % 2 == 0 ? (is_first ? 0 : std::max<int64_t>(8, sample - 9))
                                                 : (is_first ? 7 : std::min<int64_t>(19, sample + 9));
      CHECK_EQ(row.sample, expected);
      ++pieces;
    }
  }
  CHECK_EQ(pieces, int64_t{40});
}

TEST(pieces_of_a_sample_are_counted_once_for_fields_that_share_a_slot) {
  const SlotSpec slot{.tensor = 0, .row_bytes = 12, .offset = 0};
  const SlotSpec beside{.tensor = 0, .row_bytes = 12, .offset = 6};
  const auto pieces = [](std::vector<FieldSpec> specs) {
    for (FieldSpec& field : specs) field.offsets = {-1, 0, 1};
    return TaskBuilder::pieces_per_sample(OutputTable(std::move(specs)));
  };
  const FieldSpec two_cells = part_of_field({0}, {10}, 3, slot);
  CHECK(pieces({two_cells}) == int64_t{6});
  CHECK(pieces({two_cells, part_of_field({10}, {20}, 4, slot)}) == int64_t{6});
  CHECK(pieces({two_cells, part_of_field({10}, {20}, 6, beside)}) == int64_t{9});
  CHECK(!pieces({two_cells, part_of_field({10}, {20}, 6, slot)}).has_value());
  FieldSpec index;
  index.kind = FieldSpec::Kind::kIndex;
  CHECK(pieces({index, two_cells}) == int64_t{9});
}

TEST(samples_of_a_group_in_one_chunk_of_a_part_share_the_rows_of_the_group) {
  const SlotSpec slot{.tensor = 0, .row_bytes = 6, .offset = 0};
  std::vector<FieldSpec> specs = {part_of_field({0}, {6}, 3, slot), part_of_field({6}, {20}, 3, slot)};
  specs[1].is_variant = true;
  const OutputTable fields(std::move(specs));
  PlanSpec spec;
  spec.num_samples = 20;
  spec.block_rows = 2;
  for (int64_t block = 0; block < 10; ++block) spec.block_order.push_back(block);
  const auto plan = build_plan(spec);
  for (const size_t group : {size_t{0}, size_t{3}}) {
    ShuffleScratch scratch;
    std::vector<Task> tasks;
    const TaskBuilder::Rows samples = TaskBuilder(fields, plan->plan).build(group, scratch, tasks);
    CHECK_EQ(tasks.size(), size_t{2});
    for (const Task& task : tasks) {
      CHECK_EQ(task.source, size_t{group == 0 ? 0U : 1U});
      CHECK_EQ(task.chunk, int64_t{0});
      CHECK(task.of_outputs.front().rows == samples);
    }
  }
}

}  // namespace zarrfeed::testing::task_builder_parts_test
