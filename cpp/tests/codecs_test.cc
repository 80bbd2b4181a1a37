// The codecs: published vectors, round trips through the bundled compressors, and hostile containers.
//
// Input and output end at inaccessible pages, so that a decoder that strays by one byte ends the process.

#include "codecs/codec.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "check.h"
#include "codecs/codec_pipeline.h"
#include "compress.h"
#include "guarded_bytes.h"
#include "plans.h"

using namespace zarrfeed;           // NOLINT(google-build-using-namespace): a test of it
using namespace zarrfeed::testing;  // NOLINT(google-build-using-namespace)

namespace {

using Decode = size_t (*)(Bytes, MutableBytes, DecodeScratch&);
using Kind = CodecSpec::Kind;

struct Format {
  const char* name;
  Kind kind;
  Decode decode;
  std::function<ByteVector(ByteView)> encode;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"zstd", Kind::kZstd, decode_zstd, [](ByteView data) { return compress_zstd(data); }},
      {"zlib", Kind::kZlib, decode_zlib, [](ByteView data) { return compress_zlib(data); }},
      {"gzip", Kind::kGzip, decode_gzip, [](ByteView data) { return compress_gzip(data); }},
      {"lz4", Kind::kLz4, decode_lz4, [](ByteView data) { return compress_lz4(data); }},
      {"blosc", Kind::kBlosc, decode_blosc, [](ByteView data) {
         return compress_blosc1(data, {.blocksize = std::max<size_t>(1, data.size() / 2)});
       }}};
  return all;
}

/// Smooth 32-bit numbers: they compress, but not to nothing.
ByteVector smooth(size_t bytes, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  ByteVector out(bytes);
  uint32_t value = 1000;
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 4 == 0) value += static_cast<uint32_t>(random() % 7);
    out[i] = static_cast<uint8_t>(value >> 8 * (i % 4));
  }
  return out;
}

ByteVector noise(size_t bytes, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  ByteVector out(bytes);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

/// Decodes between guard pages into room for `room` bytes.
ByteVector decoded(Decode decode, ByteView stored, size_t room, DecodeScratch& scratch) {
  const GuardedBytes in(stored);
  const GuardedBytes out(room);
  const size_t n = decode(in.span(), out.span(), scratch);
  CHECK(n <= room);
  ByteVector result = out.copy();
  result.resize(n);
  return result;
}

ByteVector decoded(Decode decode, ByteView stored, size_t room) {
  DecodeScratch scratch;
  return decoded(decode, stored, room, scratch);
}

/// What decode() returns, or nothing where it throws an Error; anything else ends the test or the process.
std::optional<ByteVector> try_decode(Decode decode, ByteView stored, size_t room, DecodeScratch& scratch) {
  try {
    return decoded(decode, stored, room, scratch);
  } catch (const Error&) {
    return std::nullopt;
  }
}

ByteView text(std::string_view characters) {
  return {reinterpret_cast<const uint8_t*>(characters.data()), characters.size()};
}

ByteVector run_pipeline(const std::vector<CodecSpec>& codecs, ByteView stored, size_t decoded_bytes) {
  const CodecPipeline pipeline(codecs, decoded_bytes);
  const GuardedBytes in(stored);
  const GuardedBytes out(decoded_bytes);
  DecodeScratch scratch;
  const Bytes result = pipeline.decode(in.span(), out.span(), scratch);
  return {result.begin(), result.end()};
}

ByteVector blosc(const ByteVector& stored, size_t room) { return decoded(decode_blosc, stored, room); }

/// A container whose 32-bit word at `at` was overwritten.
ByteVector patched(ByteVector stored, size_t at, uint32_t value) {
  store_le32(stored, at, value);
  return stored;
}

ByteVector with_byte(ByteVector stored, size_t at, uint8_t value) {
  stored[at] = value;
  return stored;
}

constexpr Blosc1Compressor kBloscCompressors[] = {Blosc1Compressor::kBlosclz, Blosc1Compressor::kLz4,
                                                  Blosc1Compressor::kZlib, Blosc1Compressor::kZstd};
constexpr Blosc1Shuffle kBloscShuffles[] = {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit};

std::string describe(const Blosc1Options& o, size_t nbytes) {
  return "compressor " + show(o.compressor) + " shuffle " + show(o.shuffle) + " typesize " + show(o.typesize) +
         " blocksize " + show(o.blocksize) + " split " + show(o.split) + " nbytes " + show(nbytes);
}

}  // namespace

