#include "transform/patches/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/buffer.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zarrfeed {
namespace {

/// Fractional bits of a weight.
constexpr int kWeightBits = 22;
constexpr int32_t kHalf = 1 << (kWeightBits - 1);
/// Taps of an output are a multiple of this; those behind the last have the weight 0.
constexpr int64_t kTapsAtOnce = 4;
/// Vector kernels read, and write, up to so many bytes behind the end of a row of scratch memory.
constexpr int64_t kVectorBytes = 64;

/// Rows of the passes.
struct Scratch {
  Buffer first_pass;
  Buffer resized;
};
/// Larger ones are given back.
constexpr int64_t kMostHeldBytes = int64_t{8} << 20;

int64_t rounded_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

/// The weights of two neighbours for vector kernels, two numbers of 16 bits in one of 32. A weight has 22 fractional
/// bits and one more, its halves have 12 and 11: sums of products with each are exact in 32 bits, and so is
/// high << kHalfBits | low.
struct WeightPair {
  int32_t high;
  int32_t low;
};
constexpr int kHalfBits = kWeightBits / 2;

WeightPair pair_of(int32_t first, int32_t second) {
  constexpr int32_t kMask = (1 << kHalfBits) - 1;
  return {(first >> kHalfBits) | (second >> kHalfBits) << 16, (first & kMask) | (second & kMask) << 16};
}

/// The inputs of one output. Behind their weights are more, which are 0.
struct OutputTaps {
  int64_t first;
  int64_t length;
  const int32_t* weights;
  const WeightPair* pairs;
};

/// The inputs of each output along one axis, with their weights.
struct Taps {
  int64_t count = 0;             ///< taps of an output, a multiple of kTapsAtOnce
  std::vector<int64_t> first;    ///< output -> its first input
  std::vector<int64_t> length;   ///< output -> inputs with a weight
  std::vector<int32_t> weights;  ///< output and tap -> weight
  std::vector<WeightPair> pairs;

  OutputTaps of(int64_t output) const {
    const auto at = static_cast<size_t>(output);
    return {first[at], length[at], weights.data() + output * count, pairs.data() + output * count / 2};
  }
};

/// Returns the taps of a triangle that is as wide as two inputs, or as two outputs where these are fewer. The steps are
/// those of Pillow in their order, so that each number is rounded as there.
Taps make_taps(int64_t inputs, int64_t outputs) {
  const double scale = static_cast<double>(inputs) / static_cast<double>(outputs);
  const double support = std::max(scale, 1.0);
  const auto center = [&](int64_t output) { return (static_cast<double>(output) + 0.5) * scale; };
  Taps taps;
  for (int64_t output = 0; output < outputs; ++output) {
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center(output) - support + 0.5), 0);
    taps.first.push_back(first);
    taps.length.push_back(std::min(static_cast<int64_t>(center(output) + support + 0.5), inputs) - first);
  }
  taps.count = rounded_up(*std::max_element(taps.length.begin(), taps.length.end()), kTapsAtOnce);
  taps.weights.resize(static_cast<size_t>(outputs * taps.count));
  std::vector<double> shares(static_cast<size_t>(taps.count));
  for (size_t output = 0; output < taps.first.size(); ++output) {
    const double middle = center(static_cast<int64_t>(output));
    const auto length = static_cast<size_t>(taps.length[output]);
    double sum = 0;
    for (size_t tap = 0; tap < length; ++tap) {
      const auto input = static_cast<double>(taps.first[output] + static_cast<int64_t>(tap));
      shares[tap] = std::max(1.0 - std::abs((input - middle + 0.5) * (1.0 / support)), 0.0);
      sum += shares[tap];
    }
    int32_t* const weights = taps.weights.data() + output * static_cast<size_t>(taps.count);
    for (size_t tap = 0; tap < length; ++tap) {
      weights[tap] = static_cast<int32_t>(0.5 + shares[tap] / sum * (1 << kWeightBits));
    }
  }
  for (size_t i = 0; i < taps.weights.size(); i += 2) {
    taps.pairs.push_back(pair_of(taps.weights[i], taps.weights[i + 1]));
  }
  return taps;
}

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::min(sum >> kWeightBits, 255));
}

