#pragma once

#include <cstddef>
#include <cstdint>

namespace zarrfeed {

/// a / b, rounded towards minus infinity; b is above 0.
constexpr int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

/// a / b, rounded towards infinity; b is above 0. It does not overflow, as (a + b - 1) / b may.
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}
constexpr size_t ceil_div(size_t a, size_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

/// a less the multiple of b below it, from 0 to b - 1; b is above 0.
constexpr int64_t modulo(int64_t a, int64_t b) {
  return a - floor_div(a, b) * b;
}

}  // namespace zarrfeed
