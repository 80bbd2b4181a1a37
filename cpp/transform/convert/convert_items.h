#pragma once
// Items of every type, one by one: to a number to calculate with, and back. For the loops of convert.cc and
// convert_fused.cc alone, hence in no namespace that others see.

#include <bit>
#include <cstdint>
#include <type_traits>

#include "spec/conversion_spec.h"
#include "transform/convert/isa.h"

namespace zarrfeed::items {

/// Loops with AVX-512 take so many items at a time, and leave the rest to AVX2: their own code for the rest is slow.
constexpr size_t kAvx512Items = 64;

/// 16 bit floats are numbers of a type of their own, so that they are not taken for integers.
enum class Half : uint16_t {};
enum class Brain : uint16_t {};
enum class Flag : uint8_t {};  ///< bool: any byte but 0 is true

/// The bit patterns of infinity and of a quiet NaN.
constexpr int32_t kHalfInfinity = 0x7c00;
constexpr int32_t kHalfNan = 0x7e00;
constexpr int32_t kBrainNan = 0x7fc0;
constexpr int32_t kFloatInfinity = 0x7f800000;

// Branches below are selections between values that are all calculated, so that the loops over them vectorise. Numbers
// are signed because SSE2 compares no others; none is negative but for the sign itself.

ZARRFEED_INLINE float widen(Half item) {
  const int32_t bits = static_cast<uint16_t>(item);
  const int32_t magnitude = bits & 0x7fff;
  const int32_t shifted = magnitude << 13;
  // Subnormals: put behind the point of 2^-14, which is then taken away. Only normal numbers are involved.
  constexpr int32_t kPoint = 113 << 23;
  const float subnormal = std::bit_cast<float>(shifted + kPoint) - std::bit_cast<float>(kPoint);
  int32_t out = shifted + (112 << 23);
  out = magnitude < 0x0400 ? std::bit_cast<int32_t>(subnormal) : out;
  out = magnitude >= kHalfInfinity ? shifted | kFloatInfinity : out;
  return std::bit_cast<float>(out | (bits & 0x8000) << 16);
}

ZARRFEED_INLINE float widen(Brain item) {
  return std::bit_cast<float>(static_cast<uint32_t>(item) << 16);
}

ZARRFEED_INLINE int widen(Flag item) {
  return static_cast<uint8_t>(item) != 0 ? 1 : 0;
}

template <typename T>
  requires std::is_arithmetic_v<T>
ZARRFEED_INLINE T widen(T item) {
  return item;
}

ZARRFEED_INLINE Half to_half(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  const int32_t sign = (bits >> 16) & 0x8000;
  const int32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14: the sum with 0.5 has its last bit at 2^-24, so the addition rounds.
  constexpr int32_t kHalf = 126 << 23;
  const int32_t subnormal =
      std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kHalf)) - kHalf;
  // Else: to nearest, ties to even; a carry may reach infinity, which is right.
  const int32_t normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  int32_t out = magnitude < (113 << 23) ? subnormal : normal;
  out = magnitude >= (143 << 23) ? kHalfInfinity : out;
  out = magnitude > kFloatInfinity ? kHalfNan : out;
  return static_cast<Half>(static_cast<uint16_t>(out | sign));
}

ZARRFEED_INLINE Brain to_brain(float value) {
  const auto bits = std::bit_cast<int32_t>(value);
  const int32_t sign = (bits >> 16) & 0x8000;
  const int32_t magnitude = bits & 0x7fffffff;
  // To nearest, ties to even; the sum of a NaN might overflow, or be none.
  const int32_t rounded = magnitude > kFloatInfinity ? kBrainNan : (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
  return static_cast<Brain>(static_cast<uint16_t>(rounded | sign));
}

/// A float from which a 16 bit float is rounded as from `value` itself: the bits that do not fit are not rounded but noted
/// in the last one ("round to odd").
ZARRFEED_INLINE float without_rounding(double value) {
  constexpr uint64_t kDropped = (uint64_t{1} << 29) - 1;
  constexpr uint64_t kLast = uint64_t{1} << 29;
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint64_t with_sticky = (bits & ~kDropped) | ((bits & kDropped) != 0 ? kLast : 0);
  // Subnormal floats have fewer bits: their value is rounded to 2^-133, the last bit of bfloat16
  // (of float16 it is 0 anyway). The sum with 1.5 * 2^-81 has its last bit there.
  constexpr double kPoint = 0x1.8p-81;
  const double rounded = (value + kPoint) - kPoint;
  const bool is_tiny = value < 0x1p-126 && value > -0x1p-126;
  const uint64_t tiny = std::bit_cast<uint64_t>(rounded) | (bits & (uint64_t{1} << 63));
  return static_cast<float>(std::bit_cast<double>(is_tiny ? tiny : with_sticky));
}

/// Converts an integer that float64 may not hold without rounding it.
template <typename T>
inline double without_rounding_int(T item) {
  constexpr uint64_t kDropped = (uint64_t{1} << 11) - 1;
  const bool negative = item < 0;
  const uint64_t magnitude = negative ? uint64_t{0} - static_cast<uint64_t>(item) : static_cast<uint64_t>(item);
  const uint64_t noted = (magnitude & ~kDropped) | ((magnitude & kDropped) != 0 ? kDropped + 1 : 0);
  const auto value = static_cast<double>(magnitude >> 53 != 0 ? noted : magnitude);
  return negative ? -value : value;
}

template <typename To, typename Value>
ZARRFEED_INLINE To narrow(Value value) {
  if constexpr (std::is_same_v<To, Flag>) {
    return static_cast<Flag>(value != 0);
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, Brain>) {
    float single;
    if constexpr (std::is_same_v<Value, double>) {
      single = without_rounding(value);
    } else {
      single = static_cast<float>(value);
    }
    if constexpr (std::is_same_v<To, Half>) return to_half(single);
    if constexpr (std::is_same_v<To, Brain>) return to_brain(single);
  } else {
    return static_cast<To>(value);
  }
}

/// Calls function(type tag) with the C++ type of items of type `type`.
template <typename Function>
auto with_type(ItemType type, const Function& function) {
  switch (type) {
    case ItemType::kBool:
      return function(std::type_identity<Flag>{});
    case ItemType::kInt8:
      return function(std::type_identity<int8_t>{});
    case ItemType::kUint8:
      return function(std::type_identity<uint8_t>{});
    case ItemType::kInt16:
      return function(std::type_identity<int16_t>{});
    case ItemType::kUint16:
      return function(std::type_identity<uint16_t>{});
    case ItemType::kInt32:
      return function(std::type_identity<int32_t>{});
    case ItemType::kUint32:
      return function(std::type_identity<uint32_t>{});
    case ItemType::kInt64:
      return function(std::type_identity<int64_t>{});
    case ItemType::kUint64:
      return function(std::type_identity<uint64_t>{});
    case ItemType::kFloat16:
      return function(std::type_identity<Half>{});
    case ItemType::kBfloat16:
      return function(std::type_identity<Brain>{});
    case ItemType::kFloat32:
      return function(std::type_identity<float>{});
    case ItemType::kFloat64:
      break;
  }
  return function(std::type_identity<double>{});
}

}  // namespace zarrfeed::items
