// Tasks of a group: together they have every row that the samples of the group need, each once.

#include "engine/task_builder.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/chunks/row_runs.h"
#include "engine/window_rows.h"
#include "plan/row_order.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::task_builder_test {
namespace {

/// A row that somebody needs: field, cell, row of the array, and its step in rows of the field.
using Piece = std::tuple<size_t, size_t, int64_t, int64_t>;

OutputTable outputs_of(const Dataset& data) {
  return OutputTable(data.fields());
}

/// The pieces that these samples need, by the definition of a window.
std::vector<Piece> needed(const OutputTable& fields, const std::vector<Placement>& samples) {
  std::vector<Piece> pieces;
  for (size_t f = 0; f < fields.size(); ++f) {
    std::vector<int64_t> offsets = fields[f].spec().offsets;
    if (offsets.empty()) offsets = {0};
    for (size_t cell = 0; cell < std::max<size_t>(1, fields[f].num_cells()); ++cell) {
      for (const Placement& p : samples) {
        for (size_t k = 0; k < offsets.size(); ++k) {
          pieces.emplace_back(f, cell, p.sample + offsets[k], p.step * std::ssize(offsets) + static_cast<int64_t>(k));
        }
      }
    }
  }
  std::sort(pieces.begin(), pieces.end());
  return pieces;
}

/// Checks the tasks of all groups of an epoch against the definition.
void check_tasks(const OutputTable& fields, const EpochPlan& plan, size_t most_listed = TaskBuilder::kMostListed) {
  const TaskBuilder builder(fields, plan, most_listed);
  ShuffleScratch scratch;
  GroupPlacements placements;
  for (size_t group = 0; group < plan.num_groups(); ++group) {
    std::vector<Task> tasks;
    const TaskBuilder::Rows samples = builder.build(group, scratch, tasks);
    expand_group(plan, group, scratch, placements);
    CHECK_EQ(samples->size(), placements.rows.size());
    std::vector<Piece> pieces;
    for (const Task& task : tasks) {
      CHECK(task.samples == samples);
      CHECK(task.of_outputs.size() > 0);
      for (const TaskRows& of_output : task.of_outputs) {
        const Output& field = fields[of_output.output];
        CHECK_EQ(fields.source_of(of_output.output), task.source);
        CHECK_EQ(field.is_stored(), task.has_chunk);
        std::vector<Placement> rows;
        if (of_output.rows != nullptr) {
          rows.assign(of_output.placements().begin(), of_output.placements().end());
        } else {
          std::vector<RowStretch> stretches;
          zarrfeed::WindowRows(field, plan)
              .find(std::span(*samples).subspan(of_output.begin, of_output.end - of_output.begin), task.chunk,
                    stretches);
          for (const RowStretch& one : stretches) {
            for (int64_t i = 0; i < one.count; ++i) rows.push_back(one.row(i));
          }
        }
        const bool is_cut = field.is_stored() && !RowRuns(plan, *field.source(), task.source).are_chunks();
        CHECK_EQ(of_output.rows == nullptr, (most_listed == 0 || !field.is_stored()) && !field.is_direct() && !is_cut);
        CHECK(!rows.empty());
        int64_t last_step = -1;
        for (const Placement& row : rows) {
          CHECK(row.step > last_step);
          last_step = row.step;
          CHECK_EQ(field.is_stored() ? row.sample / field.source()->rows_per_chunk() : 0, task.chunk);
          if (is_cut) CHECK_EQ(RowRuns(plan, *field.source(), task.source).run_of(task.chunk, row.sample), task.run);
          pieces.emplace_back(of_output.output, task.cell, row.sample, row.step);
          const auto in_window = static_cast<int64_t>(field.num_offsets());
          CHECK(std::any_of(samples->begin(), samples->end(),
                            [&](const Placement& p) { return p.step == row.step / in_window; }));
        }
      }
    }
    std::sort(pieces.begin(), pieces.end());
    CHECK(pieces == needed(fields, placements.rows));
    CHECK_EQ(std::ssize(pieces), std::ssize(placements.rows) * TaskBuilder::pieces_per_sample(fields).value());
  }
}

}  // namespace

