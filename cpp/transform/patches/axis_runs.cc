#include "transform/patches/axis_runs.h"

#include <algorithm>
#include <utility>

#include "base/division.h"

namespace zarrfeed {
namespace {

constexpr int64_t kNowhere = -1;

/// The item of an axis that stands at an index, which may lie beyond the axis.
int64_t item_at(int64_t index, int64_t extent, Border border) {
  if (index >= 0 && index < extent) return index;
  switch (border) {
    case Border::kFill:
      return kNowhere;
    case Border::kEdge:
      return std::clamp<int64_t>(index, 0, extent - 1);
    case Border::kWrap:
      return modulo(index, extent);
    case Border::kReflect: {
      if (extent == 1) return 0;
      const int64_t period = 2 * (extent - 1);
      const int64_t at = modulo(index, period);
      return at < extent ? at : period - at;
    }
  }
  return kNowhere;
}

/// Adds the next item of a patch to the last run, or as a new one.
void append(int64_t dest, int64_t source, std::vector<AxisRun>& out) {
  if (!out.empty() && out.back().dest + out.back().count == dest) {
    AxisRun& run = out.back();
    const int64_t step = source - (run.source + (run.count - 1) * run.step);
    if (run.count == 1 && step >= -1 && step <= 1) run.step = step;
    if (step == run.step && step >= -1 && step <= 1) {
      ++run.count;
      return;
    }
  }
  out.push_back({dest, 1, source, 1});
}

}  // namespace

void find_runs(const PatchAxis& axis, int64_t start, int64_t extent, std::vector<AxisRun>& out) {
  out.clear();
  const int64_t base = axis.dim < 0 ? 0 : floor_div(start - axis.origin, axis.scale) + axis.shift;
  if (axis.offsets.empty() && base >= 0 && base + axis.size <= extent) {
    out.push_back({0, axis.size, base, 1});
    return;
  }
  for (int64_t dest = 0; dest < axis.size; ++dest) {
    const int64_t offset = axis.offsets.empty() ? dest : axis.offsets[static_cast<size_t>(dest)];
    const int64_t source = item_at(base + offset, extent, axis.border);
    if (source != kNowhere) append(dest, source, out);
  }
}

void take_items(std::span<const int64_t> items, std::vector<AxisRun>& runs) {
  std::vector<AxisRun> of_array;
  for (const AxisRun& run : runs) {
    for (int64_t i = 0; i < run.count; ++i) {
      append(run.dest + i, items[static_cast<size_t>(run.source + i * run.step)], of_array);
    }
  }
  runs = std::move(of_array);
}

void clip_runs(int64_t begin, int64_t end, std::vector<AxisRun>& runs) {
  size_t clipped = 0;
  for (const AxisRun run : runs) {
    int64_t first = 0;
    int64_t last = run.count - 1;
    if (run.step == 0) {
      if (run.source < begin || run.source >= end) continue;
    } else if (run.step > 0) {
      first = std::max<int64_t>(first, begin - run.source);
      last = std::min(last, end - 1 - run.source);
    } else {
      first = std::max<int64_t>(first, run.source - (end - 1));
      last = std::min(last, run.source - begin);
    }
    if (first <= last) runs[clipped++] = {run.dest + first, last - first + 1, run.source + first * run.step, run.step};
  }
  runs.resize(clipped);
}

void find_ranges(const std::vector<AxisRun>& runs, std::vector<ItemRange>& out) {
  out.clear();
  for (const AxisRun& run : runs) {
    const int64_t last = run.source + (run.count - 1) * run.step;
    out.push_back({std::min(run.source, last), std::max(run.source, last) + 1});
  }
  std::ranges::sort(out, {}, &ItemRange::begin);
  size_t joined = 0;
  for (const ItemRange range : out) {
    if (joined > 0 && range.begin <= out[joined - 1].end) {
      out[joined - 1].end = std::max(out[joined - 1].end, range.end);
    } else {
      out[joined++] = range;
    }
  }
  out.resize(joined);
}

void mirror_runs(int64_t size, std::vector<AxisRun>& runs) {
  std::ranges::reverse(runs);
  for (AxisRun& run : runs) {
    run.dest = size - run.dest - run.count;
    run.source += (run.count - 1) * run.step;
    run.step = -run.step;
  }
}

}  // namespace zarrfeed
