#pragma once
// The other direction of cpp/codecs, for tests: containers made with the compressors that libblosc2.a holds, and a Blosc 1
// writer of our own, since blosc2 writes only its own format.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zarrfeed::testing {

using ByteVector = std::vector<uint8_t>;
using ByteView = std::span<const uint8_t>;

/// Appends bytes to a container that is being made.
void append(ByteVector& out, ByteView more);

ByteVector compress_zstd(ByteView data, int level = 3);
ByteVector compress_zlib(ByteView data, int level = 6);
ByteVector compress_gzip(ByteView data, int level = 6);
/// numcodecs' framing: the size, then one LZ4 block.
ByteVector compress_lz4(ByteView data);
/// With the checksum behind the data, or in front of it.
ByteVector append_crc32c(ByteView data, bool at_start = false);
/// The same with the Fletcher-32 of HDF5, added up word by word.
ByteVector append_fletcher32(ByteView data);
/// The shuffle of numcodecs, for data of whole elements.
ByteVector shuffle_bytes(ByteView data, size_t element_bytes);

enum class Blosc1Compressor : uint8_t { kBlosclz = 0, kLz4 = 1, kZlib = 3, kZstd = 4 };
enum class Blosc1Shuffle : uint8_t { kNone = 0, kByte = 1, kBit = 4 };

struct Blosc1Options {
  Blosc1Compressor compressor = Blosc1Compressor::kLz4;
  Blosc1Shuffle shuffle = Blosc1Shuffle::kByte;
  uint8_t typesize = 4;
  size_t blocksize = 0;         ///< 0: one block
  bool split = false;           ///< one stream for each byte of an item, in blocks that are long enough
  bool reverse_blocks = false;  ///< write the blocks last to first: only the table of offsets tells
};

/// A Blosc 1 container as c-blosc 1 would write it.
ByteVector compress_blosc1(ByteView data, const Blosc1Options& options);
/// One that holds the bytes as they are (the "memcpyed" flag).
ByteVector store_blosc1(ByteView data, uint8_t typesize = 4);

/// A single LZ4 or BloscLZ block without framing; empty where the data does not compress.
ByteVector lz4_block(ByteView data);
ByteVector blosclz_block(ByteView data);

/// Writes a little-endian 32-bit integer at `at`.
void store_le32(ByteVector& bytes, size_t at, uint32_t value);

}  // namespace zarrfeed::testing
