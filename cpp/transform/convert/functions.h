#pragma once
// Logarithm, log(1 + x) and exponential in float64, without libm: the same bits on every machine and instruction set.
//
// Only sums, products, quotients, shifts and the processor's square root are used, each rounded as IEEE 754 says, so a loop over them vectorises and
// gives what one call gives. Results differ from the exact ones by less than 1 unit in the last place of a float64; the
// polynomials are Chebyshev fits, whose own errors are below 2^-58. NaN stays the NaN that it is. Built with
// -ffp-contract=off.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "transform/convert/isa.h"

namespace zarrfeed::functions {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
/// ln 2 = kLn2High + kLn2Low. The first has 32 bits, so its product with an exponent is exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;

/// log(x) + `more`, for x above 0 and finite. Reduction: x = 2^k (1 + f), with 1 + f from sqrt(1/2) to sqrt(2); then log(1 + f)
/// = 2 atanh(s) with s = f / (2 + f), as a series in s.
ZARRFEED_INLINE double log_sum(double x, double more) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // the bits of sqrt(1/2)
  constexpr uint64_t kBias = uint64_t{1024} << 52;    // so that exponents are not negative, and shifts need no sign
  constexpr double kToDouble = 0x1p52 + 1024;
  const bool is_subnormal = x < std::numeric_limits<double>::min();
  const double scaled = x * 0x1p54;
  const auto bits = std::bit_cast<uint64_t>(is_subnormal ? scaled : x);
  const uint64_t biased = (bits + (kBias - kSqrtHalf)) >> 52;  // k + 1024
  const double exponent = std::bit_cast<double>(biased | std::bit_cast<uint64_t>(0x1p52)) - kToDouble;
  const double lowered = exponent - 54;
  const double k = is_subnormal ? lowered : exponent;
  const double f = std::bit_cast<double>(bits - (biased << 52) + kBias) - 1;
  const double half_square = 0.5 * f * f;
  const double s = f / (2 + f);
  const double w = s * s;
  double series = 0x1.0c044ccf380aap-3;
  series = series * w + 0x1.0fbe84f5caccap-3;
  series = series * w + 0x1.3b1c35fbecd93p-3;
  series = series * w + 0x1.745cf90196560p-3;
  series = series * w + 0x1.c71c720160332p-3;
  series = series * w + 0x1.2492492476c8bp-2;
  series = series * w + 0x1.9999999999a38p-2;
  series = series * w + 0x1.5555555555555p-1;
  series = series * w;
  return k * kLn2High - ((half_square - (s * (half_square + series) + (k * kLn2Low + more))) - f);
}

/// log(x): -infinity of 0, NaN of less.
ZARRFEED_INLINE double natural_log(double x) {
  double out = log_sum(x, 0);
  out = x < kInfinity ? out : x;
  out = x == 0 ? -kInfinity : out;
  return x < 0 ? kNan : out;
}

/// log(1 + x), also where 1 + x is rounded: -infinity of -1, NaN of less.
ZARRFEED_INLINE double log_one_plus(double x) {
  const double sum = 1 + x;
  const double lost_of_x = x - (sum - 1);
  const double lost_of_one = 1 - (sum - x);
  const double lost = (x <= 1 ? lost_of_x : lost_of_one) / sum;
  double out = log_sum(sum, lost);
  out = x < kInfinity ? out : x;
  out = x == 0 ? x : out;  // with its sign
  out = x == -1 ? -kInfinity : out;
  return x < -1 ? kNan : out;
}

/// e^x. Reduction: x = k ln 2 + r with |r| at most ln(2) / 2; 2^k is a product of two, as it may be subnormal.
ZARRFEED_INLINE double exponential(double x) {
  constexpr double kRound = 0x1.8p52;  // a sum with it is rounded to an integer, which is in its low bits
  double in = x > 710 ? 710.0 : x;
  in = in < -746 ? -746.0 : in;
  const double shifted = in * 0x1.71547652b82fep+0 + kRound;
  const uint64_t k = (std::bit_cast<uint64_t>(shifted) + 2048) & 0xfff;  // and 2048
  const double times = shifted - kRound;
  const double r = (in - times * kLn2High) - times * kLn2Low;
  double series = 0x1.1f72fca58cc92p-29;
  series = series * r + 0x1.af4ddddcf06d6p-26;
  series = series * r + 0x1.27e4db679bec4p-22;
  series = series * r + 0x1.71de02372bdd3p-19;
  series = series * r + 0x1.a01a01a6d7883p-16;
  series = series * r + 0x1.a01a01abe63b3p-13;
  series = series * r + 0x1.6c16c16c162d6p-10;
  series = series * r + 0x1.11111111100dfp-7;
  series = series * r + 0x1.5555555555556p-5;
  series = series * r + 0x1.5555555555557p-3;
  series = series * r + 0.5;
  const double power = 1 + (r + r * r * series);
  const uint64_t half = k >> 1;
  const auto first = std::bit_cast<double>((half - 1) << 52);
  const auto second = std::bit_cast<double>((k - half - 1) << 52);
  const double out = power * first * second;
  return x == x ? out : x;
}

/// The square root, rounded to nearest; NaN of less than 0, always the same one.
ZARRFEED_INLINE double square_root(double x) {
  const double root = std::sqrt(x);
  return x < 0 ? kNan : root;
}

}  // namespace zarrfeed::functions
