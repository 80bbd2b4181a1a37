#include <cstdlib>
#include <new>
#include <string>

#include "base/huge_pages.h"
#include "codecs/codec.h"

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

MutableBytes DecodeScratch::reserve_block(Buffer& buffer, size_t size) const {
  if (size > max_block_bytes) {
    throw_corrupt("Blosc header declares blocks of " + std::to_string(size) + " bytes, at most " +
                  std::to_string(max_block_bytes) + " are plausible for this array");
  }
  return buffer.reserve(size);
}

DecodeScratch::~DecodeScratch() {
  if (zstd_ != nullptr) ZSTD_freeDCtx(zstd_);
  if (inflate_ != nullptr) zng_inflateEnd(inflate_.get());
}

ZSTD_DCtx_s* DecodeScratch::zstd() {
  if (zstd_ == nullptr) zstd_ = ZSTD_createDCtx();
  if (zstd_ == nullptr) throw std::bad_alloc();
  return zstd_;
}

zng_stream& DecodeScratch::inflate(int window_bits) {
  int32_t status = 0;
  if (inflate_ == nullptr) {
    auto stream = std::make_unique<zng_stream>();
    status = zng_inflateInit2(stream.get(), window_bits);
    if (status == 0) inflate_ = std::move(stream);
  } else {
    status = zng_inflateReset2(inflate_.get(), window_bits);
  }
  if (status != 0) throw std::bad_alloc();
  return *inflate_;
}

}  // namespace zarrfeed
