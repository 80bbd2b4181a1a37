#pragma once
// The bytes-to-bytes codecs: compressors, filters and checksums. Each decodes one whole chunk from memory to memory, checks
// every declared size against the room it was given, and allocates nothing on the word of the stored bytes.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "codecs/bundled_api.h"
#include "spec/codec_spec.h"

namespace zarrfeed {

/// The memory that one thread keeps between chunks: contexts and temporary buffers. Not thread-safe.
class DecodeScratch {
 public:
  DecodeScratch() = default;
  ~DecodeScratch();
  DecodeScratch(const DecodeScratch&) = delete;
  DecodeScratch& operator=(const DecodeScratch&) = delete;

  ZSTD_DCtx_s* zstd();
  /// An inflate stream reset to `window_bits` (15: zlib, 31: gzip).
  zng_stream& inflate(int window_bits);

  /// Makes room in `buffer` for a Blosc block of `size` bytes. Throws Error(kCorrupt) if that is above `max_block_bytes`:
  /// a damaged header may declare blocks as large as the chunk, which is more memory than was planned.
  MutableBytes reserve_block(Buffer& buffer, size_t size) const;

  size_t max_block_bytes = std::numeric_limits<size_t>::max();
  Buffer block;            ///< one Blosc block before unshuffling
  Buffer intermediate[2];  ///< between two codecs of a chain

 private:
  ZSTD_DCtx_s* zstd_ = nullptr;
  std::unique_ptr<zng_stream> inflate_;
};

/// Each decodes `in` into `out` and returns the number of bytes written.
/// Throws Error(kCorrupt) when the input does not decode, or decodes to more than `out` holds.
/// `exact` says that anything but out.size() bytes is an error, which lets headers be refused early.
size_t decode_blosc(Bytes in, MutableBytes out, DecodeScratch& scratch);
size_t decode_zstd(Bytes in, MutableBytes out, DecodeScratch& scratch);
size_t decode_gzip(Bytes in, MutableBytes out, DecodeScratch& scratch);
size_t decode_zlib(Bytes in, MutableBytes out, DecodeScratch& scratch);
size_t decode_lz4(Bytes in, MutableBytes out, DecodeScratch& scratch);

/// As above, for compressors of other formats than Zarr, some of which look at `codec`.
size_t decode_lzf(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch);
size_t decode_lzw(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch);
size_t decode_hdf5_lz4(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch);
size_t decode_bitshuffle_lz4(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch);
size_t decode_bitshuffle_zstd(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch);
/// Fills a chunk up with zeros that has codec.run_bytes bytes, such as the last strip of an image.
size_t decode_short(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch);

/// Each writes to `out`, of in.size() bytes, what the encoder was given. `in` and `out` do not overlap.
/// Throws Error(kCorrupt) if `in` does not consist of whole elements of codec.element_bytes.
void undo_shuffle(Bytes in, uint8_t* out, const CodecSpec& codec);
/// As undo_shuffle(), but bytes behind the last whole element stay where they are.
void undo_hdf5_shuffle(Bytes in, uint8_t* out, const CodecSpec& codec);
void undo_bitshuffle(Bytes in, uint8_t* out, const CodecSpec& codec);
void undo_delta(Bytes in, uint8_t* out, const CodecSpec& codec);

constexpr size_t kChecksumBytes = 4;

/// Checks the 4 bytes of a checksum behind (or in front of) the payload, and returns the payload. `name` is that of the
/// codec, for messages. Throws Error(kCorrupt).
Bytes verify_checksum(Bytes in, bool at_start, std::string_view name, uint32_t (*checksum)(Bytes data));

/// CRC-32C (Castagnoli) of `data`, as RFC 3720 appendix B.4 defines it.
uint32_t crc32c(Bytes data);
/// Fletcher-32 of `data`, as HDF5 defines it (H5_checksum_fletcher32).
uint32_t fletcher32(Bytes data);

/// Big-endian 32-bit integer at `p`.
inline uint32_t load_be32(const uint8_t* p) {
  return static_cast<uint32_t>(p[3]) | static_cast<uint32_t>(p[2]) << 8 | static_cast<uint32_t>(p[1]) << 16 |
         static_cast<uint32_t>(p[0]) << 24;
}

/// Little-endian 32-bit integer at `p`.
inline uint32_t load_le32(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
         static_cast<uint32_t>(p[3]) << 24;
}

}  // namespace zarrfeed
