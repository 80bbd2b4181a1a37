// Division that rounds down or up, against exact arithmetic in 128 bits, up to the ends of the types.

#include "base/division.h"

#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/huge_pages.h"
#include "tests/support/check.h"

namespace zarrfeed::testing::division_test {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max(), kLeast = std::numeric_limits<int64_t>::min();

}  // namespace

TEST(quotients_of_numbers_with_a_sign_are_rounded_as_named) {
  for (const int64_t a : {kLeast, kLeast + 1, int64_t{-12}, int64_t{-7}, int64_t{-1}, int64_t{0}, int64_t{1},
                          int64_t{6}, int64_t{7}, int64_t{12}, kMost - 1, kMost}) {
    for (const int64_t b : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{6}, int64_t{7}, kMost - 1, kMost}) {
      const auto wide = static_cast<__int128>(a);
      const int64_t down = floor_div(a, b), up = ceil_div(a, b);
      CHECK(static_cast<__int128>(down) * b <= wide && wide < (static_cast<__int128>(down) + 1) * b);
      CHECK(static_cast<__int128>(up) * b >= wide && wide > (static_cast<__int128>(up) - 1) * b);
      if (a < -kMost / 2) continue;  // the multiple of b below a does not fit
      CHECK(modulo(a, b) >= 0 && modulo(a, b) < b && (wide - modulo(a, b)) % b == 0);
    }
  }
}

TEST(sizes_are_rounded_up_where_their_sum_does_not_fit) {
  constexpr size_t kLargest = std::numeric_limits<size_t>::max();
  CHECK_EQ(ceil_div(kLargest, kLargest), size_t{1});
  CHECK_EQ(ceil_div(kLargest, size_t{2}), kLargest / 2 + 1);
  CHECK_EQ(ceil_div(size_t{0}, size_t{4}), size_t{0});
  CHECK_EQ(ceil_div(size_t{9}, size_t{3}), size_t{3});
  CHECK_EQ(ceil_div(size_t{10}, size_t{3}), size_t{4});
  CHECK_EQ(round_up(size_t{1}, size_t{4096}), size_t{4096});
  CHECK_EQ(round_up(size_t{4096}, size_t{4096}), size_t{4096});
}

}  // namespace zarrfeed::testing::division_test