TEST(crc32c_of_the_vectors_of_rfc_3720) {
  CHECK_EQ(crc32c(text("123456789")), 0xe3069283U);
  CHECK_EQ(crc32c({}), 0U);
  ByteVector bytes(32, 0);
  CHECK_EQ(crc32c(bytes), 0x8a9136aaU);
  std::fill(bytes.begin(), bytes.end(), uint8_t{0xff});
  CHECK_EQ(crc32c(bytes), 0x62a8ab43U);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(i);
  CHECK_EQ(crc32c(bytes), 0x46dd794eU);
  std::reverse(bytes.begin(), bytes.end());
  CHECK_EQ(crc32c(bytes), 0x113fdb5cU);
}

TEST(crc32c_agrees_with_a_bitwise_one_at_every_length_and_alignment) {
  const ByteVector data = noise(300);
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t size = 0; size + begin <= data.size(); size += size < 40 ? 1 : 17) {
      uint32_t crc = 0xffffffff;
      for (size_t i = begin; i < begin + size; ++i) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
      }
      const GuardedBytes exact(ByteView(data).subspan(begin, size));
      CHECK_EQ(crc32c(exact.span()), ~crc);
    }
  }
}

TEST(a_checksum_is_taken_off_at_either_end_and_a_wrong_one_is_refused) {
  const ByteVector data = noise(100);
  for (const bool at_start : {false, true}) {
    const ByteVector stored = append_crc32c(data, at_start);
    const Bytes payload = verify_crc32c(stored, at_start);
    CHECK(ByteVector(payload.begin(), payload.end()) == data);
    for (size_t i = 0; i < stored.size(); ++i) {
      CHECK_THROWS(kCorrupt, "crc32c is",
                   verify_crc32c(with_byte(stored, i, static_cast<uint8_t>(stored[i] ^ 0x10U)), at_start));
    }
  }
  CHECK_EQ(verify_crc32c(append_crc32c({}), false).size(), size_t{0});
  CHECK_THROWS(kCorrupt, "needs 4 bytes, the chunk holds 3", verify_crc32c(ByteVector(3), false));
}

TEST(what_the_bundled_compressors_write_comes_back) {
  for (const Format& format : formats()) {
    DecodeScratch scratch;
    for (const size_t size : {size_t{1}, size_t{3}, size_t{64}, size_t{1000}, size_t{65'536}, size_t{300'001}}) {
      const Context context(std::string(format.name) + " of " + std::to_string(size));
      for (const ByteVector& data : {smooth(size), noise(size), ByteVector(size, 7)}) {
        CHECK(decoded(format.decode, format.encode(data), size, scratch) == data);
      }
    }
  }
}

TEST(a_shorter_result_than_the_room_is_returned_as_it_is) {
  const ByteVector data = smooth(1000);
  for (const Format& format : formats()) {
    const Context context(format.name);
    CHECK(decoded(format.decode, format.encode(data), 1001) == data);
    CHECK(decoded(format.decode, format.encode(data), 5000) == data);
  }
}

TEST(a_longer_result_than_the_room_is_refused) {
  for (const ByteVector& data : {smooth(1000), noise(1000), ByteVector(1'000'000, 0)}) {
    for (const Format& format : formats()) {
      const Context context(format.name);
      for (const size_t room : {data.size() - 1, data.size() / 2, size_t{1}, size_t{0}}) {
        CHECK_THROWS(kCorrupt, "", decoded(format.decode, format.encode(data), room));
      }
    }
  }
}

TEST(a_cut_chunk_is_refused_at_every_length) {
  for (const Format& format : formats()) {
    DecodeScratch scratch;
    const ByteVector stored = format.encode(smooth(600));
    for (size_t size = 0; size < stored.size(); ++size) {
      const Context context(std::string(format.name) + " cut to " + std::to_string(size));
      CHECK_THROWS(kCorrupt, "", decoded(format.decode, ByteView(stored).first(size), 600, scratch));
    }
  }
}

TEST(a_scratch_is_good_for_another_chunk_after_an_error) {
  const ByteVector data = smooth(5000);
  DecodeScratch scratch;
  for (int round = 0; round < 2; ++round) {
    for (const Format& format : formats()) {
      const ByteVector stored = format.encode(data);
      CHECK_THROWS(kCorrupt, "", decoded(format.decode, ByteView(stored).first(stored.size() / 2), 5000, scratch));
      CHECK(decoded(format.decode, stored, 5000, scratch) == data);
    }
  }
}

