#include "codecs/codec_pipeline.h"

#include <string>
#include <utility>

namespace zarrfeed {
namespace {

/// Room for what one more compressor may have made of `size` bytes that do not compress.
size_t with_overhead(size_t size) {
  return size + size / 8 + 65536;
}

size_t decompress(CodecSpec::Kind kind, Bytes in, MutableBytes out, DecodeScratch& scratch) {
  switch (kind) {
    case CodecSpec::Kind::kBlosc:
      return decode_blosc(in, out, scratch);
    case CodecSpec::Kind::kZstd:
      return decode_zstd(in, out, scratch);
    case CodecSpec::Kind::kGzip:
      return decode_gzip(in, out, scratch);
    case CodecSpec::Kind::kZlib:
      return decode_zlib(in, out, scratch);
    case CodecSpec::Kind::kLz4:
      return decode_lz4(in, out, scratch);
    case CodecSpec::Kind::kCrc32c:
      break;
  }
  throw Error(ErrorKind::kUnsupported, "codec without a decompressor");
}

}  // namespace

CodecPipeline::CodecPipeline(std::vector<CodecSpec> codecs, size_t decoded_bytes)
    : codecs_(std::move(codecs)), decoded_bytes_(decoded_bytes) {
  for (const CodecSpec& codec : codecs_) is_view_ = is_view_ && codec.kind == CodecSpec::Kind::kCrc32c;
}

size_t CodecPipeline::max_stored_bytes() const {
  size_t size = decoded_bytes_;
  for (size_t i = 0; i < codecs_.size(); ++i) size = with_overhead(size);
  // Blosc tolerates trailing bytes, so the bound is generous; it is there for objects that are no chunk at all.
  return 2 * size + (size_t{1} << 20);
}

Bytes CodecPipeline::decode(Bytes stored, MutableBytes out, DecodeScratch& scratch) const {
  Bytes current = stored;
  size_t parity = 0;
  for (size_t i = 0; i < codecs_.size(); ++i) {
    const CodecSpec& codec = codecs_[i];
    if (codec.kind == CodecSpec::Kind::kCrc32c) {
      current = verify_crc32c(current, codec.checksum_at_start);
      continue;
    }
    // What comes after the last decompressor are checksums, and their bytes have no room in `out`.
    MutableBytes room = out;
    if (i + 1 != codecs_.size()) {
      room = scratch.intermediate[parity].reserve(with_overhead(decoded_bytes_));
      parity ^= 1;
    }
    current = room.first(decompress(codec.kind, current, room, scratch));
  }
  if (current.size() != decoded_bytes_) {
    throw_corrupt("decodes to " + std::to_string(current.size()) + " bytes, the metadata implies " +
                  std::to_string(decoded_bytes_));
  }
  return current;
}

}  // namespace zarrfeed
