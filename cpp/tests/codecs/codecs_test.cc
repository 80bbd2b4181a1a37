// The codecs and their chain: published vectors, round trips through the bundled compressors, and damaged input.

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/huge_pages.h"
#include "codecs/codec_pipeline.h"
#include "spec/codec_spec.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"

namespace zarrfeed::testing::codecs_test {
namespace {

struct Format {
  const char* name;
  Decode decode;
  std::function<ByteVector(ByteView)> encode;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"zstd", decode_zstd, [](ByteView data) { return compress_zstd(data); }},
      {"zlib", decode_zlib, [](ByteView data) { return compress_zlib(data); }},
      {"gzip", decode_gzip, [](ByteView data) { return compress_gzip(data); }},
      {"lz4", decode_lz4, [](ByteView data) { return compress_lz4(data); }},
      {"blosc", decode_blosc,
       [](ByteView data) { return compress_blosc1(data, {.blocksize = std::max<size_t>(1, data.size() / 2)}); }}};
  return all;
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

}  // namespace

TEST(large_buffers_consist_of_huge_pages_and_grow_by_whole_ones) {
  Buffer buffer;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5000}, kHugePage - 64, kHugePage, 3 * kHugePage + 1}) {
    const MutableBytes room = buffer.reserve(size);
    CHECK_EQ(room.size(), size);
    CHECK(buffer.capacity() >= size);
    if (buffer.capacity() >= kHugePage) {
      CHECK_EQ(buffer.capacity() % kHugePage, size_t{0});
      CHECK_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kHugePage, size_t{0});
    }
    std::fill_n(buffer.data(), buffer.capacity(), uint8_t{1});
  }
  const uint8_t* const before = buffer.data();
  CHECK_EQ(buffer.reserve(4 * kHugePage).data(), before);
  CHECK_EQ(buffer.capacity(), 4 * kHugePage);
}

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

TEST(crc32c_of_long_bytes_agrees_with_a_bitwise_one_where_streams_are_put_together) {
  constexpr size_t kTogether = 3 * 4096;  // bytes of the streams that crc32c.cc sums at once
  const ByteVector data = noise(3 * kTogether);
  for (const size_t begin : {size_t{0}, size_t{3}}) {
    size_t at = begin;
    uint32_t crc = 0xffffffff;
    for (const size_t around : {kTogether, 2 * kTogether}) {
      for (size_t size = around - 9; size <= around + 9; ++size) {
        for (; at < begin + size; ++at) {
          crc ^= data[at];
          for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
        }
        const GuardedBytes exact(ByteView(data).subspan(begin, size));
        CHECK_EQ(crc32c(exact.span()), ~crc);
      }
    }
  }
}

