// Filters of HDF5 that compress block by block: LZ4 (32004), and bitshuffle with LZ4 or Zstandard (32008). Both begin with the
// decoded size and the size of a block, big-endian, and each block with its own size.
//
// Sources: H5Zlz4.c and bitshuffle's bshuf_h5filter.c.

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "codecs/codec.h"
#include "codecs/unshuffle.h"

namespace zarrfeed {
namespace {

constexpr size_t kWord = 4;
/// Bitshuffle takes so many elements at a time; those behind the last such run stay as they are.
constexpr size_t kRun = 8;
constexpr size_t kMostBlock = std::numeric_limits<int32_t>::max();

/// Reads a chunk from its beginning: the sizes, then block by block.
class Blocks {
 public:
  Blocks(Bytes in, size_t room) : rest_(in) {
    const Bytes sizes = take(3 * kWord);
    const uint64_t total = uint64_t{load_be32(sizes.data())} << 32U | load_be32(sizes.data() + kWord);
    if (total > room) {
      throw_corrupt("the chunk declares " + std::to_string(total) + " bytes, the metadata implies " +
                    std::to_string(room));
    }
    total_ = total;
    block_bytes_ = load_be32(sizes.data() + 2 * kWord);
    if (block_bytes_ == 0 || block_bytes_ > kMostBlock) {
      throw_corrupt("the chunk declares blocks of " + std::to_string(block_bytes_) + " bytes");
    }
  }

  [[nodiscard]] size_t total() const { return total_; }
  [[nodiscard]] size_t block_bytes() const { return block_bytes_; }

  Bytes take(size_t size) {
    if (size > rest_.size()) throw_corrupt("the chunk ends inside of a block");
    const Bytes taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }

  /// The stored bytes of the next block, which its size stands before.
  Bytes take_block() { return take(load_be32(take(kWord).data())); }

 private:
  Bytes rest_;
  size_t total_ = 0;
  size_t block_bytes_ = 0;
};

void decode_lz4_block(Bytes in, MutableBytes out, DecodeScratch&) {
  const int made =
      in.size() > kMostBlock
          ? -1
          : LZ4_decompress_safe(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()),
                                static_cast<int>(in.size()), static_cast<int>(out.size()));
  if (made < 0 || static_cast<size_t>(made) != out.size()) throw_corrupt("lz4 block is corrupt");
}

void decode_zstd_block(Bytes in, MutableBytes out, DecodeScratch& scratch) {
  if (decode_zstd(in, out, scratch) != out.size()) throw_corrupt("zstd block is corrupt");
}

/// Undoes the bitshuffle of whole runs of elements.
void bitunshuffle(size_t element_bytes, Bytes in, uint8_t* out) {
  if (in.empty()) return;
  warm_up_shuffle();
  const auto made =
      blosc2_bitunshuffle(static_cast<int32_t>(element_bytes), static_cast<int32_t>(in.size()), in.data(), out);
  if (made < 0 || static_cast<size_t>(made) != in.size()) throw_corrupt("bitshuffle block is corrupt");
}

size_t whole_runs(size_t bytes, size_t element_bytes) {
  return element_bytes > bytes / kRun ? 0 : bytes - bytes % (kRun * element_bytes);
}

template <void (*kDecode)(Bytes, MutableBytes, DecodeScratch&)>
size_t decode_bitshuffled(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch) {
  Blocks blocks(in, out.size());
  const size_t runs = whole_runs(blocks.total(), codec.element_bytes);
  if (whole_runs(blocks.block_bytes(), codec.element_bytes) != blocks.block_bytes()) {
    throw_corrupt("bitshuffle blocks of " + std::to_string(blocks.block_bytes()) +
                  " bytes have no whole runs of elements");
  }
  for (size_t made = 0; made < runs;) {
    const MutableBytes room = scratch.reserve_block(scratch.block, std::min(blocks.block_bytes(), runs - made));
    kDecode(blocks.take_block(), room, scratch);
    bitunshuffle(codec.element_bytes, room, out.data() + made);
    made += room.size();
  }
  const Bytes rest = blocks.take(blocks.total() - runs);
  if (!rest.empty()) std::memcpy(out.data() + runs, rest.data(), rest.size());
  return blocks.total();
}

}  // namespace

size_t decode_hdf5_lz4(Bytes in, MutableBytes out, const CodecSpec&, DecodeScratch& scratch) {
  Blocks blocks(in, out.size());
  for (size_t made = 0; made < blocks.total();) {
    const MutableBytes room = out.subspan(made, std::min(blocks.block_bytes(), blocks.total() - made));
    const Bytes stored = blocks.take_block();
    if (stored.size() == room.size()) {  // it did not compress
      std::memcpy(room.data(), stored.data(), stored.size());
    } else {
      decode_lz4_block(stored, room, scratch);
    }
    made += room.size();
  }
  return blocks.total();
}

size_t decode_bitshuffle_lz4(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch) {
  return decode_bitshuffled<decode_lz4_block>(in, out, codec, scratch);
}

size_t decode_bitshuffle_zstd(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch) {
  return decode_bitshuffled<decode_zstd_block>(in, out, codec, scratch);
}

void undo_bitshuffle(Bytes in, uint8_t* out, const CodecSpec& codec) {
  const size_t runs = whole_runs(in.size(), codec.element_bytes);
  const size_t block =
      std::min(codec.run_bytes == 0 ? runs : codec.run_bytes, whole_runs(kMostBlock, codec.element_bytes));
  if (block == 0 && runs > 0) {
    throw_corrupt("bitshuffle takes no elements of " + std::to_string(codec.element_bytes) + " bytes");
  }
  for (size_t made = 0; made < runs; made += block) {
    bitunshuffle(codec.element_bytes, in.subspan(made, std::min(block, runs - made)), out + made);
  }
  if (in.size() > runs) std::memcpy(out + runs, in.data() + runs, in.size() - runs);
}

}  // namespace zarrfeed