/// Resizes the rows of a box along these: rows of `out` begin `stride` bytes apart, and there is room for one more.
void resize_rows(uint8_t* out, int64_t stride, const Pixels& pixels, const PixelBox& box, const Taps& taps,
                 bool mirrored) {
  const auto outputs = static_cast<int64_t>(taps.first.size());
  for (int64_t y = box.top; y < box.bottom; ++y, out += stride) {
    for (int64_t output = 0; output < outputs; ++output) {
      const auto [first, length, weights, _] = taps.of(output);
      const uint8_t* const inputs = pixels.row(y) + (box.left + first) * pixels.channels;
      uint8_t* const pixel = out + (mirrored ? outputs - 1 - output : output) * pixels.channels;
      for (int64_t channel = 0; channel < pixels.channels; ++channel) {
        int32_t sum = kHalf;
        for (int64_t tap = 0; tap < length; ++tap) sum += inputs[tap * pixels.channels + channel] * weights[tap];
        pixel[channel] = rounded(sum);
      }
    }
  }
}

/// Makes one row of rows that begin `stride` bytes apart.
void mix_rows(uint8_t* out, const uint8_t* rows, int64_t stride, int64_t bytes, const OutputTaps& taps) {
  for (int64_t i = 0; i < bytes; ++i) {
    int32_t sum = kHalf;
    for (int64_t tap = 0; tap < taps.length; ++tap) sum += rows[(taps.first + tap) * stride + i] * taps.weights[tap];
    out[i] = rounded(sum);
  }
}

/// Copies a row of pixels to a row of each plane.
void split_row(uint8_t* dest, int64_t plane, const uint8_t* row, int64_t width, int64_t channels) {
  for (int64_t channel = 0; channel < channels; ++channel) {
    for (int64_t x = 0; x < width; ++x) dest[channel * plane + x] = row[x * channels + channel];
  }
}

#if defined(__x86_64__)

// Kernels for AVX2, whose multiplications of 16-bit numbers add up two products each.

/// The sums of one vector of pixels, in two parts.
struct Sums {
  __m256i high;
  __m256i low;

  ZARRFEED_AVX2 ZARRFEED_INLINE void add(__m256i neighbours, WeightPair pair) {
    high = _mm256_add_epi32(high, _mm256_madd_epi16(neighbours, _mm256_set1_epi32(pair.high)));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(neighbours, _mm256_set1_epi32(pair.low)));
  }
  ZARRFEED_AVX2 ZARRFEED_INLINE __m256i rounded() const {
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, kHalfBits), low), kWeightBits);
  }
  ZARRFEED_AVX2 ZARRFEED_INLINE static Sums zero() { return {_mm256_setzero_si256(), _mm256_set1_epi32(kHalf)}; }
};

ZARRFEED_AVX2 ZARRFEED_INLINE __m128i load_16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

ZARRFEED_AVX2 ZARRFEED_INLINE void store_16(uint8_t* p, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), value);
}

/// Two rows of pixels of 3 channels, resized along these by `kTurns` times kTapsAtOnce taps, or, if that is 0, by as many
/// as there are. Reads up to 3 * count + 16 bytes behind a row's last tap, and writes up to 16 bytes behind its end.
template <int64_t kTurns>
ZARRFEED_AVX2 void resize_two_rows(uint8_t* out_0, uint8_t* out_1, const uint8_t* row_0, const uint8_t* row_1,
                                   const Taps& taps, bool mirrored) {
  // pixels 0 and 1, then 2 and 3, of the five that a vector has: their reds side by side, their greens, their blues
  const __m256i first_two =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i last_two =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const __m256i packed =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  const auto outputs = static_cast<int64_t>(taps.first.size());
  const int64_t turns = kTurns == 0 ? taps.count / kTapsAtOnce : kTurns;
  for (int64_t x = 0; x < outputs; x += 4) {
    __m256i made[4];
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t column = std::min(x + i, outputs - 1);
      const auto [first, _, weights, pairs] = taps.of(mirrored ? outputs - 1 - column : column);
      Sums sums = Sums::zero();
      for (int64_t turn = 0; turn < turns; ++turn) {
        const int64_t offset = 3 * (first + kTapsAtOnce * turn);
        const __m256i five =
            _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(row_0 + offset)), load_16(row_1 + offset), 1);
        sums.add(_mm256_shuffle_epi8(five, first_two), pairs[2 * turn]);
        sums.add(_mm256_shuffle_epi8(five, last_two), pairs[2 * turn + 1]);
      }
      made[i] = sums.rounded();
    }
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(made[0], made[1]), _mm256_packus_epi32(made[2], made[3]));
    const __m256i four = _mm256_shuffle_epi8(bytes, packed);
    store_16(out_0 + 3 * x, _mm256_castsi256_si128(four));
    store_16(out_1 + 3 * x, _mm256_extracti128_si256(four, 1));
  }
}

