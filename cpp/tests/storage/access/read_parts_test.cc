// Reads of parts: each wanted byte once, nothing twice, and nothing after a read that gave up.

#include "storage/access/read_parts.h"

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::read_parts_test {
namespace {

/// Answers as it was told.
class Told : public ChunkParts {
 public:
  explicit Told(std::function<Found(size_t first)> answer) : answer_(std::move(answer)) {}
  [[nodiscard]] Found find(Bytes first, size_t) const override { return answer_(first.size()); }

 private:
  const std::function<Found(size_t)> answer_;
};

struct Chunk {
  explicit Chunk(size_t size) : bytes(size), reads(size) {
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + i / 251);
  }

  /// Gives up at read number `last`.
  [[nodiscard]] ReadAt read_at(int last = -1) {
    return [this, last](size_t offset, MutableBytes out) {
      if (calls == last) return false;
      ++calls;
      CHECK(!out.empty() && offset + out.size() <= bytes.size());
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = bytes[offset + i];
        ++reads[offset + i];
      }
      return true;
    };
  }

  std::vector<uint8_t> bytes;
  std::vector<int> reads;
  int calls = 0;
};

}  // namespace

TEST(each_byte_that_is_wanted_is_read_once_and_no_other_one) {
  std::mt19937_64 random(3);
  Buffer room;
  for (int i = 0; i < draws(2000); ++i) {
    const Context context("case " + std::to_string(i));
    const auto size = static_cast<size_t>(pick(random, 1, 400));
    // Up to two looks at the beginning, one of which may ask for more than there is.
    std::vector<size_t> looks;
    for (int64_t n = pick(random, 0, 2); n > 0; --n) looks.push_back(static_cast<size_t>(pick(random, 1, 500)));
    std::ranges::sort(looks);
    std::vector<StoredRange> ranges;
    for (size_t at = static_cast<size_t>(pick(random, 0, 50)); at < size;) {
      const size_t end = std::min(size, at + static_cast<size_t>(pick(random, 1, 60)));
      ranges.push_back({at, end});
      at = end + static_cast<size_t>(pick(random, 0, 60));
    }
    const Told wanted([&](size_t first) -> ChunkParts::Found {
      for (const size_t look : looks) {
        if (first < std::min(look, size)) return {.first = look};
      }
      return {.ranges = ranges};
    });
    std::vector<bool> is_wanted(size, ranges.empty());
    const size_t first = looks.empty() ? 0 : std::min(looks.back(), size);
    std::fill_n(is_wanted.begin(), first, true);
    for (const StoredRange& range : ranges) {
      std::fill(is_wanted.begin() + static_cast<std::ptrdiff_t>(range.begin),
                is_wanted.begin() + static_cast<std::ptrdiff_t>(range.end), true);
    }

    Chunk chunk(size);
    PartsRead out;
    CHECK(read_parts(wanted, size, room, chunk.read_at(), out));
    const StoredBytes stored(out.bytes, out.parts);
    CHECK_EQ(stored.size(), size);
    size_t count = 0;
    for (size_t byte = 0; byte < size; ++byte) {
      CHECK_EQ(chunk.reads[byte], is_wanted[byte] ? 1 : 0);
      count += is_wanted[byte] ? 1 : 0;
      const Bytes from = stored.from(byte);
      CHECK_EQ(from.empty(), !is_wanted[byte]);
      CHECK(std::equal(from.begin(), from.end(), chunk.bytes.begin() + static_cast<std::ptrdiff_t>(byte)));
      // What was read in one run is one: a block may begin in the first bytes and end behind them.
      if (is_wanted[byte] && byte + 1 < size && is_wanted[byte + 1]) CHECK(from.size() > 1);
    }
    CHECK_EQ(stored.bytes_read(), count);
    CHECK_EQ(stored.is_whole(), count == size);

    for (int last = 0; last < chunk.calls; ++last) {
      Chunk broken(size);
      CHECK(!read_parts(wanted, size, room, broken.read_at(last), out));
      CHECK_EQ(broken.calls, last);
    }
  }
}

TEST(an_answer_without_ranges_is_all_of_the_chunk) {
  Buffer room;
  for (const size_t first : {size_t{0}, size_t{5}}) {
    Chunk chunk(20);
    PartsRead out;
    const Told wanted([&](size_t have) { return ChunkParts::Found{.first = have < first ? first : 0}; });
    CHECK(read_parts(wanted, 20, room, chunk.read_at(), out));
    CHECK(out.parts == nullptr);
    CHECK(std::equal(out.bytes.begin(), out.bytes.end(), chunk.bytes.begin(), chunk.bytes.end()));
  }
}

TEST(an_empty_chunk_takes_no_read) {
  Buffer room;
  Chunk chunk(0);
  PartsRead out;
  CHECK(read_parts(Told([](size_t) { return ChunkParts::Found{.first = 16}; }), 0, room, chunk.read_at(), out));
  CHECK(out.parts == nullptr && out.bytes.empty());
  CHECK_EQ(chunk.calls, 0);
}

}  // namespace zarrfeed::testing::read_parts_test
