#include "engine/task_builder.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/chunks/row_runs.h"
#include "engine/window_rows.h"

namespace zarrfeed {
namespace {

/// A row with the run that it lies in.
struct RunRow {
  int64_t run = kNoChunk;
  Placement row;
};

}  // namespace

/// Makes tasks, and adds rows of further outputs to the task that has their chunk.
class TaskBuilder::Tasks {
 public:
  Tasks(const OutputTable& outputs, const EpochPlan& plan, const Rows& samples, std::vector<Task>& out)
      : outputs_(outputs), plan_(plan), samples_(samples), out_(out) {}

  [[nodiscard]] const Rows& samples() const { return samples_; }
  /// The runs of an output that is stored.
  [[nodiscard]] RowRuns runs_of(size_t output) const {
    return {plan_, *outputs_[output].source(), outputs_.source_of(output)};
  }

  /// Forgets the chunks of the segment before.
  void begin_segment() { known_.clear(); }

  /// Adds rows of an output that lie in a run, or in no chunk, in all of its cells.
  void add(size_t output, const Rows& rows, size_t begin, size_t end, int64_t run) {
    for (size_t cell = 0; cell < std::max<size_t>(1, outputs_[output].num_cells()); ++cell) {
      add(output, rows, begin, end, {run, cell});
    }
  }
  /// The same in one cell; `at` has the run in place of the chunk.
  void add(size_t output, const Rows& rows, size_t begin, size_t end, PatchCell at) {
    const bool has_chunk = outputs_[output].is_stored() && at.chunk != kNoChunk;
    task_of(output, at, has_chunk).of_outputs.add({output, rows, begin, end});
  }

 private:
  /// The task of a run: the one that an earlier output of the source made for this segment, or a new one.
  Task& task_of(size_t output, PatchCell at, bool has_chunk) {
    const size_t source = outputs_.source_of(output);
    if (has_chunk && outputs_.outputs_of(source).size() > 1) {
      const auto [known, is_new] = known_.try_emplace({source, at}, out_.size());
      if (!is_new) return out_[known->second];
    }
    Task& task = out_.emplace_back();
    task.source = source;
    task.cell = at.cell;
    task.run = at.chunk;
    task.chunk = has_chunk ? runs_of(output).chunk_of(at.chunk) : at.chunk;
    task.samples = samples_;
    task.has_chunk = has_chunk;
    task.pads = at.chunk == kNoChunk;
    return task;
  }

  const OutputTable& outputs_;
  const EpochPlan& plan_;
  const Rows& samples_;
  std::vector<Task>& out_;
  std::map<std::pair<size_t, PatchCell>, size_t> known_;  ///< tasks of sources that several outputs draw from
};

std::optional<int64_t> TaskBuilder::pieces_per_sample(const OutputTable& outputs) {
  if (std::ranges::any_of(outputs, [](const Output& output) { return output.patches() != nullptr; })) {
    return std::nullopt;  // each patch lies in chunks of its own
  }
  size_t pieces = 0;
  std::map<std::pair<size_t, size_t>, size_t> cells_of_slot;  // of outputs with parts: by tensor and offset in it
  for (const Output& output : outputs) {
    const size_t cells = std::max<size_t>(1, output.num_cells());
    const auto& slot = output.spec().slot;
    if (slot && output.is_stored() && output.source()->array().parts != nullptr) {
      const auto [of_slot, is_first] = cells_of_slot.try_emplace({slot->tensor, slot->offset}, cells);
      if (!is_first && of_slot->second != cells) return std::nullopt;
      if (!is_first) continue;
    }
    pieces += cells * output.num_offsets();
  }
  return static_cast<int64_t>(pieces);
}

TaskBuilder::Rows TaskBuilder::build(size_t group, ShuffleScratch& scratch, std::vector<Task>& out) const {
  GroupPlacements placements;
  expand_group(plan_, group, scratch, placements);
  Rows samples = std::make_shared<const std::vector<Placement>>(std::move(placements.rows));
  Tasks tasks(outputs_, plan_, samples, out);
  const auto first_segment = static_cast<size_t>(plan_.group_begin[group]);
  for (size_t s = 0; s + 1 < placements.begin.size(); ++s) {
    if (placements.begin[s] == placements.begin[s + 1]) continue;
    const SampleRange of_block = find_samples(plan_, first_segment + s);
    tasks.begin_segment();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      add_output(i, placements.begin[s], placements.begin[s + 1], of_block, tasks);
    }
  }
  return samples;
}

