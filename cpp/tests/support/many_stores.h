#pragma once
// Arrays whose rows lie in several stores, and which rows the windows of a sample have: by the definitions in
// spec/array_parts.h and spec/field_spec.h, without a line in common with the engine.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "spec/field_spec.h"
#include "tests/support/stores.h"

namespace zarrfeed::testing {

/// Which row of its array each row of a window is.
struct WindowRows {
  std::vector<int64_t> offsets;  ///< empty: the row of the sample alone
  PadSpec::Mode pad = PadSpec::Mode::kNone;
  std::vector<int64_t> borders;  ///< of segments, from 0 to num_samples; empty: there is one
  std::vector<int64_t> map;      ///< the row of each sample, -1: none. Empty: first + step * sample
  int64_t first = 0;
  int64_t step = 1;
  int64_t num_samples = 0;
  int64_t num_rows = 0;

  /// The rows of a sample, one for each offset; -1: padded. The window of a sample that lacks one without padding is
  /// none of the test's.
  [[nodiscard]] std::vector<int64_t> rows(int64_t sample) const;
  /// Lets `field` have these rows; borrows `map`.
  void apply(FieldSpec& field) const;
};

/// Windows of `length` offsets (0: none) over `num_samples` samples, of an array of so many rows: in one segment or
/// several, padded by edges or by an item, and mapped if there are not as many rows as samples. Every row that a sample
/// lacks is padded.
WindowRows random_rows(std::mt19937_64& random, int64_t num_samples, int64_t num_rows, int64_t length);

/// An array in several stores, of one layout or of several with different numbers of cells. A row says its index in all
/// stores together.
class ManyStores {
 public:
  /// A store that is one part of the array.
  struct Store {
    std::unique_ptr<TestArray> array;
    size_t layout = 0;
    int64_t begin = 0;  ///< its first row in all stores together
    int64_t rows_per_chunk = 1;
    int64_t first_chunk = 0;  ///< number of its first chunk among those of all stores of its layout
  };
  /// A chunk file, as a SkippedChunk names it.
  struct Chunk {
    size_t layout = 0;
    int64_t number = 0;
    std::string key;
    auto operator<=>(const Chunk&) const = default;
  };

  /// Items of a row: 6 * 4.
  static constexpr size_t kRowBytes = 24 * sizeof(uint32_t);

  /// Stores of random lengths, layouts and codecs below `directory`.
  ManyStores(std::mt19937_64& random, const std::filesystem::path& directory, int64_t num_rows, size_t num_layouts);

  [[nodiscard]] int64_t num_rows() const { return num_rows_; }
  [[nodiscard]] const std::vector<Store>& stores() const { return stores_; }
  [[nodiscard]] const Store& store_of(int64_t row) const;
  /// One field for each layout, in the order of layouts; all of them have this slot, and but the first are variants.
  [[nodiscard]] std::vector<FieldSpec> fields(const SlotSpec& slot) const;
  /// The bytes of a row.
  [[nodiscard]] std::vector<uint8_t> row(int64_t row) const;
  /// Overwrites a random chunk file with what is no chunk.
  Chunk damage(std::mt19937_64& random) const;
  /// The number of the chunk of a row, along the sample axis, among those of its layout.
  [[nodiscard]] int64_t chunk_of(int64_t row) const;

 private:
  int64_t num_rows_;
  size_t num_layouts_;
  std::vector<Store> stores_;
};

}  // namespace zarrfeed::testing
