#include "engine/window_rows.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"

namespace zarrfeed {

WindowRows::WindowRows(const Output& output, const EpochPlan& plan) : output_(output), plan_(plan) {
  const FieldSpec& spec = output.spec();
  offsets_ = spec.offsets.empty() ? std::vector<int64_t>{0} : spec.offsets;
  is_plain_ = output.is_stored() && !spec.row_map && !spec.lead && spec.pad.mode == PadSpec::Mode::kNone &&
              output.source()->array().parts == nullptr && !spec.is_variant && std::ranges::is_sorted(offsets_);
  followed_by_.assign(offsets_.size(), 1);
  for (size_t i = offsets_.size() - 1; i-- > 0 && !spec.lead;) {
    if (offsets_[i] != std::numeric_limits<int64_t>::max() && offsets_[i] + 1 == offsets_[i + 1]) {
      followed_by_[i] = followed_by_[i + 1] + 1;
    }
  }
}

template <typename Take>
void WindowRows::for_each(std::span<const Placement> samples, Take&& take) const {
  const FieldSpec& spec = output_.spec();
  std::vector<int64_t> offsets = offsets_;
  int64_t begin = 0;
  int64_t end = plan_.num_samples;
  int64_t run = 0;
  const auto* const borders = spec.pad.borders.get();
  if (borders != nullptr) end = 0;  // looked up below
  for (const Placement& p : samples) {
    if (borders != nullptr && (p.sample < begin || p.sample >= end)) {
      const auto behind = std::upper_bound(borders->begin(), borders->end(), p.sample);
      begin = behind == borders->begin() ? 0 : std::max<int64_t>(0, *std::prev(behind));
      end = behind == borders->end() ? plan_.num_samples : std::min(plan_.num_samples, *behind);
    }
    if (spec.lead) {
      const int64_t lead = draw_lead(plan_, p.sample, spec.lead->low, spec.lead->high);
      if (spec.kind == FieldSpec::Kind::kLead) {
        take(RowStretch{{lead, p.step}});
        continue;
      }
      for (const size_t i : spec.lead->offset_indices) offsets[i] = lead;
    }
    const int64_t first = p.step * std::ssize(offsets);
    for (size_t i = 0; i < offsets.size();) {
      const Output::Rows rows = output_.find_rows(p.sample, offsets[i], followed_by_[i], begin, end, run);
      take(RowStretch{{rows.row, first + static_cast<int64_t>(i)}, rows.count, rows.row_step});
      i += static_cast<size_t>(rows.count);
    }
  }
}

template <typename Take>
void WindowRows::for_each_in_chunk(std::span<const Placement> samples, Take&& take) const {
  for_each(samples, [&](RowStretch rest) {
    while (rest.count > 0) {
      RowStretch rows = rest;
      const int64_t chunk = chunk_of(rows.first);
      if (rest.row_step > 0) rows.count = std::min(rest.count, output_.source()->rows_left(rest.first.sample));
      take(rows, chunk);
      rest.first.sample += rows.count * rest.row_step;
      rest.first.step += rows.count;
      rest.count -= rows.count;
    }
  });
}

std::vector<Placement> WindowRows::list(std::span<const Placement> samples) const {
  std::vector<Placement> rows;
  rows.reserve(samples.size() * offsets_.size());
  for_each(samples, [&](const RowStretch& one) {
    for (int64_t i = 0; i < one.count; ++i) rows.push_back(one.row(i));
  });
  return rows;
}

int64_t WindowRows::chunk_of(int64_t row) const {
  const int64_t chunk = row < 0 ? kNoChunk : output_.source()->chunk_of(row);
  if (chunk == kNoChunk && (row >= 0 || output_.spec().is_variant)) {
    if (output_.source()->array().parts != nullptr) return kOfOther;
    throw Error(ErrorKind::kConfig, "plan: no chunk has row " + std::to_string(row));
  }
  return chunk;
}

void WindowRows::find(std::span<const Placement> samples, int64_t chunk, std::vector<RowStretch>& out) const {
  out.clear();
  if (!output_.is_stored()) {
    for_each(samples, [&](const RowStretch& rows) { out.push_back(rows); });
    return;
  }
  if (!is_plain_) {
    for_each_in_chunk(samples, [&](const RowStretch& rows, int64_t of) {
      if (of == chunk) out.push_back(rows);
    });
    return;
  }
  const int64_t rows_per_chunk = output_.source()->rows_per_chunk();
  const int64_t first = chunk * rows_per_chunk;
  int64_t run = 0;
  for (const Placement& p : samples) {
    const auto from = std::lower_bound(offsets_.begin(), offsets_.end(), first - p.sample) - offsets_.begin();
    const auto to =
        std::lower_bound(offsets_.begin() + from, offsets_.end(), first + rows_per_chunk - p.sample) - offsets_.begin();
    for (auto at = from; at < to;) {
      const auto i = static_cast<size_t>(at);
      const int64_t most = std::min(followed_by_[i], to - at);
      const Output::Rows rows = output_.find_rows(p.sample, offsets_[i], most, 0, plan_.num_samples, run);
      out.push_back({{rows.row, p.step * std::ssize(offsets_) + at}, rows.count, rows.row_step});
      at += rows.count;
    }
  }
}

std::vector<int64_t> WindowRows::find_chunks(std::span<const Placement> samples) const {
  std::vector<int64_t> chunks;
  int64_t last = kOfOther;
  const auto add = [&](int64_t chunk) {
    if (chunk == last || chunk == kOfOther) return;
    last = chunk;
    const auto found = std::ranges::lower_bound(chunks, chunk);
    if (found == chunks.end() || *found != chunk) chunks.insert(found, chunk);
  };
  if (!is_plain_) {
    for_each_in_chunk(samples, [&](const RowStretch&, int64_t chunk) { add(chunk); });
    return chunks;
  }
  const int64_t rows_per_chunk = output_.source()->rows_per_chunk();
  for (const Placement& p : samples) {
    for (auto at = offsets_.begin(); at != offsets_.end();) {
      const int64_t chunk = output_.source()->chunk_of(output_.find_row(p.sample, *at, 0, plan_.num_samples));
      add(chunk);
      at = std::lower_bound(at, offsets_.end(), (chunk + 1) * rows_per_chunk - p.sample);
    }
  }
  return chunks;
}

}  // namespace zarrfeed
