// Where the sample with a number begins.

#include "plan/patch_table.h"

#include <limits>
#include <vector>

#include "tests/support/check.h"

namespace zarrfeed::testing::patch_table_test {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// Two volumes; the first one has a block of 2 x 3 tiles and one of 1 x 2, the second one a tile.
PatchTable tiles() {
  PatchTable table;
  table.num_dims = 2;
  table.step = {10, 4};
  table.origin = {-3, 0, 0, -1};
  table.least = {-kNone, 0, 0, 0};
  table.last = {kNone, 7, kNone, kNone};
  table.block_first = {0, 6, 8, 9};
  table.block_volume = {0, 0, 1};
  table.block_begin = {0, 0, 2, 1, 5, 0};
  table.block_count = {2, 3, 1, 2, 1, 1};
  table.sweep_axis = 1;
  table.margin = {10, 4};
  table.period = {0, 0, 0, 0};
  table.stride = {100, 1, 50, 1};
  table.volume_number = {0, 10'000};
  return table;
}

}  // namespace

TEST(tiles_are_numbered_block_by_block_in_c_order) {
  const PatchTable table = tiles();
  table.check();
  const std::vector<std::vector<int64_t>> starts = {{-3, 0}, {-3, 4}, {-3, 7}, {7, 0}, {7, 4},
                                                    {7, 7},  {17, 4}, {17, 7}, {50, 0}};
  CHECK_EQ(table.num_samples(), int64_t{9});
  for (int64_t sample = 0; sample < 9; ++sample) {
    const PatchStart start = table.start(sample);
    const auto& expected = starts[static_cast<size_t>(sample)];
    CHECK_EQ(start.volume, sample == 8 ? int64_t{1} : int64_t{0});
    CHECK_EQ(start.at[0], expected[0]);
    CHECK_EQ(start.at[1], expected[1]);
    const int64_t number = sample == 8 ? 10'000 + 60 * 50 + 4 : (expected[0] + 10) * 100 + expected[1] + 4;
    CHECK_EQ(table.number(sample), number);
  }
  for (const int64_t sample : {-1, 9}) CHECK_THROWS(kConfig, "there is no patch", table.start(sample));
}

TEST(listed_patches_begin_where_the_list_says) {
  PatchTable table;
  table.num_dims = 1;
  table.volume_of = {1, 0};
  table.start_of = {-5, 3};
  table.margin = {5};
  table.period = {0, 2};
  table.stride = {1, 1};
  table.volume_number = {0, 100};
  table.check();
  CHECK_EQ(table.num_samples(), int64_t{2});
  CHECK_EQ(table.start(0).volume, int64_t{1});
  CHECK_EQ(table.start(0).at[0], int64_t{-5});
  CHECK_EQ(table.number(0), int64_t{100 + 1 + 5});  // -5 modulo 2
  CHECK_EQ(table.number(1), int64_t{8});
}

TEST(tables_that_do_not_fit_together_are_refused) {
  for (int i = 0; i < 18; ++i) {
    PatchTable table = tiles();
    if (i == 0) table.num_dims = 0;
    if (i == 1) table.step.pop_back();
    if (i == 2) table.origin.pop_back();
    if (i == 3) table.last.push_back(0);
    if (i == 4) table.block_first[1] = 5;
    if (i == 5) table.block_volume[0] = 2;
    if (i == 6) table.block_count[0] = 0;
    if (i == 7) table.stride.pop_back();
    if (i == 8) table.margin.clear();
    if (i == 9) table.block_count = {1, 6, int64_t{1} << 62, int64_t{1} << 62, 1, 1};
    if (i == 10) table.least.pop_back();
    if (i == 11) table.period.pop_back();
    if (i == 12) table.period[0] = -1;
    if (i == 13) table.sweep_axis = -2;
    if (i == 14) table.sweep_axis = 2;
    if (i >= 15) table.orientations.resize(2);
    if (i == 15) table.orientations[1].source = {1, 2};
    if (i == 16) table.orientations[1].source = {1, 1};
    if (i == 17) table.orientations[1].source = {~1, 1};
    CHECK_THROWS(kConfig, "patch table", table.check());
  }
}

}  // namespace zarrfeed::testing::patch_table_test
