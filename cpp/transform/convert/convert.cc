#include "transform/convert/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "transform/convert/convert_items.h"
#include "transform/convert/functions.h"
#include "transform/convert/isa.h"

// Built with -ffp-contract=off: scale and offset are two roundings on every machine, as in NumPy.

namespace zarrfeed {

using namespace items;

namespace {

template <typename To, typename From>
ZARRFEED_INLINE void convert_loop(uint8_t* __restrict dest, const uint8_t* __restrict source, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    From item;
    std::memcpy(&item, source + i * sizeof(From), sizeof(From));
    const To out = narrow<To>(widen(item));
    std::memcpy(dest + i * sizeof(To), &out, sizeof(To));
  }
}

template <typename To, typename From>
void convert_items_base(uint8_t* dest, const uint8_t* source, size_t count) {
  convert_loop<To, From>(dest, source, count);
}

template <typename To, typename From>
ZARRFEED_AVX2 [[gnu::noinline]] void convert_items_avx2(uint8_t* dest, const uint8_t* source, size_t count) {
  convert_loop<To, From>(dest, source, count);
}

template <typename To, typename From>
ZARRFEED_AVX512 void convert_items_avx512(uint8_t* dest, const uint8_t* source, size_t count) {
  const size_t whole = count / kAvx512Items * kAvx512Items;
  convert_loop<To, From>(dest, source, whole);
  convert_items_avx2<To, From>(dest + whole * sizeof(To), source + whole * sizeof(From), count - whole);
}

/// True if twice as wide registers pay: elsewhere memory bounds the loop, and the code would only be larger.
template <typename To, typename From>
constexpr bool gains_by_avx512() {
  return std::is_same_v<To, Half> || std::is_same_v<To, Brain> || std::is_same_v<From, Half>;
}

using Kernel = void (*)(uint8_t*, const uint8_t*, size_t);

/// The loop over items of type `From` that become `To`.
template <typename To, typename From>
Kernel convert_items(Isa isa) {
  if constexpr (gains_by_avx512<To, From>()) {
    if (isa == Isa::kAvx512) return convert_items_avx512<To, From>;
  }
  if (isa != Isa::kBase) return convert_items_avx2<To, From>;
  return convert_items_base<To, From>;
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

bool is_float(ItemType type) {
  return type == ItemType::kFloat16 || type == ItemType::kBfloat16 || type == ItemType::kFloat32 ||
         type == ItemType::kFloat64;
}

/// True if float32 holds every value.
bool fits_float(ItemType type) {
  return type == ItemType::kFloat32 || bytes_of(type) <= 2;
}

/// True if integers (or bool) of type `from` are all integers of type `to`. Bytes that stand for a bool are any
/// integer.
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
Kernel find_lossless(ItemType from, ItemType to, Isa isa) {
  return with_type(from, [to, isa]<typename From>(std::type_identity<From>) {
    return with_type(to, [isa]<typename To>(std::type_identity<To>) -> Kernel {
      if constexpr (holds<From, To>()) return convert_items<To, From>(isa);
      return nullptr;
    });
  });
}

template <typename Real>
Kernel find_load(ItemType from, Isa isa) {
  return with_type(from,
                   [isa]<typename From>(std::type_identity<From>) -> Kernel { return convert_items<Real, From>(isa); });
}

template <typename Real>
Kernel find_store(ItemType to, Isa isa) {
  return with_type(to, [isa]<typename To>(std::type_identity<To>) -> Kernel {
    if constexpr (std::is_integral_v<To>) {
      return nullptr;
    } else {
      return convert_items<To, Real>(isa);
    }
  });
}

/// The operation of a step on an item; `kIsFunction`: it does nothing where the first number is 0.
struct Normalize {
  static constexpr bool kIsFunction = false;
  template <typename Real>
  ZARRFEED_INLINE static Real apply(Real x, Real mean, Real std) {
    return (x - mean) / std;
  }
};

struct Clip {
  static constexpr bool kIsFunction = false;
  template <typename Real>
  ZARRFEED_INLINE static Real apply(Real x, Real least, Real most) {
    const Real raised = x < least ? least : x;
    return raised > most ? most : raised;
  }
};

struct FillNan {
  static constexpr bool kIsFunction = false;
  template <typename Real>
  ZARRFEED_INLINE static Real apply(Real x, Real value, Real /*unused*/) {
    return x == x ? x : value;
  }
};

struct IsNan {
  static constexpr bool kIsFunction = false;
  template <typename Real>
  ZARRFEED_INLINE static Real apply(Real x, Real /*unused*/, Real /*unused*/) {
    return x == x ? Real{0} : Real{1};
  }
};

template <double (*kFunction)(double)>
struct Function {
  static constexpr bool kIsFunction = true;
  ZARRFEED_INLINE static double apply(double x, double is_applied, double /*unused*/) {
    const double out = kFunction(x);
    return is_applied != 0 ? out : x;
  }
};

bool is_function(StepKind kind) {
  return kind == StepKind::kLog1p || kind == StepKind::kLog || kind == StepKind::kSqrt || kind == StepKind::kExp;
}

}  // namespace

size_t bytes_of(ItemType type) {
  return with_type(type, []<typename T>(std::type_identity<T>) { return sizeof(T); });
}

Converter::Converter(ConversionSpec spec, Isa isa) : spec_(std::move(spec)), isa_(isa) {
  const ItemType from = spec_.from;
  const ItemType to = spec_.to;
  const bool calculates =
      !spec_.fills.empty() || spec_.scale.has_value() || spec_.offset.has_value() || !spec_.steps.empty();
  const bool tells_missing =
      to == ItemType::kBool && !spec_.steps.empty() && spec_.steps.back().kind == StepKind::kIsNan;
  if (!is_float(to) && !tells_missing) {
    cast_ = calculates ? nullptr : find_lossless(from, to, isa);
    if (cast_ == nullptr) throw Error(ErrorKind::kUnsupported, "a conversion to integers that would lose values");
    return;
  }
  const bool is_short = bytes_of(to) == 2;
  in_double_ = spec_.decode_in_double || to == ItemType::kFloat64 || (!fits_float(from) && (calculates || is_short)) ||
               std::ranges::any_of(spec_.steps, [](const ValueStep& step) { return is_function(step.kind); });
  load_ = in_double_ ? find_load<double>(from, isa) : find_load<float>(from, isa);
  store_ = in_double_ ? find_store<double>(to, isa) : find_store<float>(to, isa);
  if (!calculates) {
    if (is_short && from == ItemType::kInt64) load_ = note_items<int64_t>;
    if (is_short && from == ItemType::kUint64) load_ = note_items<uint64_t>;
    if (to == (in_double_ ? ItemType::kFloat64 : ItemType::kFloat32)) cast_ = load_;
    if (from == (in_double_ ? ItemType::kFloat64 : ItemType::kFloat32)) cast_ = store_;
  }
  if (in_double_) {
    double_ = make_constants<double>();
  } else {
    single_ = make_constants<float>();
  }
  if (calculates && in_double_) choose_fused(double_);
  if (calculates && !in_double_) choose_fused(single_);
  for (const ValueStep& step : spec_.steps) {
    if (step.first.size() > 1) repeat_items_ = std::lcm(repeat_items_, step.first.size() * step.channel_items);
  }
  spec_.steps = {};  // there may be a number for each item of a sample, so only what is calculated with is kept
}

template <typename Real>
Converter::Step<Real> Converter::make_step(const ValueStep& step) {
  const size_t channels = step.first.size();
  if (channels < 1 || step.second.size() != channels)
    throw Error(ErrorKind::kConfig, "a step lacks some of its numbers");
  if (channels > 1 && step.channel_items < 1) throw Error(ErrorKind::kConfig, "channel_items = 0, must be at least 1");
  // Shorter runs of one channel cost more to tell apart than to look up item by item.
  const size_t period = channels > 1 && step.channel_items < 64 ? channels * step.channel_items : 0;
  Step<Real> made{step.kind, {}, {}, step.channel_items, period};
  const size_t entries = period > 0 ? period + kBlock : channels;
  made.first.reserve(entries);
  made.second.reserve(entries);
  for (size_t i = 0; i < entries; ++i) {
    const size_t channel = period > 0 ? i / step.channel_items % channels : i;
    made.first.push_back(static_cast<Real>(step.first[channel]));
    made.second.push_back(static_cast<Real>(step.second[channel]));
  }
  return made;
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
  for (const ValueStep& step : spec_.steps) c.steps.push_back(make_step<Real>(step));
  return c;
}

template <typename Real>
void Converter::choose_fused(const Constants<Real>& c) {
  const bool normalises = !c.steps.empty();
  if (c.fills.size() > 1 || c.steps.size() > 1) return;
  if (normalises && (c.steps.front().kind != StepKind::kNormalize || c.steps.front().period > 0)) return;
  const bool unpacks = !c.fills.empty() || spec_.scale || spec_.offset;
  fused_ = find_fused(spec_.from, spec_.to, in_double_, unpacks, normalises, isa_);
  if (!c.fills.empty()) constants_.fill = static_cast<double>(c.fills.front());
  constants_.scale = spec_.scale.value_or(1);
  constants_.offset = spec_.offset.value_or(-0.0);
}

void Converter::convert(uint8_t* dest, const uint8_t* source, size_t count, size_t position) const {
  if (cast_ != nullptr) {
    cast_(dest, source, count);
    return;
  }
  if (fused_ != nullptr) {
    if (in_double_) {
      convert_fused(dest, source, count, position, double_);
    } else {
      convert_fused(dest, source, count, position, single_);
    }
    return;
  }
  for (size_t done = 0; done < count; done += kBlock) {
    const size_t n = std::min(kBlock, count - done);
    uint8_t* const to = dest + done * dest_item_bytes();
    const uint8_t* const from = source + done * source_item_bytes();
    if (in_double_) {
      calculate(to, from, n, position + done, double_);
    } else {
      calculate(to, from, n, position + done, single_);
    }
  }
}

template <typename Real>
void Converter::convert_fused(uint8_t* dest, const uint8_t* source, size_t count, size_t position,
                              const Constants<Real>& c) const {
  if (c.steps.empty()) {
    fused_(dest, source, count, constants_);
    return;
  }
  const Step<Real>& normalise = c.steps.front();
  FusedConstants of_channel = constants_;
  normalise.for_each_channel(count, position, [&](size_t begin, size_t n, size_t channel) {
    of_channel.mean = static_cast<double>(normalise.first[channel]);
    of_channel.std = static_cast<double>(normalise.second[channel]);
    fused_(dest + begin * dest_item_bytes(), source + begin * source_item_bytes(), n, of_channel);
  });
}

template <typename Real>
template <typename Run>
ZARRFEED_INLINE void Converter::Step<Real>::for_each_channel(size_t count, size_t position, const Run& run) const {
  const size_t channels = first.size();
  if (channels <= 1) {
    run(size_t{0}, count, size_t{0});
    return;
  }
  for (size_t i = 0; i < count;) {
    const size_t at = position + i;
    const size_t n = std::min(count - i, channel_items - at % channel_items);
    run(i, n, at / channel_items % channels);
    i += n;
  }
}

template <typename Real>
template <typename Operation>
ZARRFEED_INLINE void Converter::Step<Real>::apply_each(Real* x, size_t count, size_t position) const {
  if (period > 0) {
    const Real* const a = first.data() + position % period;
    const Real* const b = second.data() + position % period;
    for (size_t i = 0; i < count; ++i) x[i] = Operation::apply(x[i], a[i], b[i]);
    return;
  }
  for_each_channel(count, position, [&](size_t begin, size_t n, size_t channel) {
    const Real a = first[channel];
    const Real b = second[channel];
    if (Operation::kIsFunction && a == 0) return;
    for (size_t i = begin; i < begin + n; ++i) x[i] = Operation::apply(x[i], a, b);
  });
}

template <typename Real>
ZARRFEED_INLINE void Converter::Step<Real>::apply(Real* x, size_t count, size_t position) const {
  switch (kind) {
    case StepKind::kNormalize:
      return apply_each<Normalize>(x, count, position);
    case StepKind::kClip:
      return apply_each<Clip>(x, count, position);
    case StepKind::kFillNan:
      return apply_each<FillNan>(x, count, position);
    case StepKind::kIsNan:
      return apply_each<IsNan>(x, count, position);
    default:
      break;
  }
  if constexpr (std::is_same_v<Real, double>) {  // functions are calculated in float64
    if (kind == StepKind::kLog1p) apply_each<Function<functions::log_one_plus>>(x, count, position);
    if (kind == StepKind::kLog) apply_each<Function<functions::natural_log>>(x, count, position);
    if (kind == StepKind::kSqrt) apply_each<Function<functions::square_root>>(x, count, position);
    if (kind == StepKind::kExp) apply_each<Function<functions::exponential>>(x, count, position);
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
  for (const Step<Real>& step : c.steps) step.apply(x, count, position);
}

template <typename Real>
void Converter::calculate(uint8_t* dest, const uint8_t* source, size_t count, size_t position,
                          const Constants<Real>& c) const {
  Real x[kBlock];
  load_(reinterpret_cast<uint8_t*>(x), source, count);
  if (isa_ == Isa::kAvx512) {
    apply_avx512(x, count, position, c);
  } else if (isa_ == Isa::kAvx2) {
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

template <typename Real>
ZARRFEED_AVX512 void Converter::apply_avx512(Real* x, size_t count, size_t position, const Constants<Real>& c) const {
  apply(x, count, position, c);
}

}  // namespace zarrfeed
