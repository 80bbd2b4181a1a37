// Blosc 1 containers: of all kinds, by hand, and lying ones.

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::blosc_test {
namespace {

ByteVector blosc(const ByteVector& stored, size_t room) {
  return decoded(decode_blosc, stored, room);
}

constexpr Blosc1Compressor kBloscCompressors[] = {Blosc1Compressor::kBlosclz, Blosc1Compressor::kLz4,
                                                  Blosc1Compressor::kZlib, Blosc1Compressor::kZstd};
constexpr Blosc1Shuffle kBloscShuffles[] = {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit};

std::string describe(const Blosc1Options& o, size_t nbytes) {
  return "compressor " + show(o.compressor) + " shuffle " + show(o.shuffle) + " typesize " + show(o.typesize) +
         " blocksize " + show(o.blocksize) + " split " + show(o.split) + " nbytes " + show(nbytes);
}

}  // namespace

TEST(blosc1_containers_of_all_kinds_come_back) {
  std::mt19937_64 random(7);
  for (const Blosc1Compressor compressor : kBloscCompressors) {
    for (const Blosc1Shuffle shuffle : kBloscShuffles) {
      DecodeScratch scratch;
      for (int i = 0; i < 60; ++i) {
        constexpr std::array<uint8_t, 10> kTypesizes = {1, 2, 3, 4, 7, 8, 12, 16, 17, 255};
        Blosc1Options options{.compressor = compressor, .shuffle = shuffle};
        options.typesize = kTypesizes[random() % kTypesizes.size()];
        options.split = random() % 2 == 0;
        options.reverse_blocks = random() % 2 == 0;
        const auto nbytes = static_cast<size_t>(pick(random, 1, 20'000));
        if (random() % 3 != 0) {
          options.blocksize = static_cast<size_t>(pick(random, 1, static_cast<int64_t>(nbytes)));
        }
        // c-blosc makes blocks of whole items, and so many of them that a split block has equal streams.
        if (options.blocksize > options.typesize) options.blocksize -= options.blocksize % options.typesize;
        if (options.blocksize == 0) options.split = options.split && nbytes % options.typesize == 0;
        if (options.blocksize > 0 && options.blocksize < 8) options.blocksize = nbytes;
        if (options.split && options.blocksize % options.typesize != 0) options.split = false;
        const Context context(describe(options, nbytes));
        const ByteVector data = random() % 4 == 0 ? noise(nbytes, random()) : smooth(nbytes, random());
        CHECK(decoded(decode_blosc, compress_blosc1(data, options), nbytes, scratch) == data);
      }
    }
  }
}

TEST(blosc_bytes_by_hand_memcpyed) {
  const ByteVector stored = {2, 1, 0x02, 4, 5, 0, 0, 0, 5, 0, 0, 0, 21, 0, 0, 0, 'h', 'e', 'l', 'l', 'o'};
  CHECK(blosc(stored, 5) == ByteVector({'h', 'e', 'l', 'l', 'o'}));
  CHECK_THROWS(kCorrupt, "declares 5 decoded bytes, the metadata implies 4", blosc(stored, 4));
  CHECK_THROWS(kCorrupt, "declares 5 raw bytes, the chunk holds 4", blosc(patched(stored, 12, 20), 5));
  CHECK_THROWS(kCorrupt, "declares 22 stored bytes, the chunk holds 21", blosc(patched(stored, 12, 22), 5));
}

TEST(blosc_bytes_by_hand_shuffled_and_stored_raw) {
  // One block of two 16-bit items 0x0201 0x0403: as a raw stream of 4 bytes, low bytes before high ones.
  const ByteVector stored = {2,  1, 0x31, 2, 4, 0, 0, 0, 4, 0, 0, 0, 28, 0, 0, 0,  // header: lz4, not split
                             20, 0, 0,    0,                                       // offset of the block
                             4,  0, 0,    0, 1, 3, 2, 4};
  CHECK(blosc(stored, 4) == ByteVector({1, 2, 3, 4}));
}

TEST(blosc_bytes_by_hand_in_two_blocks_of_which_the_last_is_short) {
  const ByteVector stored = {2,  1, 0x30, 1, 5,  0, 0, 0, 3, 0, 0, 0, 37, 0, 0, 0,  // five bytes in blocks of three
                             24, 0, 0,    0, 31, 0, 0, 0,                           // offsets of the blocks
                             3,  0, 0,    0, 1,  2, 3, 2, 0, 0, 0, 4, 5};
  CHECK(blosc(stored, 5) == ByteVector({1, 2, 3, 4, 5}));
  CHECK_THROWS(kCorrupt, "ends outside of the chunk", blosc(patched(stored, 31, 7), 5));
  CHECK_THROWS(kCorrupt, "Blosc stream", blosc(patched(stored, 20, 24), 5));  // three bytes where two belong
}

TEST(blosc_trailing_bytes_are_tolerated) {
  const ByteVector data = smooth(3000);
  ByteVector stored = compress_blosc1(data, {.blocksize = 1000});
  stored.insert(stored.end(), 50, 0xee);
  CHECK(blosc(stored, 3000) == data);
}

TEST(blosc_of_nothing_is_nothing) {
  const ByteVector stored = {2, 1, 0x02, 1, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0};
  CHECK(blosc(stored, 0).empty());
  CHECK(blosc(stored, 10).empty());
}

TEST(blosc_headers_that_lie_are_refused) {
  const ByteVector data = smooth(4096);
  const ByteVector stored = compress_blosc1(data, {.blocksize = 1024});
  CHECK(blosc(stored, 4096) == data);
  CHECK_THROWS(kCorrupt, "has 16 bytes, the chunk holds 15", blosc(ByteVector(15), 4096));
  CHECK_THROWS(kCorrupt, "has 16 bytes, the chunk holds 0", blosc({}, 4096));
  for (const int version : {0, 1, 3, 4, 5, 255}) {
    CHECK_THROWS(kCorrupt, "format version", blosc(with_byte(stored, 0, static_cast<uint8_t>(version)), 4096));
  }
  CHECK_THROWS(kCorrupt, "typesize = 0", blosc(with_byte(stored, 3, 0), 4096));
  for (const uint32_t nbytes : {4097U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    CHECK_THROWS(kCorrupt, "decoded bytes", blosc(patched(stored, 4, nbytes), 4096));
  }
  for (const uint32_t blocksize : {0U, 4097U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    CHECK_THROWS(kCorrupt, "blocksize", blosc(patched(stored, 8, blocksize), 4096));
  }
  for (const uint32_t cbytes : {0U, 15U, static_cast<uint32_t>(stored.size()) + 1, 0x7fffffffU, 0xffffffffU}) {
    CHECK_THROWS(kCorrupt, "stored bytes", blosc(patched(stored, 12, cbytes), 4096));
  }
  CHECK_THROWS(kCorrupt, "more than the chunk has room for", blosc(patched(stored, 8, 1), 4096));
}

TEST(blosc_offsets_that_lead_outside_are_refused) {
  const ByteVector stored = compress_blosc1(smooth(4096), {.blocksize = 1024});
  const auto size = static_cast<uint32_t>(stored.size());
  for (size_t block = 0; block < 4; ++block) {
    for (const uint32_t offset : {0U, 15U, size - 3, size, size + 1, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
      CHECK_THROWS(kCorrupt, "begins outside", blosc(patched(stored, 16 + 4 * block, offset), 4096));
    }
  }
  const uint32_t first = load_le32(&stored[16]);
  for (const uint32_t stream : {size, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    CHECK_THROWS(kCorrupt, "ends outside", blosc(patched(stored, first, stream), 4096));
  }
  for (const uint32_t stream : {0U, 1U, 10U}) {
    CHECK_THROWS(kCorrupt, "does not decode to 1024", blosc(patched(stored, first, stream), 4096));
  }
}

TEST(blosc_compressors_that_are_not_there_are_refused_by_name) {
  const ByteVector stored = compress_blosc1(smooth(4096), {});
  const auto with_compressor = [&stored](unsigned compressor) {
    return with_byte(stored, 2, static_cast<uint8_t>((stored[2] & 0x1fU) | compressor << 5));
  };
  CHECK_THROWS(kUnsupported, "snappy", blosc(with_compressor(2), 4096));
  for (const unsigned compressor : {5U, 6U, 7U}) {
    CHECK_THROWS(kCorrupt, "names codec " + std::to_string(compressor), blosc(with_compressor(compressor), 4096));
  }
}

TEST(blosc_split_blocks_of_unequal_streams_are_refused) {
  ByteVector stored = compress_blosc1(smooth(4096), {});
  stored[2] = static_cast<uint8_t>(stored[2] & 0xefU);  // "split"
  stored[3] = 3;                                        // 4096 bytes are no multiple of three streams
  CHECK_THROWS(kCorrupt, "is no multiple of its 3 streams", blosc(stored, 4096));
}

TEST(bit_shuffled_blocks_of_other_lengths_follow_c_blosc_1) {
  // 35 bytes of 4-byte items: 8 whole items are shuffled, the 3 bytes behind them stay. 36 bytes: 9 items, none is.
  DecodeScratch scratch;
  for (const size_t nbytes : {size_t{35}, size_t{36}, size_t{3}, size_t{32}, size_t{67}}) {
    const ByteVector data = noise(nbytes, nbytes);
    const ByteVector stored = compress_blosc1(data, {.shuffle = Blosc1Shuffle::kBit});
    const Context context(std::to_string(nbytes) + " bytes");
    CHECK(decoded(decode_blosc, stored, nbytes, scratch) == data);
  }
}

TEST(blosc_with_changed_bytes_never_crashes) {
  std::mt19937_64 random(99);
  std::vector<std::pair<Decode, ByteVector>> victims;
  for (const Blosc1Compressor compressor : kBloscCompressors) {
    for (const Blosc1Shuffle shuffle : kBloscShuffles) {
      const ByteVector data = smooth(1500);
      victims.emplace_back(decode_blosc, compress_blosc1(data, {.compressor = compressor,
                                                                .shuffle = shuffle,
                                                                .blocksize = 1024,
                                                                .split = shuffle == Blosc1Shuffle::kByte}));
    }
  }
  decode_damaged(victims, random);
}

}  // namespace zarrfeed::testing::blosc_test
