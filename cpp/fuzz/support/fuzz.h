#pragma once
// Fuzz targets: what must hold for whatever bytes a store hands over. A target is one file here, `subject_fuzz.cc`, with a
// namespace of its own, that makes a Target of run_input(), make_seeds() and findings(). It is built in two ways:
//   * with libFuzzer, from libfuzzer.cc (preset `fuzz`), where inputs are found by the code that they reach: a program
//     each;
//   * with any compiler as a test, from replay.cc: seeds, random changes of them, and all that was ever found. One program
//     has them all.
// libblosc2.a is not instrumented, so that targets give decoders GuardedBytes and look at what they leave behind.

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tests/support/compress.h"

namespace zarrfeed::fuzzing {

using testing::ByteVector;

/// An input that once broke something.
struct Finding {
  const char* what;  ///< what went wrong
  const char* hex;   ///< the input
};

/// Random changes of seeds that a test tries, about a second's: of targets that start threads and write files, fewer.
constexpr int64_t kQuickChanges = 10000;
constexpr int64_t kSlowChanges = 300;

/// One target of this program.
class Target {
 public:
  Target(const char* name, void (*run_input)(Bytes), std::vector<ByteVector> (*make_seeds)(),
         std::vector<Finding> (*findings)(), int64_t num_changes) noexcept;

  const char* const name;
  /// Runs one input. An Error that a damaged store may cause is no finding; what must hold is a CHECK.
  void (*const run_input)(Bytes input);
  /// Inputs to begin with: well-formed ones, of every kind that the target knows.
  std::vector<ByteVector> (*const make_seeds)();
  std::vector<Finding> (*const findings)();
  const int64_t num_changes;
  const Target* const next;
};

/// The first target of this program.
const Target* first_target();

/// Takes an input apart, front to back. Behind its end there are zeros without end.
class Draw {
 public:
  explicit Draw(Bytes input) : rest_(input) {}

  uint8_t byte();
  bool coin() { return (byte() & 1U) != 0; }
  /// A number from [low, high], of as few bytes as hold it: 1, 2 or 8.
  int64_t pick(int64_t low, int64_t high);
  template <typename T, size_t kCount>
  const T& one_of(const T (&all)[kCount]) {
    return all[pick(0, static_cast<int64_t>(kCount) - 1)];
  }
  uint64_t word64();
  /// At most `size` bytes.
  Bytes take(size_t size);
  Bytes rest() { return take(rest_.size()); }
  [[nodiscard]] bool empty() const { return rest_.empty(); }

 private:
  Bytes rest_;
};

/// Puts an input together from the same numbers in the same order.
class Pen {
 public:
  Pen& byte(uint8_t value);
  Pen& pick(int64_t value, int64_t low, int64_t high);
  Pen& word64(uint64_t value);
  Pen& bytes(Bytes value);
  [[nodiscard]] const ByteVector& input() const { return out_; }

 private:
  ByteVector out_;
};

/// True for errors that follow from what is stored, and not from how the engine was called.
bool is_refusal(const std::exception& error);

ByteVector from_hex(const std::string& hex);

}  // namespace zarrfeed::fuzzing
