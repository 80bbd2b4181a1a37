// Chains of codecs over arbitrary stored bytes, some with arbitrary parameters. The decoded size comes from a table, as it
// comes from the array's metadata and not from the chunk, so that chunks that compress are decoded to the end.
//
// What must hold: a chunk decodes to exactly that size or is refused, a wrong outer checksum always; neither what was in
// the output before nor what the thread's scratch decoded before makes a difference; nothing is read or written outside of
// input and output.

#include <algorithm>
#include <exception>
#include <random>
#include <string>

#include "base/bytes.h"
#include "codecs/codec_pipeline.h"
#include "fuzz/support/fuzz.h"
#include "spec/codec_spec.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/file_compress.h"
#include "tests/support/guarded_bytes.h"

namespace zarrfeed::fuzzing::codecs_fuzz {
namespace {

using testing::Blosc1Compressor;
using testing::Blosc1Options;
using testing::Blosc1Shuffle;

constexpr size_t kSizes[] = {1, 7, 64, 100, 1000, 4096, 4800, 5003, 16'384, 65'536, 100'001};

/// In the order of decoding.
const std::vector<std::vector<CodecSpec>>& chains() {
  static const std::vector<std::vector<CodecSpec>> all = {
      {{"zstd"}},
      {{"zlib"}},
      {{"gzip"}},
      {{"lz4"}},
      {{"blosc"}},
      {{"crc32c"}},
      {{"crc32c", true}},
      {{"crc32c"}, {"blosc"}},
      {{"crc32c", true}, {"zstd"}},
      {{"gzip"}, {"blosc"}},
      {{"zstd"}, {"lz4"}, {"crc32c"}},
      {{"blosc"}, {"crc32c"}},
      {{.name = "shuffle", .element_bytes = 4}},
      {{"zlib"}, {.name = "shuffle", .element_bytes = 7}},
      {{"blosc"}, {.name = "shuffle", .element_bytes = 2}, {"crc32c"}, {.name = "shuffle", .element_bytes = 3}},
      {{.name = "shuffle", .element_bytes = 1}, {"blosc"}, {.name = "shuffle", .element_bytes = 100}},
      {{"fletcher32"}, {"zlib"}, {.name = "shuffle", .element_bytes = 4}},
      {{"zlib"}, {"fletcher32"}},
      {{"zarrfeed.lzf"}, {.name = "shuffle", .element_bytes = 1}, {"fletcher32"}},
      {{"zarrfeed.lzw"}, {"zarrfeed.delta", false, 1, 7, 3}},
      {{"zarrfeed.hdf5_lz4"}},
      {{.name = "zarrfeed.bitshuffle_lz4", .element_bytes = 2}},
      {{.name = "zarrfeed.bitshuffle_zstd", .element_bytes = 3}},
      {{"zlib"}, {.name = "zarrfeed.shuffle", .element_bytes = 8}, {"fletcher32"}},
      {{"zlib"}, {.name = "zarrfeed.bitshuffle", .element_bytes = 4, .run_bytes = 64}},
      {{"zlib"}, {.name = "delta", .element_bytes = 2, .big_endian = true}},
      {{"zstd"}, {.name = "zarrfeed.short", .run_bytes = 5}},
  };
  return all;
}

ByteVector encoded(const CodecSpec& codec, const ByteVector& data, const Blosc1Options& options) {
  if (codec.name == "blosc") return testing::compress_blosc1(data, options);
  if (codec.name == "zstd") return testing::compress_zstd(data);
  if (codec.name == "gzip") return testing::compress_gzip(data);
  if (codec.name == "zlib") return testing::compress_zlib(data);
  if (codec.name == "lz4") return testing::compress_lz4(data);
  if (codec.name == "fletcher32") return testing::append_fletcher32(data);
  if (codec.name == "delta" || codec.name.starts_with("zarrfeed.")) return testing::encode_for_file(codec, data);
  if (codec.name == "shuffle") return testing::shuffle_bytes(data, codec.element_bytes);
  return testing::append_crc32c(data, codec.checksum_at_start);
}

/// Makes the outer checksum right, which no change of single bytes would.
void mend_checksum(const CodecSpec& outer, ByteVector& stored) {
  const auto checksum_of = find_codec(outer.name).checksum;
  if (checksum_of == nullptr || stored.size() < 4) return;
  const Bytes all(stored);
  const bool at_start = outer.checksum_at_start;
  const uint32_t checksum = checksum_of(at_start ? all.subspan(4) : all.first(all.size() - 4));
  testing::store_le32(stored, at_start ? 0 : stored.size() - 4, checksum);
}

/// CRC-32C bit by bit.
uint32_t plain_crc32c(Bytes data) {
  uint32_t crc = 0xffffffff;
  for (const uint8_t byte : data) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return ~crc;
}

bool has_right_checksum(const CodecSpec& outer, Bytes stored) {
  if (find_codec(outer.name).checksum == nullptr) return true;
  if (stored.size() < 4) return false;
  const Bytes payload = outer.checksum_at_start ? stored.subspan(4) : stored.first(stored.size() - 4);
  if (outer.name == "fletcher32") return std::ranges::equal(testing::append_fletcher32(payload), stored);
  return load_le32(outer.checksum_at_start ? stored.data() : &stored[payload.size()]) == plain_crc32c(payload);
}

struct Outcome {
  std::string refusal;
  ByteVector decoded;

  bool operator==(const Outcome&) const = default;
};

Outcome decode(const CodecPipeline& pipeline, Bytes stored, DecodeScratch& scratch, uint8_t prefill) {
  const testing::GuardedBytes in(stored);
  const testing::GuardedBytes out(pipeline.decoded_bytes());
  std::fill(out.span().begin(), out.span().end(), prefill);
  Outcome outcome;
  try {
    const Bytes decoded = pipeline.decode(in.span(), out.span(), scratch);
    CHECK_EQ(decoded.size(), pipeline.decoded_bytes());
    outcome.decoded.assign(decoded.begin(), decoded.end());
  } catch (const Error& error) {
    if (!is_refusal(error)) throw;
    outcome.refusal = error.what();
  }
  CHECK(std::equal(stored.begin(), stored.end(), in.span().begin()));
  CHECK(in.is_untouched_before() && out.is_untouched_before());
  return outcome;
}

size_t draw_parameter(Draw& draw) {
  constexpr uint64_t kTelling[] = {0,       1, 8, 255, 1U << 28U, 1U << 31U, uint64_t{1} << 61U, uint64_t{1} << 63U,
                                   SIZE_MAX};
  return draw.coin() ? static_cast<size_t>(draw.one_of(kTelling)) : static_cast<size_t>(draw.pick(0, 300));
}

/// Parameters are as arbitrary as the stored bytes, since metadata say them.
void change_parameters(Draw& draw, std::vector<CodecSpec>& chain) {
  for (CodecSpec& codec : chain) {
    codec.element_bytes = std::max<size_t>(1, draw_parameter(draw));
    codec.run_bytes = draw_parameter(draw);
    codec.stride = std::max<size_t>(1, draw_parameter(draw));
    codec.big_endian = draw.coin();
  }
}

void run_input(Bytes input) {
  static DecodeScratch used;
  Draw draw(input);
  std::vector<CodecSpec> chain = chains()[static_cast<size_t>(draw.pick(0, std::ssize(chains()) - 1))];
  if (draw.pick(0, 3) == 3) change_parameters(draw, chain);
  const CodecPipeline pipeline(chain, draw.one_of(kSizes));
  const bool mend = draw.coin();
  const Bytes rest = draw.rest();
  ByteVector stored(rest.begin(), rest.end());
  if (mend) mend_checksum(chain.front(), stored);
  DecodeScratch fresh;
  const Outcome outcome = decode(pipeline, stored, used, 0x5a);
  CHECK(outcome == decode(pipeline, stored, fresh, 0xa5));
  CHECK(has_right_checksum(chain.front(), stored) || !outcome.refusal.empty());
}

std::vector<ByteVector> make_seeds() {
  constexpr Blosc1Compressor kCompressors[] = {Blosc1Compressor::kBlosclz, Blosc1Compressor::kLz4,
                                               Blosc1Compressor::kZlib, Blosc1Compressor::kZstd};
  constexpr Blosc1Shuffle kShuffles[] = {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit};
  constexpr uint8_t kTypesizes[] = {1, 2, 3, 4, 8, 16, 17};
  std::vector<ByteVector> seeds;
  std::mt19937_64 random(1);
  size_t number = 0;
  for (size_t c = 0; c < chains().size(); ++c) {
    for (size_t s = 0; s < std::size(kSizes); ++s) {
      const size_t size = kSizes[s];
      if (size > 20'000 && c % 3 != 0) continue;
      ByteVector stored = number % 4 == 3 ? testing::noise(size, number) : testing::smooth(size, number);
      ++number;
      Blosc1Options options;
      options.compressor = kCompressors[number % std::size(kCompressors)];
      options.shuffle = kShuffles[number % std::size(kShuffles)];
      options.typesize = kTypesizes[number % std::size(kTypesizes)];
      options.blocksize = number % 2 == 0 ? 0 : 1 + random() % size;
      if (options.blocksize > 512) options.split = options.blocksize % options.typesize == 0;
      options.reverse_blocks = number % 5 == 0;
      for (size_t i = chains()[c].size(); i-- > 0;) stored = encoded(chains()[c][i], stored, options);
      seeds.push_back(Pen()
                          .pick(static_cast<int64_t>(c), 0, std::ssize(chains()) - 1)
                          .pick(0, 0, 3)
                          .pick(static_cast<int64_t>(s), 0, std::ssize(kSizes) - 1)
                          .byte(static_cast<uint8_t>(number % 2))
                          .bytes(stored)
                          .input());
    }
  }
  return seeds;
}

std::vector<Finding> findings() {
  return {};
}

const Target target("codecs", run_input, make_seeds, findings, kQuickChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::codecs_fuzz
