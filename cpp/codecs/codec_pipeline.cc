#include "codecs/codec_pipeline.h"

#include <string>

namespace zarrfeed {
namespace {

/// Room for what one more compressor may have made of `size` bytes that do not compress.
size_t with_overhead(size_t size) {
  return size + size / 8 + 65536;
}

}  // namespace

CodecPipeline::CodecPipeline(const std::vector<CodecSpec>& codecs, size_t decoded_bytes)
    : decoded_bytes_(decoded_bytes) {
  for (const CodecSpec& codec : codecs) {
    steps_.push_back({&find_codec(codec.name), codec.checksum_at_start});
    is_view_ = is_view_ && steps_.back().codec->decode == nullptr;
  }
  is_blosc_ = steps_.size() == 1 && steps_[0].codec->decode == decode_blosc;
}

size_t CodecPipeline::max_stored_bytes() const {
  size_t size = decoded_bytes_;
  for (size_t i = 0; i < steps_.size(); ++i) size = with_overhead(size);
  // Blosc tolerates trailing bytes, so the bound is generous; it is there for objects that are no chunk at all.
  return 2 * size + (size_t{1} << 20);
}

Bytes CodecPipeline::decode(Bytes stored, MutableBytes out, DecodeScratch& scratch) const {
  Bytes current = stored;
  size_t parity = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (step.codec->decode == nullptr) {
      current = verify_crc32c(current, step.checksum_at_start);
      continue;
    }
    // What comes after the last decompressor are checksums, and their bytes have no room in `out`.
    MutableBytes room = out;
    if (i + 1 != steps_.size()) {
      room = scratch.intermediate[parity].reserve(with_overhead(decoded_bytes_));
      parity ^= 1;
    }
    current = room.first(step.codec->decode(current, room, scratch));
  }
  check_decoded_bytes(current.size(), decoded_bytes_);
  return current;
}

void check_decoded_bytes(size_t decoded, size_t implied) {
  if (decoded == implied) return;
  throw_corrupt("decodes to " + std::to_string(decoded) + " bytes, the metadata implies " + std::to_string(implied));
}

}  // namespace zarrfeed
