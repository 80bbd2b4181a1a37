#include "tests/support/decoding.h"

#include <algorithm>
#include <random>

#include "codecs/codec_pipeline.h"
#include "tests/support/check.h"
#include "tests/support/guarded_bytes.h"

namespace zarrfeed::testing {

ByteVector smooth(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  ByteVector out(bytes);
  uint32_t value = 1000;
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 4 == 0) value += static_cast<uint32_t>(random() % 7);
    out[i] = static_cast<uint8_t>(value >> 8 * (i % 4));
  }
  return out;
}

ByteVector noise(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  ByteVector out(bytes);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

ByteVector decoded(Decode decode, ByteView stored, size_t room, DecodeScratch& scratch) {
  const GuardedBytes in(stored);
  const GuardedBytes out(room);
  const size_t n = decode(in.span(), out.span(), scratch);
  CHECK(n <= room);
  ByteVector result = out.copy();
  result.resize(n);
  return result;
}

ByteVector decoded(Decode decode, ByteView stored, size_t room) {
  DecodeScratch scratch;
  return decoded(decode, stored, room, scratch);
}

std::optional<ByteVector> try_decode(Decode decode, ByteView stored, size_t room, DecodeScratch& scratch) {
  try {
    return decoded(decode, stored, room, scratch);
  } catch (const Error&) {
    return std::nullopt;
  }
}

ByteVector undone(const std::vector<CodecSpec>& codecs, ByteView stored, size_t decoded_bytes, DecodeScratch& scratch) {
  const CodecPipeline pipeline(codecs, decoded_bytes);
  const GuardedBytes in(stored);
  const GuardedBytes out(decoded_bytes);
  std::ranges::fill(out.span(), uint8_t{0x5a});
  const Bytes result = pipeline.decode(in.span(), out.span(), scratch);
  CHECK(in.is_untouched_before() && out.is_untouched_before());
  return {result.begin(), result.end()};
}

void decode_damaged(const std::vector<std::pair<Decode, ByteVector>>& victims, std::mt19937_64& random) {
  DecodeScratch scratch;
  for (int i = 0; i < 20'000; ++i) {
    const auto& [decode, original] = victims[random() % victims.size()];
    ByteVector stored = original;
    const int changes = static_cast<int>(random() % 3) + 1;
    for (int c = 0; c < changes; ++c) {
      // Headers and tables are where changes lead astray.
      const size_t at = random() % (random() % 2 == 0 ? std::min<size_t>(stored.size(), 32) : stored.size());
      stored[at] = static_cast<uint8_t>(random() % 3 == 0 ? 0xff : random());
    }
    if (random() % 8 == 0) stored.resize(random() % stored.size());
    try_decode(decode, stored, random() % 4 == 0 ? random() % 2000 : 1500, scratch);
  }
}

ByteVector patched(ByteVector stored, size_t at, uint32_t value) {
  store_le32(stored, at, value);
  return stored;
}

ByteVector with_byte(ByteVector stored, size_t at, uint8_t value) {
  stored[at] = value;
  return stored;
}

}  // namespace zarrfeed::testing
