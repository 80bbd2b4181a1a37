#include <new>
#include <string>

#include "base/buffer.h"
#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {

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
