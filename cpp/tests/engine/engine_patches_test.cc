// Patches through the whole engine: every place of every patch, whatever is carried from group to group, and each chunk
// decoded once by a lane that sweeps through the volume.

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/reading.h"

using namespace zarrfeed;
using namespace zarrfeed::testing;

namespace {

constexpr int64_t kBatch = 11;
constexpr int64_t kSide = 4;
const std::vector<int64_t> kShape = {25, 18, 14};
const std::vector<int64_t> kTiles = {7, 5, 4};  // with the phase, tiles of kSide cover the volume
constexpr int64_t kPhase = 2;
constexpr uint32_t kPad = 7;

/// A volume of the samples of an array, cut into tiles; a block is a layer of them.
struct Volume {
  explicit Volume(ArrayLayout layout) : data({std::move(layout)}, false, true) {
    fields = data.fields();
    PatchSpec patch;
    for (int dim = 0; dim < 3; ++dim) patch.axes.push_back({.dim = dim, .size = kSide});
    patch.volumes = {{0, 0, kShape[0]}};
    patch.fill.resize(sizeof(kPad));
    std::memcpy(patch.fill.data(), &kPad, sizeof(kPad));
    fields[0].patch = patch;
  }

  [[nodiscard]] static LineSpec line(int64_t lanes, bool shuffle) {
    LineSpec line;
    line.block_rows = kTiles[1] * kTiles[2];
    line.num_samples = kTiles[0] * line.block_rows;
    line.lanes = lanes;
    line.shuffle = shuffle;
    for (int64_t block = 0; block < kTiles[0]; ++block) line.block_order.push_back(block);
    return line;
  }

