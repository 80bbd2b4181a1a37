#include "codecs/blosc_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "base/buffer.h"
#include "base/division.h"
#include "codecs/blosc.h"
#include "codecs/bundled_api.h"
#include "codecs/codec.h"
#include "codecs/unshuffle.h"

namespace zarrfeed {
namespace {

constexpr uint8_t kLz4Version = 1;
constexpr uint8_t kLz4 = 1U << 5;
/// The one with which Blosc compresses at level 5.
constexpr int kAcceleration = 5;
/// A stream begins with its length.
constexpr size_t kLengthBytes = 4;

void store_le32(uint8_t* p, size_t value) {
  for (size_t i = 0; i < 4; ++i) p[i] = static_cast<uint8_t>(value >> (8 * i));
}

/// Makes the header of a container whose blocks have whole items. Items that its one byte has no room for count as bytes.
BloscHeader make_header(size_t decoded_bytes, size_t typesize) {
  BloscHeader header;
  header.typesize = typesize < 1 || typesize > std::numeric_limits<uint8_t>::max() ? 1 : typesize;
  header.decoded_bytes = decoded_bytes;
  header.block_bytes = std::min(decoded_bytes, kWrittenBlockBytes - kWrittenBlockBytes % header.typesize);
  header.num_blocks = ceil_div(decoded_bytes, header.block_bytes);
  return header;
}

void write_header(const BloscHeader& header, uint8_t* out) {
  out[0] = BloscHeader::kFormatVersion;
  out[1] = kLz4Version;
  out[2] = header.flags;
  out[3] = static_cast<uint8_t>(header.typesize);
  store_le32(out + 4, header.decoded_bytes);
  store_le32(out + 8, header.block_bytes);
  store_le32(out + 12, header.stored_bytes);
}

/// Appends the compressed stream, or the stream itself if that is shorter. Returns false if there is no room for it.
bool append_stream(Bytes in, MutableBytes out, size_t& at) {
  if (out.size() - at <= kLengthBytes) return false;
  const MutableBytes room = out.subspan(at + kLengthBytes);
  // A stream as long as its output counts as not compressed.
  const size_t most = std::min(room.size(), in.size() - 1);
  const int compressed =
      LZ4_compress_fast(reinterpret_cast<const char*>(in.data()), reinterpret_cast<char*>(room.data()),
                        static_cast<int>(in.size()), static_cast<int>(most), kAcceleration);
  size_t length = in.size();
  if (compressed > 0) {
    length = static_cast<size_t>(compressed);
  } else if (room.size() >= in.size()) {
    std::memcpy(room.data(), in.data(), in.size());
  } else {
    return false;
  }
  store_le32(out.data() + at, length);
  at += kLengthBytes + length;
  return true;
}

/// Memory of a thread that compresses: the first touch of fresh memory costs as much as to compress what is written there.
struct CompressScratch {
  Buffer shuffled, decoded, packed;
  DecodeScratch codecs;
};

}  // namespace

BloscContainer make_plain_blosc(size_t decoded_bytes, size_t typesize, BloscRoom room) {
  BloscHeader header = make_header(decoded_bytes, typesize);
  header.flags = BloscHeader::kMemcpyed;
  header.stored_bytes = plain_blosc_bytes(decoded_bytes);
  BloscContainer made{std::move(room), header.stored_bytes};
  write_header(header, made.memory.get());
  return made;
}

std::optional<Bytes> compress_blosc(Bytes decoded, size_t typesize) {
  BloscHeader header = make_header(decoded.size(), typesize);
  const bool are_split = header.block_bytes % header.typesize == 0;
  header.flags = static_cast<uint8_t>(kLz4 | (header.typesize > 1 ? BloscHeader::kByteShuffle : 0) |
                                      (are_split ? 0 : BloscHeader::kDontSplit));
  const size_t most = decoded.size() - decoded.size() / 16;
  size_t at = BloscHeader::kBytes + header.table_bytes();
  if (at >= most) return std::nullopt;
  thread_local CompressScratch scratch;
  const MutableBytes out = scratch.packed.reserve(most);
  warm_up_shuffle();
  for (size_t b = 0; b < header.num_blocks; ++b) {
    const Bytes items = decoded.subspan(b * header.block_bytes, header.size_of(b));
    Bytes block = items;
    if (header.typesize > 1) {
      const MutableBytes shuffled = scratch.shuffled.reserve(block.size());
      blosc2_shuffle(static_cast<int32_t>(header.typesize), static_cast<int32_t>(block.size()), block.data(),
                     shuffled.data());
      block = shuffled;
    }
    const size_t begin = at;
    store_le32(out.data() + BloscHeader::kBytes + 4 * b, begin);
    const size_t streams = header.num_streams(block.size());
    const size_t stream_bytes = block.size() / streams;
    for (size_t i = 0; i < streams; ++i) {
      if (!append_stream(block.first(stream_bytes), out, at)) return std::nullopt;
      block = block.subspan(stream_bytes);
    }
    // While it is in the caches of the processor.
    const MutableBytes again = scratch.decoded.reserve(items.size());
    decode_blosc_block(header, Bytes(out).subspan(begin, at - begin), again, scratch.codecs);
    if (!std::ranges::equal(again, items)) return std::nullopt;
  }
  header.stored_bytes = at;
  write_header(header, out.data());
  const Bytes made = out.first(at);
  return BloscChunk(made, decoded.size()).num_blocks() == header.num_blocks ? std::optional(made) : std::nullopt;
}

}  // namespace zarrfeed
