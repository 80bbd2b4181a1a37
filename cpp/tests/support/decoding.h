#pragma once
// Decoding between guard pages: a decoder that strays by one byte ends the process.

#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "codecs/codec.h"
#include "tests/support/compress.h"

namespace zarrfeed::testing {

using Decode = size_t (*)(Bytes, MutableBytes, DecodeScratch&);

/// Smooth 32-bit numbers: they compress, but not to nothing.
ByteVector smooth(size_t bytes, uint64_t seed = 1);
/// Bytes that do not compress.
ByteVector noise(size_t bytes, uint64_t seed = 1);

/// Decodes into room for `room` bytes, and returns what was written.
ByteVector decoded(Decode decode, ByteView stored, size_t room, DecodeScratch& scratch);
ByteVector decoded(Decode decode, ByteView stored, size_t room);
/// Undoes a chain of codecs between guard pages, into a room that holds other bytes.
ByteVector undone(const std::vector<CodecSpec>& codecs, ByteView stored, size_t decoded_bytes, DecodeScratch& scratch);
/// As decoded(), or nothing where it throws an Error; anything else ends the test or the process.
std::optional<ByteVector> try_decode(Decode decode, ByteView stored, size_t room, DecodeScratch& scratch);

/// Decodes chunks of `victims` 20'000 times, with up to three bytes changed, and now and then cut off.
void decode_damaged(const std::vector<std::pair<Decode, ByteVector>>& victims, std::mt19937_64& random);

/// `stored` with the little-endian 32-bit word at `at` overwritten.
ByteVector patched(ByteVector stored, size_t at, uint32_t value);
/// `stored` with one byte overwritten.
ByteVector with_byte(ByteVector stored, size_t at, uint8_t value);

}  // namespace zarrfeed::testing
