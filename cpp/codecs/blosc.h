#pragma once
// A Blosc 1 container, block by block.

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {

/// A checked view of one chunk. Construction and all methods throw Error(kCorrupt) for what cannot be decoded.
class BloscChunk {
 public:
  /// Reads the header of `in`, which must declare at most `max_decoded_bytes`. Trailing bytes are ignored.
  BloscChunk(Bytes in, size_t max_decoded_bytes);

  [[nodiscard]] size_t decoded_bytes() const { return decoded_bytes_; }
  [[nodiscard]] size_t num_blocks() const { return num_blocks_; }
  /// Decoded bytes of every block but the last one, which may be shorter.
  [[nodiscard]] size_t block_bytes() const { return block_bytes_; }
  [[nodiscard]] size_t typesize() const { return typesize_; }
  /// True if the blocks are byte-shuffled (and not stored as they are).
  [[nodiscard]] bool is_byte_shuffled() const { return filter_ == Filter::kByteShuffle; }

  /// Decodes block `block` into `out`, which has the size of that block.
  void decode_block(size_t block, MutableBytes out, DecodeScratch& scratch) const;
  /// Decompresses block `block` into `out` and leaves it shuffled.
  void decompress_block(size_t block, MutableBytes out, DecodeScratch& scratch) const;

 private:
  enum class Filter { kNone, kByteShuffle, kBitShuffle };

  Bytes in_;
  uint8_t flags_;
  Filter filter_ = Filter::kNone;
  size_t typesize_;
  size_t decoded_bytes_;
  size_t block_bytes_;
  size_t num_blocks_;
};

}  // namespace zarrfeed
