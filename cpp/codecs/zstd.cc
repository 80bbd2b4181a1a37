// Zstandard (RFC 8878): one or more frames, with or without a declared content size.

#include <string>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {

size_t decode_zstd(Bytes in, MutableBytes out, DecodeScratch& scratch) {
  const size_t n = ZSTD_decompressDCtx(scratch.zstd(), out.data(), out.size(), in.data(), in.size());
  if (ZSTD_isError(n) != 0) {
    throw_corrupt("zstd data does not decode to " + std::to_string(out.size()) + " bytes: " + ZSTD_getErrorName(n));
  }
  return n;
}

}  // namespace zarrfeed