ZARRFEED_AVX2 void mix_rows_avx2(uint8_t* out, const uint8_t* rows, int64_t stride, int64_t bytes,
                                 const OutputTaps& taps) {
  if (bytes < 32) return mix_rows(out, rows, stride, bytes, taps);
  const __m256i none = _mm256_setzero_si256();
  for (int64_t begin = 0; begin < bytes; begin += 32) {
    const int64_t i = std::min(begin, bytes - 32);  // the last vector begins early, and makes some bytes again
    Sums sums[4] = {Sums::zero(), Sums::zero(), Sums::zero(), Sums::zero()};
    for (int64_t tap = 0; tap < taps.length; tap += 2) {
      const uint8_t* const at = rows + (taps.first + tap) * stride + i;
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tap + 1 < taps.length ? at + stride : at));
      const __m256i low = _mm256_unpacklo_epi8(a, b);
      const __m256i high = _mm256_unpackhi_epi8(a, b);
      const WeightPair pair = taps.pairs[tap / 2];
      sums[0].add(_mm256_unpacklo_epi8(low, none), pair);
      sums[1].add(_mm256_unpackhi_epi8(low, none), pair);
      sums[2].add(_mm256_unpacklo_epi8(high, none), pair);
      sums[3].add(_mm256_unpackhi_epi8(high, none), pair);
    }
    const __m256i low = _mm256_packus_epi32(sums[0].rounded(), sums[1].rounded());
    const __m256i high = _mm256_packus_epi32(sums[2].rounded(), sums[3].rounded());
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_packus_epi16(low, high));
  }
}

/// split_row() for pixels of 3 channels.
ZARRFEED_AVX2 void split_row_avx2(uint8_t* dest, int64_t plane, const uint8_t* row, int64_t width, int64_t) {
  const auto chosen = [](int channel, int part) ZARRFEED_AVX2 {  // bytes of a third of 48 that belong to a channel
    alignas(16) int8_t bytes[16];
    for (int x = 0; x < 16; ++x) {
      const int at = 3 * x + channel - 16 * part;
      bytes[x] = static_cast<int8_t>(at >= 0 && at < 16 ? at : -1);
    }
    return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
  };
  for (int channel = 0; channel < 3; ++channel) {
    const __m128i masks[3] = {chosen(channel, 0), chosen(channel, 1), chosen(channel, 2)};
    uint8_t* const out = dest + channel * plane;
    for (int64_t x = 0; x < width; x += 16) {
      const uint8_t* const at = row + 3 * x;
      const __m128i both =
          _mm_or_si128(_mm_shuffle_epi8(load_16(at), masks[0]), _mm_shuffle_epi8(load_16(at + 16), masks[1]));
      const __m128i all = _mm_or_si128(both, _mm_shuffle_epi8(load_16(at + 32), masks[2]));
      if (x + 16 <= width) {
        store_16(out + x, all);
      } else {
        uint8_t last[16];
        store_16(last, all);
        std::memcpy(out + x, last, static_cast<size_t>(width - x));
      }
    }
  }
}