void TaskBuilder::add_output(size_t number, size_t begin, size_t end, const SampleRange& of_block, Tasks& out) const {
  const Output& output = outputs_[number];
  if (output.patches() != nullptr) {
    add_patches(number, begin, end, out);
    return;
  }
  const Rows& samples = out.samples();
  const auto of_segment = std::span(*samples).subspan(begin, end - begin);
  if (output.is_direct()) {
    if (!output.is_stored()) {
      out.add(number, samples, begin, end, int64_t{0});
      return;
    }
    // Mostly one run has the whole block, so that its rows need not be looked at.
    const RowRuns runs = out.runs_of(number);
    const auto run_of = [&](int64_t row) { return runs.run_of(output.source()->chunk_of(row), row); };
    SampleRange range = of_block;
    int64_t run = run_of(range.first);
    if (run == kNoChunk || run != run_of(range.last)) {
      const auto [first, last] =
          std::minmax_element(of_segment.begin(), of_segment.end(),
                              [](const Placement& a, const Placement& b) { return a.sample < b.sample; });
      range = {first->sample, last->sample};
      run = run_of(range.first);
    }
    if (run != kNoChunk && run == run_of(range.last)) {
      out.add(number, samples, begin, end, run);
      return;
    }
  }
  const WindowRows windows(output, plan_);
  const size_t num_rows = of_segment.size() * output.num_offsets();
  const bool are_cut = output.is_stored() && !out.runs_of(number).are_chunks();
  const bool is_small = !output.is_stored() || (num_rows > most_listed_ && output.row_bytes() < kSmallRow);
  if (!output.is_direct() && !are_cut && is_small) {
    const auto chunks = output.is_stored() ? windows.find_chunks(of_segment) : std::vector<int64_t>{0};
    for (const int64_t chunk : chunks) out.add(number, nullptr, begin, end, chunk);
    return;
  }
  // The rows may lie in several runs: one task for each run, and one for those that are padded.
  const RowRuns runs = out.runs_of(number);
  const std::vector<Placement> found =
      output.is_direct() ? std::vector<Placement>(of_segment.begin(), of_segment.end()) : windows.list(of_segment);
  std::vector<RunRow> by_run;
  by_run.reserve(found.size());
  bool is_sorted = true;
  for (const Placement& row : found) {
    const int64_t chunk = windows.chunk_of(row);
    if (chunk == WindowRows::kOfOther) continue;
    const int64_t run = runs.run_of(chunk, row.sample);
    is_sorted = is_sorted && (by_run.empty() || by_run.back().run <= run);
    by_run.push_back({run, row});
  }
  if (!is_sorted) {
    std::stable_sort(by_run.begin(), by_run.end(), [](const RunRow& a, const RunRow& b) { return a.run < b.run; });
  }
  std::vector<Placement> sorted;
  sorted.reserve(by_run.size());
  for (const RunRow& one : by_run) sorted.push_back(one.row);
  const auto rows = std::make_shared<const std::vector<Placement>>(std::move(sorted));
  for (size_t from = 0; from < by_run.size();) {
    size_t to = from + 1;
    while (to < by_run.size() && by_run[to].run == by_run[from].run) ++to;
    out.add(number, rows, from, to, by_run[from].run);
    from = to;
  }
}

void TaskBuilder::add_patches(size_t output, size_t begin, size_t end, Tasks& out) const {
  const PatchCopy& patches = *outputs_[output].patches();
  struct Piece {
    PatchCell cell;
    Placement sample;
  };
  std::vector<Piece> pieces;
  std::vector<PatchCell> cells;
  for (size_t i = begin; i < end; ++i) {
    const Placement& sample = (*out.samples())[i];
    const PatchStart start = plan_.patches->start(sample.sample);
    if (!patches.has(start.volume)) continue;  // another output has it
    cells.clear();
    patches.find_cells(start, cells);
    if (patches.reaches_out(start)) cells.push_back({kNoChunk, 0});
    for (const PatchCell& cell : cells) pieces.push_back({cell, sample});
  }
  std::ranges::stable_sort(pieces, {}, &Piece::cell);
  std::vector<Placement> sorted;
  sorted.reserve(pieces.size());
  for (const Piece& piece : pieces) sorted.push_back(piece.sample);
  const auto rows = std::make_shared<const std::vector<Placement>>(std::move(sorted));
  for (size_t from = 0; from < pieces.size();) {
    size_t to = from + 1;
    while (to < pieces.size() && pieces[to].cell == pieces[from].cell) ++to;
    out.add(output, rows, from, to, pieces[from].cell);
    from = to;
  }
}

}  // namespace zarrfeed
