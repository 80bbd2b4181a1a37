#include "transform/blosc_scatter.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/streaming_store.h"
#include "codecs/blosc.h"
#include "codecs/codec_pipeline.h"
#include "codecs/unshuffle.h"

namespace zarrfeed {
namespace {

/// The part of a block that belongs to one row.
struct Piece {
  size_t begin;  ///< in the block, bytes
  size_t size;
  uint8_t* dest;
};

/// Lists the targets of each row.
void list_targets(std::span<const RowTarget> targets, size_t rows, BloscScatterScratch& scratch) {
  scratch.first_target.assign(rows, 0);
  scratch.next_target.resize(targets.size());
  for (size_t i = targets.size(); i-- > 0;) {
    size_t& first = scratch.first_target[static_cast<size_t>(targets[i].row)];
    scratch.next_target[i] = first;
    first = i + 1;
  }
}

/// Calls copy(piece) for each target whose row has bytes in [begin, begin + size) of the chunk.
template <typename Copy>
void for_each_piece(std::span<const RowTarget> targets, const BloscScatterScratch& lists, size_t row_bytes,
                    size_t begin, size_t size, const Copy& copy) {
  const size_t end = begin + size;
  for (size_t row = begin / row_bytes; row * row_bytes < end; ++row) {
    const size_t row_begin = row * row_bytes;
    const size_t from = std::max(begin, row_begin);
    const size_t to = std::min(end, row_begin + row_bytes);
    for (size_t target = lists.first_target[row]; target != 0; target = lists.next_target[target - 1]) {
      copy(Piece{from - begin, to - from, targets[target - 1].dest + (from - row_begin)});
    }
  }
}

}  // namespace

size_t scatter_blosc(const StoredBytes& stored, size_t decoded_bytes, size_t row_bytes,
                     std::span<const RowTarget> targets, bool streaming, DecodeScratch& codecs,
                     BloscScatterScratch& scratch, const DecodedCopy& also) {
  const BloscChunk chunk(stored, decoded_bytes);
  check_decoded_bytes(chunk.decoded_bytes(), decoded_bytes);
  list_targets(targets, decoded_bytes / row_bytes, scratch);

  // Rows and blocks both have to end between elements for the shuffle to be undone row by row.
  const size_t typesize = chunk.typesize();
  const UnshuffleRange unshuffle =
      chunk.is_byte_shuffled() && row_bytes % typesize == 0 && chunk.block_bytes() % typesize == 0
          ? find_unshuffle_range(typesize)
          : nullptr;
  size_t decoded = 0;
  for (size_t b = 0; b < chunk.num_blocks(); ++b) {
    const size_t begin = b * chunk.block_bytes();
    const size_t size = chunk.header().size_of(b);
    // what of the block is copied elsewhere
    const size_t also_begin = std::max(begin, also.begin);
    const size_t also_end = std::min(begin + size, also.end);
    const bool is_copied = also.out != nullptr && also_begin < also_end;
    bool wanted = is_copied;
    for_each_piece(targets, scratch, row_bytes, begin, size, [&](const Piece&) { wanted = true; });
    if (!wanted) continue;
    decoded += size;
    if (unshuffle != nullptr) {
      const MutableBytes block = codecs.reserve_block(scratch.block, size);
      chunk.decompress_block(b, block, codecs);
      const auto write = [&](size_t from, size_t bytes, uint8_t* dest) {
        unshuffle(block.data(), size / typesize, from / typesize, bytes / typesize, dest, streaming);
      };
      for_each_piece(targets, scratch, row_bytes, begin, size, [&](const Piece& p) { write(p.begin, p.size, p.dest); });
      if (is_copied) write(also_begin - begin, also_end - also_begin, also.out + (also_begin - also.begin));
    } else {
      const bool is_all_copied = is_copied && also_end - also_begin == size;
      const MutableBytes block = is_all_copied ? MutableBytes{also.out + (begin - also.begin), size}
                                               : codecs.reserve_block(scratch.block, size);
      chunk.decode_block(b, block, codecs);
      for_each_piece(targets, scratch, row_bytes, begin, size,
                     [&](const Piece& p) { std::memcpy(p.dest, block.data() + p.begin, p.size); });
      if (is_copied && !is_all_copied) {
        std::memcpy(also.out + (also_begin - also.begin), block.data() + (also_begin - begin), also_end - also_begin);
      }
    }
  }
  if (streaming) fence_streaming_stores();
  return decoded;
}

}  // namespace zarrfeed
