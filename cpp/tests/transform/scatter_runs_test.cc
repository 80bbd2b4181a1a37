// Runs of bytes out of Blosc chunks: all arrive, and exactly the blocks that they touch are decoded.

#include "transform/scatter_runs.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::scatter_runs_test {

TEST(runs_arrive_and_exactly_the_blocks_that_they_touch_are_decoded) {
  std::mt19937_64 random(21);
  DecodeScratch codecs;
  BloscScatterScratch scratch;
  for (int i = 0; i < draws(2000); ++i) {
    const Context context("case " + std::to_string(i));
    const auto typesize = static_cast<size_t>(std::vector<int64_t>{1, 2, 3, 4, 8}[random() % 5]);
    const size_t size = typesize * static_cast<size_t>(pick(random, 300, 3000));
    const size_t block_bytes = typesize * static_cast<size_t>(pick(random, 128, 400));
    const ByteVector data = random() % 2 == 0 ? smooth(size) : noise(size, random());
    const ByteVector stored = compress_blosc1(data, {.typesize = static_cast<uint8_t>(typesize),
                                                     .blocksize = std::min(size, block_bytes),
                                                     .reverse_blocks = i % 2 == 0});
    // Some runs begin and end between elements, and some do not; a byte may go to several places.
    const size_t unit = random() % 3 == 0 ? 1 : typesize;
    std::vector<ByteRun> runs;
    std::vector<std::vector<uint8_t>> expected;
    std::vector<std::vector<uint8_t>> slots;
    std::set<size_t> blocks;
    for (int64_t n = pick(random, 1, 6); n > 0; --n) {
      const auto begin = unit * static_cast<size_t>(pick(random, 0, static_cast<int64_t>(size / unit) - 1));
      const auto bytes = unit * static_cast<size_t>(pick(random, 1, static_cast<int64_t>((size - begin) / unit)));
      const auto from = data.begin() + static_cast<std::ptrdiff_t>(begin);
      expected.emplace_back(from, from + static_cast<std::ptrdiff_t>(bytes));
      slots.emplace_back(bytes, uint8_t{0xa5});
      runs.push_back({begin, bytes, nullptr});
      for (size_t at = begin; at < begin + bytes; ++at) blocks.insert(at / block_bytes);
    }
    for (size_t run = 0; run < runs.size(); ++run) runs[run].dest = slots[run].data();
    size_t decoded = 0;
    for (const size_t block : blocks) decoded += std::min(block_bytes, size - block * block_bytes);
    CHECK_EQ(scatter_runs(stored, size, runs, random() % 2 == 0, codecs, scratch), decoded);
    CHECK(slots == expected);
  }
}

TEST(a_chunk_of_another_size_is_refused) {
  const ByteVector stored = compress_blosc1(smooth(4096), {.blocksize = 256});
  std::vector<uint8_t> slot(16);
  std::vector<ByteRun> runs{{0, 16, slot.data()}};
  DecodeScratch codecs;
  BloscScatterScratch scratch;
  CHECK_THROWS(kCorrupt, "the metadata implies 8192", scatter_runs(stored, 8192, runs, false, codecs, scratch));
}

}  // namespace zarrfeed::testing::scatter_runs_test
