#pragma once
// A field whose samples are patches: boxes of an array.
//
// Patches lie on a grid that all fields share: up to kMaxPatchDims dimensions, in one of several volumes. A field says
// for each axis of its array which dimension it is, and which indices along the axis belong to a patch that begins at
// an index of the grid.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zarrfeed {

inline constexpr size_t kMaxPatchDims = 8;

/// The begin of a patch: its volume, and an index along each dimension. It may begin before index 0.
struct PatchStart {
  int64_t volume = 0;
  std::array<int64_t, kMaxPatchDims> at{};
};

/// The turn of a patch: its dimension d runs along dimension source[d] of the volume; where source[d] is negative,
/// backwards along dimension ~source[d].
struct Orientation {
  std::array<int8_t, kMaxPatchDims> source{0, 1, 2, 3, 4, 5, 6, 7};

  /// The dimension of the volume that dimension `dim` of a patch runs along.
  [[nodiscard]] int source_of(int dim) const {
    const int8_t found = source[static_cast<size_t>(dim)];
    return found < 0 ? ~found : found;
  }
  [[nodiscard]] bool is_reversed(int dim) const { return source[static_cast<size_t>(dim)] < 0; }
  bool operator==(const Orientation&) const = default;
};

/// The values of a patch beyond the ends of a volume.
enum class Border {
  kFill,     ///< a number of the user's
  kEdge,     ///< the first or last item
  kReflect,  ///< items in reverse order, the first or last one once
  kWrap,     ///< items from the other end
};

/// One axis of an array.
struct PatchAxis {
  int dim = -1;        ///< the dimension; -1: none, and a sample has the whole axis, or the items that `offsets` lists
  int64_t size = 0;    ///< items of a sample along the axis
  int64_t origin = 0;  ///< the index of the grid where item 0 of the axis begins, if there were no shift
  int64_t scale = 1;   ///< indices of the grid for each item of the axis
  int64_t shift = 0;   ///< from where the patch begins to the first item of the sample, in items of the axis
  Border border = Border::kFill;
  std::vector<int64_t> offsets = {};  ///< `size` indices relative to that, or to item 0; empty: 0, 1, 2, ...
};

/// One volume of an array: the rows [begin, end) along its sample axis, counted from the first row of a chunk.
struct PatchVolume {
  int64_t first_chunk = 0;  ///< the index of that chunk along the sample axis
  int64_t begin = 0;
  int64_t end = 0;  ///< begin: other fields have this volume
};

/// The cut of an array into patches.
struct PatchSpec {
  std::vector<PatchAxis> axes;
  std::vector<PatchVolume> volumes;
  std::vector<uint8_t> fill;  ///< of Border::kFill: an item as it stands in the batch; empty: zeros

  [[nodiscard]] bool has(int64_t volume) const {
    if (volume < 0 || volume >= static_cast<int64_t>(volumes.size())) return false;
    const PatchVolume& of = volumes[static_cast<size_t>(volume)];
    return of.begin < of.end;
  }
};

}  // namespace zarrfeed