TEST(a_checksum_is_taken_off_at_either_end_and_a_wrong_one_is_refused) {
  const ByteVector data = noise(100);
  for (const bool at_start : {false, true}) {
    const ByteVector stored = append_crc32c(data, at_start);
    const Bytes payload = verify_checksum(stored, at_start, "crc32c", crc32c);
    CHECK(ByteVector(payload.begin(), payload.end()) == data);
    for (size_t i = 0; i < stored.size(); ++i) {
      CHECK_THROWS(
          kCorrupt, "crc32c is",
          verify_checksum(with_byte(stored, i, static_cast<uint8_t>(stored[i] ^ 0x10U)), at_start, "crc32c", crc32c));
    }
  }
  CHECK_EQ(verify_checksum(append_crc32c({}), false, "crc32c", crc32c).size(), size_t{0});
  CHECK_THROWS(kCorrupt, "needs 4 bytes, the chunk holds 3", verify_checksum(ByteVector(3), false, "crc32c", crc32c));
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

TEST(a_cut_chunk_never_decodes_to_the_size_of_the_whole) {
  for (const Format& format : formats()) {
    DecodeScratch scratch;
    const ByteVector stored = format.encode(smooth(600));
    for (size_t size = 0; size < stored.size(); ++size) {
      const Context context(std::string(format.name) + " cut to " + std::to_string(size));
      const auto got = try_decode(format.decode, ByteView(stored).first(size), 600, scratch);
      // No bytes at all are no frame, hence nothing decoded: then the size is wrong, which the pipeline refuses.
      CHECK(!got.has_value() || (size == 0 && got->empty()));
      CHECK_THROWS(kCorrupt, "", run_pipeline({{format.name}}, ByteView(stored).first(size), 600));
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
  decode_damaged(victims, random);
}

TEST(noise_never_crashes_a_decoder) {
  std::mt19937_64 random(100);
  DecodeScratch scratch;
  for (int i = 0; i < draws(5000); ++i) {
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

TEST(blosclz_blocks_and_lz4_blocks_come_back_through_the_bare_declarations) {
  const ByteVector data = smooth(10'000);
  const ByteVector blosclz = blosclz_block(data);
  const ByteVector lz4 = lz4_block(data);
  CHECK(!blosclz.empty() && blosclz.size() < data.size());
  CHECK(lz4.size() < data.size());
  ByteVector out(data.size());
  CHECK_EQ(blosclz_decompress(blosclz.data(), static_cast<int>(blosclz.size()), out.data(), 10'000), 10'000);
  CHECK(out == data);
  std::fill(out.begin(), out.end(), uint8_t{0});
  CHECK_EQ(LZ4_decompress_safe(reinterpret_cast<const char*>(lz4.data()), reinterpret_cast<char*>(out.data()),
                               static_cast<int>(lz4.size()), 10'000),
           10'000);
  CHECK(out == data);
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
        CHECK(run_pipeline({{outer.name}, {inner.name}, {innermost.name}}, stored, data.size()) == data);
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
      const std::vector<CodecSpec> codecs = {{"crc32c", at_start}, {format.name}};
      CHECK(run_pipeline(codecs, stored, data.size()) == data);
      CHECK_THROWS(kCorrupt, "crc32c",
                   run_pipeline(codecs, with_byte(stored, 20, static_cast<uint8_t>(stored[20] ^ 1U)), data.size()));
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
      const std::vector<CodecSpec> codecs = {{format.name}, {"crc32c", at_start}};
      CHECK(run_pipeline(codecs, stored, data.size()) == data);
    }
  }
}

TEST(without_a_decompressor_the_result_is_a_view_of_the_input) {
  const ByteVector data = noise(1000);
  const ByteVector stored = append_crc32c(append_crc32c(data), true);
  const CodecPipeline pipeline({{"crc32c", true}, {"crc32c", false}}, data.size());
  CHECK(pipeline.is_view());
  DecodeScratch scratch;
  const Bytes view = pipeline.decode(stored, {}, scratch);
  CHECK(view.data() == stored.data() + 4);
  CHECK_EQ(view.size(), data.size());
  CHECK(CodecPipeline({}, 8).is_view());
  CHECK(!CodecPipeline({{"zstd"}}, 8).is_view());
}

TEST(a_chunk_of_another_size_than_the_metadata_implies_is_refused) {
  const ByteVector data = smooth(1000);
  CHECK(run_pipeline({}, data, 1000) == data);
  CHECK_THROWS(kCorrupt, "decodes to 1000 bytes, the metadata implies 999", run_pipeline({}, data, 999));
  CHECK_THROWS(kCorrupt, "decodes to 1000 bytes, the metadata implies 1001", run_pipeline({}, data, 1001));
  for (const Format& format : formats()) {
    const Context context(format.name);
    const ByteVector stored = format.encode(data);
    CHECK_THROWS(kCorrupt, "", run_pipeline({{format.name}}, stored, 999));
    CHECK_THROWS(kCorrupt, "decodes to 1000 bytes, the metadata implies 1001",
                 run_pipeline({{format.name}}, stored, 1001));
  }
}

TEST(the_bound_of_stored_bytes_admits_what_compressors_make_of_noise) {
  for (const size_t size : {size_t{1}, size_t{1000}, size_t{1'000'000}}) {
    const ByteVector data = noise(size);
    for (const Format& format : formats()) {
      const CodecPipeline one({{format.name}}, size);
      CHECK(format.encode(data).size() <= one.max_stored_bytes());
      const CodecPipeline two({{format.name}, {format.name}}, size);
      CHECK(format.encode(format.encode(data)).size() <= two.max_stored_bytes());
      CHECK(one.max_stored_bytes() < 4 * size + (size_t{2} << 20));
    }
  }
}

}  // namespace zarrfeed::testing::codecs_test
