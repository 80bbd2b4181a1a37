// Patches through the whole engine: every item of every patch, whatever is carried from group to group, and each chunk
// decoded once by a lane that sweeps through a column of the volume.

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/patch_volume.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_patches_test {

TEST(patches_are_those_of_the_volume_whatever_is_carried) {
  for (int64_t i = 0; i < 24; ++i) {
    const Context context("case " + std::to_string(i));
    Volume volume({{.shape = kShape,
                    .chunk_shape = i % 2 == 0 ? std::vector<int64_t>{8, 7, 5} : std::vector<int64_t>{3, 18, 4},
                    .storage_order = i % 3 == 0 ? std::vector<int>{2, 0, 1} : std::vector<int>{},
                    .packing = std::array{Packing::kBlosc, Packing::kZstd, Packing::kRaw}[static_cast<size_t>(i) % 3],
                    .big_endian = i % 5 == 0},
                   {.shape = kShape, .chunk_shape = {5, 6, 14}, .packing = Packing::kZstd}},
                  kColumns[static_cast<size_t>(i) % kColumns.size()]);
    volume.data.arrays[0]->remove_chunk(volume.data.arrays[0]->keys().front());
    const size_t room = std::array{size_t{0}, size_t{2000}, size_t{6000}, size_t{1} << 30}[static_cast<size_t>(i) % 4];
    Engine engine(volume.fields, with_carry(room, 1 + static_cast<size_t>(i / 6) % 4));
    volume.read(engine, volume.plan_spec(1, false), 0);
    volume.read(engine, volume.plan_spec(3, true), 5);
    PlanSpec half = volume.plan_spec(2, true);  // of two ranks, the second one
    half.first = 1;
    half.stride = 2;
    volume.read(engine, half, 2);
  }
}

TEST(chunks_that_columns_share_are_decoded_once_if_they_are_cached) {
  const std::vector<int64_t> chunk = {8, 7, 5};
  constexpr uint64_t kChunks = uint64_t{4} * 3 * 3;
  for (const Columns& columns : kColumns) {
    for (const int64_t lanes : {1, 3, 7}) {
      for (const size_t threads : {1, 4}) {
        const Context context("lanes " + std::to_string(lanes) + ", width " + std::to_string(columns.width[2]));
        const Volume volume({{.shape = kShape, .chunk_shape = chunk, .packing = Packing::kBlosc},
                             {.shape = kShape, .chunk_shape = {25, 18, 14}, .packing = Packing::kZstd}},
                            columns);
        const PlanSpec spec = volume.plan_spec(lanes, true);
        Engine engine(volume.fields, with_carry(size_t{1} << 30, threads));
        const uint64_t without = volume.read(engine, spec, 3);
        uint64_t before = without;
        for (const size_t keep : {size_t{2000}, size_t{40'000}, size_t{1} << 30}) {
          const uint64_t decodes = volume.read(engine, spec, 3, keep);
          CHECK(decodes <= before || keep < 40'000);
          before = std::min(before, decodes);
        }
        CHECK_EQ(before, kChunks + 1);
        CHECK_EQ(volume.read(engine, spec, 3), without);  // nothing is cached from the epochs before
      }
    }
  }
}

TEST(consumers_cache_chunks_for_their_own_groups) {
  const Volume volume({{.shape = kShape, .chunk_shape = {8, 7, 5}, .packing = Packing::kBlosc}}, kColumns[1]);
  for (int64_t first = 0; first < 3; ++first) {
    PlanSpec part = volume.plan_spec(4, true);  // lanes of which each consumer has some patches
    part.first = first;
    part.stride = 3;
    Engine engine(volume.fields, with_carry(size_t{1} << 30, 2));
    const uint64_t without = volume.read(engine, part, 2);
    const uint64_t decodes = volume.read(engine, part, 2, size_t{1} << 30);
    CHECK(decodes < without);
    CHECK(decodes <= uint64_t{4 * 3 * 3});
  }
}

TEST(chunks_are_not_cached_where_none_are_carried) {
  const Volume volume({{.shape = kShape, .chunk_shape = {8, 7, 5}, .packing = Packing::kBlosc}}, kColumns[1]);
  const PlanSpec spec = volume.plan_spec(2, true);
  Engine engine(volume.fields, with_carry(0, 2));
  CHECK_EQ(volume.read(engine, spec, 3, size_t{1} << 30), volume.read(engine, spec, 3));
}

TEST(groups_that_need_other_parts_of_a_chunk_than_the_group_before_them_get_them) {
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < 12; ++i) {
    const Context context("case " + std::to_string(i));
    const Volume volume({{.shape = kShape, .chunk_shape = {25, 18, 14}, .packing = Packing::kZstd},
                         {.shape = kShape, .chunk_shape = {8, 7, 5}, .packing = Packing::kBlosc}},
                        kColumns[static_cast<size_t>(i) % kColumns.size()]);
    PlanSpec spec = volume.plan_spec(1 + i % 3, i % 2 == 0);
    spec.mix = 1 + i / 6;  // blocks of several columns in one group
    std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
    Engine engine(volume.fields, with_carry(size_t{1} << 30, 1 + static_cast<size_t>(i) % 3));
    volume.read(engine, spec, 3);
  }
}

TEST(a_lane_that_sweeps_decodes_each_chunk_once) {
  for (const size_t threads : {1, 3}) {
    const Volume volume({{.shape = kShape, .chunk_shape = {8, 7, 5}, .packing = Packing::kBlosc}});
    PlanSpec spec = volume.plan_spec(1, false);
    spec.shuffle = true;
    Engine engine(volume.fields, with_carry(size_t{1} << 30, threads));
    CHECK_EQ(volume.read(engine, spec, 3), uint64_t{4 * 3 * 3});
    Engine alone(volume.fields, with_carry(0, threads));  // every layer of tiles decodes what it needs
    CHECK_EQ(volume.read(alone, spec, 3), uint64_t{(7 + 3) * 3 * 3});
  }
}

TEST(a_lane_decodes_each_chunk_once_for_each_column) {
  const std::vector<std::vector<int64_t>> chunks = {{8, 7, 5}, {5, 6, 14}};
  for (const Columns& columns : kColumns) {
    for (const size_t threads : {1, 3}) {
      const Volume volume({{.shape = kShape, .chunk_shape = chunks[0], .packing = Packing::kBlosc},
                           {.shape = kShape, .chunk_shape = chunks[1], .packing = Packing::kRaw}},
                          columns);
      Engine engine(volume.fields, with_carry(size_t{1} << 30, threads));
      CHECK_EQ(volume.read(engine, volume.plan_spec(1, false), 3),
               columns.decodes(chunks[0]) + columns.decodes(chunks[1]));
    }
  }
}

TEST(a_lane_needs_no_memory_for_what_lies_beyond_its_column_or_the_volume) {
  const std::vector<int64_t> chunk = {8, 18, 100};
  const Columns columns{0, {1, 5, 2}};
  const Volume volume({{.shape = kShape, .chunk_shape = chunk, .packing = Packing::kBlosc}}, columns);
  const size_t of_layer = 8 * 18 * 8 * 4;  // the second column has 8 items of the 100
  Engine engine(volume.fields, with_carry(3 * of_layer, 1));
  CHECK_EQ(volume.read(engine, volume.plan_spec(1, false), 0), columns.decodes(chunk));
}

TEST(a_plan_without_a_table_of_patches_is_an_error) {
  const Volume volume({{.shape = kShape, .chunk_shape = {8, 7, 5}}});
  Engine engine(volume.fields, with_carry(0, 2));
  auto owned = volume.plan(volume.plan_spec(1, false));
  owned->patches = nullptr;
  owned->next_group.clear();
  owned->bind();
  CHECK_THROWS(kConfig, "where patches begin", engine.start(std::move(owned), 100));
}

TEST(patches_and_their_contexts_are_cut_out_of_chunks_that_are_decoded_once) {
  for (int64_t i = 0; i < 24; ++i) {
    const Context context("case " + std::to_string(i));
    const std::vector<ArrayLayout> layouts = {
        {.shape = kShape,
         .chunk_shape = i % 2 == 0 ? std::vector<int64_t>{8, 7, 5} : std::vector<int64_t>{3, 18, 4},
         .packing = std::array{Packing::kBlosc, Packing::kZstd, Packing::kRaw}[static_cast<size_t>(i) % 3]},
        {.shape = kShape, .chunk_shape = {5, 6, 14}, .packing = Packing::kZstd}};
    const Columns& columns = kColumns[static_cast<size_t>(i) % kColumns.size()];
    Volume volume(layouts, columns, {0, 1, 0});
    volume.data.arrays[0]->remove_chunk(volume.data.arrays[0]->keys().front());
    const size_t room = std::array{size_t{0}, size_t{6000}, size_t{1} << 30}[static_cast<size_t>(i) % 3];
    Engine engine(volume.fields, with_carry(room, 1 + static_cast<size_t>(i / 6) % 4));
    volume.read(engine, volume.plan_spec(1, false), 0);
    volume.read(engine, volume.plan_spec(3, true), 5, i % 2 == 0 ? size_t{40'000} : size_t{0});
    CHECK(engine.outputs().source(3) == nullptr);
    CHECK_EQ(engine.outputs().source_of(5), size_t{0});
  }
  // With memory for all, each chunk is decoded once, whoever draws from it.
  const Volume volume({{.shape = kShape, .chunk_shape = {8, 7, 5}, .packing = Packing::kBlosc}}, {0, {1, 5, 2}}, {0});
  Engine engine(volume.fields, with_carry(size_t{1} << 30, 2));
  volume.read(engine, volume.plan_spec(3, true), 3);
  CHECK_EQ(volume.read(engine, volume.plan_spec(3, true), 3, size_t{1} << 30), uint64_t{4} * 3 * 3);
}

}  // namespace zarrfeed::testing::engine_patches_test
