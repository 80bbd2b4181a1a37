// Views of what was read of a chunk: bytes that were not read are refused.

#include "base/stored_bytes.h"

#include <memory>
#include <numeric>
#include <vector>

#include "tests/support/check.h"

namespace zarrfeed::testing::stored_bytes_test {
namespace {

std::vector<uint8_t> of(Bytes bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST(all_bytes_of_a_chunk_that_was_read_whole_are_there) {
  const std::vector<uint8_t> chunk{1, 2, 3};
  const StoredBytes stored = chunk;
  CHECK(stored.is_whole());
  CHECK_EQ(stored.size(), size_t{3});
  CHECK_EQ(stored.bytes_read(), size_t{3});
  CHECK(of(stored.whole()) == chunk);
  CHECK(of(stored.from(1)) == (std::vector<uint8_t>{2, 3}));
  CHECK(stored.from(3).empty() && stored.from(7).empty());
  CHECK(StoredBytes().is_whole() && StoredBytes().from(0).empty());
}

TEST(parts_of_a_chunk_are_found_by_their_place_in_the_chunk_and_others_are_refused) {
  const std::vector<uint8_t> memory{10, 11, 14, 15, 16, 19};  // bytes 0, 1, 4, 5, 6 and 9 of 12
  const auto parts = std::make_shared<const StoredParts>(StoredParts{12, {{{0, 2}, 0}, {{4, 7}, 2}, {{9, 10}, 5}}});
  const StoredBytes stored(memory, parts);
  CHECK(!stored.is_whole());
  CHECK_EQ(stored.size(), size_t{12});
  CHECK_EQ(stored.bytes_read(), size_t{6});
  CHECK_THROWS(kConfig, "all of a chunk is needed, and parts of it were read", static_cast<void>(stored.whole()));
  const std::vector<std::vector<uint8_t>> from{{10, 11}, {11}, {}, {},   {14, 15, 16}, {15, 16},
                                               {16},     {},   {}, {19}, {},           {}};
  for (size_t begin = 0; begin < from.size(); ++begin) CHECK(of(stored.from(begin)) == from[begin]);
}

}  // namespace zarrfeed::testing::stored_bytes_test
