#pragma once
// Along one axis: which items of an array the items of a patch come from. Pure.

#include <cstdint>
#include <span>
#include <vector>

#include "spec/patch_spec.h"

namespace zarrfeed {

/// Items of a patch along an axis, one after another: they come from source, source + step, ...
struct AxisRun {
  int64_t dest = 0;
  int64_t count = 0;
  int64_t source = 0;
  int64_t step = 1;  ///< 1, 0 or -1
};

/// Sets `out` to where the items of a patch along an axis with `extent` items come from. The patch begins at `start` of
/// its grid. Items that are padded are in no run.
void find_runs(const PatchAxis& axis, int64_t start, int64_t extent, std::vector<AxisRun>& out);

/// Maps runs of indices into `items` to runs of items of the array: index i becomes items[i].
void take_items(std::span<const int64_t> items, std::vector<AxisRun>& runs);

/// Keeps of runs what comes from the items [begin, end).
void clip_runs(int64_t begin, int64_t end, std::vector<AxisRun>& runs);

/// Items [begin, end) of an array along an axis.
struct ItemRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Sets `out` to the items that runs come from, ascending, in as few ranges as there can be.
void find_ranges(const std::vector<AxisRun>& runs, std::vector<ItemRange>& out);

/// Reverses a patch of `size` items: maps its runs, which ascend in the patch, to those of the reversed patch.
void mirror_runs(int64_t size, std::vector<AxisRun>& runs);

}  // namespace zarrfeed
