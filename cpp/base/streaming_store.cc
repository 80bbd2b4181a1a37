#include "base/streaming_store.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace zarrfeed {

#if defined(__x86_64__)

void copy_streaming(uint8_t* dest, const uint8_t* source, size_t bytes) {
  constexpr size_t kVector = 16;  // every x86-64 processor has these, and joins four of them to a line
  const size_t head = std::min(bytes, (kVector - reinterpret_cast<uintptr_t>(dest) % kVector) % kVector);
  std::memcpy(dest, source, head);
  size_t i = head;
  for (; i + kVector <= bytes; i += kVector) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dest + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
  }
  std::memcpy(dest + i, source + i, bytes - i);
}

void fence_streaming_stores() {
  _mm_sfence();
}

#else

void copy_streaming(uint8_t* dest, const uint8_t* source, size_t bytes) {
  std::memcpy(dest, source, bytes);
}

void fence_streaming_stores() {}

#endif

}  // namespace zarrfeed
