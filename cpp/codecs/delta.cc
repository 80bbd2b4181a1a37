// Differences of integers: the horizontal predictor of TIFF, whose runs are rows of pixels, and numcodecs' delta.

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <string>

#include "base/byte_order.h"
#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {
namespace {

template <std::unsigned_integral Int, bool kSwap>
Int load(const uint8_t* from) {
  Int value;
  std::memcpy(&value, from, sizeof(Int));
  return kSwap ? swapped(value) : value;
}

/// Adds up one run. Sums wrap around, as those of the writer do.
template <std::unsigned_integral Int, bool kSwap>
void add_up(const uint8_t* in, size_t count, size_t stride, uint8_t* out) {
  if (stride == 1) {
    Int sum = 0;
    for (size_t i = 0; i < count; ++i) {
      sum = static_cast<Int>(sum + load<Int, kSwap>(in + i * sizeof(Int)));
      const Int stored = kSwap ? swapped(sum) : sum;
      std::memcpy(out + i * sizeof(Int), &stored, sizeof(Int));
    }
    return;
  }
  std::memcpy(out, in, std::min(count, stride) * sizeof(Int));
  for (size_t i = stride; i < count; ++i) {
    const auto sum =
        static_cast<Int>(load<Int, kSwap>(in + i * sizeof(Int)) + load<Int, kSwap>(out + (i - stride) * sizeof(Int)));
    const Int stored = kSwap ? swapped(sum) : sum;
    std::memcpy(out + i * sizeof(Int), &stored, sizeof(Int));
  }
}

template <std::unsigned_integral Int>
void undo_runs(Bytes in, uint8_t* out, const CodecSpec& codec) {
  const size_t run = codec.run_bytes == 0 ? in.size() : codec.run_bytes;
  const bool swap = codec.big_endian != (std::endian::native == std::endian::big);
  for (size_t at = 0; at < in.size(); at += run) {
    const size_t count = std::min(run, in.size() - at) / sizeof(Int);
    if (swap) {
      add_up<Int, true>(in.data() + at, count, codec.stride, out + at);
    } else {
      add_up<Int, false>(in.data() + at, count, codec.stride, out + at);
    }
  }
}

}  // namespace

void undo_delta(Bytes in, uint8_t* out, const CodecSpec& codec) {
  if (in.size() % codec.element_bytes != 0 || codec.run_bytes % codec.element_bytes != 0) {
    throw_corrupt("differences of " + std::to_string(codec.element_bytes) + " bytes cannot be " +
                  std::to_string(in.size()) + " bytes");
  }
  switch (codec.element_bytes) {
    case 1:
      return undo_runs<uint8_t>(in, out, codec);
    case 2:
      return undo_runs<uint16_t>(in, out, codec);
    case 4:
      return undo_runs<uint32_t>(in, out, codec);
    case 8:
      return undo_runs<uint64_t>(in, out, codec);
    default:
      throw Error(ErrorKind::kUnsupported, "differences of " + std::to_string(codec.element_bytes) + " bytes");
  }
}

size_t decode_short(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch&) {
  if (in.size() != out.size() && (in.size() != codec.run_bytes || in.size() > out.size())) {
    throw_corrupt("decodes to " + std::to_string(in.size()) + " bytes, must be " + std::to_string(out.size()) + " or " +
                  std::to_string(codec.run_bytes));
  }
  std::ranges::copy(in, out.begin());
  std::fill(out.begin() + static_cast<std::ptrdiff_t>(in.size()), out.end(), uint8_t{0});
  return out.size();
}

}  // namespace zarrfeed
