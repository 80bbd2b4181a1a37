#include "tests/support/compress.h"

#include <blosc2.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

// After blosc2.h: the compiler compares what both declare.
#include "base/division.h"
#include "codecs/codec.h"

extern "C" {
int blosclz_compress(int level, const void* input, int length, void* output, int max_output, blosc2_context* context);
int LZ4_compressBound(int size);
int LZ4_compress_default(const char* source, char* dest, int source_size, int dest_capacity);
size_t ZSTD_compressBound(size_t size);
size_t ZSTD_compress(void* dest, size_t dest_capacity, const void* source, size_t source_size, int level);
size_t zng_compressBound(size_t size);
int32_t zng_compress2(uint8_t* dest, size_t* dest_size, const uint8_t* source, size_t source_size, int32_t level);
int32_t zng_deflateInit2(zng_stream* stream, int32_t level, int32_t method, int32_t window_bits, int32_t mem_level,
                         int32_t strategy);
int32_t zng_deflate(zng_stream* stream, int32_t flush);
int32_t zng_deflateEnd(zng_stream* stream);
}

namespace zarrfeed::testing {
namespace {

constexpr size_t kBloscHeader = 16;
constexpr uint8_t kMemcpyed = 0x2;
constexpr uint8_t kDontSplit = 0x10;

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("cannot compress: ") + what);
}

ByteVector blosc_header(uint8_t flags, uint8_t typesize, size_t nbytes, size_t blocksize) {
  ByteVector out = {2, 1, flags, typesize};
  out.resize(kBloscHeader);
  store_le32(out, 4, static_cast<uint32_t>(nbytes));
  store_le32(out, 8, static_cast<uint32_t>(blocksize));
  return out;
}

/// Byte b of every item together, b ascending; a part of an item at the end stays.
ByteVector byte_shuffled(ByteView data, size_t typesize) {
  ByteVector out;
  const size_t items = data.size() / typesize;
  for (size_t b = 0; b < typesize; ++b) {
    for (size_t i = 0; i < items; ++i) out.push_back(data[i * typesize + b]);
  }
  append(out, data.subspan(items * typesize));
  return out;
}

/// Bit k of byte b of every item together; c-blosc 1 does so only for a multiple of 8 items.
ByteVector bit_shuffled(ByteView data, size_t typesize) {
  const size_t items = data.size() / typesize;
  if (items % 8 != 0) return {data.begin(), data.end()};
  ByteVector out;
  for (size_t b = 0; b < typesize; ++b) {
    for (size_t k = 0; k < 8; ++k) {
      for (size_t i = 0; i < items; i += 8) {
        unsigned packed = 0;
        for (size_t j = 0; j < 8; ++j) packed |= (data[(i + j) * typesize + b] >> k & 1U) << j;
        out.push_back(static_cast<uint8_t>(packed));
      }
    }
  }
  append(out, data.subspan(items * typesize));
  return out;
}

/// One stream of a block: compressed if that makes it shorter, else as it is.
ByteVector stream(Blosc1Compressor compressor, ByteView data) {
  ByteVector out;
  if (compressor == Blosc1Compressor::kBlosclz) out = blosclz_block(data);
  if (compressor == Blosc1Compressor::kLz4) out = lz4_block(data);
  if (compressor == Blosc1Compressor::kZlib) out = compress_zlib(data);
  if (compressor == Blosc1Compressor::kZstd) out = compress_zstd(data);
  if (out.empty() || out.size() >= data.size()) return {data.begin(), data.end()};
  return out;
}

}  // namespace

void append(ByteVector& out, ByteView more) {
  out.insert(out.end(), more.begin(), more.end());
}

void store_le32(ByteVector& bytes, size_t at, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<uint8_t>(value >> 8 * i);
}

ByteVector compress_zstd(ByteView data, int level) {
  ByteVector out(ZSTD_compressBound(data.size()));
  const size_t n = ZSTD_compress(out.data(), out.size(), data.data(), data.size(), level);
  require(ZSTD_isError(n) == 0, "zstd");
  out.resize(n);
  return out;
}

ByteVector compress_zlib(ByteView data, int level) {
  size_t n = zng_compressBound(data.size());
  ByteVector out(n);
  require(zng_compress2(out.data(), &n, data.data(), data.size(), level) == 0, "zlib");
  out.resize(n);
  return out;
}

ByteVector compress_gzip(ByteView data, int level) {
  constexpr int32_t kDeflated = 8;
  constexpr int32_t kGzipWindow = 15 + 16;
  constexpr int32_t kFinish = 4;
  constexpr int32_t kStreamEnd = 1;
  zng_stream state{};
  require(zng_deflateInit2(&state, level, kDeflated, kGzipWindow, 8, 0) == 0, "gzip");
  ByteVector out(zng_compressBound(data.size()) + 64);
  state.next_in = data.data();
  state.avail_in = static_cast<uint32_t>(data.size());
  state.next_out = out.data();
  state.avail_out = static_cast<uint32_t>(out.size());
  const int32_t status = zng_deflate(&state, kFinish);
  out.resize(state.total_out);
  zng_deflateEnd(&state);
  require(status == kStreamEnd, "gzip");
  return out;
}

