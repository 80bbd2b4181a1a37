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
#include <string>

#include "base/bytes.h"
#include "base/division.h"
#include "base/stored_bytes.h"
#include "codecs/unshuffle.h"

namespace zarrfeed {
namespace {

enum class Filter { kNone, kByte, kBit };

/// The filter of the blocks.
Filter filter_of(const BloscHeader& header) {
  if (header.is_memcpyed()) return Filter::kNone;
  if ((header.flags & BloscHeader::kByteShuffle) != 0 && header.typesize > 1) return Filter::kByte;
  return (header.flags & BloscHeader::kBitShuffle) != 0 ? Filter::kBit : Filter::kNone;
}

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

/// Decompresses a block from its stored bytes, or those and more, and leaves it filtered.
void decompress(const BloscHeader& header, Bytes stored, MutableBytes out, DecodeScratch& scratch) {
  if (header.is_memcpyed()) {
    if (stored.size() < out.size()) throw_corrupt("Blosc block ends outside of the chunk");
    std::memcpy(out.data(), stored.data(), out.size());
    return;
  }
  const size_t streams = header.num_streams(out.size());
  const size_t stream_bytes = out.size() / streams;
  if (stream_bytes * streams != out.size()) {
    throw_corrupt("Blosc blocksize " + std::to_string(header.block_bytes) + " is no multiple of its " +
                  std::to_string(streams) + " streams");
  }
  const auto compressor = static_cast<Compressor>(header.flags >> 5);
  size_t offset = 0;
  for (size_t i = 0; i < streams; ++i) {
    if (stored.size() - offset < 4) throw_corrupt("Blosc block begins outside of the chunk");
    const auto length = static_cast<int32_t>(load_le32(&stored[offset]));
    offset += 4;
    if (length < 0 || static_cast<size_t>(length) > stored.size() - offset) {
      throw_corrupt("Blosc stream of " + std::to_string(length) + " bytes ends outside of the chunk");
    }
    const Bytes source = stored.subspan(offset, static_cast<size_t>(length));
    const MutableBytes dest = out.subspan(i * stream_bytes, stream_bytes);
    if (source.size() == stream_bytes) {
      std::memcpy(dest.data(), source.data(), stream_bytes);
    } else if (!decompress_stream(compressor, source, dest, scratch)) {
      throw_corrupt("Blosc stream does not decode to " + std::to_string(stream_bytes) + " bytes");
    }
    offset += source.size();
  }
}

}  // namespace

BloscChunk::BloscChunk(const StoredBytes& in, size_t max_decoded_bytes)
    : in_(in), head_(in.from(0)), header_(BloscHeader::read(head_, in.size(), max_decoded_bytes)) {
  head_ = head_.first(std::min(head_.size(), header_.stored_bytes));
  if (head_.size() - BloscHeader::kBytes < header_.table_bytes()) {
    throw Error(ErrorKind::kConfig, "the table of a Blosc chunk was not read");
  }
  check_blosc_table(header_, head_.subspan(BloscHeader::kBytes));
}

bool BloscChunk::is_byte_shuffled() const {
  return filter_of(header_) == Filter::kByte;
}

Bytes BloscChunk::stored_from(size_t block) const {
  const size_t begin = header_.is_memcpyed() ? BloscHeader::kBytes + block * header_.block_bytes
                                             : load_le32(&head_[BloscHeader::kBytes + 4 * block]);
  if (in_.is_whole()) return head_.subspan(begin);
  const Bytes read = in_.from(begin);
  if (read.empty()) throw Error(ErrorKind::kConfig, "a Blosc block is decoded that was not read");
  return read.first(std::min(read.size(), header_.stored_bytes - begin));
}

void BloscChunk::decode_block(size_t block, MutableBytes out, DecodeScratch& scratch) const {
  decode_blosc_block(header_, stored_from(block), out, scratch);
}

void BloscChunk::decompress_block(size_t block, MutableBytes out, DecodeScratch& scratch) const {
  decompress(header_, stored_from(block), out, scratch);
}

void decode_blosc_block(const BloscHeader& header, Bytes stored, MutableBytes out, DecodeScratch& scratch) {
  const Filter filter = filter_of(header);
  if (filter == Filter::kNone) {
    decompress(header, stored, out, scratch);
    return;
  }
  const MutableBytes shuffled = scratch.reserve_block(scratch.block, out.size());
  decompress(header, stored, shuffled, scratch);
  if (filter == Filter::kByte) {
    unshuffle(header.typesize, shuffled, out.data());
    return;
  }
  warm_up_shuffle();
  const auto typesize = static_cast<int32_t>(header.typesize);
  const auto size = static_cast<int32_t>(out.size());
  // c-blosc 1 bit-shuffles a block only if it has a multiple of 8 whole elements; the bytes behind those stay as they
  // are.
  const int32_t elements = size / typesize;
  const int32_t moved = elements % 8 == 0 ? elements * typesize : 0;
  if (moved > 0) blosc2_bitunshuffle(typesize, moved, shuffled.data(), out.data());
  std::memcpy(out.data() + moved, shuffled.data() + moved, static_cast<size_t>(size - moved));
}

size_t decode_blosc(Bytes in, MutableBytes out, DecodeScratch& scratch) {
  const BloscChunk chunk(in, out.size());
  for (size_t b = 0; b < chunk.num_blocks(); ++b) {
    const size_t begin = b * chunk.block_bytes();
    chunk.decode_block(b, out.subspan(begin, chunk.header().size_of(b)), scratch);
  }
  return chunk.decoded_bytes();
}

}  // namespace zarrfeed
