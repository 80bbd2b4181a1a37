#pragma once
// A volume of the samples of arrays, cut into tiles, its plans, and what batches of its patches must have.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/check.h"
#include "tests/support/reading.h"

namespace zarrfeed::testing {

inline constexpr int64_t kBatch = 11;
inline constexpr int64_t kSide = 4;
inline constexpr size_t kPatchItems = kSide * kSide * kSide;
inline const std::vector<int64_t> kShape = {25, 18, 14};
inline const std::vector<int64_t> kTiles = {7, 5, 4};  // with the phase, tiles of kSide cover the volume
inline constexpr int64_t kPhase = 2;
inline constexpr uint32_t kPad = 7;

/// Columns of tiles; a block is a layer of a column, one tile thick.
struct Columns {
  size_t sweep_axis = 0;
  std::vector<int64_t> width = {1, 5, 4};  ///< tiles of a block, which divide those of the volume

  [[nodiscard]] int64_t rows() const { return width[0] * width[1] * width[2]; }
  [[nodiscard]] int64_t layers() const { return kTiles[sweep_axis]; }
  [[nodiscard]] int64_t num_columns() const { return kTiles[0] * kTiles[1] * kTiles[2] / rows() / layers(); }
  /// The first tiles of the blocks: column by column, layer by layer.
  [[nodiscard]] std::vector<std::vector<int64_t>> blocks() const {
    std::vector<std::vector<int64_t>> found;
    std::vector<int64_t> begin(3, 0);
    for (int64_t column = 0; column < num_columns(); ++column) {
      for (begin[sweep_axis] = 0; begin[sweep_axis] < layers(); ++begin[sweep_axis]) found.push_back(begin);
      begin[sweep_axis] = 0;
      for (size_t d = 3; d-- > 0;) {
        if (d == sweep_axis) continue;
        if ((begin[d] += width[d]) < kTiles[d]) break;
        begin[d] = 0;
      }
    }
    return found;
  }
  /// The chunks of an array that all columns decode, if each decodes what it needs once.
  [[nodiscard]] uint64_t decodes(const std::vector<int64_t>& chunk) const {
    uint64_t product = 1;
    for (size_t d = 0; d < 3; ++d) {
      const int64_t of_part = (d == sweep_axis ? kTiles[d] : width[d]) * kSide;
      uint64_t touched = 0;
      for (int64_t begin = -kPhase; begin < kShape[d]; begin += of_part) {
        const int64_t last = std::min(begin + of_part, kShape[d]) - 1;
        touched += static_cast<uint64_t>(last / chunk[d] - std::max<int64_t>(begin, 0) / chunk[d] + 1);
      }
      product *= touched;
    }
    return product;
  }
};

/// A volume of the samples of arrays, cut into tiles.
struct Volume {
  /// `contexts` are arrays that have one more field each: twice as wide, around the patches.
  explicit Volume(std::vector<ArrayLayout> layouts, Columns cut = {}, const std::vector<size_t>& contexts = {})
      : data(std::move(layouts), false, true), columns(std::move(cut)) {
    data.again = contexts;
    fields = data.fields();
    PatchSpec patch;
    for (int dim = 0; dim < 3; ++dim) patch.axes.push_back({.dim = dim, .size = kSide});
    patch.volumes = {{0, 0, kShape[0]}};
    patch.fill.resize(sizeof(kPad));
    std::memcpy(patch.fill.data(), &kPad, sizeof(kPad));
    for (size_t f = 0; f < data.arrays.size(); ++f) fields[f].patch = patch;
    for (PatchAxis& axis : patch.axes) {
      axis.size = 2 * kSide;
      axis.shift = -kSide / 2;
    }
    for (size_t f = data.first_again(); f < fields.size(); ++f) fields[f].patch = patch;
  }

  /// All blocks: in order, or if shuffled the columns at random, each begun at a random layer.
  [[nodiscard]] PlanSpec plan_spec(int64_t lanes, bool shuffle) const {
    PlanSpec spec;
    spec.block_rows = columns.rows();
    spec.num_samples = kTiles[0] * kTiles[1] * kTiles[2];
    spec.lanes = lanes;
    spec.shuffle = shuffle;
    std::mt19937_64 random(static_cast<uint64_t>(lanes));
    std::vector<int64_t> order(static_cast<size_t>(columns.num_columns()));
    std::iota(order.begin(), order.end(), 0);
    if (shuffle) std::shuffle(order.begin(), order.end(), random);
    for (const int64_t column : order) {
      const int64_t first = shuffle ? pick(random, 0, columns.layers() - 1) : 0;
      for (int64_t layer = 0; layer < columns.layers(); ++layer) {
        spec.block_order.push_back(column * columns.layers() + (first + layer) % columns.layers());
      }
    }
    return spec;
  }