/// resize_rows() for pixels of 3 channels.
void resize_rows_avx2(uint8_t* out, int64_t stride, const Pixels& pixels, const PixelBox& box, const Taps& taps,
                      bool mirrored) {
  const auto resize = taps.count == kTapsAtOnce       ? resize_two_rows<1>
                      : taps.count == 2 * kTapsAtOnce ? resize_two_rows<2>
                                                      : resize_two_rows<0>;
  // the last rows of the image are read from a copy with room behind it
  const int64_t row_bytes = 3 * (box.right - box.left);
  const int64_t read_bytes = row_bytes + 3 * taps.count + 16;
  std::vector<uint8_t> copies(static_cast<size_t>(2 * read_bytes));
  const uint8_t* const end = pixels.row(pixels.height);
  for (int64_t y = box.top; y < box.bottom; y += 2, out += 2 * stride) {
    const uint8_t* rows[2];
    for (int64_t i = 0; i < 2; ++i) {
      rows[i] = pixels.row(std::min(y + i, box.bottom - 1)) + 3 * box.left;
      if (end - rows[i] >= read_bytes) continue;
      std::memcpy(copies.data() + i * read_bytes, rows[i], static_cast<size_t>(row_bytes));
      rows[i] = copies.data() + i * read_bytes;
    }
    resize(out, out + stride, rows[0], rows[1], taps, mirrored);
  }
}

#endif

/// The steps of a resize.
struct Steps {
  decltype(&resize_rows) narrow = resize_rows;
  decltype(&mix_rows) mix = mix_rows;
  decltype(&split_row) split = split_row;
};

Steps steps_for([[maybe_unused]] int64_t channels, [[maybe_unused]] Isa isa) {
  Steps steps;
#if defined(__x86_64__)
  if (isa != Isa::kBase) steps.mix = mix_rows_avx2;
  if (isa != Isa::kBase && channels == 3) {
    steps.narrow = resize_rows_avx2;
    steps.split = split_row_avx2;
  }
#endif
  return steps;
}

}  // namespace

void resize_image(uint8_t* dest, int64_t height, int64_t width, const Pixels& pixels, const PixelBox& box,
                  bool mirrored, Isa isa) {
  const Steps steps = steps_for(pixels.channels, isa);
  const int64_t box_height = box.bottom - box.top;
  const int64_t box_width = box.right - box.left;
  const Taps down = make_taps(box_height, height);
  const Taps across = make_taps(box_width, width);
  const int64_t stride = pixels.channels * width + kVectorBytes;
  // the pages of fresh memory would take longer than all the rest
  thread_local Scratch held;
  Scratch own;
  const bool is_large = std::max(height, box_height) * std::max(stride, pixels.channels * box_width) > kMostHeldBytes;
  Scratch& scratch = is_large ? own : held;
  uint8_t* const resized = scratch.resized.reserve(static_cast<size_t>((height + 1) * stride)).data();
  // the pass that shrinks much more goes first: Pillow's rule since version 13, and its rounding depends on it
  if (height < box_height && box_height - height > 2 * (box_width - width)) {
    const int64_t bytes = pixels.channels * box_width;
    uint8_t* const low = scratch.first_pass.reserve(static_cast<size_t>(height * bytes)).data();
    const uint8_t* const first = pixels.row(box.top) + pixels.channels * box.left;
    for (int64_t y = 0; y < height; ++y) {
      steps.mix(low + y * bytes, first, pixels.channels * pixels.width, bytes, down.of(y));
    }
    const Pixels middle{low, height, box_width, pixels.channels};
    steps.narrow(resized, stride, middle, {0, 0, height, box_width}, across, mirrored);
  } else {
    uint8_t* const narrow = scratch.first_pass.reserve(static_cast<size_t>((box_height + 1) * stride)).data();
    steps.narrow(narrow, stride, pixels, box, across, mirrored);
    for (int64_t y = 0; y < height; ++y) {
      steps.mix(resized + y * stride, narrow, stride, pixels.channels * width, down.of(y));
    }
  }
  for (int64_t y = 0; y < height; ++y) {
    steps.split(dest + y * width, height * width, resized + y * stride, width, pixels.channels);
  }
}

}  // namespace zarrfeed
