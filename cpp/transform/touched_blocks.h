#pragma once
// The Blosc blocks of a chunk that wanted bytes touch, decoded without the others.
//
// Invariants, wherever some of a chunk is wanted:
//   * Those who want something say which bytes of the decoded chunk it is: rows their own, patches the boxes that they have
//     in the chunk. Decoded are exactly the Blosc blocks that such bytes lie in, each once, and all of them before anything
//     is copied.
//   * Memory is that of these blocks, which lie one behind the other, and of one crop; in all no more than that of a chunk.
//   * Nobody but this class knows where. Others get a run of bytes that was wanted, or a crop whose items lie side by side,
//     so bytes of other blocks are read by nobody: asking for them is an error. The exception are arrays with chosen items
//     (ArraySpec::chosen), whose copying code (BoxCopy) reads chosen items alone: their blocks are decoded in place.
//   * Only chunks whose one codec is Blosc are taken apart, and chunks without codecs of which parts were read. Where more
//     than half of the blocks are touched, or where somebody keeps the chunk for others, it is decoded whole; of arrays with
//     chosen items, all blocks that a chosen item of any row touches.
//   * What is known of a block is 8 bytes, and no block has fewer than 128: little beside the chunk.
//   * A header or a table that is damaged is an error, whatever is wanted. Damage of a block is one for those who touch it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/stored_bytes.h"
#include "codecs/blosc.h"
#include "codecs/codec.h"
#include "spec/array_spec.h"
#include "transform/axis_items.h"
#include "transform/patches/chunk_crop.h"

namespace zarrfeed {

/// Not thread-safe: part of a thread's scratch, used for one chunk after another.
class TouchedBlocks {
 public:
  /// Begins with a chunk, which must decode to `decoded_bytes`; nothing of it is wanted yet. Borrows `array`, and
  /// `stored` until the next chunk. False, and nothing else may be called: there is one block, or they are too small to be
  /// told apart in little memory. Throws Error(kCorrupt).
  [[nodiscard]] bool begin(const ArraySpec& array, const StoredBytes& stored, size_t decoded_bytes);
  /// Begins with a chunk that is stored as it decodes, and of which parts were read. It is divided into blocks of
  /// kRawBlock, and copied from where it lies: decode() decodes nothing, and returns 0.
  [[nodiscard]] bool begin_raw(const ArraySpec& array, const StoredBytes& stored, size_t decoded_bytes);
  /// Bytes [begin, begin + size) of the decoded chunk are wanted; size is not 0.
  void add(size_t begin, size_t size) {
    const size_t last = block_of(begin + size - 1);
    for (size_t b = block_of(begin); b <= last; ++b) {
      num_touched_ += at_[b] == kNowhere ? 1 : 0;
      at_[b] = kTouched;
    }
  }
  /// The items of a crop are wanted.
  void add(const ChunkCrop& crop);
  /// Begins rows, of which row 0 is this crop: of another one, crops are the same but for the index along the sample axis.
  void begin_rows(const ChunkCrop& first);
  /// A row is wanted. Returns whether it touches a block that none before did.
  bool add_row(int64_t row) {
    const size_t before = num_touched_;
    const size_t at = static_cast<size_t>(row) * row_stride_;
    for (const Run& run : runs_of_row_) add(run.begin + at, run.size);
    return num_touched_ != before;
  }
  /// Items are wanted that lie, along each axis of the array, in one of some ranges, which ascend and do not touch.
  void add(const std::vector<std::vector<ChunkItems>>& ranges);
  /// The number of blocks that were touched.
  [[nodiscard]] size_t num_touched() const { return num_touched_; }
  /// True if the chunk is better decoded whole: most of its blocks are touched, or memory would be more than that for
  /// it.
  [[nodiscard]] bool are_most() const {
    return 2 * num_touched_ > header_.num_blocks ||
           num_touched_ * header_.block_bytes + crop_room_ > header_.decoded_bytes;
  }

