#include "engine/window_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace zarrfeed {

WindowRows::WindowRows(const Output& output, const EpochPlan& plan) : output_(output), plan_(plan) {
  const FieldSpec& spec = output.spec();
  offsets_ = spec.offsets.empty() ? std::vector<int64_t>{0} : spec.offsets;
  is_plain_ = output.is_stored() && !spec.row_map && !spec.lead && spec.pad.mode == PadSpec::Mode::kNone &&
              output.source()->array().parts == nullptr && !spec.is_variant && std::ranges::is_sorted(offsets_);
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
        take(Placement{lead, p.step});
        continue;
      }
      for (const size_t i : spec.lead->offset_indices) offsets[i] = lead;
    }
    int64_t step = p.step * std::ssize(offsets);
    for (const int64_t offset : offsets) {
      take(Placement{output_.find_row(p.sample, offset, begin, end, run), step++});
    }
  }
}

std::vector<Placement> WindowRows::list(std::span<const Placement> samples) const {
  std::vector<Placement> rows;
  rows.reserve(samples.size() * offsets_.size());
  for_each(samples, [&](const Placement& row) { rows.push_back(row); });
  return rows;
}

int64_t WindowRows::chunk_of(const Placement& row) const {
  const int64_t chunk = row.sample < 0 ? kNoChunk : output_.source()->chunk_of(row.sample);
  if (chunk == kNoChunk && (row.sample >= 0 || output_.spec().is_variant)) {
    if (output_.source()->array().parts != nullptr) return kOfOther;
    throw Error(ErrorKind::kConfig, "plan: no chunk has row " + std::to_string(row.sample));
  }
  return chunk;
}

void WindowRows::find(std::span<const Placement> samples, int64_t chunk, std::vector<Placement>& out) const {
  out.clear();
  if (!is_plain_) {
    for_each(samples, [&](const Placement& row) {
      if (!output_.is_stored() || chunk_of(row) == chunk) out.push_back(row);
    });
    return;
  }
  const int64_t rows_per_chunk = output_.source()->rows_per_chunk();
  const int64_t first = chunk * rows_per_chunk;
  for (const Placement& p : samples) {
    auto at = std::lower_bound(offsets_.begin(), offsets_.end(), first - p.sample);
    const auto end = std::lower_bound(at, offsets_.end(), first + rows_per_chunk - p.sample);
    int64_t step = p.step * std::ssize(offsets_) + (at - offsets_.begin());
    for (; at != end; ++at) out.push_back({output_.find_row(p.sample, *at, 0, plan_.num_samples), step++});
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
    for_each(samples, [&](const Placement& row) { add(chunk_of(row)); });
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
