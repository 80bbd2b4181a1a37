// The codecs of HDF5 and TIFF files. What must hold: they undo what plain writers of the same formats wrote, of every length;
// other bytes are refused or decode to something, and nothing beyond input and output is touched.

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codecs/codec_pipeline.h"
#include "spec/codec_spec.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/file_compress.h"
#include "tests/support/guarded_bytes.h"

namespace zarrfeed::testing::file_codecs_test {
namespace {

/// Each codec with some options; `unit` is what whole chunks consist of.
struct Case {
  CodecSpec codec;
  size_t unit = 1;
};

std::vector<Case> cases() {
  std::vector<Case> all = {{{.name = "zarrfeed.lzf"}}, {{.name = "zarrfeed.lzw"}}, {{.name = "zarrfeed.hdf5_lz4"}}};
  for (const size_t element : {1, 2, 3, 4, 8, 12}) {
    all.push_back({{.name = "zarrfeed.bitshuffle_lz4", .element_bytes = element}, element});
    all.push_back({{.name = "zarrfeed.bitshuffle_zstd", .element_bytes = element}, element});
    all.push_back({{.name = "zarrfeed.bitshuffle", .element_bytes = element, .run_bytes = 64 * element}, element});
  }
  for (const size_t element : {1, 2, 4, 8}) {
    for (const size_t stride : {1, 3, 4}) {
      for (const bool big : {false, true}) {
        const size_t row = 7 * stride * element;
        for (const size_t run : {size_t{0}, row}) {
          all.push_back({{"zarrfeed.delta", false, element, run, stride, big}, run == 0 ? element : row});
        }
      }
    }
  }
  return all;
}

ByteVector run(const CodecSpec& codec, ByteView stored, size_t decoded_bytes, DecodeScratch& scratch) {
  return undone({codec}, stored, decoded_bytes, scratch);
}

ByteVector content(size_t size, uint64_t seed) {
  if (seed % 3 == 0) return noise(size, seed);
  if (seed % 3 == 1) return smooth(size, seed);
  ByteVector out = noise(size, seed);
  for (uint8_t& byte : out) byte = byte < 200 ? 7 : byte;  // long strings
  return out;
}

}  // namespace

TEST(what_plain_writers_wrote_comes_back) {
  std::mt19937_64 random(3);
  DecodeScratch scratch;
  for (const auto& [codec, unit] : cases()) {
    for (const size_t units : {0, 1, 7, 8, 9, 63, 64, 65, 600, 5000}) {
      const ByteVector data = content(units * unit, random());
      const Context context(codec.name + " of " + std::to_string(codec.element_bytes) + " bytes, " +
                            std::to_string(data.size()));
      const ByteVector stored = encode_for_file(codec, data);
      CHECK(run(codec, stored, data.size(), scratch) == data);
      CHECK(stored.size() <= CodecPipeline({codec}, data.size()).max_stored_bytes());
      if (data.size() < 2 || (codec.name == "zarrfeed.lzf" && stored.size() == data.size())) continue;
      // LZW ends where the chunk is full.
      if (codec.name != "zarrfeed.lzw") CHECK_THROWS(kCorrupt, "", run(codec, stored, data.size() - 1, scratch));
      CHECK_THROWS(kCorrupt, "", run(codec, stored, data.size() + 1, scratch));
    }
  }
}

TEST(damaged_chunks_of_files_are_refused_or_decode_to_something) {
  std::mt19937_64 random(4);
  DecodeScratch scratch;
  std::vector<std::pair<CodecSpec, ByteVector>> victims;
  for (const auto& [codec, unit] : cases()) {
    if (codec.name == "zarrfeed.delta" || codec.name == "zarrfeed.bitshuffle") continue;  // take all bytes
    for (uint64_t seed = 0; seed < 3; ++seed) {
      victims.emplace_back(codec, encode_for_file(codec, content(1440, seed)));
    }
  }
  for (int i = 0; i < draws(20'000); ++i) {
    const auto& [codec, original] = victims[random() % victims.size()];
    ByteVector stored = original;
    for (size_t changes = 1 + random() % 3; changes > 0; --changes) {
      const size_t at = random() % (random() % 2 == 0 ? std::min<size_t>(stored.size(), 32) : stored.size());
      stored[at] = static_cast<uint8_t>(random() % 3 == 0 ? 0xff : random());
    }
    if (random() % 8 == 0) stored.resize(random() % stored.size());
    try {
      run(codec, stored, random() % 4 == 0 ? random() % 2000 : 1440, scratch);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::kCorrupt);
    }
  }
}

TEST(lzf_takes_a_chunk_of_its_full_size_for_one_that_was_not_compressed) {
  DecodeScratch scratch;
  const ByteVector data = noise(500);
  CHECK(run({.name = "zarrfeed.lzf"}, data, 500, scratch) == data);
}

TEST(lzw_of_old_writers_is_refused) {
  DecodeScratch scratch;
  CHECK_THROWS(kCorrupt, "old order of bits", run({.name = "zarrfeed.lzw"}, ByteVector{0, 1, 2, 3}, 4, scratch));
}

TEST(a_short_chunk_is_filled_with_zeros_if_it_has_the_one_size_that_is_allowed) {
  DecodeScratch scratch;
  const CodecSpec codec{.name = "zarrfeed.short", .run_bytes = 40};
  const ByteVector data = noise(100);
  CHECK(run(codec, data, 100, scratch) == data);
  ByteVector filled(data.begin(), data.begin() + 40);
  const ByteVector stored = filled;
  filled.resize(100);
  CHECK(run(codec, stored, 100, scratch) == filled);
  CHECK_THROWS(kCorrupt, "decodes to 41 bytes, must be 100 or 40", run(codec, ByteView(data).first(41), 100, scratch));
}

TEST(parameters_that_no_chunk_can_have_are_refused_since_metadata_say_them) {
  DecodeScratch scratch;
  const ByteVector data = noise(100);
  CHECK_THROWS(kCorrupt, "decodes to 100 bytes, must be 16",
               run({.name = "zarrfeed.short", .run_bytes = 100}, data, 16, scratch));
  for (const size_t element : {size_t{1} << 61U, size_t{1} << 62U, SIZE_MAX}) {
    CHECK(run({.name = "zarrfeed.bitshuffle", .element_bytes = element, .run_bytes = 64}, data, 100, scratch) == data);
    const CodecSpec compressed{.name = "zarrfeed.bitshuffle_lz4", .element_bytes = element};
    const ByteVector good = encode_for_file({.name = "zarrfeed.bitshuffle_lz4", .element_bytes = 2}, smooth(1000));
    CHECK_THROWS(kCorrupt, "no whole runs of elements", run(compressed, good, 1000, scratch));
  }
}

TEST(blocks_that_declare_more_than_the_chunk_are_refused_before_memory_is_asked_for) {
  DecodeScratch scratch;
  for (const std::string name : {"hdf5_lz4", "bitshuffle_lz4", "bitshuffle_zstd"}) {
    const CodecSpec codec{.name = "zarrfeed." + name, .element_bytes = 2};
    const ByteVector good = encode_for_file(codec, smooth(1000));
    CHECK_THROWS(kCorrupt, "declares 281474976711656 bytes", run(codec, with_byte(good, 1, 1), 1000, scratch));
    CHECK_THROWS(kCorrupt, "declares blocks of 0 bytes",
                 run(codec, with_byte(with_byte(good, 10, 0), 11, 0), 1000, scratch));
    CHECK_THROWS(kCorrupt, "ends inside of a block", run(codec, with_byte(good, 12, 0x7f), 1000, scratch));
  }
}

}  // namespace zarrfeed::testing::file_codecs_test
