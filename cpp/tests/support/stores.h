#pragma once
// Stored arrays for tests, in which every element says which sample it belongs to, and where in the sample it lies.

#include <cstdint>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "spec/field_spec.h"
#include "spec/shard_spec.h"

namespace zarrfeed::testing {

/// How the chunks of a test array are packed.
enum class Packing { kRaw, kZstd, kZlib, kGzip, kLz4, kBlosc, kBloscBit, kBloscThenCrc32c };
constexpr int kNumPackings = 8;

struct ArrayLayout {
  std::vector<int64_t> shape;
  std::vector<int64_t> chunk_shape;
  std::vector<int> storage_order = {};  ///< empty: C order
  int sample_axis = 0;
  Packing packing = Packing::kRaw;
  bool big_endian = false;
  char separator = '.';
  std::vector<int64_t> shard_chunks = {};  ///< inner chunks of a shard along each axis; empty: no shards
  int64_t first_row = 0;                   ///< the sample that the elements of row 0 say, of one store of several
};

/// An array of 32-bit unsigned integers, written below a directory with Zarr v2 keys.
/// Element `number` (C order in the sample) of sample `s` is element_of(first_row + s, number).
class TestArray {
 public:
  TestArray(std::filesystem::path root, ArrayLayout layout);

  [[nodiscard]] FieldSpec field() const;
  [[nodiscard]] size_t sample_bytes() const { return elements_ * sizeof(uint32_t); }
  [[nodiscard]] int64_t num_samples() const;
  [[nodiscard]] const std::filesystem::path& root() const { return root_; }
  /// Keys of all chunks, in C order of their indices. Inner chunks of shards have names alike, and no file.
  [[nodiscard]] const std::vector<std::string>& keys() const { return keys_; }
  [[nodiscard]] std::filesystem::path chunk_path(const std::string& key) const { return root_ / key; }
  /// Deletes a chunk: its samples become the fill value there.
  void remove_chunk(const std::string& key);
  /// The sample as it must arrive.
  [[nodiscard]] std::vector<uint8_t> sample(int64_t index) const;

  static constexpr uint32_t kFill = 0xfeedf00d;

 private:
  void write_shards() const;
  [[nodiscard]] ShardSpec shard_spec() const;

  std::filesystem::path root_;
  ArrayLayout layout_;
  size_t elements_ = 1;
  std::vector<std::string> keys_;
  std::set<std::string> removed_;
};

/// An array of `num_samples` samples with everything else at random.
ArrayLayout random_layout(std::mt19937_64& random, int64_t num_samples);

std::string describe(const ArrayLayout& layout);

}  // namespace zarrfeed::testing
