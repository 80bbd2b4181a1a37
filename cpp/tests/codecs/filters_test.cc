// Filters, alone and in chains with compressors and checksums. What must hold: a chain is undone to the bytes that went in,
// whatever its order; bytes of another size than the metadata implies are refused; nothing beyond input and output is touched.

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codecs/codec_pipeline.h"
#include "codecs/unshuffle.h"
#include "spec/codec_spec.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"

namespace zarrfeed::testing::filters_test {
namespace {

/// What a writer with this codec makes of some bytes.
ByteVector encoded(const CodecSpec& codec, ByteView data, uint8_t typesize) {
  if (codec.name == "shuffle") return shuffle_bytes(data, codec.element_bytes);
  if (codec.name == "crc32c") return append_crc32c(data, codec.checksum_at_start);
  if (codec.name == "fletcher32") return append_fletcher32(data);
  if (codec.name == "zlib") return compress_zlib(data);
  if (codec.name == "zstd") return compress_zstd(data);
  return compress_blosc1(data, {.typesize = typesize, .blocksize = std::max<size_t>(1, data.size() / 3)});
}

ByteVector run(const std::vector<CodecSpec>& codecs, ByteView stored, size_t decoded_bytes) {
  DecodeScratch scratch;
  return undone(codecs, stored, decoded_bytes, scratch);
}

}  // namespace

TEST(shuffled_elements_of_every_size_come_back) {
  for (size_t element = 1; element < 300; element += element < 40 ? 1 : 43) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{31}, size_t{32}, size_t{33}, size_t{1000}}) {
      const Context context(std::to_string(count) + " of " + std::to_string(element) + " bytes");
      const ByteVector data = noise(count * element, element);
      const ByteVector stored = shuffle_bytes(data, element);
      CHECK(run({{.name = "shuffle", .element_bytes = element}}, stored, data.size()) == data);
      const GuardedBytes out(data.size());
      unshuffle_portably(element, stored, out.span().data());
      CHECK(std::ranges::equal(out.span(), data));
    }
  }
  const ByteVector one = noise(100'000);  // one element that is as long as the chunk
  CHECK(run({{.name = "shuffle", .element_bytes = one.size()}}, one, one.size()) == one);
}

TEST(bytes_behind_the_last_element_stay_where_they_are) {
  for (const size_t element : {1, 2, 3, 4, 8, 16, 17, 200}) {
    const Context context(std::to_string(element));
    const ByteVector data = noise(1000 * element);
    ByteVector stored = shuffle_bytes(data, element);
    for (size_t more = 0; more < element; ++more) {
      const GuardedBytes in(stored);
      const GuardedBytes out(stored.size());
      unshuffle(element, in.span(), out.span().data());
      CHECK(std::equal(data.begin(), data.end(), out.span().begin()));
      CHECK(std::equal(stored.begin() + static_cast<std::ptrdiff_t>(data.size()), stored.end(),
                       out.span().begin() + static_cast<std::ptrdiff_t>(data.size())));
      stored.push_back(static_cast<uint8_t>(more + 1));
    }
  }
}

