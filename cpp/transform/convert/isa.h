#pragma once
// Instruction sets that loops over items are compiled for. The results are the same bits.

#include <cstdint>

namespace zarrfeed {

enum class Isa : uint8_t {
  kBase,  ///< what every processor of the architecture has: SSE2, or NEON
  kAvx2,
  kAvx512,  ///< of processors that do not slow down for it: those that have VBMI2
};

/// True if nearly all processors of this architecture can do more than kBase: those for x86-64 have AVX2 since 2013.
#if defined(__x86_64__)
constexpr bool kBaseIsRare = true;
#else
constexpr bool kBaseIsRare = false;
#endif

/// The best one that this processor has.
inline Isa best_isa() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0) {
    return Isa::kAvx512;
  }
  if (__builtin_cpu_supports("avx2") != 0) return Isa::kAvx2;
#endif
  return Isa::kBase;
}

}  // namespace zarrfeed

// Before a function: compiles it for an instruction set. What it calls must be inlined to be, too.
#if !defined(__x86_64__)
#define ZARRFEED_AVX2
#define ZARRFEED_AVX512
#elif defined(__clang__)
#define ZARRFEED_AVX2 __attribute__((target("avx2")))
#define ZARRFEED_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define ZARRFEED_AVX2 __attribute__((target("avx2")))
#define ZARRFEED_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#endif
// No [[gnu::always_inline]]: clang takes it in front of __attribute__ alone, and GCC in any order.
#define ZARRFEED_INLINE __attribute__((always_inline)) inline
