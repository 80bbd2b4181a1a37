#include "transform/patches/axis_runs.h"

#include <algorithm>

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
    if (source == kNowhere) continue;
    if (!out.empty() && out.back().dest + out.back().count == dest) {
      AxisRun& run = out.back();
      const int64_t step = source - (run.source + (run.count - 1) * run.step);
      if (run.count == 1 && step >= -1 && step <= 1) run.step = step;
      if (step == run.step && step >= -1 && step <= 1) {
        ++run.count;
        continue;
      }
    }
    out.push_back({dest, 1, source, 1});
  }
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