TEST(fletcher32_agrees_with_one_that_adds_word_by_word_at_every_length) {
  const ByteVector random = noise(40'000);
  const ByteVector most(40'000, 0xff);  // the largest sums, which are 0 modulo 65535, and not 0
  const ByteVector least(40'000, 0);
  for (const ByteVector* data : {&random, &most, &least}) {
    for (size_t size = 1; size <= data->size(); size += size < 200 || (size > 11'400 && size < 11'600) ? 1 : 631) {
      const Context context(std::to_string(size));
      const ByteView part = ByteView(*data).first(size);
      const GuardedBytes exact(append_fletcher32(part));
      CHECK_EQ(verify_checksum(exact.span(), false, "fletcher32", fletcher32).size(), size);
    }
  }
  CHECK_EQ(fletcher32({}), 0U);
  CHECK_EQ(fletcher32(most), 0xffffffffU);
  const ByteVector letters = {'a', 'b', 'c', 'd', 'e', 'f'};  // 0x56502d2a of little-endian words
  CHECK_EQ(fletcher32(letters), 0x50562a2dU);
}

TEST(a_flipped_bit_is_seen_by_fletcher32) {
  const ByteVector stored = append_fletcher32(noise(1000));
  for (size_t i = 0; i < stored.size(); ++i) {
    CHECK_THROWS(kCorrupt, "fletcher32 is",
                 run({{"fletcher32"}}, with_byte(stored, i, static_cast<uint8_t>(stored[i] ^ 0x10U)), 1000));
  }
  CHECK_THROWS(kCorrupt, "fletcher32 needs 4 bytes, the chunk holds 3", run({{"fletcher32"}}, ByteVector(3), 1));
}

TEST(filters_stand_anywhere_in_a_chain) {
  std::mt19937_64 random(7);
  const std::vector<CodecSpec> all = {
      {"zlib"}, {"zstd"}, {"blosc"}, {"crc32c"}, {"crc32c", true}, {"fletcher32"}, {.name = "shuffle"},
  };
  DecodeScratch scratch;
  for (int round = 0; round < draws(2000); ++round) {
    const size_t size = 1 + random() % 5000;
    const ByteVector data = round % 4 == 0 ? noise(size, random()) : smooth(size, random());
    std::vector<CodecSpec> chain;  // in the order of decoding
    ByteVector stored = data;
    std::string names;
    for (size_t i = 0, count = 1 + random() % 5; i < count; ++i) {
      CodecSpec codec = all[random() % all.size()];
      if (codec.name == "shuffle") {
        codec.element_bytes = 1 + random() % 20;
        while (stored.size() % codec.element_bytes != 0) --codec.element_bytes;
      }
      stored = encoded(codec, stored, static_cast<uint8_t>(1 + random() % 9));
      chain.insert(chain.begin(), codec);
      names = codec.name + " " + names;
    }
    const Context context(names + "of " + std::to_string(size));
    CHECK(stored.size() <= CodecPipeline(chain, size).max_stored_bytes());
    CHECK(undone(chain, stored, size, scratch) == data);
    // Neither more nor fewer bytes than the chunk has are taken for it.
    CHECK_THROWS(kCorrupt, "", undone(chain, stored, size + 1, scratch));
    CHECK_THROWS(kCorrupt, "", undone(chain, stored, size - 1, scratch));
  }
}

TEST(a_filter_refuses_what_is_longer_or_shorter_than_the_metadata_implies) {
  const CodecSpec shuffle{.name = "shuffle", .element_bytes = 4};
  const ByteVector data = smooth(1000);
  for (const size_t size : {0, 3, 996, 999, 1001, 1004, 2000}) {
    ByteVector stored = data;
    stored.resize(size);
    const std::string message = "decodes to " + std::to_string(size) + " bytes, the metadata implies 1000";
    CHECK_THROWS(kCorrupt, message, run({shuffle}, stored, 1000));
    CHECK_THROWS(kCorrupt, "", run({{"zlib"}, shuffle}, compress_zlib(stored), 1000));
    CHECK_THROWS(kCorrupt, "", run({{"zlib"}, shuffle, {"crc32c"}}, compress_zlib(append_crc32c(stored)), 1000));
  }
  // Between compressors, nobody knows the size: at most what a compressor may have made of the chunk, in whole elements.
  CHECK_THROWS(kCorrupt, "shuffle of elements of 7 bytes cannot have made 1000 bytes",
               run({{.name = "shuffle", .element_bytes = 7}, {"zlib"}}, data, 1000));
  CHECK_THROWS(kCorrupt, "the metadata implies", run({shuffle, {"zlib"}}, ByteVector(200'000), 1000));
}

TEST(a_compressor_in_front_of_filters_gets_no_more_room_than_they_need) {
  const CodecSpec shuffle{.name = "shuffle", .element_bytes = 4};
  const ByteVector bomb = compress_zlib(ByteVector(5000, 0));
  CHECK_THROWS(kCorrupt, "decodes to more than the 1000 bytes that the metadata implies",
               run({{"zlib"}, shuffle}, bomb, 1000));
  CHECK_THROWS(kCorrupt, "decodes to more than the 1008 bytes that the metadata implies",
               run({{"zlib"}, {"crc32c"}, shuffle, {"crc32c"}}, bomb, 1000));
}

TEST(elements_have_at_least_one_byte) {
  CHECK_THROWS(kConfig, "element_bytes = 0, must be at least 1",
               CodecPipeline({{.name = "shuffle", .element_bytes = 0}}, 8));
}

TEST(blosc_beside_a_filter_is_not_taken_for_blosc_alone) {
  const CodecSpec shuffle{.name = "shuffle", .element_bytes = 4};
  const std::vector<std::vector<CodecSpec>> chains = {{{"blosc"}, shuffle}, {shuffle, {"blosc"}}, {shuffle}};
  for (const auto& chain : chains) {
    const CodecPipeline pipeline(chain, 1000);
    CHECK(!pipeline.is_blosc() && !pipeline.is_view() && !pipeline.is_raw());
  }
  CHECK(CodecPipeline({{"blosc"}}, 1000).is_blosc());
}

}  // namespace zarrfeed::testing::filters_test
