#pragma once
// Plans for tests, made position by position from the definition in docs/design/order.md, The epoch order. Slow, and
// without a line of code in common with the engine or with order.py.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace zarrfeed::testing {

/// An order and one of its consumers, in the words of EpochPlan.
struct PlanSpec {
  uint64_t seed = 0;
  uint64_t epoch = 0;
  bool shuffle = false;
  int64_t num_samples = 1;
  int64_t block_rows = 1;
  int64_t lanes = 1;
  int64_t mix = 1;
  std::vector<int64_t> block_order;  ///< blocks that are read, in the order of the epoch
  std::vector<int64_t> selected;     ///< samples that are read, ascending; empty: all
  int64_t sample_step = 0;           ///< their distance, where the plan is to say no more of them; 0: it lists them
  int64_t first = 0;
  int64_t stride = 1;
  int64_t steps = -1;  ///< -1: as many as there are

  [[nodiscard]] int64_t num_blocks() const { return (num_samples + block_rows - 1) / block_rows; }
  /// Positions of the epoch order.
  [[nodiscard]] int64_t length() const { return selected.empty() ? num_samples : std::ssize(selected); }
  [[nodiscard]] int64_t num_steps() const;
  /// The samples of a block that are read, ascending.
  [[nodiscard]] std::vector<int64_t> samples_of(int64_t block) const;
  /// Selects some samples of [low, high), and sets `block_order`; there may be fewer lanes afterwards. High < 0: to the
  /// end.
  void select(std::mt19937_64& random, int64_t low = 0, int64_t high = -1);
};

/// All fields at random but the selection, with at most `max_samples` samples. Blocks are in order where `shuffle` is
/// false.
PlanSpec random_plan_spec(std::mt19937_64& random, int64_t max_samples);

/// The plan of `spec`, as order.py would hand it over.
std::unique_ptr<OwnedPlan> build_plan(const PlanSpec& spec);
/// The table of listed samples, which it owns.
std::shared_ptr<const SampleTable> listed_table(std::vector<int64_t> samples);

/// The sample at every step, by the definition.
std::vector<int64_t> reference_order(const PlanSpec& spec);

/// A number from [low, high].
int64_t pick(std::mt19937_64& random, int64_t low, int64_t high);

std::string describe(const PlanSpec& spec);

}  // namespace zarrfeed::testing
