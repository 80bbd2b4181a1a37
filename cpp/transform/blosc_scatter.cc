#include "transform/blosc_scatter.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/bytes.h"
#include "base/streaming_store.h"
#include "codecs/blosc.h"
#include "codecs/unshuffle.h"

namespace zarrfeed {
namespace {

/// The part of a block that belongs to one row.
struct Piece {
  size_t begin;  ///< in the block, bytes
  size_t size;
  uint8_t* dest;
};

/// Calls copy(piece) for each wanted row that has bytes in [begin, begin + size) of the chunk.
template <typename Copy>
void for_each_piece(std::span<uint8_t* const> dest_of_row, size_t row_bytes, size_t begin, size_t size,
                    const Copy& copy) {
  const size_t end = begin + size;
  for (size_t row = begin / row_bytes; row * row_bytes < end; ++row) {
    if (dest_of_row[row] == nullptr) continue;
    const size_t row_begin = row * row_bytes;
    const size_t from = std::max(begin, row_begin);
    const size_t to = std::min(end, row_begin + row_bytes);
    copy(Piece{from - begin, to - from, dest_of_row[row] + (from - row_begin)});
  }
}

}  // namespace

void scatter_blosc(Bytes stored, size_t decoded_bytes, size_t row_bytes, std::span<const RowTarget> targets,
                   bool streaming, DecodeScratch& codecs, BloscScatterScratch& scratch) {
  const BloscChunk chunk(stored, decoded_bytes);
  if (chunk.decoded_bytes() != decoded_bytes) {
    throw_corrupt("decodes to " + std::to_string(chunk.decoded_bytes()) + " bytes, the metadata implies " +
                  std::to_string(decoded_bytes));
  }
  std::vector<uint8_t*>& dest_of_row = scratch.dest_of_row;
  dest_of_row.assign(decoded_bytes / row_bytes, nullptr);
  scratch.again.clear();
  for (const RowTarget& t : targets) {
    uint8_t*& dest = dest_of_row[static_cast<size_t>(t.row)];
    if (dest == nullptr) {
      dest = t.dest;
    } else {
      scratch.again.push_back(t);
    }
  }

  // Rows and blocks both have to end between elements for the shuffle to be undone row by row.
  const size_t typesize = chunk.typesize();
  const UnshuffleRange unshuffle =
      chunk.is_byte_shuffled() && row_bytes % typesize == 0 && chunk.block_bytes() % typesize == 0
          ? find_unshuffle_range(typesize)
          : nullptr;
  for (size_t b = 0; b < chunk.num_blocks(); ++b) {
    const size_t begin = b * chunk.block_bytes();
    const size_t size = std::min(chunk.block_bytes(), decoded_bytes - begin);
    bool wanted = false;
    for_each_piece(dest_of_row, row_bytes, begin, size, [&](const Piece&) { wanted = true; });
    if (!wanted) continue;
    const MutableBytes block = codecs.reserve_block(scratch.block, size);
    if (unshuffle != nullptr) {
      chunk.decompress_block(b, block, codecs);
      for_each_piece(dest_of_row, row_bytes, begin, size, [&](const Piece& p) {
        unshuffle(block.data(), size / typesize, p.begin / typesize, p.size / typesize, p.dest, streaming);
      });
    } else {
      chunk.decode_block(b, block, codecs);
      for_each_piece(dest_of_row, row_bytes, begin, size,
                     [&](const Piece& p) { std::memcpy(p.dest, block.data() + p.begin, p.size); });
    }
  }
  for (const RowTarget& t : scratch.again) std::memcpy(t.dest, dest_of_row[static_cast<size_t>(t.row)], row_bytes);
  if (streaming) fence_streaming_stores();
}

}  // namespace zarrfeed
