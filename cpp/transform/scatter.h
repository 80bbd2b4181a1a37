#pragma once
// Decoded read chunk -> slots. Pure: memory in, memory out.

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "spec/array_spec.h"
#include "transform/convert/convert.h"

namespace zarrfeed {

/// One row of a decoded chunk and the sample that it belongs to.
struct RowTarget {
  int64_t row;    ///< index in the chunk along the sample axis
  uint8_t* dest;  ///< first byte of the sample (all of it, not only of this chunk's box)
};

/// The part of a sample that one cell of the chunk grid holds: a box, with its strides on both sides.
/// Built once per cell; copying touches each element of the box once per row.
class BoxCopy {
 public:
  /// `cell` is the index of the chunk along every axis (the entry of the sample axis is ignored).
  /// The box is clipped to the array, so the padding of edge chunks is never copied.
  /// With a `converter`, samples consist of what items become, and slots are so large. `array.fill` and the converter
  /// must outlive the box.
  BoxCopy(const ArraySpec& array, std::span<const int64_t> cell, const Converter* converter = nullptr);

  /// Copies the box of every target from `chunk`, a whole decoded chunk in stored order, with byte order made native and
  /// items converted. With `streaming`, stores of converted items bypass the cache, and fence_streaming_stores() must
  /// follow.
  void copy_rows(const uint8_t* chunk, std::span<const RowTarget> targets, bool streaming = false) const;
  /// Writes fill values, converted, to the box of every target: item i of a sample, in C order, is item i of the fill
  /// pattern, which repeats.
  void fill_rows(std::span<const RowTarget> targets) const;

  /// True if row r of a decoded chunk is exactly sample r: whole samples, contiguous, native byte order,
  /// no conversion.
  [[nodiscard]] bool is_plain() const { return plain_; }
  /// Bytes that one row of the box writes.
  [[nodiscard]] size_t bytes() const { return box_bytes_; }

 private:
  struct Loop {
    int64_t count;
    int64_t source_stride;
    int64_t dest_stride;
  };

  void copy_whole_rows(const uint8_t* chunk, std::span<const RowTarget> targets, size_t bytes, bool streaming) const;
  void convert_rows(const uint8_t* chunk, std::span<const RowTarget> targets, bool streaming) const;
  void fill_converted_rows(std::span<const RowTarget> targets) const;
  /// Writes items `first`, `first + 1`, ... of the repeated fill pattern.
  void write_fill(uint8_t* dest, size_t first, size_t count) const;

  std::vector<Loop> loops_;  ///< outermost first; around runs of `run_items_` items
  int64_t run_items_ = 1;    ///< items of a run
  int64_t run_stride_ = 0;   ///< bytes between items of a run in the chunk
  int64_t row_stride_ = 0;   ///< bytes between rows in the chunk
  int64_t dest_offset_ = 0;  ///< where the box begins in the sample
  size_t item_bytes_;
  size_t swap_bytes_;
  const Converter* converter_;
  size_t box_bytes_ = 0;
  bool plain_ = false;
  std::span<const uint8_t> fill_;  ///< one item, or a pattern of several
};

}  // namespace zarrfeed
