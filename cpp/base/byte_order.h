#pragma once
// Values in the other byte order.

#include <cstdint>

namespace zarrfeed {

/// The value with its bytes in the opposite order.
template <typename Unit>
Unit swapped(Unit value) {
  if constexpr (sizeof(Unit) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(Unit) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(Unit) == 8) return __builtin_bswap64(value);
  return value;
}

}  // namespace zarrfeed
