// The yardstick of patches: each chunk is decoded once, and every patch comes out whole.

#include "tools/patch_ceiling.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::patch_ceiling_test {
namespace {

constexpr int64_t kRows = 20;
constexpr int64_t kColumns = 9;
constexpr int64_t kSize = 4;

FieldSpec patched(const TestArray& array) {
  FieldSpec field = array.field();
  PatchSpec& patch = field.patch.emplace();
  for (const int dim : {0, 1}) {
    PatchAxis& axis = patch.axes.emplace_back();
    axis.dim = dim;
    axis.size = kSize;
  }
  patch.volumes.push_back({.first_chunk = 0, .begin = 0, .end = kRows});
  return field;
}

/// Tiles of the array, the first ones of which begin outside.
std::vector<PatchStart> tiles() {
  std::vector<PatchStart> starts;
  for (int64_t row = -1; row < kRows; row += kSize) {
    for (int64_t column = -2; column < kColumns; column += kSize) starts.push_back({0, {row, column}});
  }
  return starts;
}

}  // namespace

TEST(each_chunk_is_decoded_once_and_each_patch_comes_whole) {
  const TempDir directory;
  const TestArray array(directory.path() / "a",
                        {.shape = {kRows, kColumns}, .chunk_shape = {8, 4}, .packing = Packing::kBlosc});
  const std::vector<PatchStart> patches = tiles();
  for (const size_t threads : {size_t{1}, size_t{3}}) {
    std::vector<uint32_t> out(patches.size() * kSize * kSize, 1);
    const CeilingResult result = measure_patch_ceiling(
        patched(array), patches, {.num_threads = threads, .out = reinterpret_cast<uint8_t*>(out.data())});
    CHECK_EQ(result.decoded_bytes, uint64_t{array.keys().size() * 8 * 4 * 4});
    for (size_t p = 0; p < patches.size(); ++p) {
      for (int64_t i = 0; i < kSize * kSize; ++i) {
        const int64_t row = patches[p].at[0] + i / kSize;
        const int64_t column = patches[p].at[1] + i % kSize;
        const bool is_inside = row >= 0 && row < kRows && column >= 0 && column < kColumns;
        uint32_t expected = 0;
        if (is_inside) std::memcpy(&expected, array.sample(row).data() + static_cast<size_t>(column) * 4, 4);
        CHECK_EQ(out[p * kSize * kSize + static_cast<size_t>(i)], expected);
      }
    }
  }
  CHECK_EQ(measure_patch_ceiling(patched(array), patches, {.num_threads = 2, .window_patches = 3}).decoded_bytes,
           uint64_t{array.keys().size() * 8 * 4 * 4});
}

TEST(what_is_no_patch_is_refused) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {kRows, kColumns}, .chunk_shape = {8, 4}});
  CHECK_THROWS(kConfig, "not patches", measure_patch_ceiling(array.field(), {}, {}));
  const std::vector<PatchStart> elsewhere{{.volume = 1, .at = {}}};
  CHECK_THROWS(kConfig, "not there", measure_patch_ceiling(patched(array), elsewhere, {}));
}

}  // namespace zarrfeed::testing::patch_ceiling_test