  /// The range of stored bytes of each touched block, in the order of blocks. A chunk's table may let ranges overlap or
  /// descend.
  [[nodiscard]] std::vector<StoredRange> stored_ranges() const;

  /// Decodes the touched blocks to `room`, and returns how many bytes these are. row_at() then counts in rows of
  /// `row_bytes`. Throws Error(kCorrupt).
  size_t decode(Buffer& room, DecodeScratch& scratch, size_t row_bytes = 1);

  /// Decodes the touched blocks to their places in `chunk`, memory for the whole chunk, whose other bytes stay as they are.
  /// Returns how many bytes these are; the functions below may not be called. Throws Error(kCorrupt).
  size_t decode_in_place(MutableBytes chunk, DecodeScratch& scratch) const;

  /// The decoded bytes [begin, begin + size), all of which add() named. Throws Error(kConfig) if some were not decoded.
  [[nodiscard]] const uint8_t* bytes(size_t begin, size_t size) const;
  /// The items of a crop, which add() named, side by side; valid until the next call.
  [[nodiscard]] const uint8_t* crop(const ChunkCrop& crop) const;
  /// Copies the items of a crop, which add() named, to `out`, which has room for crop_bytes().
  void copy(const ChunkCrop& crop, uint8_t* out) const;
  /// The position of row `row` of the chunk in memory(), counted in rows of `row_bytes`. add() named the row, which is
  /// one run of bytes.
  [[nodiscard]] int64_t row_at(int64_t row) const {
    const size_t block = block_of(static_cast<size_t>(row) * row_bytes_);
    if (at_[block] == kNowhere) refuse(static_cast<size_t>(row) * row_bytes_, row_bytes_);
    return row + rows_moved_[block];
  }
  [[nodiscard]] const uint8_t* memory() const { return memory_; }

  /// Bytes of a chunk without codecs that are told apart: those of a page, which storage reads at once.
  static constexpr size_t kRawBlock = 4096;
  /// Numbers of 32 bits name the bytes of a chunk.
  static constexpr size_t kMostBytes = size_t{1} << 31;

 private:
  /// c-blosc makes no smaller blocks; those of a header that lies may have a byte each.
  static constexpr size_t kLeastBlock = 128;
  // Marks of a block that does not lie in memory, and of one that will. Chunks have less than 2 GiB.
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr uint32_t kTouched = UINT32_MAX - 1;

  /// Bytes of the decoded chunk.
  struct Run {
    size_t begin;
    size_t size;
  };

  /// The block of a byte. Rows may be short and many, and numbers of 64 bits take long to divide.
  [[nodiscard]] size_t block_of(size_t byte) const {
    return static_cast<uint32_t>(byte) / static_cast<uint32_t>(header_.block_bytes);
  }
  [[noreturn]] static void refuse(size_t begin, size_t size);
  bool begin(const ArraySpec& array, const BloscHeader& header);

  const ArraySpec* array_ = nullptr;
  std::optional<BloscChunk> chunk_;  ///< none: a chunk without codecs
  StoredBytes raw_;                  ///< that chunk
  BloscHeader header_;               ///< where blocks are
  size_t num_touched_ = 0;
  std::vector<int32_t> rows_moved_;  ///< by block: by how many rows it lies elsewhere than in the chunk
  std::vector<uint32_t> at_;         ///< by block: where it lies in memory_
  std::vector<Run> runs_of_row_;     ///< what row 0 has
  std::vector<Run> runs_;            ///< of add() with ranges
  std::vector<Run> inner_runs_;
  size_t row_stride_ = 0;      ///< bytes from one row of the chunk to the next
  size_t crop_room_ = 0;       ///< for the largest crop whose items do not lie side by side in the chunk
  uint8_t* memory_ = nullptr;  ///< the blocks, then that room
  size_t blocks_end_ = 0;
  size_t row_bytes_ = 1;
};

}  // namespace zarrfeed
