#include "transform/convert/convert_fused.h"

#include <cstring>
#include <type_traits>

#include "transform/convert/convert_items.h"

// Built with -ffp-contract=off, as convert.cc.

namespace zarrfeed {

using namespace items;

namespace {

template <typename From, typename Real, typename To, bool kUnpacks, bool kNormalises>
ZARRFEED_INLINE void fused_loop(uint8_t* __restrict dest, const uint8_t* __restrict source, size_t count,
                                const FusedConstants& c) {
  const auto fill = static_cast<Real>(c.fill);
  const auto scale = static_cast<Real>(c.scale);
  const auto offset = static_cast<Real>(c.offset);
  const auto mean = static_cast<Real>(c.mean);
  const auto std = static_cast<Real>(c.std);
  for (size_t i = 0; i < count; ++i) {
    From item;
    std::memcpy(&item, source + i * sizeof(From), sizeof(From));
    auto x = static_cast<Real>(item);
    if constexpr (kUnpacks) {
      x = x == fill ? std::numeric_limits<Real>::quiet_NaN() : x;
      x = x * scale + offset;
    }
    if constexpr (kNormalises) x = (x - mean) / std;
    const To out = narrow<To>(x);
    std::memcpy(dest + i * sizeof(To), &out, sizeof(To));
  }
}

template <typename From, typename Real, typename To, bool kUnpacks, bool kNormalises>
void fused_base(uint8_t* dest, const uint8_t* source, size_t count, const FusedConstants& c) {
  fused_loop<From, Real, To, kUnpacks, kNormalises>(dest, source, count, c);
}

template <typename From, typename Real, typename To, bool kUnpacks, bool kNormalises>
ZARRFEED_AVX2 [[gnu::noinline]] void fused_avx2(uint8_t* dest, const uint8_t* source, size_t count,
                                                const FusedConstants& c) {
  fused_loop<From, Real, To, kUnpacks, kNormalises>(dest, source, count, c);
}

template <typename From, typename Real, typename To, bool kUnpacks, bool kNormalises>
ZARRFEED_AVX512 void fused_avx512(uint8_t* dest, const uint8_t* source, size_t count, const FusedConstants& c) {
  const size_t whole = count / kAvx512Items * kAvx512Items;
  fused_loop<From, Real, To, kUnpacks, kNormalises>(dest, source, whole, c);
  fused_avx2<From, Real, To, kUnpacks, kNormalises>(dest + whole * sizeof(To), source + whole * sizeof(From),
                                                    count - whole, c);
}

/// The stored types of images, packed fields and measurements; for rarer ones, AVX2 is enough.
template <typename From>
constexpr bool is_common() {
  return sizeof(From) <= 2 || std::is_same_v<From, float>;
}

template <typename From, typename Real, typename To>
FusedKernel choose(bool unpacks, bool normalises, Isa isa) {
  const auto kernel = [isa]<bool kUnpacks, bool kNormalises>() -> FusedKernel {
    if constexpr (is_common<From>()) {
      if (isa == Isa::kAvx512) return fused_avx512<From, Real, To, kUnpacks, kNormalises>;
    }
    if (isa != Isa::kBase) return fused_avx2<From, Real, To, kUnpacks, kNormalises>;
    // If hardly any processor needs these loops, the passes are enough: they are 100 KB of code.
    if constexpr (kBaseIsRare) {
      return nullptr;
    } else {
      return fused_base<From, Real, To, kUnpacks, kNormalises>;
    }
  };
  if (unpacks && normalises) return kernel.template operator()<true, true>();
  if (unpacks) return kernel.template operator()<true, false>();
  return normalises ? kernel.template operator()<false, true>() : nullptr;
}

}  // namespace

FusedKernel find_fused(ItemType from, ItemType to, bool in_double, bool unpacks, bool normalises, Isa isa) {
  return with_type(from, [=]<typename From>(std::type_identity<From>) -> FusedKernel {
    if constexpr (std::is_same_v<From, float> || std::is_integral_v<From>) {
      if (in_double) {
        return to == ItemType::kFloat32 ? choose<From, double, float>(unpacks, normalises, isa) : nullptr;
      }
    }
    if constexpr (std::is_same_v<From, float> || (std::is_integral_v<From> && sizeof(From) <= 2)) {
      if (to == ItemType::kFloat32) return choose<From, float, float>(unpacks, normalises, isa);
      if (to == ItemType::kBfloat16) return choose<From, float, Brain>(unpacks, normalises, isa);
      if (to == ItemType::kFloat16) return choose<From, float, Half>(unpacks, normalises, isa);
    }
    return nullptr;
  });
}

}  // namespace zarrfeed
