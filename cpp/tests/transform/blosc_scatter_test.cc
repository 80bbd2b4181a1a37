// The fast path from Blosc blocks to slots against the plain one: decode the chunk, then copy its rows.

#include "transform/blosc_scatter.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/streaming_store.h"
#include "codecs/blosc_table.h"
#include "codecs/unshuffle.h"
#include "tests/support/check.h"
#include "tests/support/compress.h"

namespace zarrfeed::testing::blosc_scatter_test {
namespace {

constexpr uint8_t kUntouched = 0xa5;

ByteVector compressible(size_t size, std::mt19937& random) {
  ByteVector data(size);
  for (size_t i = 0; i < size; ++i) data[i] = static_cast<uint8_t>((i * 7 / 64) ^ (random() % 3));
  return data;
}

/// Scatters some rows of a chunk to shuffled slots in one buffer, `lead` bytes from an aligned address; some of them
/// to two or three slots.
void check_scatter(const ByteVector& data, const ByteVector& stored, size_t row_bytes, bool streaming, size_t lead,
                   std::mt19937& random) {
  const size_t rows = data.size() / row_bytes;
  std::vector<size_t> slots(rows);
  for (size_t i = 0; i < rows; ++i) slots[i] = i;
  std::shuffle(slots.begin(), slots.end(), random);
  Buffer buffer;
  const MutableBytes room = buffer.reserve(lead + 3 * data.size());
  std::fill(room.begin(), room.end(), kUntouched);
  std::vector<RowTarget> targets;
  ByteVector expected(room.size(), kUntouched);
  for (size_t row = 0; row < rows; ++row) {
    if (random() % 3 == 0) continue;  // rows that another consumer takes
    const size_t times = random() % 6 == 0 ? 3 : 1 + random() % 2;
    for (size_t turn = 0; turn < times; ++turn) {
      const size_t at = lead + (slots[row] + turn * rows) * row_bytes;
      targets.push_back({static_cast<int64_t>(row), room.data() + at});
      std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(row * row_bytes), row_bytes,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  std::shuffle(targets.begin(), targets.end(), random);
  DecodeScratch codecs;
  BloscScatterScratch scratch;
  scatter_blosc(stored, data.size(), row_bytes, targets, streaming, codecs, scratch);
  CHECK(std::equal(room.begin(), room.end(), expected.begin()));
  // The same with all of the chunk beside it, or some of its rows, whoever wants rows.
  for (const bool all : {true, false}) {
    const size_t begin = all ? 0 : random() % rows;
    const size_t end = all ? rows : begin + random() % (rows - begin + 1);
    std::fill(room.begin(), room.end(), kUntouched);
    ByteVector copied((end - begin) * row_bytes + 1, kUntouched);
    scatter_blosc(stored, data.size(), row_bytes, targets, streaming, codecs, scratch,
                  {copied.data(), begin * row_bytes, end * row_bytes});
    CHECK(std::equal(room.begin(), room.end(), expected.begin()));
    CHECK(std::equal(copied.begin(), copied.end() - 1, data.begin() + static_cast<std::ptrdiff_t>(begin * row_bytes)));
    CHECK_EQ(copied.back(), kUntouched);
  }
}

TEST(every_row_lands_in_its_slot_and_nothing_else_is_written) {
  std::mt19937 random(1);
  for (const int typesize : {1, 2, 3, 4, 8, 16}) {
    for (const auto shuffle : {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit}) {
      // rows of whole items, of broken ones, blocks that end inside of rows and of items
      for (const size_t row_bytes : {size_t{96}, size_t{1000}, size_t{4096}, size_t{5001}}) {
        for (const size_t blocksize : {size_t{0}, size_t{1024}, size_t{4800}, size_t{5003}}) {
          const ByteVector data = compressible(row_bytes * 13, random);
          Blosc1Options options;
          options.shuffle = shuffle;
          options.typesize = static_cast<uint8_t>(typesize);
          options.blocksize = std::min(blocksize, data.size());
          options.split = blocksize == 4800;
          const ByteVector stored = compress_blosc1(data, options);
          const Context context("typesize " + std::to_string(typesize) + ", rows of " + std::to_string(row_bytes) +
                                ", blocks of " + std::to_string(blocksize));
          for (const bool streaming : {false, true}) {
            for (const size_t lead : {size_t{0}, size_t{8}}) {
              check_scatter(data, stored, row_bytes, streaming, lead, random);
            }
          }
        }
      }
    }
  }
}

TEST(blocks_for_which_there_is_no_memory_are_refused_before_they_are_decoded) {
  std::mt19937 random(3);
  constexpr size_t kRow = 4096;
  const ByteVector data = compressible(kRow * 4, random);
  Blosc1Options options;
  options.shuffle = Blosc1Shuffle::kBit;
  options.typesize = 4;
  options.blocksize = 2 * kRow;
  const ByteVector stored = compress_blosc1(data, options);
  ByteVector out(data.size());
  const std::vector<RowTarget> targets{{3, out.data()}};
  for (const size_t limit : {2 * kRow, 2 * kRow - 1}) {
    DecodeScratch codecs;
    codecs.max_block_bytes = limit;
    BloscScatterScratch scratch;
    const auto scatter = [&] { scatter_blosc(stored, data.size(), kRow, targets, false, codecs, scratch); };
    const auto decode = [&] { decode_blosc(stored, out, codecs); };
    if (limit == 2 * kRow) {
      scatter();
      decode();
    } else {
      CHECK_THROWS(kCorrupt, "declares blocks of 8192 bytes, at most 8191 are plausible", scatter());
      CHECK_THROWS(kCorrupt, "declares blocks of 8192 bytes, at most 8191 are plausible", decode());
      CHECK_EQ(scratch.block.capacity() + codecs.block.capacity(), size_t{0});
    }
  }
}

TEST(raw_containers_are_scattered_too) {
  std::mt19937 random(2);
  const ByteVector data = compressible(size_t{5000} * 3, random);
  check_scatter(data, store_blosc1(data), 5000, true, 0, random);
}

TEST(a_block_that_no_wanted_row_touches_is_not_decoded) {
  std::mt19937 random(3);
  const size_t row_bytes = 4096;
  const ByteVector data = compressible(row_bytes * 4, random);
  Blosc1Options options;
  options.blocksize = row_bytes;
  ByteVector stored = compress_blosc1(data, options);
  const BloscTable table(BloscHeader::read(stored, stored.size(), data.size()), Bytes(stored).subspan(16));
  store_le32(stored, table.range_of(2).begin, 0x7fffffff);  // the third block has a stream of no possible length
  ByteVector slot(row_bytes);
  DecodeScratch codecs;
  BloscScatterScratch scratch;
  const std::vector<RowTarget> good{{1, slot.data()}};
  CHECK_EQ(scatter_blosc(stored, data.size(), row_bytes, good, false, codecs, scratch), row_bytes);
  CHECK(std::equal(slot.begin(), slot.end(), data.begin() + static_cast<std::ptrdiff_t>(row_bytes)));
  const std::vector<RowTarget> bad{{2, slot.data()}};
  CHECK_THROWS(kCorrupt, "outside of the chunk",
               scatter_blosc(stored, data.size(), row_bytes, bad, false, codecs, scratch));
  store_le32(stored, 16 + 4 * 2, 0x7fffffff);  // a table that lies is bad for all
  CHECK_THROWS(kCorrupt, "outside of the chunk",
               scatter_blosc(stored, data.size(), row_bytes, good, false, codecs, scratch));
}

TEST(a_chunk_of_another_size_is_corrupt) {
  std::mt19937 random(4);
  const ByteVector data = compressible(size_t{4096} * 2, random);
  const ByteVector stored = compress_blosc1(data, {});
  ByteVector slot(4096);
  const std::vector<RowTarget> targets{{0, slot.data()}};
  DecodeScratch codecs;
  BloscScatterScratch scratch;
  CHECK_THROWS(kCorrupt, "the metadata implies 12288",
               scatter_blosc(stored, size_t{4096} * 3, 4096, targets, false, codecs, scratch));
  CHECK_THROWS(kCorrupt, "the metadata implies 4096",
               scatter_blosc(stored, 4096, 4096, targets, false, codecs, scratch));
}

TEST(any_range_of_elements_is_unshuffled) {
  std::mt19937 random(5);
  for (size_t typesize = 2; typesize <= 16; ++typesize) {
    const UnshuffleRange unshuffle = find_unshuffle_range(typesize);
    if (unshuffle == nullptr) continue;  // a processor without the instructions takes the plain path
    const size_t elements = 300;
    ByteVector planes(elements * typesize);
    for (uint8_t& byte : planes) byte = static_cast<uint8_t>(random());
    for (int turn = 0; turn < 300; ++turn) {
      const size_t first = random() % elements;
      const size_t count = random() % (elements - first + 1);
      Buffer buffer;
      const MutableBytes out = buffer.reserve(elements * typesize + 64);
      std::fill(out.begin(), out.end(), kUntouched);
      const size_t lead = turn % 2 == 0 ? 32 : random() % 32;
      unshuffle(planes.data(), elements, first, count, out.data() + lead, turn % 4 < 2);
      fence_streaming_stores();
      for (size_t i = 0; i < out.size(); ++i) {
        const bool inside = i >= lead && i < lead + count * typesize;
        const size_t at = i - lead;
        CHECK_EQ(out[i], inside ? planes[at % typesize * elements + first + at / typesize] : kUntouched);
      }
    }
  }
}

}  // namespace
}  // namespace zarrfeed::testing::blosc_scatter_test
