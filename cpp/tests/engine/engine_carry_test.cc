// Decoded chunks that are carried from a group to the next one of its lane: the same batches, and each chunk decoded
// once.

#include <filesystem>
#include <random>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing::engine_carry_test {
namespace {

EngineOptions with_carry(size_t carry_bytes, size_t threads, int64_t batch_size) {
  EngineOptions options = with_threads(threads, batch_size);
  options.carry_bytes = carry_bytes;
  return options;
}

}  // namespace

TEST(batches_are_the_same_whatever_is_carried) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Context context("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    Dataset data = rich_dataset();
    data.arrays[0]->remove_chunk(data.arrays[0]->keys().front());
    data.add_windows(random);
    const size_t room = std::array{size_t{1}, size_t{3000}, size_t{1} << 30}[seed % 3];
    Engine engine(data.fields(), with_carry(room, 1 + seed % 4, 7));
    for (const int64_t block_rows : {1, 8, 20}) {
      PlanSpec spec = plan_spec_of_windows(data, block_rows);
      start_shared(engine, spec, 7, 1);
      drain(engine, data, spec, 7);
      spec.shuffle = true;
      spec.lanes = std::min<int64_t>(3, spec.length());
      spec.mix = 2;
      std::shuffle(spec.block_order.begin(), spec.block_order.end(), random);
      start_shared(engine, spec, 7, 20);
      drain(engine, data, spec, 7);
    }
  }
}

TEST(a_chunk_is_decoded_once_for_all_groups_of_a_lane) {
  for (const size_t threads : {1, 4}) {
    Dataset data({{.shape = {64, 16'384}, .chunk_shape = {8, 16'384}, .packing = Packing::kBlosc}}, false, true);
    data.offsets = {{-1, 0, 1}};
    data.first_window = 1;
    data.end_window = 63;
    Engine engine(data.fields(), with_carry(size_t{1} << 30, threads, 32));
    for (const int64_t block_rows : {1, 8, 16}) {
      const uint64_t before = engine.stats().chunks_read;
      const PlanSpec spec = plan_spec_of_windows(data, block_rows);
      start_shared(engine, spec, 32, 40);
      drain(engine, data, spec, 32);
      CHECK_EQ(engine.stats().chunks_read - before, uint64_t{8});
    }
  }
}

TEST(without_room_every_block_decodes_its_chunks) {
  Dataset data({{.shape = {64, 16'384}, .chunk_shape = {8, 16'384}, .packing = Packing::kBlosc}}, false, true);
  data.offsets = {{-1, 0, 1}};
  data.first_window = 1;
  data.end_window = 63;
  Engine engine(data.fields(), with_carry(1, 2, 32));
  const PlanSpec spec = plan_spec_of_windows(data, 16);
  start_shared(engine, spec, 32, 40);
  drain(engine, data, spec, 32);
  CHECK_EQ(engine.stats().chunks_read.load(), uint64_t{4 * 2 + 2 * 3});
}

TEST(an_epoch_that_is_given_up_leaves_nothing_behind) {
  Dataset data({{.shape = {64, 16'384}, .chunk_shape = {8, 16'384}, .packing = Packing::kBlosc}}, false, true);
  data.offsets = {{-1, 0, 1}};
  data.first_window = 1;
  data.end_window = 63;
  Engine engine(data.fields(), with_carry(size_t{8} << 20, 3, 4));
  const PlanSpec spec = plan_spec_of_windows(data, 8);
  for (int round = 0; round < 20; ++round) {
    start_shared(engine, spec, 4, 3);
    if (round % 2 == 1) release(engine, *take(engine));
    engine.stop();
  }
  // All of the room is free again: 8 chunks of 512 KiB are carried, and none is decoded twice.
  const uint64_t before = engine.stats().chunks_read;
  start_shared(engine, spec, 4, 40);
  drain(engine, data, spec, 4);
  CHECK_EQ(engine.stats().chunks_read - before, uint64_t{8});
}

}  // namespace zarrfeed::testing::engine_carry_test
