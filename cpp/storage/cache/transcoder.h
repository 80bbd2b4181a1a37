#pragma once
// The codecs of an array whose chunks the node cache keeps as Blosc chunks with LZ4.

#include <cstddef>
#include <vector>

#include "base/bytes.h"
#include "codecs/blosc_writer.h"
#include "codecs/codec_pipeline.h"
#include "spec/codec_spec.h"

namespace zarrfeed {

/// Thread-safe.
class Transcoder {
 public:
  /// `codecs`: those of the stored chunks. A chunk decodes to `decoded_bytes`, whose items have `item_bytes`.
  Transcoder(const std::vector<CodecSpec>& codecs, size_t decoded_bytes, size_t item_bytes)
      : pipeline_(codecs, decoded_bytes), item_bytes_(item_bytes) {}

  /// Decodes a stored chunk to a plain container. Throws Error(kCorrupt).
  [[nodiscard]] BloscContainer decode(Bytes stored, DecodeScratch& scratch) const;
  /// Compresses a plain container; nothing if that does not pay.
  [[nodiscard]] std::optional<BloscContainer> compress(const BloscContainer& plain) const {
    return compress_blosc(plain.payload(), item_bytes_);
  }

 private:
  const CodecPipeline pipeline_;
  const size_t item_bytes_;
};

}  // namespace zarrfeed