ByteVector lz4_block(ByteView data) {
  ByteVector out(static_cast<size_t>(LZ4_compressBound(static_cast<int>(data.size()))));
  const int n = LZ4_compress_default(reinterpret_cast<const char*>(data.data()), reinterpret_cast<char*>(out.data()),
                                     static_cast<int>(data.size()), static_cast<int>(out.size()));
  require(n > 0, "lz4");
  out.resize(static_cast<size_t>(n));
  return out;
}

ByteVector blosclz_block(ByteView data) {
  if (data.size() < 16) return {};  // shorter input makes it fail
  // It looks into the context of blosc2 for hints; the defaults have none.
  blosc2_cparams parameters = BLOSC2_CPARAMS_DEFAULTS;
  blosc2_context* const context = blosc2_create_cctx(parameters);
  require(context != nullptr, "blosclz");
  ByteVector out(data.size() + data.size() / 20 + 66);
  const int n = blosclz_compress(9, data.data(), static_cast<int>(data.size()), out.data(),
                                 static_cast<int>(out.size()), context);
  blosc2_free_ctx(context);
  out.resize(n < 0 ? 0 : static_cast<size_t>(n));
  return out;
}

ByteVector compress_lz4(ByteView data) {
  ByteVector out(4);
  store_le32(out, 0, static_cast<uint32_t>(data.size()));
  append(out, lz4_block(data));
  return out;
}

namespace {

ByteVector with_checksum(ByteView data, uint32_t value, bool at_start) {
  ByteVector checksum(4);
  store_le32(checksum, 0, value);
  ByteVector out(data.begin(), data.end());
  out.insert(at_start ? out.begin() : out.end(), checksum.begin(), checksum.end());
  return out;
}

}  // namespace

ByteVector append_crc32c(ByteView data, bool at_start) {
  return with_checksum(data, crc32c(data), at_start);
}

ByteVector append_fletcher32(ByteView data) {
  const auto folded = [](uint32_t sum) { return (sum & 0xffffU) + (sum >> 16); };
  uint32_t words = 0;
  uint32_t sums = 0;
  for (size_t i = 0; i < data.size(); i += 2) {
    words = folded(words + (uint32_t{data[i]} << 8) + (i + 1 < data.size() ? data[i + 1] : 0U));
    sums = folded(sums + words);
  }
  return with_checksum(data, folded(sums) << 16 | folded(words), false);
}

ByteVector shuffle_bytes(ByteView data, size_t element_bytes) {
  ByteVector out(data.size());
  const size_t count = data.size() / element_bytes;
  for (size_t i = 0; i < data.size(); ++i) out[i % element_bytes * count + i / element_bytes] = data[i];
  return out;
}

ByteVector compress_blosc1(ByteView data, const Blosc1Options& options) {
  constexpr size_t kMinSplitElements = 128;
  constexpr size_t kMaxSplits = 16;
  const size_t blocksize = options.blocksize == 0 ? data.size() : options.blocksize;
  const size_t blocks = ceil_div(data.size(), blocksize);
  const size_t typesize = options.typesize;
  const auto flags =
      static_cast<uint8_t>(static_cast<unsigned>(options.compressor) << 5 | static_cast<unsigned>(options.shuffle) |
                           (options.split ? 0U : static_cast<unsigned>(kDontSplit)));
  ByteVector out = blosc_header(flags, options.typesize, data.size(), blocksize);
  out.resize(kBloscHeader + 4 * blocks);
  std::vector<size_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  if (options.reverse_blocks) std::reverse(order.begin(), order.end());
  for (const size_t b : order) {
    const ByteView block = data.subspan(b * blocksize, std::min(blocksize, data.size() - b * blocksize));
    ByteVector shuffled(block.begin(), block.end());
    if (options.shuffle == Blosc1Shuffle::kByte) shuffled = byte_shuffled(block, typesize);
    if (options.shuffle == Blosc1Shuffle::kBit) shuffled = bit_shuffled(block, typesize);
    const bool split = options.split && typesize <= kMaxSplits && blocksize / typesize >= kMinSplitElements &&
                       block.size() == blocksize;
    const size_t streams = split ? typesize : 1;
    store_le32(out, kBloscHeader + 4 * b, static_cast<uint32_t>(out.size()));
    for (size_t s = 0; s < streams; ++s) {
      const size_t bytes = block.size() / streams;
      const ByteVector stored = stream(options.compressor, ByteView(shuffled).subspan(s * bytes, bytes));
      ByteVector size(4);
      store_le32(size, 0, static_cast<uint32_t>(stored.size()));
      append(out, size);
      append(out, stored);
    }
  }
  store_le32(out, 12, static_cast<uint32_t>(out.size()));
  return out;
}

ByteVector store_blosc1(ByteView data, uint8_t typesize) {
  ByteVector out = blosc_header(kMemcpyed | static_cast<uint8_t>(Blosc1Shuffle::kByte), typesize, data.size(),
                                std::max<size_t>(data.size(), 1));
  append(out, data);
  store_le32(out, 12, static_cast<uint32_t>(out.size()));
  return out;
}

}  // namespace zarrfeed::testing
