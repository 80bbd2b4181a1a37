#pragma once
// Decoded read chunk -> patches. Pure: memory in, memory out.
//
// Each item of a patch along an axis comes from one item of the array, or from none: it then lies beyond the volume,
// and is padded. Invariants:
//   * Copying from (or filling) all chunks that find_cells() names, and pad() where reaches_out(), writes every byte of
//     the patch, and no other byte.
//   * A patch that is turned has what the patch has that is not, padding included, at other indices: the item at (c0,
//     c1, ...) of the turned one stands at dimension source_of(d) of the other at c_d, or at size - 1 - c_d if it is
//     reversed. So neither the chunks that it needs depend on how it is turned, nor the crops of these.
//   * Fields are turned alike, in whichever order their axes have the dimensions. Axes that are no dimension stay.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/array_spec.h"
#include "spec/chunk_grid.h"
#include "spec/patch_spec.h"
#include "transform/convert/convert.h"
#include "transform/patches/axis_runs.h"
#include "transform/patches/chunk_crop.h"

namespace zarrfeed {

/// A read chunk: its index along the sample axis, and its cell (spec/chunk_grid.h).
struct PatchCell {
  int64_t chunk = 0;
  size_t cell = 0;
  auto operator<=>(const PatchCell&) const = default;
};

/// Items of a chunk along an axis: [begin, end), counted from the first one of the chunk.
struct ChunkSpan {
  int64_t chunk = 0;  ///< its index along the axis; along the sample axis counted from the first one of the volume
  int64_t begin = 0;
  int64_t end = 0;
};

/// A patch, the first of its bytes in the batch, and how it is turned.
struct PatchTarget {
  PatchStart start;
  uint8_t* dest = nullptr;
  const Orientation* turned = nullptr;  ///< null: not at all
};

/// Cuts patches out of the chunks of one array. The converter must outlive it.
class PatchCopy {
 public:
  /// Throws Error(kConfig) if the specification does not fit the array.
  PatchCopy(ArraySpec array, PatchSpec patch, const Converter* converter = nullptr);

  /// Throws Error(kConfig) if patches cannot be turned so: dimensions of different sizes would be exchanged.
  void check(const Orientation& turned) const;

  /// Bytes of a sample in the batch.
  [[nodiscard]] size_t sample_bytes() const { return sample_bytes_; }
  [[nodiscard]] bool has(int64_t volume) const { return patch_.has(volume); }
  [[nodiscard]] size_t num_axes() const { return patch_.axes.size(); }
  [[nodiscard]] const PatchAxis& axis(size_t axis) const { return patch_.axes[axis]; }

  /// Adds the chunks along one axis that a patch needs to `out`, in any order; some may be named twice.
  void add_chunks(size_t axis, const PatchStart& start, std::vector<int64_t>& out) const;
  /// Adds the spans of chunks that a patch needs along one axis to `out`, in any order. A chunk has several spans if the
  /// patch reaches beyond the volume.
  void add_spans(size_t axis, const PatchStart& start, std::vector<ChunkSpan>& out) const;
  /// All items of a chunk along an axis that lie in a volume.
  [[nodiscard]] ChunkSpan span_in_volume(size_t axis, int64_t of, int64_t chunk) const;
  /// The box of a chunk with the items that `spans` has of it, ascending by chunk for each axis.
  [[nodiscard]] ChunkCrop crop_of(PatchCell cell, int64_t of, std::span<const std::vector<ChunkSpan>> spans) const;
  /// Adds all chunks of the grid that `chunks` spans, which has those along each axis. Sorts these.
  void add_cells(int64_t of, std::span<std::vector<int64_t>> chunks, std::vector<PatchCell>& out) const;
  /// Adds the chunks that a patch needs, each once.
  void find_cells(const PatchStart& start, std::vector<PatchCell>& out) const;
  /// True if a part of the patch is padded.
  [[nodiscard]] bool reaches_out(const PatchStart& start) const;

