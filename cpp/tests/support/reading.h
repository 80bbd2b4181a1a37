#pragma once
// An engine over test arrays, and the check of what it delivers.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "spec/field_spec.h"
#include "tests/support/plans.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing {

/// One stored array, resident rows, and the index: what a dataset of samples and targets hands over.
struct Dataset {
  /// Resident rows hold 3 bytes a sample, made from its index.
  static constexpr size_t kResidentBytes = 3;

  Dataset(std::vector<ArrayLayout> layouts, bool with_resident, bool with_index);

  [[nodiscard]] std::vector<FieldSpec> fields() const;
  [[nodiscard]] int64_t num_samples() const { return arrays.front()->num_samples(); }
  [[nodiscard]] size_t num_fields() const { return first_again() + again.size(); }
  /// The first of the fields that draw again from an array.
  [[nodiscard]] size_t first_again() const { return arrays.size() + (resident.empty() ? 0 : 1) + (index ? 1 : 0); }
  /// Bytes of `sample` in `field`, as they must arrive.
  [[nodiscard]] std::vector<uint8_t> expected(size_t field, int64_t sample) const;
  /// Lets the samples of all fields but the index be windows of up to 5 rows, some of them the same; there is a sample
  /// whose windows lie in the array. Sets `first_window` and `end_window`.
  void add_windows(std::mt19937_64& random);
  /// True if the device would be waited for when chunks are read next.
  bool drop_from_page_cache() const;  // NOLINT(modernize-use-nodiscard): mostly called for what it does

  TempDir directory;
  std::vector<std::unique_ptr<TestArray>> arrays;
  std::vector<uint8_t> resident;
  bool index;
  std::vector<size_t> again;                  ///< arrays that further fields draw from, behind all others
  std::vector<std::vector<int64_t>> offsets;  ///< of the fields; empty: no windows
  int64_t first_window = 0;                   ///< samples in [first_window, end_window) have all of their windows
  int64_t end_window = 0;

 private:
  [[nodiscard]] std::vector<uint8_t> row(size_t field, int64_t row) const;
};

/// One stored array of shape (num_samples, 5) in chunks of `rows` samples.
Dataset simple_dataset(int64_t num_samples, int64_t rows, Packing packing = Packing::kRaw);

/// Samples of several pieces: chunks on every axis, another array chunked differently, resident rows, the index.
Dataset rich_dataset();

/// Options with memory of the engine's own and few fetch threads.
EngineOptions with_threads(size_t num_threads, int64_t batch_size);

/// A plan over the dataset in shuffled blocks of `block_rows`.
PlanSpec shuffled_plan_spec(const Dataset& data, int64_t block_rows, int64_t lanes, uint64_t seed = 1);

/// A plan of all samples whose windows lie in the array, in order and in blocks of `block_rows`.
PlanSpec plan_spec_of_windows(const Dataset& data, int64_t block_rows);

/// Waits for a batch, at most a minute. Null at the end of the epoch.
std::unique_ptr<ReadyBatch> take(Engine& engine);
/// Checks that every row of batch number `batch` is the sample that `order` says.
void check_batch(const Engine& engine, const Dataset& data, const ReadyBatch& batch, int64_t number, int64_t batch_size,
                 const std::vector<int64_t>& order);
/// Gives the buffers of a batch back to the engine's pool.
void release(const Engine& engine, const ReadyBatch& batch);

/// Memory that is provided for batches: buffers of exactly their size, so that a sanitizer sees the end of each.
class ProvidedMemory {
 public:
  /// Provides the buffers of `batches` more batches.
  void provide(Engine& engine, int64_t batches = 1);

 private:
  std::vector<std::unique_ptr<uint8_t[]>> buffers_;
};

/// Cuts the chunks of stored fields whose rows lie side by side into runs of random lengths.
void cut_chunks(OwnedPlan& plan, const OutputTable& outputs, std::mt19937_64& random);

/// Lets every group share every run of every stored field with the next group of its lane, needed or not.
void share_all_chunks(OwnedPlan& plan, const Engine& engine);

/// Starts an epoch with as few open batches as it needs, and `more`.
void start(Engine& engine, const PlanSpec& spec, int64_t batch_size, int64_t more = 0);
/// The same where groups share all chunks.
void start_shared(Engine& engine, const PlanSpec& spec, int64_t batch_size, int64_t more = 0);
/// Takes and checks all batches of an epoch that was started, releasing each. Returns how many there were.
int64_t drain(Engine& engine, const Dataset& data, const PlanSpec& spec, int64_t batch_size);

}  // namespace zarrfeed::testing