TEST(tasks_have_each_row_that_a_group_needs_once) {
  const Dataset data = rich_dataset();
  const OutputTable fields = outputs_of(data);
  for (const int64_t block_rows : {1, 3, 8, 20, 100}) {
    for (const int64_t lanes : {1, 4}) {
      PlanSpec spec = shuffled_plan_spec(data, block_rows, lanes);
      check_tasks(fields, build_plan(spec)->plan);
      spec.mix = 2;
      check_tasks(fields, build_plan(spec)->plan);
    }
  }
}

TEST(tasks_have_each_row_that_the_windows_of_a_group_need_once) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Dataset data = rich_dataset();
    data.add_windows(random);
    const OutputTable fields = outputs_of(data);
    for (const int64_t block_rows : {1, 8, 20, 100}) {
      PlanSpec spec = plan_spec_of_windows(data, block_rows);
      check_tasks(fields, build_plan(spec)->plan);
      check_tasks(fields, build_plan(spec)->plan, 0);
      const auto cut = build_plan(spec);
      cut_chunks(*cut, fields, random);
      check_tasks(fields, cut->plan);
      check_tasks(fields, cut->plan, 0);
      spec.shuffle = true;
      spec.lanes = std::min<int64_t>(3, spec.length());
      spec.mix = 2;
      check_tasks(fields, build_plan(spec)->plan);
      check_tasks(fields, build_plan(spec)->plan, 0);
    }
  }
}

TEST(samples_of_one_chunk_are_one_task_that_shares_the_rows_of_the_group) {
  const Dataset data = simple_dataset(64, 8);
  const OutputTable fields = outputs_of(data);
  const auto plan = build_plan(shuffled_plan_spec(data, 8, 1));
  ShuffleScratch scratch;
  std::vector<Task> tasks;
  const TaskBuilder::Rows samples = TaskBuilder(fields, plan->plan).build(0, scratch, tasks);
  CHECK_EQ(tasks.size(), fields.size());
  for (const Task& task : tasks) CHECK(task.of_outputs.front().rows == samples);
}

TEST(what_all_outputs_take_of_a_chunk_is_one_task_of_a_segment) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Dataset data = rich_dataset();
    data.again = {1, 0, 0};
    data.add_windows(random);
    const OutputTable outputs = outputs_of(data);
    size_t of_several = 0;
    for (const int64_t block_rows : {1, 8, 20}) {
      const PlanSpec spec = plan_spec_of_windows(data, block_rows);
      const auto plan = build_plan(spec);
      for (const size_t most_listed : {TaskBuilder::kMostListed, size_t{0}}) {
        check_tasks(outputs, plan->plan, most_listed);
        const TaskBuilder builder(outputs, plan->plan, most_listed);
        ShuffleScratch scratch;
        for (size_t group = 0; group < plan->plan.num_groups(); ++group) {
          std::vector<Task> tasks;
          builder.build(group, scratch, tasks);
          std::set<std::tuple<size_t, int64_t, size_t>> chunks;
          for (const Task& task : tasks) {
            if (!task.has_chunk) continue;
            CHECK(chunks.emplace(task.source, task.chunk, task.cell).second);
            if (task.of_outputs.size() > 1) ++of_several;
            std::set<size_t> of_outputs;
            for (const TaskRows& one : task.of_outputs) CHECK(of_outputs.insert(one.output).second);
          }
        }
      }
    }
    CHECK(of_several > 10);
  }
}

TEST(a_window_that_reaches_beyond_the_array_is_refused) {
  for (const int64_t offset : {-1, 1}) {
    Dataset data = simple_dataset(64, 8);
    data.offsets.assign(data.num_fields(), {offset});
    const OutputTable fields = outputs_of(data);
    const auto plan = build_plan(shuffled_plan_spec(data, 64, 1));
    ShuffleScratch scratch;
    std::vector<Task> tasks;
    CHECK_THROWS(kConfig, "reaches beyond the array", TaskBuilder(fields, plan->plan).build(0, scratch, tasks));
  }
}

}  // namespace zarrfeed::testing::task_builder_test
