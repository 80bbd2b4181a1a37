// Blosc 1 containers, by our own walk over their blocks.
//
// Layout (c-blosc README_CHUNK_FORMAT): a header of 16 bytes (format version, codec version, flags, typesize, then
// nbytes, blocksize and cbytes as little-endian int32), a table of block offsets, and the blocks. A block is one or
// `typesize` streams ("splits"), each behind its compressed size; a stream as long as its output is stored raw.
// The walk is ours for three reasons: every offset and size of hostile input is checked here against what the metadata
// implies; a block can be decoded on its own; and bit-shuffled blocks whose length is no multiple of typesize follow
// c-blosc 1, which wrote them (blosc2 4.14.1 decodes those silently wrong).

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "codec.h"

namespace zarrfeed {
namespace {

constexpr size_t kHeaderBytes = 16;
constexpr uint8_t kFormatVersion = 2;
constexpr uint8_t kByteShuffle = 0x1;
constexpr uint8_t kMemcpyed = 0x2;
constexpr uint8_t kBitShuffle = 0x4;
constexpr uint8_t kDontSplit = 0x10;
constexpr int32_t kMaxSplits = 16;
constexpr int32_t kMinSplitElements = 128;

enum class Compressor : uint8_t { kBlosclz = 0, kLz4 = 1, kSnappy = 2, kZlib = 3, kZstd = 4 };

struct Header {
  uint8_t flags;
  int32_t typesize;
  int32_t nbytes;
  int32_t blocksize;
  int32_t cbytes;
  [[nodiscard]] Compressor compressor() const { return static_cast<Compressor>(flags >> 5); }
};

std::string quantity(const char* what, int64_t got, const char* relation, int64_t allowed) {
  return std::string("Blosc ") + what + " = " + std::to_string(got) + ", must be " + relation + " " +
         std::to_string(allowed);
}

Header parse_header(Bytes in, size_t out_bytes) {
  if (in.size() < kHeaderBytes) {
    throw_corrupt("a Blosc header has 16 bytes, the chunk holds " + std::to_string(in.size()));
  }
  const Header h{in[2], in[3], static_cast<int32_t>(load_le32(&in[4])), static_cast<int32_t>(load_le32(&in[8])),
                 static_cast<int32_t>(load_le32(&in[12]))};
  if (in[0] != kFormatVersion) throw_corrupt(quantity("format version", in[0], "exactly", kFormatVersion));
  if (h.nbytes < 0 || static_cast<size_t>(h.nbytes) > out_bytes) {
    throw_corrupt("Blosc header declares " + std::to_string(h.nbytes) + " decoded bytes, the metadata implies " +
                  std::to_string(out_bytes));
  }
  if (h.cbytes < static_cast<int32_t>(kHeaderBytes) || static_cast<size_t>(h.cbytes) > in.size()) {
    throw_corrupt("Blosc header declares " + std::to_string(h.cbytes) + " stored bytes, the chunk holds " +
                  std::to_string(in.size()));
  }
  if (h.typesize < 1) throw_corrupt(quantity("typesize", h.typesize, "at least", 1));
  if (h.nbytes > 0 && (h.blocksize < 1 || h.blocksize > h.nbytes)) {
    throw_corrupt("Blosc blocksize = " + std::to_string(h.blocksize) +
                  ", must be between 1 and nbytes = " + std::to_string(h.nbytes));
  }
  return h;
}

/// Decompresses one stream of exactly `out.size()` bytes. False: the stream is corrupt.
bool decompress_stream(Compressor compressor, Bytes in, MutableBytes out, DecodeScratch& scratch) {
  const auto in_size = static_cast<int>(in.size());
  const auto out_size = static_cast<int>(out.size());
  switch (compressor) {
    case Compressor::kBlosclz:
      return blosclz_decompress(in.data(), in_size, out.data(), out_size) == out_size;
    case Compressor::kLz4:
      return LZ4_decompress_safe(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(out.data()), in_size,
                                 out_size) == out_size;
    case Compressor::kZlib:
      return decode_zlib(in, out, scratch) == out.size();
    case Compressor::kZstd:
      return decode_zstd(in, out, scratch) == out.size();
    case Compressor::kSnappy:
      throw Error(ErrorKind::kUnsupported, "Blosc with snappy is not supported: the bundled Blosc has no snappy");
  }
  throw_corrupt("Blosc header names codec " + std::to_string(static_cast<int>(compressor)) + ", which does not exist");
}

/// Undoes byte- or bit-shuffling of one block.
void unshuffle_block(const Header& h, const uint8_t* src, MutableBytes out) {
  const auto size = static_cast<int32_t>(out.size());
  if ((h.flags & kByteShuffle) != 0) {
    blosc2_unshuffle(h.typesize, size, src, out.data());
    return;
  }
  // c-blosc 1 bit-shuffles a block only if it has a multiple of 8 whole elements; the bytes behind those stay as they are.
  const int32_t elements = size / h.typesize;
  const int32_t shuffled = elements % 8 == 0 ? elements * h.typesize : 0;
  if (shuffled > 0) blosc2_bitunshuffle(h.typesize, shuffled, src, out.data());
  std::memcpy(out.data() + shuffled, src + shuffled, static_cast<size_t>(size - shuffled));
}

/// Decodes the block that begins at `in[offset]` into `out`.
void decode_block(const Header& h, Bytes in, size_t offset, bool is_leftover, MutableBytes out,
                  DecodeScratch& scratch) {
  const bool unshuffle = (h.flags & kByteShuffle) != 0 ? h.typesize > 1 : (h.flags & kBitShuffle) != 0;
  const MutableBytes target = unshuffle ? scratch.block.reserve(out.size()) : out;
  const bool split = (h.flags & kDontSplit) == 0 && h.typesize <= kMaxSplits &&
                     h.blocksize / h.typesize >= kMinSplitElements && !is_leftover;
  const size_t streams = split ? static_cast<size_t>(h.typesize) : 1;
  const size_t stream_bytes = out.size() / streams;
  if (stream_bytes * streams != out.size()) {
    throw_corrupt("Blosc blocksize " + std::to_string(h.blocksize) + " is no multiple of its " +
                  std::to_string(streams) + " streams");
  }
  for (size_t i = 0; i < streams; ++i) {
    if (offset > in.size() || in.size() - offset < 4) throw_corrupt("Blosc block begins outside of the chunk");
    const auto stored = static_cast<int32_t>(load_le32(&in[offset]));
    offset += 4;
    if (stored < 0 || static_cast<size_t>(stored) > in.size() - offset) {
      throw_corrupt("Blosc stream of " + std::to_string(stored) + " bytes ends outside of the chunk");
    }
    const Bytes source = in.subspan(offset, static_cast<size_t>(stored));
    const MutableBytes dest = target.subspan(i * stream_bytes, stream_bytes);
    if (source.size() == stream_bytes) {
      std::memcpy(dest.data(), source.data(), stream_bytes);
    } else if (!decompress_stream(h.compressor(), source, dest, scratch)) {
      throw_corrupt("Blosc stream does not decode to " + std::to_string(stream_bytes) + " bytes");
    }
    offset += source.size();
  }
  if (unshuffle) unshuffle_block(h, target.data(), out);
}

/// blosc2 picks its shuffle for this processor at first use, without a lock.
void warm_up_shuffle() {
  static std::once_flag once;
  std::call_once(once, [] {
    const uint8_t src[16] = {};
    uint8_t dest[16];
    blosc2_unshuffle(2, 16, src, dest);
    blosc2_bitunshuffle(2, 16, src, dest);
  });
}

}  // namespace

size_t decode_blosc(Bytes in, MutableBytes out, DecodeScratch& scratch) {
  const Header h = parse_header(in, out.size());
  const auto nbytes = static_cast<size_t>(h.nbytes);
  in = in.first(static_cast<size_t>(h.cbytes));
  if (nbytes == 0) return 0;
  if ((h.flags & kMemcpyed) != 0) {
    if (in.size() - kHeaderBytes < nbytes) {
      throw_corrupt("Blosc header declares " + std::to_string(nbytes) + " raw bytes, the chunk holds " +
                    std::to_string(in.size() - kHeaderBytes));
    }
    std::memcpy(out.data(), in.data() + kHeaderBytes, nbytes);
    return nbytes;
  }
  warm_up_shuffle();
  const auto blocksize = static_cast<size_t>(h.blocksize);
  const size_t blocks = (nbytes + blocksize - 1) / blocksize;
  if ((in.size() - kHeaderBytes) / 4 < blocks) {
    throw_corrupt("Blosc header implies " + std::to_string(blocks) + " blocks, more than the chunk has room for");
  }
  for (size_t b = 0; b < blocks; ++b) {
    const size_t begin = b * blocksize;
    const size_t size = std::min(blocksize, nbytes - begin);
    const auto offset = static_cast<int32_t>(load_le32(&in[kHeaderBytes + 4 * b]));
    if (offset < static_cast<int32_t>(kHeaderBytes)) throw_corrupt("Blosc block begins outside of the chunk");
    decode_block(h, in, static_cast<size_t>(offset), size < blocksize, out.subspan(begin, size), scratch);
  }
  return nbytes;
}

}  // namespace zarrfeed
