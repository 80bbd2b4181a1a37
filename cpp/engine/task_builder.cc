#include "engine/task_builder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace zarrfeed {

int64_t TaskBuilder::pieces_per_sample(const std::vector<FieldDecoder>& fields) {
  size_t pieces = 0;
  for (const FieldDecoder& field : fields) pieces += std::max<size_t>(1, field.num_cells()) * field.num_offsets();
  return static_cast<int64_t>(pieces);
}

TaskBuilder::Rows TaskBuilder::build(size_t group, ShuffleScratch& scratch, std::vector<Task>& out) const {
  GroupPlacements placements;
  expand_group(plan_, group, scratch, placements);
  auto samples = std::make_shared<const std::vector<Placement>>(std::move(placements.rows));
  for (size_t s = 0; s + 1 < placements.begin.size(); ++s) {
    if (placements.begin[s] == placements.begin[s + 1]) continue;
    for (size_t f = 0; f < fields_.size(); ++f) {
      add_field(f, samples, placements.begin[s], placements.begin[s + 1], out);
    }
  }
  return samples;
}

void TaskBuilder::add_field(size_t field, const Rows& samples, size_t begin, size_t end, std::vector<Task>& out) const {
  const FieldDecoder& decoder = fields_[field];
  const auto chunk_of = [&](const Placement& row) { return row.sample / decoder.rows_per_chunk(); };
  const auto lie_in_one_chunk = [&](std::span<const Placement> rows) {
    if (!decoder.is_stored()) return true;
    const auto [first, last] = std::minmax_element(
        rows.begin(), rows.end(), [](const Placement& a, const Placement& b) { return a.sample < b.sample; });
    return chunk_of(*first) == chunk_of(*last);
  };
  const auto of_segment = std::span(*samples).subspan(begin, end - begin);
  if (decoder.spec().offsets.empty() && lie_in_one_chunk(of_segment)) {
    add_rows(field, samples, begin, end, out);
    return;
  }
  std::vector<Placement> sorted = expand_windows(field, of_segment);
  if (!lie_in_one_chunk(sorted)) {
    // The chunks of this field are shorter than the block, or begin inside it: one task for each chunk.
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const Placement& a, const Placement& b) { return chunk_of(a) < chunk_of(b); });
  }
  const auto rows = std::make_shared<const std::vector<Placement>>(std::move(sorted));
  if (!decoder.is_stored()) {
    add_rows(field, rows, 0, rows->size(), out);
    return;
  }
  for (size_t from = 0; from < rows->size();) {
    size_t to = from + 1;
    while (to < rows->size() && chunk_of((*rows)[to]) == chunk_of((*rows)[from])) ++to;
    add_rows(field, rows, from, to, out);
    from = to;
  }
}

void TaskBuilder::add_rows(size_t field, const Rows& rows, size_t begin, size_t end, std::vector<Task>& out) const {
  const FieldDecoder& decoder = fields_[field];
  const int64_t chunk = decoder.is_stored() ? (*rows)[begin].sample / decoder.rows_per_chunk() : 0;
  for (size_t cell = 0; cell < std::max<size_t>(1, decoder.num_cells()); ++cell) {
    Task& task = out.emplace_back();
    task.field = field;
    task.cell = cell;
    task.chunk = chunk;
    task.rows = rows;
    task.begin = begin;
    task.end = end;
  }
}

std::vector<Placement> TaskBuilder::expand_windows(size_t field, std::span<const Placement> samples) const {
  const std::vector<int64_t>& offsets = fields_[field].spec().offsets;
  if (offsets.empty()) return {samples.begin(), samples.end()};
  std::vector<Placement> rows;
  rows.reserve(samples.size() * offsets.size());
  for (const Placement& p : samples) {
    int64_t step = p.step * std::ssize(offsets);
    for (const int64_t offset : offsets) {
      const int64_t row = p.sample + offset;
      if (row < 0 || row >= plan_.num_samples) {
        throw Error(ErrorKind::kConfig, "plan: the window of sample " + std::to_string(p.sample) +
                                            " reaches beyond the array, to " + std::to_string(row));
      }
      rows.push_back({row, step++});
    }
  }
  return rows;
}

}  // namespace zarrfeed
