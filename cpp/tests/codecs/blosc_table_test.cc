// Where the blocks of Blosc 1 chunks lie: each block is decoded from the bytes of its range alone, which end where memory
// ends, and tables that lie are refused.

#include "codecs/blosc_table.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "codecs/blosc.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::blosc_table_test {
namespace {

constexpr size_t kHeader = BloscHeader::kBytes;

BloscHeader header_of(const ByteVector& stored, size_t decoded_bytes) {
  return BloscHeader::read(Bytes(stored).first(std::min(stored.size(), kHeader)), stored.size(), decoded_bytes);
}

BloscTable table_of(const ByteVector& stored, const BloscHeader& header) {
  return {header, Bytes(stored).subspan(kHeader, header.table_bytes())};
}

/// The same chunk with its blocks stored in a random order, as threads leave them.
ByteVector with_blocks_shuffled(const ByteVector& stored, const BloscHeader& header, std::mt19937_64& random) {
  const BloscTable table = table_of(stored, header);
  std::vector<size_t> order(header.num_blocks);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  ByteVector out(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(kHeader + header.table_bytes()));
  for (const size_t block : order) {
    const BloscTable::Range range = table.range_of(block);
    store_le32(out, kHeader + 4 * block, static_cast<uint32_t>(out.size()));
    out.insert(out.end(), stored.begin() + static_cast<std::ptrdiff_t>(range.begin),
               stored.begin() + static_cast<std::ptrdiff_t>(range.end));
  }
  CHECK_EQ(out.size(), header.stored_bytes);
  return out;
}

/// Decodes each block from a copy of its range.
void check_ranges(const ByteVector& stored, const ByteVector& data) {
  const BloscHeader header = header_of(stored, data.size());
  const BloscTable table = table_of(stored, header);
  DecodeScratch scratch;
  std::vector<BloscTable::Range> ranges;
  for (size_t b = 0; b < header.num_blocks; ++b) {
    const BloscTable::Range range = table.range_of(b);
    ranges.push_back(range);
    const GuardedBytes in(Bytes(stored).subspan(range.begin, range.end - range.begin));
    const GuardedBytes out(header.size_of(b));
    decode_blosc_block(header, in.span(), out.span(), scratch);
    const auto begin = data.begin() + static_cast<std::ptrdiff_t>(b * header.block_bytes);
    CHECK(std::equal(out.span().begin(), out.span().end(), begin));
  }
  // Together they are the chunk, without header, table and what is stored behind it.
  std::ranges::sort(ranges, {}, &BloscTable::Range::begin);
  size_t end = kHeader + header.table_bytes();
  for (const BloscTable::Range& range : ranges) {
    CHECK_EQ(range.begin, end);
    end = range.end;
  }
  CHECK_EQ(end, header.stored_bytes);
}

}  // namespace

