#pragma once
// Decoded read chunk -> patches. Pure: memory in, memory out.
//
// Each place of a patch along an axis comes from one place of the array, or from none: it then lies beyond the volume,
// and is padded. Invariant: copying from (or filling) all chunks that find_cells() names, and pad() where reaches_out(),
// writes every byte of the patch once.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/array_spec.h"
#include "spec/patch_spec.h"
#include "transform/convert.h"

namespace zarrfeed {

/// Places of a patch along an axis, one after another: they come from source, source + step, ...
struct AxisRun {
  int64_t dest = 0;
  int64_t count = 0;
  int64_t source = 0;
  int64_t step = 1;  ///< 1, 0 or -1
};

/// Sets `out` to where the places of an axis with `extent` items come from, for a patch that begins at `start` of its
/// grid. Places that are padded are in no run.
void find_runs(const PatchAxis& axis, int64_t start, int64_t extent, std::vector<AxisRun>& out);

/// A read chunk: its index along the sample axis, and its cell (spec/chunk_grid.h).
struct PatchCell {
  int64_t chunk = 0;
  size_t cell = 0;
  auto operator<=>(const PatchCell&) const = default;
};

/// A patch, and the first of its bytes in the batch.
struct PatchTarget {
  PatchStart start;
  uint8_t* dest = nullptr;
};

/// Cuts patches out of the chunks of one array. The converter must outlive it.
class PatchCopy {
 public:
  /// Throws Error(kConfig) if the specification does not fit the array.
  PatchCopy(ArraySpec array, PatchSpec patch, const Converter* converter = nullptr);

  /// Bytes of a sample in the batch.
  [[nodiscard]] size_t sample_bytes() const { return sample_bytes_; }
  [[nodiscard]] bool has(int64_t volume) const { return patch_.has(volume); }
  [[nodiscard]] size_t num_axes() const { return patch_.axes.size(); }
  [[nodiscard]] const PatchAxis& axis(size_t axis) const { return patch_.axes[axis]; }

  /// Adds the chunks along one axis that a patch needs to `out`, in any order; some may be named twice.
  void add_chunks(size_t axis, const PatchStart& start, std::vector<int64_t>& out) const;
  /// Adds all chunks of the grid that `chunks` spans, which has those along each axis. Sorts these.
  void add_cells(int64_t of, std::span<std::vector<int64_t>> chunks, std::vector<PatchCell>& out) const;
  /// Adds the chunks that a patch needs, each once.
  void find_cells(const PatchStart& start, std::vector<PatchCell>& out) const;
  /// Whether a part of the patch is padded.
  [[nodiscard]] bool reaches_out(const PatchStart& start) const;

  /// Copies what each patch has of a decoded chunk; null: the chunk does not exist, and has the fill value. Returns the
  /// bytes that were written.
  size_t cut(PatchCell from, const uint8_t* chunk, std::span<const PatchTarget> targets) const;
  /// Writes what each patch has beyond the volume.
  void pad(std::span<const PatchTarget> targets) const;

 private:
  static constexpr size_t kMaxAxes = 16;
  using Runs = std::array<std::vector<AxisRun>, kMaxAxes>;

  /// Loops around runs of consecutive places in the batch, innermost first.
  struct Loop {
    int64_t count;
    int64_t source_stride;
    int64_t dest_stride;
  };
  struct Loops {
    std::array<Loop, kMaxAxes> of;
    size_t depth = 0;
    int64_t run_items = 1;
    int64_t run_stride = 0;
  };

  [[nodiscard]] const PatchVolume& volume(int64_t number) const { return patch_.volumes[static_cast<size_t>(number)]; }
  void find_axis_runs(size_t axis, const PatchStart& start, std::vector<AxisRun>& out) const;
  /// Calls box(loops, offset in the patch, offset in the chunk) for each combination of one run an axis; returns the
  /// items of all of them. `origin` is the first place of the chunk along each axis.
  template <typename Box>
  size_t for_each_box(const Runs& runs, const std::array<int64_t, kMaxAxes>& origin, const Box& box) const;
  void copy_box(const Loops& loops, uint8_t* sample, int64_t dest, const uint8_t* source) const;
  void fill_box(const Loops& loops, uint8_t* sample, int64_t dest) const;

  ArraySpec array_;
  PatchSpec patch_;
  const Converter* converter_;
  size_t item_bytes_;
  size_t dest_item_;
  size_t sample_bytes_ = 0;
  std::vector<int64_t> source_stride_;  ///< by axis of the array, in bytes
  std::vector<int64_t> dest_stride_;
  std::vector<size_t> cell_stride_;  ///< 0 for the sample axis
  std::vector<size_t> cell_count_;
};

}  // namespace zarrfeed