  [[nodiscard]] std::unique_ptr<OwnedPlan> plan(const PlanSpec& spec) const {
    auto owned = build_plan(spec);
    auto table = std::make_shared<PatchTable>();
    table->num_dims = 3;
    table->step = {kSide, kSide, kSide};
    table->origin = {-kPhase, -kPhase, -kPhase};
    table->least.assign(3, std::numeric_limits<int64_t>::min());
    table->last.assign(3, std::numeric_limits<int64_t>::max());
    for (const std::vector<int64_t>& begin : columns.blocks()) {
      table->block_first.push_back(std::ssize(table->block_volume) * spec.block_rows);
      table->block_volume.push_back(0);
      table->block_begin.insert(table->block_begin.end(), begin.begin(), begin.end());
      table->block_count.insert(table->block_count.end(), columns.width.begin(), columns.width.end());
    }
    table->block_first.push_back(spec.num_samples);
    table->sweep_axis = static_cast<int64_t>(columns.sweep_axis);
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

  /// The items of an array, as they must arrive.
  [[nodiscard]] std::vector<uint32_t> items(size_t field) const {
    std::vector<uint32_t> found;
    for (int64_t z = 0; z < kShape[0]; ++z) {
      const std::vector<uint8_t> sample = data.expected(field, z);
      found.resize(found.size() + sample.size() / sizeof(uint32_t));
      std::memcpy(&*found.end() - sample.size() / sizeof(uint32_t), sample.data(), sample.size());
    }
    return found;
  }

  /// Checks a patch, of a side, against the items of the array. It begins `shift` items behind where its number says.
  static void check(const uint8_t* patch, int64_t number, const std::vector<uint32_t>& items, int64_t side = kSide,
                    int64_t shift = 0) {
    const int64_t begin[] = {number / 10'000 - kSide, number / 100 % 100 - kSide, number % 100 - kSide};
    for (int64_t i = 0; i < side * side * side; ++i) {
      const int64_t z = begin[0] + shift + i / (side * side);
      const int64_t y = begin[1] + shift + i / side % side;
      const int64_t x = begin[2] + shift + i % side;
      uint32_t expected = kPad;
      if (z >= 0 && z < kShape[0] && y >= 0 && y < kShape[1] && x >= 0 && x < kShape[2]) {
        expected = items[static_cast<size_t>((z * kShape[1] + y) * kShape[2] + x)];
      }
      uint32_t found = 0;
      std::memcpy(&found, patch + static_cast<size_t>(i) * sizeof(found), sizeof(found));
      CHECK_EQ(found, expected);
    }
  }

  /// Reads an epoch and checks it; returns how many chunks were decoded.
  uint64_t read(Engine& engine, const PlanSpec& spec, int64_t more, size_t keep_bytes = 0) const {
    std::vector<std::vector<uint32_t>> of_fields;
    for (size_t f = 0; f < data.arrays.size(); ++f) of_fields.push_back(items(f));
    const uint64_t before = engine.stats().chunks_read;
    auto owned = plan(spec);
    const std::vector<int64_t> order = reference_order(spec);
    const auto table = owned->patches;
    const int64_t required = Engine::required_open_batches(owned->plan, kBatch);
    engine.start(std::move(owned), required + more, false, keep_bytes);
    int64_t step = 0;
    while (const auto batch = take(engine)) {
      for (int64_t row = 0; row < batch->rows; ++row, ++step) {
        int64_t number = 0;
        std::memcpy(&number, batch->buffers[of_fields.size()] + row * 8, 8);
        CHECK_EQ(number, table->number(order[static_cast<size_t>(step)]));
        for (size_t f = 0; f < of_fields.size(); ++f) {
          check(batch->buffers[f] + static_cast<size_t>(row) * kPatchItems * sizeof(uint32_t), number, of_fields[f]);
        }
        for (size_t k = 0; k < data.again.size(); ++k) {
          const uint8_t* const contexts = batch->buffers[data.first_again() + k];
          check(contexts + static_cast<size_t>(row) * 8 * kPatchItems * sizeof(uint32_t), number,
                of_fields[data.again[k]], 2 * kSide, -kSide / 2);
        }
      }
      release(engine, *batch);
    }
    CHECK_EQ(step, spec.num_steps());
    return engine.stats().chunks_read - before;
  }

  Dataset data;
  Columns columns;
  std::vector<FieldSpec> fields;
};

/// A volume of 36 chunks with columns, its plan for some lanes, and its outputs.
struct PlannedVolume {
  explicit PlannedVolume(int64_t lanes, Columns columns = {0, {1, 5, 2}})
      : volume({{.shape = kShape, .chunk_shape = {8, 7, 5}, .packing = Packing::kRaw}}, std::move(columns)),
        plan(volume.plan(volume.plan_spec(lanes, true))),
        outputs(volume.fields) {}

  [[nodiscard]] size_t num_groups() const { return plan->plan.group_begin.size() - 1; }

  Volume volume;
  std::unique_ptr<OwnedPlan> plan;
  OutputTable outputs;
};

inline EngineOptions with_carry(size_t carry_bytes, size_t threads) {
  EngineOptions options = with_threads(threads, kBatch);
  options.carry_bytes = carry_bytes;
  return options;
}

inline const std::vector<Columns> kColumns = {
    {0, {1, 5, 4}}, {0, {1, 5, 2}}, {0, {1, 1, 2}}, {1, {7, 1, 2}}, {2, {1, 5, 1}}, {1, {1, 1, 1}},
};

}  // namespace zarrfeed::testing