  static std::unique_ptr<OwnedPlan> plan(const LineSpec& line) {
    auto owned = build_plan(line);
    auto table = std::make_shared<PatchTable>();
    table->num_dims = 3;
    table->step = {kSide, kSide, kSide};
    table->origin = {-kPhase, -kPhase, -kPhase};
    table->least.assign(3, std::numeric_limits<int64_t>::min());
    table->last.assign(3, std::numeric_limits<int64_t>::max());
    for (int64_t block = 0; block < kTiles[0]; ++block) {
      table->block_first.push_back(block * line.block_rows);
      table->block_volume.push_back(0);
      table->block_begin.insert(table->block_begin.end(), {block, 0, 0});
      table->block_count.insert(table->block_count.end(), {1, kTiles[1], kTiles[2]});
    }
    table->block_first.push_back(line.num_samples);
    table->margin = {kSide, kSide, kSide};
    table->period = {0, 0, 0};
    table->stride = {10'000, 100, 1};
    table->volume_number = {0};
    table->check();
    owned->patches = table;
    const auto groups = owned->group_lane.size();
    owned->next_group.assign(groups, -1);
    for (size_t g = 0; g < groups; ++g) {
      for (size_t next = g + 1; next < groups && owned->next_group[g] < 0; ++next) {
        if (owned->group_lane[next] == owned->group_lane[g]) owned->next_group[g] = static_cast<int64_t>(next);
      }
    }
    owned->bind();
    return owned;
  }

  /// Checks a patch against the samples of the array.
  void check(const uint8_t* patch, int64_t number) const {
    const int64_t begin[] = {number / 10'000 - kSide, number / 100 % 100 - kSide, number % 100 - kSide};
    for (int64_t i = 0; i < kSide * kSide * kSide; ++i) {
      const int64_t z = begin[0] + i / (kSide * kSide);
      const int64_t y = begin[1] + i / kSide % kSide;
      const int64_t x = begin[2] + i % kSide;
      uint32_t expected = kPad;
      if (z >= 0 && z < kShape[0] && y >= 0 && y < kShape[1] && x >= 0 && x < kShape[2]) {
        const std::vector<uint8_t> sample = data.expected(0, z);
        std::memcpy(&expected, sample.data() + static_cast<size_t>(y * kShape[2] + x) * sizeof(expected),
                    sizeof(expected));
      }
      uint32_t found = 0;
      std::memcpy(&found, patch + static_cast<size_t>(i) * sizeof(found), sizeof(found));
      CHECK_EQ(found, expected);
    }
  }

  /// Reads an epoch and checks it; returns how many chunks were decoded.
  uint64_t read(Engine& engine, const LineSpec& line, int64_t more) const {
    const uint64_t before = engine.stats().chunks_read;
    auto owned = plan(line);
    const std::vector<int64_t> order = reference_order(line);
    const auto table = owned->patches;
    const int64_t required = Engine::required_open_batches(owned->plan, kBatch);
    engine.start(std::move(owned), required + more);
    int64_t step = 0;
    while (const auto batch = take(engine)) {
      for (int64_t row = 0; row < batch->rows; ++row, ++step) {
        int64_t number = 0;
        std::memcpy(&number, batch->buffers[1] + row * 8, 8);
        CHECK_EQ(number, table->number(order[static_cast<size_t>(step)]));
        check(batch->buffers[0] + static_cast<size_t>(row) * kSide * kSide * kSide * 4, number);
      }
      release(engine, *batch);
    }
    CHECK_EQ(step, line.num_steps());
    return engine.stats().chunks_read - before;
  }

  Dataset data;
  std::vector<FieldSpec> fields;
};

EngineOptions with_carry(size_t carry_bytes, size_t threads) {
  EngineOptions options = with_threads(threads, kBatch);
  options.carry_bytes = carry_bytes;
  return options;
}

}  // namespace

TEST(patches_are_those_of_the_volume_whatever_is_carried) {
  for (int64_t i = 0; i < 12; ++i) {
    const Context context("case " + std::to_string(i));
    Volume volume({.shape = kShape,
                   .chunk_shape = i % 2 == 0 ? std::vector<int64_t>{8, 7, 5} : std::vector<int64_t>{3, 18, 4},
                   .storage_order = i % 3 == 0 ? std::vector<int>{2, 0, 1} : std::vector<int>{},
                   .packing = i % 4 == 0 ? Packing::kBlosc : Packing::kZstd,
                   .big_endian = i % 5 == 0});
    volume.data.arrays[0]->remove_chunk(volume.data.arrays[0]->keys().front());
    const size_t room = std::array{size_t{0}, size_t{2000}, size_t{1} << 30}[static_cast<size_t>(i) % 3];
    Engine engine(volume.fields, with_carry(room, 1 + static_cast<size_t>(i) % 4));
    volume.read(engine, Volume::line(1, false), 0);
    volume.read(engine, Volume::line(3, true), 5);
    LineSpec half = Volume::line(2, true);  // of two ranks, the second one
    half.first = 1;
    half.stride = 2;
    volume.read(engine, half, 2);
  }
}

TEST(a_lane_that_sweeps_decodes_each_chunk_once) {
  for (const size_t threads : {1, 3}) {
    Volume volume({.shape = kShape, .chunk_shape = {8, 7, 5}, .packing = Packing::kBlosc});
    Engine engine(volume.fields, with_carry(size_t{1} << 30, threads));
    CHECK_EQ(volume.read(engine, Volume::line(1, true), 3), uint64_t{4 * 3 * 3});
    Engine alone(volume.fields, with_carry(0, threads));  // every layer of tiles decodes what it needs
    CHECK_EQ(volume.read(alone, Volume::line(1, true), 3), uint64_t{(7 + 3) * 3 * 3});
  }
}

TEST(a_plan_without_a_table_of_patches_is_an_error) {
  Volume volume({.shape = kShape, .chunk_shape = {8, 7, 5}});
  Engine engine(volume.fields, with_carry(0, 2));
  auto owned = Volume::plan(Volume::line(1, false));
  owned->patches = nullptr;
  owned->next_group.clear();
  owned->bind();
  CHECK_THROWS(kConfig, "where patches begin", engine.start(std::move(owned), 100));
}
