#include "tests/support/file_compress.h"

#include <algorithm>
#include <map>
#include <utility>

namespace zarrfeed::testing {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kRun = 8;

void append_be32(ByteVector& to, size_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<uint8_t>(value >> shift));
}

/// Copies of what stands up to 300 bytes before, literals otherwise. What does not become smaller stays as it is.
ByteVector compress_lzf(ByteView data) {
  constexpr size_t kFarthest = 300;
  ByteVector out;
  ByteVector literals;
  const auto flush = [&] {
    for (size_t at = 0; at < literals.size(); at += 32) {
      const ByteView part = ByteView(literals).subspan(at, std::min<size_t>(32, literals.size() - at));
      out.push_back(static_cast<uint8_t>(part.size() - 1));
      append(out, part);
    }
    literals.clear();
  };
  for (size_t at = 0; at < data.size();) {
    size_t best = 0;
    size_t distance = 0;
    for (size_t back = 1; back <= std::min(at, kFarthest); ++back) {
      size_t length = 0;
      while (length < 264 && at + length < data.size() && data[at + length] == data[at + length - back]) ++length;
      if (length > best) std::tie(best, distance) = std::pair(length, back - 1);
    }
    if (best < 3) {
      literals.push_back(data[at++]);
      continue;
    }
    flush();
    const size_t code = std::min<size_t>(best - 2, 7);
    out.push_back(static_cast<uint8_t>(code << 5U | distance >> 8U));
    if (code == 7) out.push_back(static_cast<uint8_t>(best - 9));
    out.push_back(static_cast<uint8_t>(distance));
    at += best;
  }
  flush();
  return out.size() < data.size() ? out : ByteVector(data.begin(), data.end());
}

ByteVector compress_lzw(ByteView data) {
  constexpr unsigned kClear = 256;
  constexpr unsigned kEnd = 257;
  constexpr unsigned kMost = 4094;
  ByteVector out;
  uint64_t bits = 0;
  unsigned count = 0;
  unsigned next = 0;
  std::map<std::pair<unsigned, uint8_t>, unsigned> table;
  const auto write = [&](unsigned code, unsigned width) {
    bits = bits << width | code;
    for (count += width; count >= 8; count -= 8) out.push_back(static_cast<uint8_t>(bits >> (count - 8)));
  };
  const auto width = [&] { return next < 512 ? 9U : next < 1024 ? 10U : next < 2048 ? 11U : 12U; };
  const auto clear = [&](unsigned at_width) {
    write(kClear, at_width);
    table.clear();
    next = 258;
  };
  clear(9);
  size_t at = 0;
  while (at < data.size()) {
    unsigned code = data[at++];
    while (at < data.size() && table.contains({code, data[at]})) code = table[{code, data[at++]}];
    write(code, width());
    if (at == data.size()) break;
    table[{code, data[at]}] = next++;
    if (next == kMost) clear(width());
  }
  ++next;  // the reader adds a string with the last code, too
  write(kEnd, width());
  if (count > 0) write(0, 8 - count);
  return out;
}

/// An LZ4 block of nothing but literals.
ByteVector lz4_literals(ByteView data) {
  ByteVector out{static_cast<uint8_t>(std::min<size_t>(15, data.size()) << 4U)};
  if (data.size() >= 15) {
    size_t rest = data.size() - 15;
    for (; rest >= 255; rest -= 255) out.push_back(255);
    out.push_back(static_cast<uint8_t>(rest));
  }
  append(out, data);
  return out;
}

ByteVector any_lz4_block(ByteView data) {
  ByteVector block = lz4_block(data);
  return block.empty() ? lz4_literals(data) : block;
}

ByteVector block_header(size_t bytes, size_t block) {
  ByteVector out;
  append_be32(out, 0);
  append_be32(out, bytes);
  append_be32(out, block);
  return out;
}