TEST(changed_bytes_never_crash_a_decoder) {
  std::mt19937_64 random(99);
  std::vector<std::pair<Decode, ByteVector>> victims;
  for (const Format& format : formats()) victims.emplace_back(format.decode, format.encode(smooth(700)));
  for (const Blosc1Compressor compressor : kBloscCompressors) {
    for (const Blosc1Shuffle shuffle : kBloscShuffles) {
      const ByteVector data = smooth(1500);
      victims.emplace_back(decode_blosc, compress_blosc1(data, {.compressor = compressor,
                                                                .shuffle = shuffle,
                                                                .blocksize = 1024,
                                                                .split = shuffle == Blosc1Shuffle::kByte}));
    }
  }
  DecodeScratch scratch;
  for (int i = 0; i < 20'000; ++i) {
    const auto& [decode, original] = victims[random() % victims.size()];
    ByteVector stored = original;
    const int changes = static_cast<int>(random() % 3) + 1;
    for (int c = 0; c < changes; ++c) {
      // Headers and tables are where changes lead astray.
      const size_t at = random() % (random() % 2 == 0 ? std::min<size_t>(stored.size(), 32) : stored.size());
      stored[at] = static_cast<uint8_t>(random() % 3 == 0 ? 0xff : random());
    }
    if (random() % 8 == 0) stored.resize(random() % stored.size());
    try_decode(decode, stored, random() % 4 == 0 ? random() % 2000 : 1500, scratch);
  }
}

TEST(noise_never_crashes_a_decoder) {
  std::mt19937_64 random(100);
  DecodeScratch scratch;
  for (int i = 0; i < 5000; ++i) {
    const ByteVector stored = noise(random() % 200, random());
    for (const Format& format : formats()) try_decode(format.decode, stored, random() % 500, scratch);
  }
}

TEST(gzip_members_are_joined_and_padding_is_skipped) {
  const ByteVector a = smooth(300, 1);
  const ByteVector b = smooth(500, 2);
  ByteVector both = a;
  both.insert(both.end(), b.begin(), b.end());
  ByteVector stored = compress_gzip(a);
  const ByteVector second = compress_gzip(b);
  stored.insert(stored.end(), second.begin(), second.end());
  CHECK(decoded(decode_gzip, stored, 800) == both);
  CHECK_THROWS(kCorrupt, "", decoded(decode_gzip, stored, 799));
  CHECK_THROWS(kCorrupt, "", decoded(decode_gzip, stored, 300));
  stored.insert(stored.end(), 100, 0);
  CHECK(decoded(decode_gzip, stored, 800) == both);
  stored.push_back(1);
  CHECK_THROWS(kCorrupt, "gzip", decoded(decode_gzip, stored, 800));
}

TEST(an_empty_gzip_member_behind_a_full_one_adds_nothing) {
  const ByteVector data = smooth(300);
  ByteVector stored = compress_gzip(data);
  const ByteVector empty = compress_gzip({});
  stored.insert(stored.end(), empty.begin(), empty.end());
  CHECK(decoded(decode_gzip, stored, 300) == data);
}

TEST(zstd_frames_are_joined) {
  const ByteVector a = smooth(300, 1);
  ByteVector stored = compress_zstd(a);
  const ByteVector again = stored;
  stored.insert(stored.end(), again.begin(), again.end());
  const ByteVector got = decoded(decode_zstd, stored, 600);
  CHECK_EQ(got.size(), size_t{600});
  CHECK(std::equal(a.begin(), a.end(), got.begin() + 300));
}

