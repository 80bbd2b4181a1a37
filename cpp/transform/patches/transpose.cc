#include "transform/patches/transpose.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace zarrfeed {
namespace {

template <typename Unit>
void copy_item(uint8_t* dest, const uint8_t* source) {
  Unit value;
  std::memcpy(&value, source, sizeof(Unit));
  std::memcpy(dest, &value, sizeof(Unit));
}

#if defined(__x86_64__)

__m128i load(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
__m128i load_half(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
void store(uint8_t* p, __m128i value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), value);
}
/// Stores the halves of a vector at two addresses.
void store_halves(uint8_t* low, uint8_t* high, __m128i value) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(low), value);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(high), _mm_unpackhi_epi64(value, value));
}

// Each tile has as many rows as columns. Unpacking interleaves rows: of pairs of rows first, then of pairs of these.

template <typename Unit>
struct Tile;

template <>
struct Tile<uint8_t> {
  static constexpr int64_t kSide = 8;
  static void copy(uint8_t* dest, const uint8_t* source, int64_t dest_stride, int64_t source_stride) {
    const auto row = [&](int64_t i) { return load_half(source + i * source_stride); };
    const __m128i a = _mm_unpacklo_epi8(row(0), row(1));
    const __m128i b = _mm_unpacklo_epi8(row(2), row(3));
    const __m128i c = _mm_unpacklo_epi8(row(4), row(5));
    const __m128i d = _mm_unpacklo_epi8(row(6), row(7));
    const __m128i low[] = {_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)};
    const __m128i high[] = {_mm_unpacklo_epi16(c, d), _mm_unpackhi_epi16(c, d)};
    for (int64_t half = 0; half < 2; ++half) {
      uint8_t* const at = dest + 4 * half * dest_stride;
      store_halves(at, at + dest_stride, _mm_unpacklo_epi32(low[half], high[half]));
      store_halves(at + 2 * dest_stride, at + 3 * dest_stride, _mm_unpackhi_epi32(low[half], high[half]));
    }
  }
};

template <>
struct Tile<uint16_t> {
  static constexpr int64_t kSide = 8;
  static void copy(uint8_t* dest, const uint8_t* source, int64_t dest_stride, int64_t source_stride) {
    const auto row = [&](int64_t i) { return load(source + i * source_stride); };
    __m128i pairs[4][2];  // of rows 2 i and 2 i + 1: their first and their last four columns
    for (int64_t i = 0; i < 4; ++i) {
      const __m128i even = row(2 * i);
      const __m128i odd = row(2 * i + 1);
      pairs[i][0] = _mm_unpacklo_epi16(even, odd);
      pairs[i][1] = _mm_unpackhi_epi16(even, odd);
    }
    for (int64_t half = 0; half < 2; ++half) {
      const __m128i low[] = {_mm_unpacklo_epi32(pairs[0][half], pairs[1][half]),
                             _mm_unpackhi_epi32(pairs[0][half], pairs[1][half])};
      const __m128i high[] = {_mm_unpacklo_epi32(pairs[2][half], pairs[3][half]),
                              _mm_unpackhi_epi32(pairs[2][half], pairs[3][half])};
      for (int64_t quarter = 0; quarter < 2; ++quarter) {
        uint8_t* const at = dest + (4 * half + 2 * quarter) * dest_stride;
        store(at, _mm_unpacklo_epi64(low[quarter], high[quarter]));
        store(at + dest_stride, _mm_unpackhi_epi64(low[quarter], high[quarter]));
      }
    }
  }
};

template <>
struct Tile<uint32_t> {
  static constexpr int64_t kSide = 4;
  static void copy(uint8_t* dest, const uint8_t* source, int64_t dest_stride, int64_t source_stride) {
    const auto row = [&](int64_t i) { return load(source + i * source_stride); };
    const __m128i r[] = {row(0), row(1), row(2), row(3)};
    const __m128i low[] = {_mm_unpacklo_epi32(r[0], r[1]), _mm_unpackhi_epi32(r[0], r[1])};
    const __m128i high[] = {_mm_unpacklo_epi32(r[2], r[3]), _mm_unpackhi_epi32(r[2], r[3])};
    for (int64_t half = 0; half < 2; ++half) {
      uint8_t* const at = dest + 2 * half * dest_stride;
      store(at, _mm_unpacklo_epi64(low[half], high[half]));
      store(at + dest_stride, _mm_unpackhi_epi64(low[half], high[half]));
    }
  }
};