ByteVector compress_hdf5_lz4(ByteView data) {
  ByteVector out = block_header(data.size(), kBlock);
  for (size_t at = 0; at < data.size(); at += kBlock) {
    const ByteView part = data.subspan(at, std::min(kBlock, data.size() - at));
    ByteVector block = lz4_block(part);
    if (block.empty() || block.size() >= part.size()) block.assign(part.begin(), part.end());
    append_be32(out, block.size());
    append(out, block);
  }
  return out;
}

/// Bit b of byte k of all elements, for each k and b.
ByteVector bitshuffle(ByteView data, size_t element) {
  ByteVector out(data.size());
  const size_t count = data.size() / element;
  for (size_t i = 0; i < count; ++i) {
    for (size_t bit = 0; bit < 8 * element; ++bit) {
      const unsigned is_set = data[i * element + bit / 8] >> (bit % 8) & 1U;
      out[(bit * count + i) / 8] |= static_cast<uint8_t>(is_set << (i % 8));
    }
  }
  return out;
}

/// Blocks of `block` bytes, the last of which is shorter; what is left of runs of 8 elements stands behind them.
template <typename Store>
void bitshuffle_blocks(ByteView data, size_t element, size_t block, const Store& store) {
  const size_t runs = data.size() - data.size() % (kRun * element);
  for (size_t at = 0; at < runs; at += block) store(bitshuffle(data.subspan(at, std::min(block, runs - at)), element));
}

ByteVector compress_bitshuffled(ByteView data, size_t element, bool with_zstd) {
  const size_t block = std::max<size_t>(1, kBlock / (kRun * element)) * kRun * element;
  ByteVector out = block_header(data.size(), block);
  bitshuffle_blocks(data, element, block, [&](const ByteVector& part) {
    const ByteVector stored = with_zstd ? compress_zstd(part) : any_lz4_block(part);
    append_be32(out, stored.size());
    append(out, stored);
  });
  append(out, data.last(data.size() % (kRun * element)));
  return out;
}

ByteVector subtract(const CodecSpec& codec, ByteView data) {
  ByteVector out(data.begin(), data.end());
  const size_t run = codec.run_bytes == 0 ? data.size() : codec.run_bytes;
  const size_t element = codec.element_bytes;
  for (size_t begin = 0; begin < data.size(); begin += run) {
    const size_t end = std::min(data.size(), begin + run);
    for (size_t at = begin + codec.stride * element; at + element <= end; at += element) {
      unsigned borrow = 0;
      for (size_t k = 0; k < element; ++k) {
        const size_t byte = at + (codec.big_endian ? element - 1 - k : k);
        const unsigned less = data[byte - codec.stride * element] + borrow;
        borrow = data[byte] < less ? 1 : 0;
        out[byte] = static_cast<uint8_t>(data[byte] - less);
      }
    }
  }
  return out;
}

}  // namespace

ByteVector encode_for_file(const CodecSpec& codec, ByteView data) {
  if (codec.name == "zarrfeed.lzf") return compress_lzf(data);
  if (codec.name == "zarrfeed.lzw") return compress_lzw(data);
  if (codec.name == "zarrfeed.hdf5_lz4") return compress_hdf5_lz4(data);
  if (codec.name == "zarrfeed.bitshuffle_lz4") return compress_bitshuffled(data, codec.element_bytes, false);
  if (codec.name == "zarrfeed.bitshuffle_zstd") return compress_bitshuffled(data, codec.element_bytes, true);
  if (codec.name.ends_with("delta")) return subtract(codec, data);
  if (codec.name == "zarrfeed.shuffle") {
    const size_t rest = data.size() % codec.element_bytes;
    ByteVector whole = shuffle_bytes(data.first(data.size() - rest), codec.element_bytes);
    append(whole, data.last(rest));
    return whole;
  }
  if (codec.name == "zarrfeed.short") {
    const ByteView begin = data.first(std::min(codec.run_bytes, data.size()));
    return {begin.begin(), begin.end()};
  }
  ByteVector out;
  bitshuffle_blocks(data, codec.element_bytes, codec.run_bytes, [&](const ByteVector& part) { append(out, part); });
  append(out, data.last(data.size() % (kRun * codec.element_bytes)));
  return out;
}

}  // namespace zarrfeed::testing
