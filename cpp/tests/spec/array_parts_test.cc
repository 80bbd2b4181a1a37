// Parts of an array: which chunk has a row, which part has a chunk. The invariant: chunks are numbered through without
// a gap, each has rows of one part, and a row is in the chunk that a count from the first row of its part finds.

#include "spec/array_parts.h"

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::array_parts_test {
namespace {

/// Up to 6 parts, some of them side by side and some with rows of nobody between.
ArrayParts random_parts(std::mt19937_64& random) {
  ArrayParts parts;
  parts.rows_per_chunk = pick(random, 1, 6);
  int64_t row = pick(random, 0, 3);
  for (int64_t count = pick(random, 1, 6); count > 0; --count) {
    parts.begin.push_back(row);
    row += pick(random, 1, 20);
    parts.end.push_back(row);
    if (random() % 2 == 0) row += pick(random, 1, 9);
  }
  parts.number_chunks();
  return parts;
}

}  // namespace

TEST(every_row_is_in_the_chunk_that_counting_finds) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 500; ++i) {
    const Context context("case " + std::to_string(i));
    const ArrayParts parts = random_parts(random);
    std::map<int64_t, int64_t> chunk_of_row;
    int64_t chunk = -1;
    for (size_t p = 0; p < parts.begin.size(); ++p) {
      for (int64_t row = parts.begin[p]; row < parts.end[p]; ++row) {
        if ((row - parts.begin[p]) % parts.rows_per_chunk == 0) {
          ++chunk;
          CHECK_EQ(parts.part_of(chunk), p);
          CHECK_EQ(parts.first_row(chunk), row);
        }
        chunk_of_row[row] = chunk;
      }
    }
    for (int64_t row = -2; row < parts.end.back() + 8; ++row) {
      const auto found = chunk_of_row.find(row);
      CHECK_EQ(parts.chunk_of(row), found == chunk_of_row.end() ? -1 : found->second);
    }
  }
}

TEST(the_last_chunk_of_a_part_ends_with_the_part) {
  // Rows 0 to 4 in chunks of 3, nobody has 5 and 6, rows 7 to 12 in two full chunks, row 13 in a chunk of its own.
  ArrayParts parts{
      .begin = {0, 7, 13}, .end = {5, 13, 14}, .prefix = {}, .name = {}, .rows_per_chunk = 3, .first_chunk = {}};
  parts.number_chunks();
  CHECK(parts.first_chunk == (std::vector<int64_t>{0, 2, 4}));
  CHECK_EQ(parts.chunk_of(4), int64_t{1});
  CHECK_EQ(parts.chunk_of(5), int64_t{-1});
  CHECK_EQ(parts.chunk_of(6), int64_t{-1});
  CHECK_EQ(parts.chunk_of(7), int64_t{2});
  CHECK_EQ(parts.chunk_of(12), int64_t{3});
  CHECK_EQ(parts.chunk_of(13), int64_t{4});
  CHECK_EQ(parts.chunk_of(14), int64_t{-1});
}

TEST(numbering_chunks_again_begins_anew) {
  ArrayParts parts{.begin = {0, 4}, .end = {4, 6}, .prefix = {}, .name = {}, .rows_per_chunk = 2, .first_chunk = {}};
  parts.number_chunks();
  parts.rows_per_chunk = 4;
  parts.number_chunks();
  CHECK(parts.first_chunk == (std::vector<int64_t>{0, 1}));
}

TEST(a_key_is_of_the_part_whose_prefix_it_begins_with) {
  const ArrayParts parts{.begin = {},
                         .end = {},
                         .prefix = {"/data/", "/data/b/", "/data/b.zarr/"},
                         .name = {},
                         .rows_per_chunk = 1,
                         .first_chunk = {}};
  CHECK_EQ(parts.part_of_key("/data/c/0").value(), size_t{0});
  CHECK_EQ(parts.part_of_key("/data/b/c/0").value(), size_t{1});
  CHECK_EQ(parts.part_of_key("/data/b.zarr/c/0").value(), size_t{2});
  CHECK(!parts.part_of_key("/dat").has_value());
}

}  // namespace zarrfeed::testing::array_parts_test
