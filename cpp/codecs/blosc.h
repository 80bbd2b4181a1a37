#pragma once
// A Blosc 1 container, block by block.

#include "base/bytes.h"
#include "base/stored_bytes.h"
#include "codecs/blosc_table.h"
#include "codecs/codec.h"

namespace zarrfeed {

/// A checked view of one chunk. Construction and all methods throw Error(kCorrupt) for what cannot be decoded.
class BloscChunk {
 public:
  /// Reads the header of `in`, which must declare at most `max_decoded_bytes`, and looks at its table. Trailing bytes are
  /// ignored. Of a chunk of which parts were read, the first one has header and table; only blocks that were read decode.
  BloscChunk(const StoredBytes& in, size_t max_decoded_bytes);

  [[nodiscard]] const BloscHeader& header() const { return header_; }
  [[nodiscard]] size_t decoded_bytes() const { return header_.decoded_bytes; }
  [[nodiscard]] size_t num_blocks() const { return header_.num_blocks; }
  /// Decoded bytes of every block but the last one, which may be shorter.
  [[nodiscard]] size_t block_bytes() const { return header_.block_bytes; }
  [[nodiscard]] size_t typesize() const { return header_.typesize; }
  /// The table, and what lies behind it.
  [[nodiscard]] Bytes table() const { return head_.subspan(BloscHeader::kBytes); }
  /// True if the blocks are byte-shuffled (and not stored as they are).
  [[nodiscard]] bool is_byte_shuffled() const;

  /// Decodes block `block` into `out`, which has the size of that block.
  void decode_block(size_t block, MutableBytes out, DecodeScratch& scratch) const;
  /// Decompresses block `block` into `out` and leaves it shuffled.
  void decompress_block(size_t block, MutableBytes out, DecodeScratch& scratch) const;

 private:
  [[nodiscard]] Bytes stored_from(size_t block) const;

  StoredBytes in_;
  Bytes head_;  ///< of in_, as far as it was read in one run, and not beyond the chunk
  BloscHeader header_;
};

/// Decodes a block of a chunk from its stored bytes, behind which others may follow, into `out`, which has the size of the
/// block. Throws Error(kCorrupt).
void decode_blosc_block(const BloscHeader& header, Bytes stored, MutableBytes out, DecodeScratch& scratch);

}  // namespace zarrfeed
