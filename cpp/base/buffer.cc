#include "base/buffer.h"

#include <cstdlib>
#include <new>

#include "base/huge_pages.h"

namespace zarrfeed {

void Buffer::free() {
  if (capacity_ >= kHugePage) {
    unmap_pages(data_, capacity_);
  } else {
    std::free(data_);
  }
  data_ = nullptr;
  capacity_ = 0;
}

MutableBytes Buffer::reserve(size_t size) {
  if (size > capacity_ || data_ == nullptr) {
    constexpr size_t kAlignment = 64;
    free();
    size_t rounded = round_up(size + 1, kAlignment);
    if (rounded >= kHugePage) {
      rounded = round_up(size, kHugePage);
      data_ = map_pages(rounded);
    } else {
      data_ = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, rounded));
      if (data_ == nullptr) throw std::bad_alloc();
    }
    capacity_ = rounded;
  }
  return {data_, size};
}

}  // namespace zarrfeed
