// The yardstick: it reads every chunk once, and ends.

#include "tools/ceiling.h"

#include <new>
#include <string>
#include <vector>

#include "spec/field_spec.h"
#include "tests/support/check.h"
#include "tests/support/child.h"
#include "tests/support/stores.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing::ceiling_test {

TEST(every_chunk_is_read_once_at_any_number_of_threads) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {50, 9}, .chunk_shape = {8, 4}, .packing = Packing::kBlosc});
  for (const size_t threads : {size_t{1}, size_t{2}, size_t{5}}) {
    for (const bool scatter : {false, true}) {
      const CeilingResult result =
          measure_ceiling(array.field(), {.num_threads = threads, .window_chunks = 4, .scatter = scatter});
      CHECK_EQ(result.decoded_bytes, uint64_t{array.keys().size() * 8 * 4 * 4});
      CHECK(result.stored_bytes > 0);
      CHECK(result.seconds >= 0);
    }
  }
}

TEST(rows_that_are_copied_to_several_slots_are_decoded_once) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {50, 9}, .chunk_shape = {8, 9}, .packing = Packing::kBlosc});
  const CeilingResult result = measure_ceiling(array.field(), {.num_threads = 2, .window_chunks = 4, .copies = 3});
  CHECK_EQ(result.decoded_bytes, uint64_t{array.keys().size() * 8 * 9 * 4});
}

TEST(some_blocks_are_read_in_all_their_cells) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {50, 9}, .chunk_shape = {8, 4}});
  const CeilingResult result = measure_ceiling(array.field(), {.num_threads = 2, .blocks = {6, 1}});
  CHECK_EQ(result.decoded_bytes, uint64_t{2 * 3 * 8 * 4 * 4});
  CHECK_THROWS(kConfig, "block 7, must be in [0, 7)", measure_ceiling(array.field(), {.blocks = {7}}));
}

TEST(missing_chunks_are_left_out) {
  const TempDir directory;
  TestArray array(directory.path() / "a", {.shape = {50, 9}, .chunk_shape = {8, 4}});
  array.remove_chunk("2.1");
  const CeilingResult result = measure_ceiling(array.field(), {.num_threads = 2});
  CHECK_EQ(result.decoded_bytes, uint64_t{(array.keys().size() - 1) * 8 * 4 * 4});
}

TEST(a_broken_chunk_ends_the_measurement_with_its_error) {
  const TempDir directory;
  const TestArray array(directory.path() / "a", {.shape = {50, 9}, .chunk_shape = {8, 4}, .packing = Packing::kZstd});
  write_file(array.chunk_path("3.0"), std::vector<uint8_t>(5));
  CHECK_THROWS(kCorrupt, "a chunk 3.0", measure_ceiling(array.field(), {.num_threads = 3}));
}

TEST(memory_that_the_system_does_not_give_is_an_error_and_not_a_wait) {
  const TempDir directory;
  write_file(directory.path() / ".zarray", {});
  FieldSpec field;
  field.array.name = "vast";
  field.array.shape = {4, int64_t{1} << 50};
  field.array.chunk_shape = {1, int64_t{1} << 50};
  field.array.storage_order = {0, 1};
  field.array.item_bytes = 1;
  field.array.fill = {0};
  field.array.root = directory.path().string();
  field.array.metadata_key = ".zarray";
  field.array.key = {"", '.'};
  const int result = result_of_child([&] {
    try {
      measure_ceiling(field, {.num_threads = 2, .window_chunks = 2});
    } catch (const std::bad_alloc&) {
      return 7;
    }
    return 8;
  });
  CHECK_EQ(result, 7);
}

}  // namespace zarrfeed::testing::ceiling_test
