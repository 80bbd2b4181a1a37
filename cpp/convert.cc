#include "convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "error.h"

// Built with -ffp-contract=off: scale and offset are two roundings on every machine, as in NumPy.

namespace zarrfeed {
namespace {

// Each loop is compiled twice: for every x86-64 processor, and for those with AVX2. The results are the same.
#if defined(__x86_64__)
#define ZARRFEED_AVX2 __attribute__((target("avx2")))
bool has_avx2() {
  return __builtin_cpu_supports("avx2") != 0;
}
#else
#define ZARRFEED_AVX2
bool has_avx2() {
  return false;
}
#endif
#define ZARRFEED_INLINE [[gnu::always_inline]] inline

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
  const uint64_t kept = (bits & ~kDropped) | ((bits & kDropped) != 0 ? kLast : 0);
  // Where floats are subnormal they have fewer bits: there the value is rounded to 2^-133, the last bit of bfloat16
  // (of float16 it is 0 anyway). The sum with 1.5 * 2^-81 has its last bit there.
  constexpr double kPoint = 0x1.8p-81;
  const double rounded = (value + kPoint) - kPoint;
  const bool is_tiny = value < 0x1p-126 && value > -0x1p-126;
  const uint64_t tiny = std::bit_cast<uint64_t>(rounded) | (bits & (uint64_t{1} << 63));
  return static_cast<float>(std::bit_cast<double>(is_tiny ? tiny : kept));
}

/// The same for an integer that float64 may not hold.
template <typename T>
double without_rounding_int(T item) {
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

template <typename To, typename From>
ZARRFEED_INLINE void convert_loop(uint8_t* dest, const uint8_t* source, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From item;
    std::memcpy(&item, source + i * sizeof(From), sizeof(From));
    const To out = narrow<To>(widen(item));
    std::memcpy(dest + i * sizeof(To), &out, sizeof(To));
  }
}

template <typename To, typename From>
void convert_items_anywhere(uint8_t* dest, const uint8_t* source, size_t count) {
  convert_loop<To, From>(dest, source, count);
}

template <typename To, typename From>
ZARRFEED_AVX2 void convert_items_avx2(uint8_t* dest, const uint8_t* source, size_t count) {
  convert_loop<To, From>(dest, source, count);
}

using Kernel = void (*)(uint8_t*, const uint8_t*, size_t);

/// The loop over items of type `From` that become `To`.
template <typename To, typename From>
Kernel convert_items() {
  return has_avx2() ? convert_items_avx2<To, From> : convert_items_anywhere<To, From>;
}

/// Fill value -> NaN, scale and offset in one pass. A scale of 1, an offset of -0 and a fill of NaN change no number.
template <typename From, typename Real>
ZARRFEED_INLINE void unpack_loop(uint8_t* dest, const uint8_t* source, size_t count, Real fill, Real scale,
                                 Real offset) {
  for (size_t i = 0; i < count; ++i) {
    From item;
    std::memcpy(&item, source + i * sizeof(From), sizeof(From));
    Real x = static_cast<Real>(item);
    x = x == fill ? std::numeric_limits<Real>::quiet_NaN() : x;
    const auto out = static_cast<float>(x * scale + offset);
    std::memcpy(dest + i * sizeof(float), &out, sizeof(float));
  }
}

template <typename From, typename Real>
void unpack_items_anywhere(uint8_t* dest, const uint8_t* source, size_t count, double fill, double scale,
                           double offset) {
  unpack_loop<From, Real>(dest, source, count, static_cast<Real>(fill), static_cast<Real>(scale),
                          static_cast<Real>(offset));
}

template <typename From, typename Real>
ZARRFEED_AVX2 void unpack_items_avx2(uint8_t* dest, const uint8_t* source, size_t count, double fill, double scale,
                                     double offset) {
  unpack_loop<From, Real>(dest, source, count, static_cast<Real>(fill), static_cast<Real>(scale),
                          static_cast<Real>(offset));
}

/// Integers of 64 bits -> double that is only to be rounded to a 16 bit float.
template <typename From>
void note_items(uint8_t* dest, const uint8_t* source, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From item;
    std::memcpy(&item, source + i * sizeof(From), sizeof(From));
    const double out = without_rounding_int(item);
    std::memcpy(dest + i * sizeof(double), &out, sizeof(double));
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

bool is_float(ItemType type) {
  return type == ItemType::kFloat16 || type == ItemType::kBfloat16 || type == ItemType::kFloat32 ||
         type == ItemType::kFloat64;
}

/// Whether float32 holds every value.
bool fits_float(ItemType type) {
  return type == ItemType::kFloat32 || bytes_of(type) <= 2;
}

/// Whether integers (or bool) of type `from` are all integers of type `to`. Bytes that stand for a bool are any integer.
template <typename From, typename To>
constexpr bool holds() {
  if constexpr (std::is_same_v<To, Flag>) {
    return std::is_same_v<From, Flag> || sizeof(From) == 1;
  } else if constexpr (!std::is_integral_v<To>) {
    return false;
  } else if constexpr (std::is_same_v<From, Flag>) {
    return true;
  } else if constexpr (std::is_integral_v<From>) {
    return std::in_range<To>(std::numeric_limits<From>::min()) && std::in_range<To>(std::numeric_limits<From>::max());
  } else {
    return false;
  }
}

/// The kernel from integers to integers that hold them; null if they do not.
Kernel find_lossless(ItemType from, ItemType to) {
  return with_type(from, [to]<typename From>(std::type_identity<From>) {
    return with_type(to, []<typename To>(std::type_identity<To>) -> Kernel {
      if constexpr (holds<From, To>()) return convert_items<To, From>();
      return nullptr;
    });
  });
}

template <typename Real>
Kernel find_load(ItemType from) {
  return with_type(from, []<typename From>(std::type_identity<From>) -> Kernel { return convert_items<Real, From>(); });
}

template <typename Real>
Kernel find_store(ItemType to) {
  return with_type(to, []<typename To>(std::type_identity<To>) -> Kernel {
    if constexpr (std::is_integral_v<To> || std::is_same_v<To, Flag>) {
      return nullptr;
    } else {
      return convert_items<To, Real>();
    }
  });
}

}  // namespace

template <typename From>
Converter::Unpack Converter::find_unpack(bool in_double) {
  if constexpr (std::is_integral_v<From>) {
    if (in_double) return has_avx2() ? unpack_items_avx2<From, double> : unpack_items_anywhere<From, double>;
    return has_avx2() ? unpack_items_avx2<From, float> : unpack_items_anywhere<From, float>;
  }
  return nullptr;
}

size_t bytes_of(ItemType type) {
  return with_type(type, []<typename T>(std::type_identity<T>) { return sizeof(T); });
}

Converter::Converter(ConversionSpec spec) : spec_(std::move(spec)) {
  const ItemType from = spec_.from;
  const ItemType to = spec_.to;
  const bool calculates =
      !spec_.fills.empty() || spec_.scale.has_value() || spec_.offset.has_value() || !spec_.mean.empty();
  if (!is_float(to)) {
    cast_ = calculates ? nullptr : find_lossless(from, to);
    if (cast_ == nullptr) throw Error(ErrorKind::kUnsupported, "a conversion to integers that would lose values");
    return;
  }
  const bool is_short = bytes_of(to) == 2;
  in_double_ = spec_.decode_in_double || to == ItemType::kFloat64 || (!fits_float(from) && (calculates || is_short));
  load_ = in_double_ ? find_load<double>(from) : find_load<float>(from);
  store_ = in_double_ ? find_store<double>(to) : find_store<float>(to);
  if (!calculates) {
    if (is_short && from == ItemType::kInt64) load_ = note_items<int64_t>;
    if (is_short && from == ItemType::kUint64) load_ = note_items<uint64_t>;
    if (to == (in_double_ ? ItemType::kFloat64 : ItemType::kFloat32)) cast_ = load_;
    if (from == (in_double_ ? ItemType::kFloat64 : ItemType::kFloat32)) cast_ = store_;
  }
  if (calculates && to == ItemType::kFloat32 && spec_.mean.empty() && spec_.fills.size() <= 1) {
    unpack_ =
        with_type(from, [this]<typename From>(std::type_identity<From>) { return find_unpack<From>(in_double_); });
    fill_ = spec_.fills.empty() ? std::numeric_limits<double>::quiet_NaN() : spec_.fills.front();
    // A value that is none of this precision is equal to no item.
    if (!in_double_ && static_cast<double>(static_cast<float>(fill_)) != fill_) {
      fill_ = std::numeric_limits<double>::quiet_NaN();
    }
    scale_ = spec_.scale.value_or(1);
    offset_ = spec_.offset.value_or(-0.0);
  }
  if (spec_.mean.size() != spec_.std.size()) throw Error(ErrorKind::kConfig, "as many means as standard deviations");
  if (spec_.mean.size() > 1 && spec_.channel_items < 1) {
    throw Error(ErrorKind::kConfig, "channel_items = 0, must be at least 1");
  }
  // Shorter runs of one channel cost more to tell apart than to look up item by item.
  if (spec_.mean.size() > 1 && spec_.channel_items < 64) period_ = spec_.mean.size() * spec_.channel_items;
  if (in_double_) {
    double_ = make_constants<double>();
  } else {
    single_ = make_constants<float>();
  }
}

template <typename Real>
Converter::Constants<Real> Converter::make_constants() const {
  Constants<Real> c;
  for (const double fill : spec_.fills) {
    // A value that is none of this precision is equal to no item.
    if (static_cast<double>(static_cast<Real>(fill)) == fill) c.fills.push_back(static_cast<Real>(fill));
  }
  c.scale = static_cast<Real>(spec_.scale.value_or(1));
  c.offset = static_cast<Real>(spec_.offset.value_or(0));
  const size_t channels = spec_.mean.size();
  const size_t entries = period_ > 0 ? period_ + kBlock : channels;
  for (size_t i = 0; i < entries; ++i) {
    const size_t channel = period_ > 0 ? i / spec_.channel_items % channels : i;
    c.mean.push_back(static_cast<Real>(spec_.mean[channel]));
    c.std.push_back(static_cast<Real>(spec_.std[channel]));
  }
  return c;
}

void Converter::convert(uint8_t* dest, const uint8_t* source, size_t count, size_t position) const {
  if (cast_ != nullptr) {
    cast_(dest, source, count);
    return;
  }
  if (unpack_ != nullptr) {
    unpack_(dest, source, count, fill_, scale_, offset_);
    return;
  }
  const size_t source_bytes = source_item_bytes();
  const size_t dest_bytes = dest_item_bytes();
  for (size_t done = 0; done < count; done += kBlock) {
    const size_t n = std::min(kBlock, count - done);
    uint8_t* const to = dest + done * dest_bytes;
    const uint8_t* const from = source + done * source_bytes;
    if (in_double_) {
      calculate(to, from, n, position + done, double_);
    } else {
      calculate(to, from, n, position + done, single_);
    }
  }
}

template <typename Real>
ZARRFEED_INLINE void Converter::normalise(Real* x, size_t count, size_t position, const Constants<Real>& c) const {
  if (period_ > 0) {
    const Real* const mean = c.mean.data() + position % period_;
    const Real* const std = c.std.data() + position % period_;
    for (size_t i = 0; i < count; ++i) x[i] = (x[i] - mean[i]) / std[i];
    return;
  }
  const bool is_one = c.mean.size() == 1;
  for (size_t i = 0; i < count;) {
    const size_t at = position + i;
    const size_t channel = is_one ? 0 : at / spec_.channel_items % c.mean.size();
    const size_t end = is_one ? count : std::min(count, i + spec_.channel_items - at % spec_.channel_items);
    const Real mean = c.mean[channel];
    const Real std = c.std[channel];
    for (; i < end; ++i) x[i] = (x[i] - mean) / std;
  }
}

template <typename Real>
ZARRFEED_INLINE void Converter::apply(Real* x, size_t count, size_t position, const Constants<Real>& c) const {
  for (const Real fill : c.fills) {
    for (size_t i = 0; i < count; ++i) x[i] = x[i] == fill ? std::numeric_limits<Real>::quiet_NaN() : x[i];
  }
  if (spec_.scale) {
    for (size_t i = 0; i < count; ++i) x[i] *= c.scale;
  }
  if (spec_.offset) {
    for (size_t i = 0; i < count; ++i) x[i] += c.offset;
  }
  if (!c.mean.empty()) normalise(x, count, position, c);
}

template <typename Real>
void Converter::calculate(uint8_t* dest, const uint8_t* source, size_t count, size_t position,
                          const Constants<Real>& c) const {
  Real x[kBlock];
  load_(reinterpret_cast<uint8_t*>(x), source, count);
  if (has_avx2()) {
    apply_avx2(x, count, position, c);
  } else {
    apply(x, count, position, c);
  }
  store_(dest, reinterpret_cast<const uint8_t*>(x), count);
}

template <typename Real>
ZARRFEED_AVX2 void Converter::apply_avx2(Real* x, size_t count, size_t position, const Constants<Real>& c) const {
  apply(x, count, position, c);
}

}  // namespace zarrfeed
