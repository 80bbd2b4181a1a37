#pragma once
// What the two targets of the engine share: stores of many kinds, epochs that are drawn, and the check of what arrives.

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "fuzz/support/fuzz.h"
#include "spec/field_spec.h"
#include "tests/support/reading.h"

namespace zarrfeed::fuzzing {

/// A small store, what is in its files, and what every sample must be.
struct Store {
  Store(std::vector<testing::ArrayLayout> arrays, bool with_resident, bool with_index, bool with_windows);

  std::vector<testing::ArrayLayout> layouts;
  testing::Dataset data;
  std::vector<std::vector<std::filesystem::path>>
      files;  ///< of each array: its chunks or shards, and its metadata last
  std::map<std::filesystem::path, ByteVector> originals;    ///< what is in them
  std::vector<std::vector<std::vector<uint8_t>>> expected;  ///< field, sample
};

/// One of the stores. They are made when they are first asked for, and live as long as the process.
const Store& draw_store(Draw& draw);

/// Chunks of fields, by the object that they lie in, or by their position in there where they are meant alone.
using Chunks = std::set<std::pair<size_t, std::string>>;
std::string label(const std::string& key, std::optional<size_t> position);

/// What was done to chunks of a store.
struct Damage {
  Chunks changed;  ///< may be refused
  Chunks other;    ///< of these: may be taken for good, and be something else
  Chunks lost;     ///< of these: cannot be had, so that their samples cannot arrive
};

/// One epoch, as drawn.
struct Reading {
  EngineOptions options;
  testing::PlanSpec spec;
  int64_t more_open = 0;
  int64_t stop_after = 0;  ///< batches; more than there are: to the end
};
Reading draw_reading(Draw& draw, const Store& store);
/// Seeds for targets whose input is a store, a reading of it, and what `write_rest(pen, number)` adds: each store in
/// several readings.
std::vector<ByteVector> make_reading_seeds(const std::function<void(Pen&, int64_t)>& write_rest);

/// Reads epochs with an engine over a store, and checks what arrives, and what is said to be passed over.
class Reader {
 public:
  Reader(const Store& store, std::vector<FieldSpec> fields, const Reading& reading);

  Engine& engine() { return engine_; }
  /// Begins an epoch of which `stop_after` batches are wanted.
  void start(int64_t stop_after = std::numeric_limits<int64_t>::max());
  /// Takes a batch if there is one within `timeout`, checks it and gives it back. False if no other is wanted.
  /// kTimeout is told apart by `timed_out`.
  bool take(std::chrono::milliseconds timeout, const Damage& damage, bool& timed_out);
  [[nodiscard]] int64_t taken() const { return taken_; }

 private:
  void provide_buffers();
  void check(const ReadyBatch& batch, const Damage& damage) const;
  void check_rows(const ReadyBatch& batch, const Damage& damage) const;
  void check_skipped(const ReadyBatch& batch, const Damage& damage) const;
  /// The sample of a slot of the batch that is checked.
  [[nodiscard]] int64_t sample(int64_t slot) const;
  [[nodiscard]] bool is_of(const Chunks& chunks, size_t field, int64_t chunk, size_t cell) const;
  /// True if a field's part of a sample lies in one of these chunks.
  [[nodiscard]] bool needs(const Chunks& chunks, size_t field, int64_t sample) const;
  /// True if a sample lies in this one.
  [[nodiscard]] bool needs(const SkippedChunk& chunk, int64_t sample) const;

  const Store* store_;
  Reading reading_;
  std::vector<int64_t> order_;
  std::vector<std::unique_ptr<uint8_t[]>>
      provided_;  ///< each of the size of a buffer, so that a sanitizer sees its end
  Engine engine_;
  int64_t taken_ = 0;
  int64_t stop_after_ = 0;
};

/// Waits of 100 ms for one batch: after so many the engine hangs.
constexpr int kMaxWaits = 600;

}  // namespace zarrfeed::fuzzing
