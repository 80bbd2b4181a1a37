// Blosc 1 containers, by our own walk over their blocks.
//
// Layout (c-blosc README_CHUNK_FORMAT): a header of 16 bytes (format version, codec version, flags, typesize, then
// nbytes, blocksize and cbytes as little-endian int32), a table of block offsets, and the blocks. A block is one or
// `typesize` streams ("splits"), each behind its compressed size; a stream as long as its output is stored raw.
// The walk is ours for three reasons: every offset and size of hostile input is checked here against what the metadata
// implies; a block can be decoded on its own; and bit-shuffled blocks whose length is no multiple of typesize follow
// c-blosc 1, which wrote them (blosc2 4.14.1 decodes those silently wrong).

#include "codecs/blosc.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "base/bytes.h"
#include "base/division.h"

namespace zarrfeed {
namespace {

constexpr size_t kHeaderBytes = 16;
constexpr uint8_t kFormatVersion = 2;
constexpr uint8_t kByteShuffle = 0x1;
constexpr uint8_t kMemcpyed = 0x2;
constexpr uint8_t kBitShuffle = 0x4;
constexpr uint8_t kDontSplit = 0x10;
constexpr size_t kMaxSplits = 16;
constexpr size_t kMinSplitElements = 128;

enum class Compressor : uint8_t { kBlosclz = 0, kLz4 = 1, kSnappy = 2, kZlib = 3, kZstd = 4 };

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

BloscChunk::BloscChunk(Bytes in, size_t max_decoded_bytes) : in_(in) {
  if (in.size() < kHeaderBytes) {
    throw_corrupt("a Blosc header has 16 bytes, the chunk holds " + std::to_string(in.size()));
  }
  if (in[0] != kFormatVersion) {
    throw_corrupt("Blosc format version = " + std::to_string(in[0]) + ", must be " + std::to_string(kFormatVersion));
  }
  flags_ = in[2];
  typesize_ = in[3];
  const auto nbytes = static_cast<int32_t>(load_le32(&in[4]));
  const auto blocksize = static_cast<int32_t>(load_le32(&in[8]));
  const auto cbytes = static_cast<int32_t>(load_le32(&in[12]));
  if (nbytes < 0 || static_cast<size_t>(nbytes) > max_decoded_bytes) {
    throw_corrupt("Blosc header declares " + std::to_string(nbytes) + " decoded bytes, the metadata implies " +
                  std::to_string(max_decoded_bytes));
  }
  if (cbytes < static_cast<int32_t>(kHeaderBytes) || static_cast<size_t>(cbytes) > in.size()) {
    throw_corrupt("Blosc header declares " + std::to_string(cbytes) + " stored bytes, the chunk holds " +
                  std::to_string(in.size()));
  }
  if (typesize_ < 1) throw_corrupt("Blosc typesize = 0, must be at least 1");
  if (nbytes > 0 && (blocksize < 1 || blocksize > nbytes)) {
    throw_corrupt("Blosc blocksize = " + std::to_string(blocksize) +
                  ", must be between 1 and nbytes = " + std::to_string(nbytes));
  }
  in_ = in.first(static_cast<size_t>(cbytes));
  decoded_bytes_ = static_cast<size_t>(nbytes);
  block_bytes_ = std::max<size_t>(1, static_cast<size_t>(blocksize));
  num_blocks_ = ceil_div(decoded_bytes_, block_bytes_);
  const size_t payload = in_.size() - kHeaderBytes;
  if ((flags_ & kMemcpyed) != 0) {
    if (payload < decoded_bytes_) {
      throw_corrupt("Blosc header declares " + std::to_string(decoded_bytes_) + " raw bytes, the chunk holds " +
                    std::to_string(payload));
    }
    return;
  }
  if (payload / 4 < num_blocks_) {
    throw_corrupt("Blosc header implies " + std::to_string(num_blocks_) + " blocks, more than the chunk has room for");
  }
  if ((flags_ & kByteShuffle) != 0 && typesize_ > 1) {
    filter_ = Filter::kByteShuffle;
  } else if ((flags_ & kBitShuffle) != 0) {
    filter_ = Filter::kBitShuffle;
  }
  if (filter_ != Filter::kNone) warm_up_shuffle();
}

void BloscChunk::decode_block(size_t block, MutableBytes out, DecodeScratch& scratch) const {
  if (filter_ == Filter::kNone) {
    decompress_block(block, out, scratch);
    return;
  }
  const MutableBytes shuffled = scratch.reserve_block(scratch.block, out.size());
  decompress_block(block, shuffled, scratch);
  const auto typesize = static_cast<int32_t>(typesize_);
  const auto size = static_cast<int32_t>(out.size());
  if (filter_ == Filter::kByteShuffle) {
    blosc2_unshuffle(typesize, size, shuffled.data(), out.data());
    return;
  }
  // c-blosc 1 bit-shuffles a block only if it has a multiple of 8 whole elements; the bytes behind those stay as they
  // are.
  const int32_t elements = size / typesize;
  const int32_t moved = elements % 8 == 0 ? elements * typesize : 0;
  if (moved > 0) blosc2_bitunshuffle(typesize, moved, shuffled.data(), out.data());
  std::memcpy(out.data() + moved, shuffled.data() + moved, static_cast<size_t>(size - moved));
}

void BloscChunk::decompress_block(size_t block, MutableBytes out, DecodeScratch& scratch) const {
  if ((flags_ & kMemcpyed) != 0) {
    std::memcpy(out.data(), in_.data() + kHeaderBytes + block * block_bytes_, out.size());
    return;
  }
  const auto declared_offset = static_cast<int32_t>(load_le32(&in_[kHeaderBytes + 4 * block]));
  if (declared_offset < static_cast<int32_t>(kHeaderBytes)) throw_corrupt("Blosc block begins outside of the chunk");
  auto offset = static_cast<size_t>(declared_offset);
  const bool is_leftover = out.size() < block_bytes_;
  const bool split = (flags_ & kDontSplit) == 0 && typesize_ <= kMaxSplits &&
                     block_bytes_ / typesize_ >= kMinSplitElements && !is_leftover;
  const size_t streams = split ? typesize_ : 1;
  const size_t stream_bytes = out.size() / streams;
  if (stream_bytes * streams != out.size()) {
    throw_corrupt("Blosc blocksize " + std::to_string(block_bytes_) + " is no multiple of its " +
                  std::to_string(streams) + " streams");
  }
  const auto compressor = static_cast<Compressor>(flags_ >> 5);
  for (size_t i = 0; i < streams; ++i) {
    if (offset > in_.size() || in_.size() - offset < 4) throw_corrupt("Blosc block begins outside of the chunk");
    const auto stored = static_cast<int32_t>(load_le32(&in_[offset]));
    offset += 4;
    if (stored < 0 || static_cast<size_t>(stored) > in_.size() - offset) {
      throw_corrupt("Blosc stream of " + std::to_string(stored) + " bytes ends outside of the chunk");
    }
    const Bytes source = in_.subspan(offset, static_cast<size_t>(stored));
    const MutableBytes dest = out.subspan(i * stream_bytes, stream_bytes);
    if (source.size() == stream_bytes) {
      std::memcpy(dest.data(), source.data(), stream_bytes);
    } else if (!decompress_stream(compressor, source, dest, scratch)) {
      throw_corrupt("Blosc stream does not decode to " + std::to_string(stream_bytes) + " bytes");
    }
    offset += source.size();
  }
}

size_t decode_blosc(Bytes in, MutableBytes out, DecodeScratch& scratch) {
  const BloscChunk chunk(in, out.size());
  for (size_t b = 0; b < chunk.num_blocks(); ++b) {
    const size_t begin = b * chunk.block_bytes();
    const size_t size = std::min(chunk.block_bytes(), chunk.decoded_bytes() - begin);
    chunk.decode_block(b, out.subspan(begin, size), scratch);
  }
  return chunk.decoded_bytes();
}

}  // namespace zarrfeed
