#pragma once
// Decoded read chunk -> slots. Pure: memory in, memory out.

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "spec/array_spec.h"
#include "transform/convert/convert.h"
#include "transform/patches/chunk_crop.h"

namespace zarrfeed {

/// One row of a decoded chunk and the sample that it belongs to.
struct RowTarget {
  int64_t row;    ///< index in the chunk along the sample axis
  uint8_t* dest;  ///< first byte of the sample (all of it, not only of this chunk's box)
};

/// Rows side by side, whose slots are side by side: row i of `count` is the row `row + i * row_step`.
struct StretchTarget {
  int64_t row;
  uint8_t* dest;
  int64_t count;
  int64_t row_step;  ///< 1, or 0 if they are the same row
};

/// Bytes of a decoded chunk, and where they go.
struct ByteRun {
  size_t begin;
  size_t size;
  uint8_t* dest;
};

/// The crop of a chunk that is the first row of its cell, without the padding that chunks at the edge of the array have.
/// The array has at most kMaxAxes axes.
ChunkCrop row_crop(const ArraySpec& array, std::span<const int64_t> cell);

/// The part of a sample that one cell of the chunk grid holds: a box, with its strides on both sides; of an array with
/// chosen items, these items of the box, each of which goes to wherever samples have it.
/// Built once per cell; copying touches each element of the box once per row.
class BoxCopy {
 public:
  /// `cell` is the index of the chunk along every axis (the entry of the sample axis is ignored).
  /// The box is clipped to the array, so the padding of edge chunks is never copied.
  /// With a `converter`, samples consist of what items become, and slots are so large. `array.fill` and the converter
  /// must outlive the box. With `of_one_row`, the box is copied from one row alone, row 0 of memory that has the items of
  /// row_crop() side by side.
  BoxCopy(const ArraySpec& array, std::span<const int64_t> cell, const Converter* converter = nullptr,
          bool of_one_row = false);

  /// Copies the box of every target from `chunk`, a whole decoded chunk in stored order, with byte order made native and
  /// items converted. With `streaming`, stores of converted items bypass the cache, and fence_streaming_stores() must
  /// follow.
  void copy_rows(const uint8_t* chunk, std::span<const RowTarget> targets, bool streaming = false) const;
  /// True if rows that lie side by side, in the chunk and in slots `slot_bytes` apart, are copied like one long row.
  [[nodiscard]] bool joins_rows(size_t slot_bytes) const;
  /// Copies such rows; only if joins_rows(), and if they are no row that repeats.
  void copy_stretch(const uint8_t* chunk, const StretchTarget& target, bool streaming) const;
  /// Writes fill values, converted, to the box of every target: item i of a sample, in C order, is item i of the fill
  /// pattern, which repeats.
  void fill_rows(std::span<const RowTarget> targets) const;

  /// True if row r of a decoded chunk is exactly sample r: whole samples, contiguous, native byte order,
  /// no conversion.
  [[nodiscard]] bool is_plain() const { return plain_; }
  /// True if rows are copied as they stand in the chunk, in runs of at least `bytes`.
  [[nodiscard]] bool has_runs_of(size_t bytes) const;
  /// Adds the runs of a row to `out`; only if it has_runs_of() any bytes.
  void list_runs(const RowTarget& target, std::vector<ByteRun>& out) const;
  /// Bytes that one row of the box writes.
  [[nodiscard]] size_t bytes() const { return box_bytes_; }

 private:
  /// Bytes from the first item of the box, in the chunk and in the sample.
  struct Offset {
    int64_t source;
    int64_t dest;
  };
  struct Loop {
    int64_t count;
    int64_t source_stride;
    int64_t dest_stride;
    std::vector<Offset> at = {};  ///< of each turn; empty: a multiple of the strides
  };
  /// Items that lie side by side in the sample.
  struct Run {
    int64_t items;
    int64_t stride;  ///< bytes between them in the chunk; below 0 where they lie there in reverse order
    Offset at;
  };

  void copy_whole_rows(const uint8_t* chunk, std::span<const RowTarget> targets, size_t bytes, bool streaming) const;
  void convert_rows(const uint8_t* chunk, std::span<const RowTarget> targets, bool streaming) const;
  /// Converts the items of a run, the first of which is item `position` of its sample.
  void convert_run(uint8_t* dest, const uint8_t* source, const Run& run, size_t position, bool streaming) const;
  void fill_converted_rows(std::span<const RowTarget> targets) const;
  /// Writes items `first`, `first + 1`, ... of the repeated fill pattern.
  void write_fill(uint8_t* dest, size_t first, size_t count) const;
  /// Adds the next item of the innermost axis to the runs, or to the last one of them.
  void add_to_runs(Offset at, int64_t item, int64_t dest_item);
  /// True if a row of the box is one run.
  [[nodiscard]] bool is_one_run() const { return loops_.empty() && runs_.size() == 1; }

  /// Calls copy(dest, offset in the chunk, run) for each run of a row.
  template <typename Copy>
  void for_each_run(uint8_t* dest, int64_t row, const Copy& copy) const {
    const int64_t source = row * row_stride_ + source_offset_;
    if (runs_.size() == 1) {  // what is constant in the loops can be kept in registers
      const Run run = runs_.front();
      for_each_turn(loops_, dest + dest_offset_, source, [&](uint8_t* to, int64_t from) { copy(to, from, run); });
      return;
    }
    for_each_turn(loops_, dest + dest_offset_, source, [&](uint8_t* to, int64_t from) {
      for (const Run& run : runs_) copy(to + run.at.dest, from + run.at.source, run);
    });
  }
  template <typename Turn>
  static void for_each_turn(std::span<const Loop> loops, uint8_t* dest, int64_t source, const Turn& turn) {
    if (loops.empty()) {
      turn(dest, source);
      return;
    }
    const Loop& loop = loops.front();
    for (const Offset& at : loop.at) for_each_turn(loops.subspan(1), dest + at.dest, source + at.source, turn);
    if (!loop.at.empty()) return;
    for (int64_t i = 0; i < loop.count; ++i) {
      for_each_turn(loops.subspan(1), dest + i * loop.dest_stride, source + i * loop.source_stride, turn);
    }
  }

  std::vector<Loop> loops_;        ///< outermost first; around `runs_`
  std::vector<Run> runs_;          ///< one, unless items of the innermost axis are chosen that are not evenly spaced
  int64_t row_stride_ = 0;         ///< bytes between rows in the chunk
  int64_t source_offset_ = 0;      ///< where the box begins in a row of the chunk
  int64_t dest_offset_ = 0;        ///< where it begins in the sample
  bool are_side_by_side_ = false;  ///< items of runs are, in the chunk, too
  size_t item_bytes_;
  size_t swap_bytes_;
  const Converter* converter_;
  size_t box_bytes_ = 0;
  bool plain_ = false;
  std::span<const uint8_t> fill_;  ///< one item, or a pattern of several
};

}  // namespace zarrfeed
