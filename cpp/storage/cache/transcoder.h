#pragma once
// The codecs of an array whose chunks the node cache keeps as Blosc chunks with LZ4.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "codecs/blosc_writer.h"
#include "codecs/codec_pipeline.h"
#include "spec/codec_spec.h"

namespace zarrfeed {

/// Memory of plain containers of one size, which is used again: the first touch of fresh memory costs as much as to
/// compress what is written there. Thread-safe.
class BloscRooms : public std::enable_shared_from_this<BloscRooms> {
 public:
  explicit BloscRooms(size_t bytes) : bytes_(bytes) {}
  ~BloscRooms();
  BloscRooms(const BloscRooms&) = delete;
  BloscRooms& operator=(const BloscRooms&) = delete;

  /// Returns memory, which comes back when its last owner drops it.
  BloscRoom take();

 private:
  void give_back(std::unique_ptr<uint8_t[]> memory);

  const size_t bytes_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<uint8_t[]>> spare_;
};

/// Thread-safe.
class Transcoder {
 public:
  /// `codecs`: those of the stored chunks. A chunk decodes to `decoded_bytes`, whose items have `item_bytes`.
  Transcoder(const std::vector<CodecSpec>& codecs, size_t decoded_bytes, size_t item_bytes)
      : pipeline_(codecs, decoded_bytes),
        item_bytes_(item_bytes),
        rooms_(std::make_shared<BloscRooms>(plain_blosc_bytes(decoded_bytes))) {}

  /// Decodes a stored chunk to a plain container. Throws Error(kCorrupt).
  [[nodiscard]] BloscContainer decode(Bytes stored, DecodeScratch& scratch) const;
  /// Compresses a plain container, see compress_blosc(); nothing if that does not pay.
  [[nodiscard]] std::optional<Bytes> compress(const BloscContainer& plain) const {
    return compress_blosc(plain.payload(), item_bytes_);
  }

 private:
  const CodecPipeline pipeline_;
  const size_t item_bytes_;
  const std::shared_ptr<BloscRooms> rooms_;
};

}  // namespace zarrfeed
