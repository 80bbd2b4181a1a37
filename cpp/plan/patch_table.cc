#include "plan/patch_table.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace zarrfeed {

void PatchTable::check() const {
  const size_t volumes = volume_number.size();
  bool fits = num_dims >= 1 && num_dims <= kMaxPatchDims && margin.size() == num_dims && sweep_axis >= -1 &&
              sweep_axis < static_cast<int64_t>(num_dims) && stride.size() == volumes * num_dims &&
              period.size() == stride.size() && std::ranges::all_of(period, [](int64_t p) { return p >= 0; });
  if (is_listed()) {
    fits = fits && start_of.size() == volume_of.size() * num_dims;
  } else {
    const size_t blocks = block_volume.size();
    fits = fits && step.size() == num_dims && origin.size() == volumes * num_dims && least.size() == origin.size() &&
           last.size() == origin.size() && block_first.size() == blocks + 1 &&
           block_begin.size() == blocks * num_dims && block_count.size() == blocks * num_dims &&
           block_first.front() == 0;
    for (size_t b = 0; fits && b < blocks; ++b) {
      int64_t tiles = 1;
      for (size_t d = 0; d < num_dims; ++d) {
        const int64_t count = block_count[b * num_dims + d];
        fits = fits && count >= 1 && tiles <= INT64_MAX / count;
        tiles = fits ? tiles * count : 1;
      }
      fits = fits && block_first[b + 1] - block_first[b] == tiles;
    }
  }
  for (const auto& of : {volume_of, block_volume}) {
    fits = fits && std::ranges::all_of(of, [&](int64_t v) { return v >= 0 && v < static_cast<int64_t>(volumes); });
  }
  for (const Orientation& one : orientations) {
    for (size_t d = 0; fits && d < num_dims; ++d) {
      const auto dim = static_cast<int>(d);
      fits = one.source_of(dim) < static_cast<int>(num_dims);
      for (int other = 0; other < dim; ++other) fits = fits && one.source_of(other) != one.source_of(dim);
    }
  }
  if (!fits) throw Error(ErrorKind::kConfig, "plan: the arrays of a patch table do not fit together");
}

int64_t PatchTable::num_samples() const {
  return is_listed() ? static_cast<int64_t>(volume_of.size()) : block_first.back();
}

size_t PatchTable::block_of(int64_t sample) const {
  return static_cast<size_t>(std::upper_bound(block_first.begin(), block_first.end(), sample) - block_first.begin()) -
         1;
}

int64_t PatchTable::tile_start(int64_t volume, size_t dim, int64_t tile) const {
  const size_t at = static_cast<size_t>(volume) * num_dims + dim;
  return std::min(std::max(origin[at] + tile * step[dim], least[at]), last[at]);
}

PatchStart PatchTable::start(int64_t sample) const {
  if (sample < 0 || sample >= num_samples()) {
    throw Error(ErrorKind::kConfig, "plan: there is no patch " + std::to_string(sample));
  }
  PatchStart found;
  if (is_listed()) {
    const auto s = static_cast<size_t>(sample);
    found.volume = volume_of[s];
    std::copy_n(start_of.begin() + static_cast<std::ptrdiff_t>(s * num_dims), num_dims, found.at.begin());
    return found;
  }
  const size_t block = block_of(sample);
  int64_t in_block = sample - block_first[block];
  found.volume = block_volume[block];
  for (size_t d = num_dims; d-- > 0;) {
    const int64_t count = block_count[block * num_dims + d];
    found.at[d] = tile_start(found.volume, d, block_begin[block * num_dims + d] + in_block % count);
    in_block /= count;
  }
  return found;
}

int64_t PatchTable::number(int64_t sample) const {
  const PatchStart found = start(sample);
  const auto volume = static_cast<size_t>(found.volume);
  int64_t number = volume_number[volume];
  for (size_t d = 0; d < num_dims; ++d) {
    const size_t at = volume * num_dims + d;
    int64_t start = found.at[d];
    if (period[at] > 0) start = (start % period[at] + period[at]) % period[at];
    number += (start + margin[d]) * stride[at];
  }
  return number;
}

}  // namespace zarrfeed