  /// Copies what each patch has of a decoded chunk; null: the chunk does not exist, and has the fill value. Returns the
  /// bytes that were written. With a crop, `chunk` has the bytes of the crop alone. Throws Error(kConfig) if a patch
  /// needs an item of the chunk that the crop lacks.
  size_t cut(PatchCell from, const uint8_t* chunk, std::span<const PatchTarget> targets,
             const ChunkCrop* crop = nullptr) const;
  /// Adds the crops of a chunk that have the items of a patch, each item in one of them.
  void find_crops(PatchCell from, const PatchTarget& target, std::vector<ChunkCrop>& out) const;
  /// Copies what a patch has of a crop, whose bytes are at `bytes`, and returns how many bytes were written.
  size_t cut_crop(PatchCell from, const uint8_t* bytes, const PatchTarget& target, const ChunkCrop& crop) const;
  /// Bytes that a patch has of a chunk at most, in the array.
  [[nodiscard]] size_t most_bytes_of_chunk() const;
  /// Writes what each patch has beyond the volume.
  void pad(std::span<const PatchTarget> targets) const;

 private:
  using Runs = std::array<std::vector<AxisRun>, kMaxAxes>;

  /// Loops around runs of consecutive items in the batch, innermost first.
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
  /// The index of a chunk along an axis, counted as in ChunkSpan.
  [[nodiscard]] int64_t index_along(size_t axis, PatchCell cell, int64_t of) const;
  /// Makes runs along the axes of the array, and what belongs to each, those along the axes of a turned patch.
  void turn(const Orientation& by, Runs& runs) const;
  void turn(const Orientation& by, PerAxis& of_axes) const;
  /// The axis of the array that an axis of a turned patch runs along, and whether it does so backwards.
  [[nodiscard]] size_t source_axis(const Orientation& by, size_t axis) const;
  [[nodiscard]] bool is_reversed(const Orientation& by, size_t axis) const;
  /// Calls box(loops, offset in the patch, offset in the source) for each combination of one run an axis; returns the
  /// items of all of them. The source, a chunk or a crop of it, begins at `origin`, and has its items along an axis
  /// `strides` bytes apart.
  template <typename Box>
  size_t for_each_box(const Runs& runs, const PerAxis& origin, const PerAxis& strides, const Box& box) const;
  /// Copies runs of a patch, which it turns, from bytes that begin at `origin` and have items `strides` apart, as for
  /// for_each_box(); null: writes the fill value. Returns how many items that are.
  size_t copy_runs(const PatchTarget& target, Runs& runs, PerAxis origin, PerAxis strides, const uint8_t* bytes) const;
  /// Throws Error(kConfig) unless a crop of the chunk that begins at `begin` has all of a run along an axis.
  void check_crop(const ChunkCrop& crop, size_t axis, int64_t begin, const AxisRun& run) const;
  void copy_box(const Loops& loops, uint8_t* sample, int64_t dest, const uint8_t* source) const;
  /// Copies by transposing, where a loop other than the innermost one runs along consecutive items of the source.
  void copy_across(const Loops& loops, size_t crossing, uint8_t* sample, int64_t dest, const uint8_t* source) const;
  /// The loop that runs along consecutive items of the source, where runs do not, and that pays to be transposed; the
  /// number of loops if there is none.
  [[nodiscard]] size_t find_crossing(const Loops& loops) const;
  void fill_box(const Loops& loops, uint8_t* sample, int64_t dest) const;

  ArraySpec array_;
  PatchSpec patch_;
  const Converter* converter_;
  size_t item_bytes_;
  size_t dest_item_;
  size_t sample_bytes_ = 0;
  PerAxis source_stride_{};  ///< of a whole chunk, in bytes
  std::vector<int64_t> dest_stride_;
  std::array<int, kMaxPatchDims> axis_of_dim_{};  ///< -1: no axis
  CellGrid cells_;
};

}  // namespace zarrfeed
