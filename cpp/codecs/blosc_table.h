#pragma once
// The places of a chunk's Blosc blocks among its stored bytes: its header and its table, believed as little as the
// index of a shard.
//
// A chunk is a header of 16 bytes, a table of 4 bytes a Blosc block, and the blocks, in any order: writers with threads store
// a block as it is ready. The table has no lengths: a block ends where the next one in storage begins, or where the stored
// bytes of the chunk do. A chunk that is "memcpyed" has no table; its blocks lie as they decode.
//
// Invariants:
//   * Header and table are enough to know the range of every block. Ranges lie behind the table, inside of the chunk.
//   * A header or an entry that cannot be is Error(kCorrupt), whichever block is wanted: such a chunk is bad for all.
//     Damage inside of a block is bad for those that want this block.
//   * Nothing is allocated on the word of the header but 8 bytes a block, for which the caller has the table already.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/stored_bytes.h"

namespace zarrfeed {

/// The header of a Blosc 1 chunk, checked.
struct BloscHeader {
  static constexpr size_t kBytes = 16;

  /// Reads the header in front of `stored`, of a chunk with `stored_bytes` stored bytes that decodes to at most
  /// `max_decoded_bytes`. Bytes that are stored behind the chunk are ignored. Throws Error(kCorrupt).
  static BloscHeader read(Bytes stored, size_t stored_bytes, size_t max_decoded_bytes);

  [[nodiscard]] bool is_memcpyed() const { return (flags & kMemcpyed) != 0; }
  /// Bytes of the table behind the header.
  [[nodiscard]] size_t table_bytes() const { return is_memcpyed() ? 0 : 4 * num_blocks; }
  /// Decoded bytes of a block: the last one may be shorter than the others.
  [[nodiscard]] size_t size_of(size_t block) const;
  /// Streams that a block of `size` decoded bytes is compressed as: one, or one for each byte of an item.
  [[nodiscard]] size_t num_streams(size_t size) const;

  static constexpr uint8_t kFormatVersion = 2;
  static constexpr uint8_t kByteShuffle = 0x1;
  static constexpr uint8_t kMemcpyed = 0x2;
  static constexpr uint8_t kBitShuffle = 0x4;
  static constexpr uint8_t kDontSplit = 0x10;

  uint8_t flags = 0;
  size_t typesize = 1;
  size_t decoded_bytes = 0;
  size_t block_bytes = 1;  ///< decoded, of every block but the last one
  size_t num_blocks = 0;
  size_t stored_bytes = 0;  ///< of the chunk, header and table included
};

/// Throws Error(kCorrupt) unless every entry of the table behind the header lies where a block may begin.
void check_blosc_table(const BloscHeader& header, Bytes table);

/// The stored bytes of each Blosc block of a chunk.
class BloscTable {
 public:
  using Range = StoredRange;

  /// `table` has the header.table_bytes() bytes behind the header. Throws Error(kCorrupt).
  BloscTable(const BloscHeader& header, Bytes table);

  /// The range of the stored bytes of a block. The ranges of two blocks are disjoint, or the same.
  [[nodiscard]] Range range_of(size_t block) const;

 private:
  BloscHeader header_;
  std::vector<uint32_t> begins_;  ///< by block; empty if the chunk has no table
  std::vector<uint32_t> sorted_;  ///< the same, ascending
};

}  // namespace zarrfeed
