// A target as a test, without libFuzzer: its seeds, random changes of them, and all that was ever found.
// ZARRFEED_FUZZ_CHANGES is how many changes, about a second's. A longer run is ZARRFEED_STRESS=100 subject_fuzz.

#include <algorithm>
#include <exception>
#include <random>
#include <string>

#include "base/bytes.h"
#include "fuzz/support/fuzz.h"
#include "tests/support/check.h"

using namespace zarrfeed;
using namespace zarrfeed::fuzzing;

namespace {

std::string to_hex(Bytes bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15U];
  }
  return out;
}

void run(const ByteVector& input) {
  try {
    run_input(input);
  } catch (const std::exception& error) {
    FAIL(std::string(error.what()) + "\n  input " + to_hex(Bytes(input).first(std::min<size_t>(input.size(), 4096))));
  }
}

/// Bytes are set, flipped, inserted, deleted, copied, or set to what often matters.
ByteVector changed(ByteVector input, std::mt19937_64& random) {
  constexpr uint8_t kTelling[] = {0, 1, 2, 4, 8, 0x10, 0x7f, 0x80, 0xfe, 0xff};
  for (size_t n = 1 + random() % 4; n > 0 && !input.empty(); --n) {
    const size_t at = random() % 3 == 0 ? random() % std::min<size_t>(input.size(), 32) : random() % input.size();
    const auto position = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random() % 6) {
      case 0:
        *position = static_cast<uint8_t>(random());
        break;
      case 1:
        *position = static_cast<uint8_t>(*position ^ (1U << random() % 8));
        break;
      case 2:
        *position = kTelling[random() % std::size(kTelling)];
        break;
      case 3:
        input.insert(position, random() % 8 + 1, static_cast<uint8_t>(random()));
        break;
      case 4:
        input.erase(position, position + static_cast<std::ptrdiff_t>(std::min(input.size() - at, random() % 8 + 1)));
        break;
      default: {
        const size_t size = std::min(input.size() - at, random() % 64 + 1);
        const size_t from = random() % (input.size() - size + 1);
        const ByteVector copied(input.begin() + static_cast<std::ptrdiff_t>(from),
                                input.begin() + static_cast<std::ptrdiff_t>(from + size));
        std::copy(copied.begin(), copied.end(), position);
      }
    }
  }
  return input;
}

}  // namespace

TEST(the_empty_input_and_every_seed_run) {
  run({});
  for (const ByteVector& seed : make_seeds()) run(seed);
}

TEST(seeds_that_were_changed_at_random_run) {
  const std::vector<ByteVector> seeds = make_seeds();
  CHECK(!seeds.empty());
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < ZARRFEED_FUZZ_CHANGES * testing::stress(); ++i) {
    const testing::Context context("change " + std::to_string(i));
    run(changed(seeds[static_cast<size_t>(i) % seeds.size()], random));
  }
}

TEST(what_was_found_stays_mended) {
  for (const Finding& finding : findings()) {
    const testing::Context context(finding.what);
    run(from_hex(finding.hex));
  }
}
