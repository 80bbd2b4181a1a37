// Matrices that are transposed, and items in reverse order, against loops over single items.

#include "transform/patches/transpose.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"
#include "transform/convert/item_copy.h"

namespace zarrfeed::testing::transpose_test {

TEST(each_item_of_a_matrix_comes_to_its_place_and_nothing_else_is_written) {
  std::mt19937_64 random(1);
  for (int i = 0; i < draws(3000); ++i) {
    const Context context("case " + std::to_string(i));
    const auto item = int64_t{1} << random() % 4;
    CHECK(can_transpose(static_cast<size_t>(item)));
    const int64_t rows = pick(random, 1, 90);
    const int64_t columns = pick(random, 1, 90);
    const int64_t source_gap = columns * item + pick(random, 0, 9);
    // Now and then rows of the result are so far apart that they go through a block.
    const int64_t dest_gap = random() % 3 == 0 ? 1024 : rows * item + pick(random, 0, 9);
    const bool backwards_in_source = random() % 2 == 0;
    const bool backwards_in_dest = random() % 2 == 0;
    // Of exactly their sizes, for the sanitizer.
    std::vector<uint8_t> source(static_cast<size_t>((rows - 1) * source_gap + columns * item));
    for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
    std::vector<uint8_t> out(static_cast<size_t>((columns - 1) * dest_gap + rows * item), 0xa5);
    std::vector<uint8_t> expected = out;
    const int64_t source_at = backwards_in_source ? (rows - 1) * source_gap : 0;
    const int64_t dest_at = backwards_in_dest ? (columns - 1) * dest_gap : 0;
    const int64_t source_stride = backwards_in_source ? -source_gap : source_gap;
    const int64_t dest_stride = backwards_in_dest ? -dest_gap : dest_gap;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        std::memcpy(expected.data() + dest_at + c * dest_stride + r * item,
                    source.data() + source_at + r * source_stride + c * item, static_cast<size_t>(item));
      }
    }
    copy_transposed(static_cast<size_t>(item), out.data() + dest_at, source.data() + source_at, rows, columns,
                    dest_stride, source_stride);
    CHECK(out == expected);
  }
  CHECK(!can_transpose(16));
}

TEST(items_are_copied_in_reverse_order) {
  std::mt19937_64 random(2);
  const std::pair<size_t, size_t> widths[] = {{1, 0}, {2, 0}, {2, 2}, {4, 0},  {4, 4},
                                              {8, 0}, {8, 4}, {8, 8}, {16, 0}, {16, 8}};
  for (const auto& [item, swap] : widths) {
    for (size_t count = 1; count < 70; ++count) {
      std::vector<uint8_t> source(count * item), out(source.size()), expected(source.size());
      for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(&expected[i * item], &source[(count - 1 - i) * item], item);
        for (size_t unit = 0; swap > 0 && unit < item; unit += swap) {
          const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(i * item + unit);
          std::reverse(begin, begin + static_cast<std::ptrdiff_t>(swap));
        }
      }
      choose_reversed_copy(item, swap)(out.data(), &source[(count - 1) * item], static_cast<int64_t>(count),
                                       -static_cast<int64_t>(item));
      CHECK(out == expected);
    }
  }
}

}  // namespace zarrfeed::testing::transpose_test
