// The Fletcher-32 of HDF5 and numcodecs: sums of big-endian words of 16 bits, modulo 65535.

#include <algorithm>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {
namespace {

constexpr size_t kLanes = 16;  // words that are added side by side
/// Rounds of kLanes words whose sums of sums fit in 32 bits.
constexpr size_t kMostRounds = 360;

/// The sum of the words so far, and the sum of all such sums, modulo 65535.
struct Sums {
  uint64_t words = 0;
  uint64_t sums = 0;

  void add(uint64_t word) {
    words += word;
    sums += words;
  }
  void reduce() {
    words = reduced(words);
    sums = reduced(sums);
  }
  /// A number from 1 to 65535, or 0 for 0 alone, as folding carries makes it.
  static uint64_t reduced(uint64_t value) { return value == 0 ? 0 : (value - 1) % 65535 + 1; }
};

uint32_t word_at(const uint8_t* p) {
  return static_cast<uint32_t>(p[0]) << 8 | p[1];
}

/// Adds `rounds` times kLanes words. Lane k has the words k, k + kLanes, ... of these: with `count` words in all, the word
/// i is in the sums count - i times.
void add_rounds(const uint8_t* p, size_t rounds, Sums& sums) {
  uint32_t words[kLanes] = {};
  uint32_t sums_of[kLanes] = {};
  for (size_t round = 0; round < rounds; ++round, p += 2 * kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      words[k] += word_at(p + 2 * k);
      sums_of[k] += words[k];
    }
  }
  sums.sums += rounds * kLanes * sums.words;
  for (size_t k = 0; k < kLanes; ++k) {
    sums.words += words[k];
    sums.sums += uint64_t{kLanes} * sums_of[k] - uint64_t{k} * words[k];
  }
  sums.reduce();
}

}  // namespace

uint32_t fletcher32(Bytes data) {
  Sums sums;
  while (data.size() >= 2 * kLanes) {
    const size_t rounds = std::min(kMostRounds, data.size() / (2 * kLanes));
    add_rounds(data.data(), rounds, sums);
    data = data.subspan(rounds * 2 * kLanes);
  }
  for (; data.size() >= 2; data = data.subspan(2)) sums.add(word_at(data.data()));
  if (!data.empty()) sums.add(static_cast<uint64_t>(data[0]) << 8);
  sums.reduce();
  return static_cast<uint32_t>(sums.sums << 16 | sums.words);
}

}  // namespace zarrfeed