TEST(lz4_with_a_wrong_declared_size_is_refused) {
  const ByteVector stored = compress_lz4(smooth(1000));
  CHECK_THROWS(kCorrupt, "declares 1001 bytes, the metadata implies 1000",
               decoded(decode_lz4, patched(stored, 0, 1001), 1000));
  CHECK_THROWS(kCorrupt, "declares 4294967295 bytes", decoded(decode_lz4, patched(stored, 0, 0xffffffff), 1000));
  CHECK_THROWS(kCorrupt, "lz4 block is corrupt", decoded(decode_lz4, patched(stored, 0, 999), 1000));
  CHECK_THROWS(kCorrupt, "the chunk holds 4", decoded(decode_lz4, ByteVector(4), 1000));
}

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
  const ByteVector stored = {2,  1, 0x31, 2,  4, 0, 0, 0, 4, 0, 0, 0, 28, 0, 0, 0,  // header: lz4, not split
                             20, 0, 0,    0,                                        // offset of the block
                             4,  0, 0,    0,  1, 3, 2, 4};
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
  for (const uint8_t version : {0, 1, 3, 4, 5, 255}) {
    CHECK_THROWS(kCorrupt, "format version", blosc(with_byte(stored, 0, version), 4096));
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
  stored[2] &= 0xef;  // "split"
  stored[3] = 3;      // 4096 bytes are no multiple of three streams
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

TEST(decoders_may_run_on_many_threads_with_a_scratch_each) {
  const ByteVector data = smooth(20'000);
  std::vector<std::pair<Decode, ByteVector>> work;
  for (const Format& format : formats()) work.emplace_back(format.decode, format.encode(data));
  work.emplace_back(decode_blosc, compress_blosc1(data, {.shuffle = Blosc1Shuffle::kBit}));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      DecodeScratch scratch;
      ByteVector out(data.size());
      for (int i = 0; i < 20; ++i) {
        for (const auto& [decode, stored] : work) {
          std::fill(out.begin(), out.end(), uint8_t{0});
          if (decode(stored, out, scratch) != data.size() || out != data) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
}

TEST(a_chain_is_undone_in_the_order_of_its_codecs) {
  const ByteVector data = smooth(10'000);
  for (const Format& outer : formats()) {
    for (const Format& inner : formats()) {
      for (const Format& innermost : formats()) {
        const Context context(std::string(outer.name) + " of " + inner.name + " of " + innermost.name);
        const ByteVector stored = outer.encode(inner.encode(innermost.encode(data)));
        CHECK(run_pipeline({{outer.kind}, {inner.kind}, {innermost.kind}}, stored, data.size()) == data);
      }
    }
  }
}

TEST(a_checksum_over_compressed_bytes_is_verified) {
  const ByteVector data = smooth(10'000);
  for (const bool at_start : {false, true}) {
    for (const Format& format : formats()) {
      const Context context(format.name);
      const ByteVector stored = append_crc32c(format.encode(data), at_start);
      const std::vector<CodecSpec> codecs = {{Kind::kCrc32c, at_start}, {format.kind}};
      CHECK(run_pipeline(codecs, stored, data.size()) == data);
      CHECK_THROWS(kCorrupt, "crc32c", run_pipeline(codecs, with_byte(stored, 20, stored[20] ^ 1U), data.size()));
    }
  }
}

TEST(a_checksum_over_the_bytes_before_compression_is_verified) {
  // v3 codecs [bytes, crc32c, zstd], or a v2 filter CRC32C with a compressor: the checksum is undone last.
  const ByteVector data = smooth(10'000);
  for (const bool at_start : {false, true}) {
    for (const Format& format : formats()) {
      const Context context(std::string(format.name) + (at_start ? ", checksum in front" : ", checksum behind"));
      const ByteVector stored = format.encode(append_crc32c(data, at_start));
      const std::vector<CodecSpec> codecs = {{format.kind}, {Kind::kCrc32c, at_start}};
      CHECK(run_pipeline(codecs, stored, data.size()) == data);
    }
  }
}

TEST(without_a_decompressor_the_result_is_a_view_of_the_input) {
  const ByteVector data = noise(1000);
  const ByteVector stored = append_crc32c(append_crc32c(data), true);
  const CodecPipeline pipeline({{Kind::kCrc32c, true}, {Kind::kCrc32c, false}}, data.size());
  CHECK(pipeline.is_view());
  DecodeScratch scratch;
  const Bytes view = pipeline.decode(stored, {}, scratch);
  CHECK(view.data() == stored.data() + 4);
  CHECK_EQ(view.size(), data.size());
  CHECK(CodecPipeline({}, 8).is_view());
  CHECK(!CodecPipeline({{Kind::kZstd}}, 8).is_view());
}

TEST(a_chunk_of_another_size_than_the_metadata_implies_is_refused) {
  const ByteVector data = smooth(1000);
  CHECK(run_pipeline({}, data, 1000) == data);
  CHECK_THROWS(kCorrupt, "decodes to 1000 bytes, the metadata implies 999", run_pipeline({}, data, 999));
  CHECK_THROWS(kCorrupt, "decodes to 1000 bytes, the metadata implies 1001", run_pipeline({}, data, 1001));
  for (const Format& format : formats()) {
    const Context context(format.name);
    const ByteVector stored = format.encode(data);
    CHECK_THROWS(kCorrupt, "", run_pipeline({{format.kind}}, stored, 999));
    CHECK_THROWS(kCorrupt, "decodes to 1000 bytes, the metadata implies 1001",
                 run_pipeline({{format.kind}}, stored, 1001));
  }
}

TEST(the_bound_of_stored_bytes_admits_what_compressors_make_of_noise) {
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{1'000'000}}) {
    const ByteVector data = noise(size);
    for (const Format& format : formats()) {
      const CodecPipeline one({{format.kind}}, size);
      CHECK(format.encode(data).size() <= one.max_stored_bytes());
      const CodecPipeline two({{format.kind}, {format.kind}}, size);
      CHECK(format.encode(format.encode(data)).size() <= two.max_stored_bytes());
      CHECK(one.max_stored_bytes() < 4 * size + (size_t{2} << 20));
    }
  }
}