template <>
struct Tile<uint64_t> {
  static constexpr int64_t kSide = 2;
  static void copy(uint8_t* dest, const uint8_t* source, int64_t dest_stride, int64_t source_stride) {
    const __m128i first = load(source);
    const __m128i second = load(source + source_stride);
    store(dest, _mm_unpacklo_epi64(first, second));
    store(dest + dest_stride, _mm_unpackhi_epi64(first, second));
  }
};

#else

template <typename Unit>
struct Tile {
  static constexpr int64_t kSide = 8;
  static void copy(uint8_t* dest, const uint8_t* source, int64_t dest_stride, int64_t source_stride) {
    constexpr auto kItem = static_cast<int64_t>(sizeof(Unit));
    for (int64_t j = 0; j < kSide; ++j) {
      for (int64_t i = 0; i < kSide; ++i) {
        copy_item<Unit>(dest + j * dest_stride + i * kItem, source + i * source_stride + j * kItem);
      }
    }
  }
};

#endif

constexpr int64_t kLineBytes = 64;

template <typename Unit>
void copy_in_tiles(uint8_t* dest, const uint8_t* source, int64_t rows, int64_t columns, int64_t dest_stride,
                   int64_t source_stride) {
  constexpr auto kItem = static_cast<int64_t>(sizeof(Unit));
  constexpr int64_t kSide = Tile<Unit>::kSide;
  if (rows < kSide || columns < kSide) {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) {
        copy_item<Unit>(dest + j * dest_stride + i * kItem, source + i * source_stride + j * kItem);
      }
    }
    return;
  }
  // A cache line of each source row at a time. The last tiles overlap the ones before them.
  for (int64_t line = 0; line < columns; line += kLineBytes / kItem) {
    const int64_t end = std::min(columns, line + kLineBytes / kItem);
    for (int64_t i = 0; i < rows; i += kSide) {
      const int64_t row = std::min(i, rows - kSide);
      for (int64_t j = line; j < end; j += kSide) {
        const int64_t column = std::min(j, columns - kSide);
        Tile<Unit>::copy(dest + column * dest_stride + row * kItem, source + row * source_stride + column * kItem,
                         dest_stride, source_stride);
      }
    }
  }
}

/// The same by way of a block in the L1 cache, so that each row of `dest` is written a cache line at a time.
template <typename Unit>
void copy_in_blocks(uint8_t* dest, const uint8_t* source, int64_t rows, int64_t columns, int64_t dest_stride,
                    int64_t source_stride) {
  constexpr auto kItem = static_cast<int64_t>(sizeof(Unit));
  constexpr int64_t kSide = kLineBytes / kItem;
  uint8_t block[kSide * kLineBytes];
  for (int64_t j = 0; j < columns; j += kSide) {
    const int64_t width = std::min(kSide, columns - j);
    for (int64_t i = 0; i < rows; i += kSide) {
      const int64_t height = std::min(kSide, rows - i);
      copy_in_tiles<Unit>(block, source + i * source_stride + j * kItem, height, width, kLineBytes, source_stride);
      for (int64_t row = 0; row < width; ++row) {
        uint8_t* const to = dest + (j + row) * dest_stride + i * kItem;
        const uint8_t* const from = block + row * kLineBytes;
        if (height == kSide) {
          std::memcpy(to, from, kLineBytes);
        } else {
          std::memcpy(to, from, static_cast<size_t>(height * kItem));
        }
      }
    }
  }
}

template <typename Unit>
void copy_matrix(uint8_t* dest, const uint8_t* source, int64_t rows, int64_t columns, int64_t dest_stride,
                 int64_t source_stride) {
  // Rows that are so far apart share the few cache lines of the L1 cache that their addresses allow.
  constexpr int64_t kCrowded = 1024;
  const bool is_crowded = dest_stride % kCrowded == 0;
  (is_crowded ? copy_in_blocks<Unit> : copy_in_tiles<Unit>)(dest, source, rows, columns, dest_stride, source_stride);
}

}  // namespace

bool can_transpose(size_t item_bytes) {
  return item_bytes == 1 || item_bytes == 2 || item_bytes == 4 || item_bytes == 8;
}

void copy_transposed(size_t item_bytes, uint8_t* dest, const uint8_t* source, int64_t rows, int64_t columns,
                     int64_t dest_stride, int64_t source_stride) {
  if (item_bytes == 1) copy_matrix<uint8_t>(dest, source, rows, columns, dest_stride, source_stride);
  if (item_bytes == 2) copy_matrix<uint16_t>(dest, source, rows, columns, dest_stride, source_stride);
  if (item_bytes == 4) copy_matrix<uint32_t>(dest, source, rows, columns, dest_stride, source_stride);
  if (item_bytes == 8) copy_matrix<uint64_t>(dest, source, rows, columns, dest_stride, source_stride);
}

}  // namespace zarrfeed
