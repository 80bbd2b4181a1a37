#include "codecs/unshuffle.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "base/bytes.h"
#include "codecs/bundled_api.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zarrfeed {

#if defined(__x86_64__)
namespace {

#define ZARRFEED_AVX2 __attribute__((target("avx2")))

/// Elements that one round of a kernel takes: a vector of bytes from each plane.
constexpr size_t kRound = 32;

ZARRFEED_AVX2 inline __m256i load(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

template <bool kPastCache>
ZARRFEED_AVX2 inline void store(uint8_t* p, __m256i value) {
  if constexpr (kPastCache) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), value);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), value);
  }
}

/// Stores the low 128-bit lanes of two vectors behind each other at `low`, the high lanes at `high`.
template <bool kPastCache>
ZARRFEED_AVX2 inline void store_lanes(uint8_t* low, uint8_t* high, __m256i a, __m256i b) {
  store<kPastCache>(low, _mm256_permute2x128_si256(a, b, 0x20));
  store<kPastCache>(high, _mm256_permute2x128_si256(a, b, 0x31));
}

// In each round, unpacking interleaves the planes pair by pair, within 128-bit lanes: the low lanes then hold elements
// 0 to 15, the high lanes 16 to 31.

template <bool kPastCache>
ZARRFEED_AVX2 inline void round_of_2(const uint8_t* p, size_t plane_bytes, uint8_t* dest) {
  const __m256i a = load(p);
  const __m256i b = load(p + plane_bytes);
  store_lanes<kPastCache>(dest, dest + 32, _mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
}

template <bool kPastCache>
ZARRFEED_AVX2 inline void round_of_4(const uint8_t* p, size_t plane_bytes, uint8_t* dest) {
  const __m256i a = load(p);
  const __m256i b = load(p + plane_bytes);
  const __m256i c = load(p + 2 * plane_bytes);
  const __m256i d = load(p + 3 * plane_bytes);
  const __m256i ab_low = _mm256_unpacklo_epi8(a, b);
  const __m256i ab_high = _mm256_unpackhi_epi8(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi8(c, d);
  const __m256i cd_high = _mm256_unpackhi_epi8(c, d);
  store_lanes<kPastCache>(dest, dest + 64, _mm256_unpacklo_epi16(ab_low, cd_low),
                          _mm256_unpackhi_epi16(ab_low, cd_low));
  store_lanes<kPastCache>(dest + 32, dest + 96, _mm256_unpacklo_epi16(ab_high, cd_high),
                          _mm256_unpackhi_epi16(ab_high, cd_high));
}

template <bool kPastCache>
ZARRFEED_AVX2 inline void round_of_8(const uint8_t* p, size_t plane_bytes, uint8_t* dest) {
  __m256i pairs[8];  // low and high halves of planes (0, 1), (2, 3), (4, 5), (6, 7)
  for (size_t i = 0; i < 4; ++i) {
    const __m256i even = load(p + 2 * i * plane_bytes);
    const __m256i odd = load(p + (2 * i + 1) * plane_bytes);
    pairs[2 * i] = _mm256_unpacklo_epi8(even, odd);
    pairs[2 * i + 1] = _mm256_unpackhi_epi8(even, odd);
  }
  for (size_t half = 0; half < 2; ++half) {  // elements 0 to 7 (16 to 23), then 8 to 15 (24 to 31)
    const __m256i front_low = _mm256_unpacklo_epi16(pairs[half], pairs[2 + half]);
    const __m256i front_high = _mm256_unpackhi_epi16(pairs[half], pairs[2 + half]);
    const __m256i back_low = _mm256_unpacklo_epi16(pairs[4 + half], pairs[6 + half]);
    const __m256i back_high = _mm256_unpackhi_epi16(pairs[4 + half], pairs[6 + half]);
    uint8_t* const out = dest + half * 64;
    store_lanes<kPastCache>(out, out + 128, _mm256_unpacklo_epi32(front_low, back_low),
                            _mm256_unpackhi_epi32(front_low, back_low));
    store_lanes<kPastCache>(out + 32, out + 160, _mm256_unpacklo_epi32(front_high, back_high),
                            _mm256_unpackhi_epi32(front_high, back_high));
  }
}

using Round = void (*)(const uint8_t*, size_t, uint8_t*);

template <size_t kTypesize, Round kRoundOf>
ZARRFEED_AVX2 inline void run_rounds(const uint8_t* source, size_t plane_bytes, size_t count, uint8_t* dest) {
  size_t i = 0;
  for (; i + kRound <= count; i += kRound) kRoundOf(source + i, plane_bytes, dest + i * kTypesize);
  for (; i < count; ++i) {
    for (size_t k = 0; k < kTypesize; ++k) dest[i * kTypesize + k] = source[k * plane_bytes + i];
  }
}

template <size_t kTypesize, Round kCached, Round kPastCache>
ZARRFEED_AVX2 void unshuffle_range(const uint8_t* planes, size_t plane_bytes, size_t first, size_t count, uint8_t* dest,
                                   bool streaming) {
  constexpr uintptr_t kVectorBytes = 32;  // stores past the cache have to be aligned
  if (streaming && reinterpret_cast<uintptr_t>(dest) % kVectorBytes == 0) {
    run_rounds<kTypesize, kPastCache>(planes + first, plane_bytes, count, dest);
  } else {
    run_rounds<kTypesize, kCached>(planes + first, plane_bytes, count, dest);
  }
}

/// Undoes the shuffle of elements of other sizes in pieces of kWidth bytes, of which the last overlaps the one before it if
/// the width does not divide the size.
template <size_t kTypesize>
ZARRFEED_AVX2 void unshuffle_pieces(const uint8_t* planes, size_t plane_bytes, size_t first, size_t count,
                                    uint8_t* dest, bool /*streaming*/) {
  constexpr size_t kWidth = kTypesize < 4 ? 2 : kTypesize < 8 ? 4 : 8;
  constexpr Round kRoundOf = kWidth == 2 ? round_of_2<false> : kWidth == 4 ? round_of_4<false> : round_of_8<false>;
  uint8_t pieces[kRound * kWidth];
  size_t i = 0;
  for (; i + kRound <= count; i += kRound) {
    for (size_t k = 0; k < kTypesize; k += kWidth) {
      const size_t at = std::min(k, kTypesize - kWidth);
      kRoundOf(planes + at * plane_bytes + first + i, plane_bytes, pieces);
      uint8_t* const to = dest + i * kTypesize + at;
      for (size_t n = 0; n < kRound; ++n) std::memcpy(to + n * kTypesize, pieces + n * kWidth, kWidth);
    }
  }
  for (; i < count; ++i) {
    for (size_t k = 0; k < kTypesize; ++k) dest[i * kTypesize + k] = planes[k * plane_bytes + first + i];
  }
}

template <size_t... kSizes>
UnshuffleRange find_pieces(size_t typesize, std::index_sequence<kSizes...>) {
  UnshuffleRange found = nullptr;
  ((typesize == kSizes ? void(found = unshuffle_pieces<kSizes>) : void()), ...);
  return found;
}

}  // namespace

UnshuffleRange find_unshuffle_range(size_t typesize) {
  if (__builtin_cpu_supports("avx2") == 0) return nullptr;
  switch (typesize) {
    case 2:
      return unshuffle_range<2, round_of_2<false>, round_of_2<true>>;
    case 4:
      return unshuffle_range<4, round_of_4<false>, round_of_4<true>>;
    case 8:
      return unshuffle_range<8, round_of_8<false>, round_of_8<true>>;
    default:
      return find_pieces(typesize, std::index_sequence<3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16>());
  }
}

#else

UnshuffleRange find_unshuffle_range(size_t) {
  return nullptr;
}

#endif

void warm_up_shuffle() {
  static std::once_flag once;
  std::call_once(once, [] {
    const uint8_t src[16] = {};
    uint8_t dest[16];
    blosc2_unshuffle(2, 16, src, dest);
    blosc2_bitunshuffle(2, 16, src, dest);
  });
}

void unshuffle_portably(size_t typesize, Bytes in, uint8_t* out) {
  constexpr size_t kTile = 4096;  // elements that are written while their room is in the cache
  const size_t count = in.size() / typesize;
  for (size_t first = 0; first < count; first += kTile) {
    const size_t last = std::min(count, first + kTile);
    for (size_t k = 0; k < typesize; ++k) {
      for (size_t i = first; i < last; ++i) out[i * typesize + k] = in[k * count + i];
    }
  }
}

void unshuffle(size_t typesize, Bytes in, uint8_t* out) {
  constexpr size_t kMostBytes = std::numeric_limits<int32_t>::max();  // that blosc2 takes at once
  constexpr size_t kMostTypesize = 255;                               // for longer elements it does nothing
  const size_t count = in.size() / typesize;
  const Bytes shuffled = in.first(typesize > 1 ? count * typesize : 0);
  const UnshuffleRange kernel = find_unshuffle_range(typesize);
  if (kernel != nullptr) {
    kernel(shuffled.data(), count, 0, count, out, false);
  } else if (shuffled.size() > kMostBytes || typesize > kMostTypesize) {
    unshuffle_portably(typesize, shuffled, out);
  } else if (!shuffled.empty()) {
    warm_up_shuffle();
    blosc2_unshuffle(static_cast<int32_t>(typesize), static_cast<int32_t>(shuffled.size()), shuffled.data(), out);
  }
  const Bytes rest = in.subspan(shuffled.size());
  if (!rest.empty()) std::memcpy(out + shuffled.size(), rest.data(), rest.size());
}

}  // namespace zarrfeed
