#include "transform/convert/item_copy.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/byte_order.h"
#include "base/error.h"

namespace zarrfeed {
namespace {

/// Copies `count` items of `kUnits` units each, `stride` bytes apart in the source, to contiguous memory.
template <typename Unit, int kUnits, bool kSwap>
void copy_items(uint8_t* dest, const uint8_t* source, int64_t count, int64_t stride) {
  for (int64_t i = 0; i < count; ++i) {
    for (int u = 0; u < kUnits; ++u) {
      Unit value;
      std::memcpy(&value, source + static_cast<size_t>(u) * sizeof(Unit), sizeof(Unit));
      if constexpr (kSwap) value = swapped(value);
      std::memcpy(dest, &value, sizeof(Unit));
      dest += sizeof(Unit);
    }
    source += stride;
  }
}

/// Copies runs of `kBytes` bytes. Since the compiler knows the width, it makes moves of these, and calls nothing.
template <size_t kBytes>
void copy_short_rows(uint8_t* dest, const uint8_t* source, RunRows rows) {
  for (int64_t i = 0; i < rows.count; ++i) {
    std::memcpy(dest, source, kBytes);
    dest += rows.dest_stride;
    source += rows.source_stride;
  }
}

/// The same, without units, for items in reverse order. The stride is a constant, so the loop is vectorised.
template <typename Unit, bool kSwap>
void reverse_items(uint8_t* dest, const uint8_t* source, int64_t count, int64_t /*stride*/) {
  constexpr auto kItem = static_cast<int64_t>(sizeof(Unit));
  const uint8_t* const first = source - (count - 1) * kItem;
  for (int64_t i = 0; i < count; ++i) {
    Unit value;
    std::memcpy(&value, first + (count - 1 - i) * kItem, sizeof(Unit));
    if constexpr (kSwap) value = swapped(value);
    std::memcpy(dest + i * kItem, &value, sizeof(Unit));
  }
}

/// The same for bytes, eight at a time: without a shuffle of bytes, vectors take longer.
void reverse_bytes(uint8_t* dest, const uint8_t* source, int64_t count, int64_t /*stride*/) {
  constexpr int64_t kWord = 8;
  int64_t done = 0;
  for (; done + kWord <= count; done += kWord) {
    uint64_t word;
    std::memcpy(&word, source - done - (kWord - 1), sizeof(word));
    word = __builtin_bswap64(word);
    std::memcpy(dest + done, &word, sizeof(word));
  }
  for (; done < count; ++done) dest[done] = *(source - done);
}

}  // namespace

ItemCopy choose_reversed_copy(size_t item_bytes, size_t swap_bytes) {
  if (item_bytes == 1 && swap_bytes == 0) return reverse_bytes;
  if (item_bytes == 2) return swap_bytes == 0 ? reverse_items<uint16_t, false> : reverse_items<uint16_t, true>;
  if (item_bytes == 4) return swap_bytes == 0 ? reverse_items<uint32_t, false> : reverse_items<uint32_t, true>;
  if (item_bytes == 8 && swap_bytes == 0) return reverse_items<uint64_t, false>;
  return choose_copy(item_bytes, swap_bytes);
}

ItemCopy choose_copy(size_t item_bytes, size_t swap_bytes) {
  const auto key = [](size_t item, size_t swap) { return item * 16 + swap; };
  switch (key(item_bytes, swap_bytes)) {
    case key(1, 0):
      return copy_items<uint8_t, 1, false>;
    case key(2, 0):
      return copy_items<uint16_t, 1, false>;
    case key(2, 2):
      return copy_items<uint16_t, 1, true>;
    case key(4, 0):
      return copy_items<uint32_t, 1, false>;
    case key(4, 4):
      return copy_items<uint32_t, 1, true>;
    case key(8, 0):
      return copy_items<uint64_t, 1, false>;
    case key(8, 4):
      return copy_items<uint32_t, 2, true>;
    case key(8, 8):
      return copy_items<uint64_t, 1, true>;
    case key(16, 0):
      return copy_items<uint64_t, 2, false>;
    case key(16, 8):
      return copy_items<uint64_t, 2, true>;
    default:
      throw Error(ErrorKind::kUnsupported, "items of " + std::to_string(item_bytes) +
                                               " bytes with byte order units of " + std::to_string(swap_bytes));
  }
}

void copy_rows(uint8_t* dest, const uint8_t* source, RunRows rows) {
  switch (rows.bytes) {
    case 1:
      return copy_short_rows<1>(dest, source, rows);
    case 2:
      return copy_short_rows<2>(dest, source, rows);
    case 4:
      return copy_short_rows<4>(dest, source, rows);
    case 8:
      return copy_short_rows<8>(dest, source, rows);
    case 16:
      return copy_short_rows<16>(dest, source, rows);
    case 32:
      return copy_short_rows<32>(dest, source, rows);
    case 64:
      return copy_short_rows<64>(dest, source, rows);
    default:
      for (int64_t i = 0; i < rows.count; ++i) {
        std::memcpy(dest + i * rows.dest_stride, source + i * rows.source_stride, rows.bytes);
      }
  }
}

void write_pattern(uint8_t* dest, std::span<const uint8_t> pattern, size_t item_bytes, size_t first, size_t count) {
  if (pattern.size() == item_bytes) {
    choose_copy(item_bytes, 0)(dest, pattern.data(), static_cast<int64_t>(count), 0);
    return;
  }
  size_t from = first * item_bytes % pattern.size();
  for (size_t left = count * item_bytes; left > 0; from = 0) {
    const size_t n = std::min(left, pattern.size() - from);
    std::memcpy(dest, pattern.data() + from, n);
    dest += n;
    left -= n;
  }
}

}  // namespace zarrfeed
