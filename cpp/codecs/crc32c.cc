// CRC-32C: the SSE4.2 instruction where the processor has it, else a table of 256 entries per byte lane.
//
// The instruction takes three cycles, and the processor begins one each cycle. So three streams are summed at once. A sum is
// linear: that of bytes that other bytes follow is the sum shifted over as many zeros, xor the sum of the others.

#include <array>
#include <cstring>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {
namespace {

using Update = uint32_t (*)(uint32_t crc, Bytes data);

constexpr std::array<std::array<uint32_t, 256>, 8> make_tables() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, reflected
  std::array<std::array<uint32_t, 256>, 8> t{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
    t[0][i] = crc;
  }
  for (size_t lane = 1; lane < 8; ++lane) {
    for (size_t i = 0; i < 256; ++i) t[lane][i] = (t[lane - 1][i] >> 8) ^ t[0][t[lane - 1][i] & 0xff];
  }
  return t;
}

constexpr auto kTables = make_tables();

uint32_t update_portable(uint32_t crc, Bytes data) {
  while (data.size() >= 8) {
    const uint32_t low = load_le32(data.data()) ^ crc;
    const uint32_t high = load_le32(data.data() + 4);
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
          kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^
          kTables[0][high >> 24];
    data = data.subspan(8);
  }
  for (const uint8_t byte : data) crc = (crc >> 8) ^ kTables[0][(crc ^ byte) & 0xff];
  return crc;
}

#if defined(__x86_64__)
/// Bytes of each of the three streams.
constexpr size_t kStreamBytes = 4096;

// Newer Clangs count these two instructions of SSE 4.2 as a feature of its own.
__attribute__((target("sse4.2,crc32"))) uint32_t update_one_stream(uint32_t crc, Bytes data) {
  uint64_t wide = crc;
  while (data.size() >= 8) {
    uint64_t word = 0;
    std::memcpy(&word, data.data(), 8);
    wide = __builtin_ia32_crc32di(wide, word);
    data = data.subspan(8);
  }
  auto narrow = static_cast<uint32_t>(wide);
  for (const uint8_t byte : data) narrow = __builtin_ia32_crc32qi(narrow, byte);
  return narrow;
}

/// The sums of each byte lane of a crc, shifted over the zeros of a stream.
using ShiftTables = std::array<std::array<uint32_t, 256>, 4>;

ShiftTables make_shift_tables() {
  static constexpr std::array<uint8_t, kStreamBytes> kZeros{};
  ShiftTables tables{};
  for (size_t lane = 0; lane < 4; ++lane) {
    for (uint32_t byte = 0; byte < 256; ++byte) tables[lane][byte] = update_one_stream(byte << (8 * lane), kZeros);
  }
  return tables;
}

__attribute__((target("sse4.2,crc32"))) uint32_t update_sse42(uint32_t crc, Bytes data) {
  if (data.size() >= 3 * kStreamBytes) {
    static const ShiftTables kShift = make_shift_tables();
    const auto shifted = [&](uint64_t sum) {
      return kShift[0][sum & 0xff] ^ kShift[1][sum >> 8 & 0xff] ^ kShift[2][sum >> 16 & 0xff] ^ kShift[3][sum >> 24];
    };
    while (data.size() >= 3 * kStreamBytes) {
      std::array<uint64_t, 3> sums{crc, 0, 0};
      for (size_t at = 0; at < kStreamBytes; at += 8) {
        for (size_t stream = 0; stream < 3; ++stream) {
          uint64_t word = 0;
          std::memcpy(&word, &data[stream * kStreamBytes + at], 8);
          sums[stream] = __builtin_ia32_crc32di(sums[stream], word);
        }
      }
      crc = shifted(shifted(sums[0]) ^ sums[1]) ^ static_cast<uint32_t>(sums[2]);
      data = data.subspan(3 * kStreamBytes);
    }
  }
  return update_one_stream(crc, data);
}
#endif

Update choose_update() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2") != 0) return update_sse42;
#endif
  return update_portable;
}

}  // namespace

uint32_t crc32c(Bytes data) {
  static const Update update = choose_update();
  return ~update(0xffffffffU, data);
}

}  // namespace zarrfeed
