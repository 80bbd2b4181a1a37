#pragma once
// A box of an image -> an image of another size, by the arithmetic of Pillow. Pure: memory in, memory out.

#include <cstdint>

#include "transform/convert/isa.h"

namespace zarrfeed {

/// Pixels of an image; the channels of a pixel lie side by side, and rows without a gap.
struct Pixels {
  const uint8_t* data;
  int64_t height;
  int64_t width;
  int64_t channels;

  const uint8_t* row(int64_t y) const { return data + y * width * channels; }
};

/// First row and column of a box, and those behind the last.
struct PixelBox {
  int64_t top;
  int64_t left;
  int64_t bottom;
  int64_t right;
};

/// Cuts a box out of an image, and resizes it: bilinear, with antialiasing where it shrinks. Writes `channels` planes of
/// height x width to `dest`; if `mirrored`, the last column is the first one.
///
/// The values are those of Pillow's `crop(box).resize(size, BILINEAR)` to the bit, with every instruction set: weights
/// have 22 fractional bits, and rows are rounded to 8 bits between the two passes. The box lies in the image and is not
/// empty; a pixel outside the box counts for nothing.
void resize_image(uint8_t* dest, int64_t height, int64_t width, const Pixels& pixels, const PixelBox& box,
                  bool mirrored, Isa isa = best_isa());

}  // namespace zarrfeed
