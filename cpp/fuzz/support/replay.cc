// The targets as tests, without libFuzzer: their seeds, random changes of them, and all that was ever found.
// `fuzz_tests [TARGET]` runs one of them, or all; a longer run is `ZARRFEED_STRESS=100 fuzz_tests TARGET`.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "fuzz/support/fuzz.h"
#include "tests/support/check.h"

namespace zarrfeed::fuzzing {
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

void run(const Target& target, const ByteVector& input) {
  try {
    target.run_input(input);
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

void run_seeds(const Target& target) {
  run(target, {});
  for (const ByteVector& seed : target.make_seeds()) run(target, seed);
}

void run_changed_seeds(const Target& target) {
  const std::vector<ByteVector> seeds = target.make_seeds();
  CHECK(!seeds.empty());
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < testing::draws(target.num_changes); ++i) {
    const testing::Context context("change " + std::to_string(i));
    run(target, changed(seeds[static_cast<size_t>(i) % seeds.size()], random));
  }
}

void run_findings(const Target& target) {
  for (const Finding& finding : target.findings()) {
    const testing::Context context(finding.what);
    run(target, from_hex(finding.hex));
  }
}

bool passes(const Target& target) {
  bool passed = true;
  for (void (*const part)(const Target&) : {run_seeds, run_changed_seeds, run_findings}) {
    try {
      part(target);
    } catch (const std::exception& error) {
      static_cast<void>(std::fprintf(stderr, "FAILED %s\n  %s\n", target.name, error.what()));
      passed = false;
    }
  }
  return passed;
}

}  // namespace
}  // namespace zarrfeed::fuzzing

int main(int argc, char** argv) {
  const std::string_view wanted = argc > 1 ? argv[1] : "";
  int run = 0;
  int failed = 0;
  for (const auto* target = zarrfeed::fuzzing::first_target(); target != nullptr; target = target->next) {
    if (!wanted.empty() && wanted != target->name) continue;
    ++run;
    if (!zarrfeed::fuzzing::passes(*target)) ++failed;
  }
  static_cast<void>(std::printf("%d targets, %d failed\n", run, failed));
  return failed == 0 && run > 0 ? 0 : 1;
}