TEST(each_block_decodes_from_its_own_range_in_whichever_order_blocks_are_stored) {
  std::mt19937_64 random(3);
  constexpr std::array kCompressors = {Blosc1Compressor::kBlosclz, Blosc1Compressor::kLz4, Blosc1Compressor::kZlib,
                                       Blosc1Compressor::kZstd};
  constexpr std::array kShuffles = {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit};
  for (int i = 0; i < 400; ++i) {
    const auto nbytes = static_cast<size_t>(pick(random, 2000, 20'000));
    Blosc1Options options{.compressor = kCompressors[random() % 4], .shuffle = kShuffles[random() % 3]};
    constexpr std::array<uint8_t, 8> kTypesizes = {1, 2, 3, 4, 8, 12, 16, 17};
    options.typesize = kTypesizes[random() % kTypesizes.size()];
    options.blocksize = static_cast<size_t>(pick(random, 300, 5000));
    options.blocksize -= options.blocksize % options.typesize;
    options.blocksize = std::min(options.blocksize, nbytes);
    options.split = random() % 2 == 0 && options.blocksize % options.typesize == 0;
    options.reverse_blocks = random() % 2 == 0;
    const Context context("case " + std::to_string(i));
    const ByteVector data = random() % 4 == 0 ? noise(nbytes, random()) : smooth(nbytes, random());
    ByteVector stored = compress_blosc1(data, options);
    stored = with_blocks_shuffled(stored, header_of(stored, nbytes), random);
    CHECK(decoded(decode_blosc, stored, nbytes) == data);
    if (random() % 2 == 0) stored.insert(stored.end(), 1 + random() % 100, 0xee);  // bytes behind the chunk
    check_ranges(stored, data);
  }
}

TEST(a_chunk_without_a_table_has_the_ranges_of_its_decoded_blocks) {
  const ByteVector data = noise(5000);
  ByteVector stored = store_blosc1(data);
  store_le32(stored, 8, 1024);  // blocks of 1024 bytes, of which the last has 904
  stored.insert(stored.end(), 7, 0xee);
  const BloscHeader header = header_of(stored, 5000);
  CHECK_EQ(header.table_bytes(), size_t{0});
  const BloscTable table(header, {});
  CHECK(table.range_of(0) == (BloscTable::Range{16, 1040}));
  CHECK(table.range_of(4) == (BloscTable::Range{16 + 4096, 16 + 5000}));
}

TEST(a_header_tells_the_size_of_each_block) {
  const BloscHeader header = header_of(compress_blosc1(smooth(2500), {.blocksize = 1000}), 2500);
  CHECK_EQ(header.num_blocks, size_t{3});
  CHECK_EQ(header.size_of(0), size_t{1000});
  CHECK_EQ(header.size_of(2), size_t{500});
}

TEST(an_entry_that_cannot_be_makes_the_chunk_bad_for_all) {
  const ByteVector data = smooth(4096);
  const ByteVector stored = compress_blosc1(data, {.blocksize = 1024});
  const BloscHeader header = header_of(stored, 4096);
  const auto end = static_cast<uint32_t>(stored.size());
  // In the header, in the table, where no length fits behind it, behind the chunk, and numbers that are negative as signed.
  for (const uint32_t entry : {0U, 15U, 16U, 31U, end - 3, end, end + 4, 0x7fffffffU, 0x80000010U, 0xffffffffU}) {
    for (size_t block = 0; block < 4; ++block) {
      const Context context("block " + std::to_string(block) + " at " + std::to_string(entry));
      const ByteVector bad = patched(stored, 16 + 4 * block, entry);
      CHECK_THROWS(kCorrupt, "Blosc block begins outside of the chunk", table_of(bad, header));
      CHECK_THROWS(kCorrupt, "Blosc block begins outside of the chunk", BloscChunk(bad, 4096));
    }
  }
  CHECK_THROWS(kCorrupt, "implies a table of 16 bytes, the chunk holds 15",
               BloscTable(header, Bytes(stored).subspan(16, 15)));
}

TEST(blocks_that_begin_at_the_same_byte_have_the_same_range) {
  const ByteVector stored = compress_blosc1(smooth(4096), {.blocksize = 1024});
  const BloscHeader header = header_of(stored, 4096);
  const BloscTable::Range second = table_of(stored, header).range_of(1);
  const ByteVector twice = patched(stored, 16, static_cast<uint32_t>(second.begin));
  const BloscTable table = table_of(twice, header);
  CHECK(table.range_of(0) == second);
  CHECK(table.range_of(1) == second);
}

TEST(a_block_whose_stream_leaves_its_range_is_refused) {
  const ByteVector data = smooth(4096);
  const ByteVector stored = compress_blosc1(data, {.blocksize = 1024});
  const BloscHeader header = header_of(stored, 4096);
  const BloscTable::Range first = table_of(stored, header).range_of(0);
  const ByteVector bad = patched(stored, first.begin, static_cast<uint32_t>(first.end - first.begin - 3));
  DecodeScratch scratch;
  ByteVector out(1024);
  CHECK_THROWS(kCorrupt, "ends outside of the chunk",
               decode_blosc_block(header, Bytes(bad).subspan(first.begin, first.end - first.begin), out, scratch));
  CHECK_THROWS(kCorrupt, "begins outside of the chunk", decode_blosc_block(header, {}, out, scratch));
  BloscHeader raw = header;
  raw.flags |= BloscHeader::kMemcpyed;
  CHECK_THROWS(kCorrupt, "ends outside of the chunk", decode_blosc_block(raw, Bytes(bad).first(1023), out, scratch));
}

}  // namespace zarrfeed::testing::blosc_table_test
