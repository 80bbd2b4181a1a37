#include "codecs/codec_pipeline.h"

#include <ranges>
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
    if (codec.element_bytes < 1)
      throw Error(ErrorKind::kConfig, codec.name + ": element_bytes = 0, must be at least 1");
    if (codec.stride < 1) throw Error(ErrorKind::kConfig, codec.name + ": stride = 0, must be at least 1");
    steps_.push_back({&find_codec(codec.name), codec});
    is_view_ = is_view_ && steps_.back().entry->checksum != nullptr;
  }
  is_blosc_ = steps_.size() == 1 && steps_[0].entry->name == "blosc";
  find_rooms();
  if (steps_.empty()) return;
  const Step& last = steps_.back();
  const bool is_shuffle = last.entry->undo == undo_shuffle || last.entry->undo == undo_hdf5_shuffle;
  if (is_shuffle && decoded_bytes % last.codec.element_bytes == 0) shuffled_element_ = last.codec.element_bytes;
}

/// From the last step to the first: a filter is given as many bytes as it makes, and a checksum 4 more. The metadata do not
/// say how many bytes a compressor is given, and hence not how many the steps before it make.
void CodecPipeline::find_rooms() {
  size_t size = decoded_bytes_;
  bool is_exact = true;
  for (Step& step : std::views::reverse(steps_)) {
    step.room = is_exact ? size : with_overhead(decoded_bytes_);
    step.is_exact = is_exact;
    if (step.entry->decode != nullptr) is_exact = false;
    if (step.entry->checksum != nullptr) size += kChecksumBytes;
  }
}

size_t CodecPipeline::max_stored_bytes() const {
  size_t size = decoded_bytes_;
  for (size_t i = 0; i < steps_.size(); ++i) size = with_overhead(size);
  // Blosc tolerates trailing bytes, so the bound is generous; it is there for objects that are no chunk at all.
  return 2 * size + (size_t{1} << 20);
}

Bytes CodecPipeline::decode(Bytes stored, MutableBytes out, DecodeScratch& scratch) const {
  return run(steps_.size(), stored, out, scratch);
}

Bytes CodecPipeline::decode_planes(Bytes stored, DecodeScratch& scratch) const {
  return run(steps_.size() - 1, stored, {}, scratch);
}

Bytes CodecPipeline::run(size_t count, Bytes stored, MutableBytes out, DecodeScratch& scratch) const {
  Bytes current = stored;
  size_t parity = 0;
  for (size_t i = 0; i < count; ++i) {
    const Step& step = steps_[i];
    if (step.entry->checksum != nullptr) {
      current = verify_checksum(current, step.codec.checksum_at_start, step.entry->name, step.entry->checksum);
      continue;
    }
    // `out` has no room for the bytes with a checksum beside them, so only the last step writes there.
    MutableBytes room = out;
    if (i + 1 != steps_.size()) {
      room = scratch.intermediate[parity].reserve(step.room);
      parity ^= 1;
    }
    if (step.entry->decode != nullptr) {
      current = room.first(step.entry->decode(current, room, step.codec, scratch));
    } else {
      if (step.is_exact || current.size() > step.room) check_decoded_bytes(current.size(), step.room);
      step.entry->undo(current, room.data(), step.codec);
      current = room.first(current.size());
    }
  }
  check_decoded_bytes(current.size(), decoded_bytes_);
  return current;
}

void check_decoded_bytes(size_t decoded, size_t implied) {
  if (decoded == implied) return;
  throw_corrupt("decodes to " + std::to_string(decoded) + " bytes, the metadata implies " + std::to_string(implied));
}

}  // namespace zarrfeed
