// Blosc containers, decoded whole and block by block straight to the slots of rows: each checks the other.
//
// An input is a container of arbitrary bytes, or one that was compressed here from drawn options and then changed in some
// bytes, so that every compressor, filter, type size and block size is reached beyond its header.
//
// What must hold: where the whole chunk decodes, scattering it delivers the same rows and writes nothing else; where
// scattering fails, so does decoding; a container that was not changed decodes to what was compressed.

#include <algorithm>
#include <exception>
#include <optional>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/streaming_store.h"
#include "codecs/blosc.h"
#include "fuzz/support/fuzz.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "transform/blosc_scatter.h"

namespace zarrfeed::fuzzing {
namespace {

using testing::Blosc1Compressor;
using testing::Blosc1Options;
using testing::Blosc1Shuffle;
using testing::GuardedBytes;

constexpr uint8_t kUntouched = 0xa5;
constexpr size_t kRowBytes[] = {1, 4, 24, 96, 128, 1000, 1024, 1601, 4096};
constexpr Blosc1Compressor kCompressors[] = {Blosc1Compressor::kBlosclz, Blosc1Compressor::kLz4,
                                             Blosc1Compressor::kZlib, Blosc1Compressor::kZstd};
constexpr Blosc1Shuffle kShuffles[] = {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit};
constexpr size_t kMaxRows = 12;
constexpr int64_t kMaxBlock = 9000;

struct Case {
  size_t row_bytes = 0;
  size_t rows = 0;
  std::optional<ByteVector> content;  ///< what the container must decode to, where that is known
  ByteVector stored;

  [[nodiscard]] size_t decoded_bytes() const { return row_bytes * rows; }
};

/// Content that compresses: runs of 64 smooth bytes, from a seed.
ByteVector make_content(size_t size, uint8_t seed) {
  return seed % 4 == 0 ? testing::noise(size, seed) : testing::smooth(size, seed);
}

Case draw_case(Draw& draw) {
  Case c;
  c.row_bytes = draw.one_of(kRowBytes);
  c.rows = static_cast<size_t>(draw.pick(1, kMaxRows));
  if (draw.coin()) {
    const Bytes rest = draw.rest();
    c.stored.assign(rest.begin(), rest.end());
    return c;
  }
  c.content = make_content(c.decoded_bytes(), draw.byte());
  Blosc1Options options;
  options.compressor = draw.one_of(kCompressors);
  options.shuffle = draw.one_of(kShuffles);
  options.typesize = static_cast<uint8_t>(draw.pick(1, 255));
  // Not so many blocks that compressing them is all that is done.
  const size_t least = c.decoded_bytes() / 12 + 1;
  const auto asked = static_cast<size_t>(draw.pick(0, kMaxBlock));
  const size_t blocksize = std::min(c.decoded_bytes(), asked == 0 ? c.decoded_bytes() : std::max(asked, least));
  options.blocksize = blocksize;
  options.split = draw.coin() && blocksize % options.typesize == 0;
  options.reverse_blocks = draw.coin();
  c.stored = testing::compress_blosc1(*c.content, options);
  return c;
}

/// Rows and their slots, `lead` bytes from an aligned address.
std::vector<std::pair<size_t, size_t>> draw_targets(Draw& draw, size_t rows) {
  std::vector<std::pair<size_t, size_t>> targets;
  const auto count = static_cast<size_t>(draw.pick(0, 20));
  for (size_t slot = 0; slot < count; ++slot) {
    targets.emplace_back(draw.pick(0, static_cast<int64_t>(rows) - 1), count - 1 - slot);
  }
  return targets;
}

/// The chunk, or nothing if it is refused.
std::optional<ByteVector> decode_whole(const Case& c) {
  static DecodeScratch scratch;
  const GuardedBytes in(c.stored);
  const GuardedBytes out(c.decoded_bytes());
  try {
    const size_t n = decode_blosc(in.span(), out.span(), scratch);
    CHECK(n <= c.decoded_bytes());
    if (n != c.decoded_bytes()) return std::nullopt;
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    return std::nullopt;
  }
  CHECK(in.is_untouched_before() && out.is_untouched_before());
  return out.copy();
}

void check_scatter(const Case& c, const std::optional<ByteVector>& whole, Draw& draw) {
  static DecodeScratch codecs;
  static BloscScatterScratch scratch;
  const auto targets = draw_targets(draw, c.rows);
  const bool streaming = draw.coin();
  const size_t lead = draw.coin() ? 32 : static_cast<size_t>(draw.pick(0, 63));
  // Rows behind an aligned address, or up to where memory ends.
  Buffer aligned;
  const size_t size = lead + targets.size() * c.row_bytes;
  const GuardedBytes guarded(size);
  const MutableBytes room = lead == 32 ? aligned.reserve(size) : guarded.span();
  std::fill(room.begin(), room.end(), kUntouched);
  ByteVector expected(size, kUntouched);
  std::vector<RowTarget> row_targets;
  for (const auto& [row, slot] : targets) {
    const size_t at = lead + slot * c.row_bytes;
    row_targets.push_back({static_cast<int64_t>(row), room.data() + at});
    if (whole) std::copy_n(whole->begin() + static_cast<std::ptrdiff_t>(row * c.row_bytes), c.row_bytes, &expected[at]);
  }
  const GuardedBytes in(c.stored);
  try {
    scatter_blosc(in.span(), c.decoded_bytes(), c.row_bytes, row_targets, streaming, codecs, scratch);
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    fence_streaming_stores();
    CHECK(!whole);
    return;
  }
  CHECK(in.is_untouched_before() && guarded.is_untouched_before());
  CHECK(std::all_of(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(lead),
                    [](uint8_t byte) { return byte == kUntouched; }));
  if (whole) CHECK(std::equal(room.begin(), room.end(), expected.begin()));
}

}  // namespace

void run_input(Bytes input) {
  Draw draw(input);
  // Numbers first, so that arbitrary bytes may follow to the end.
  Draw numbers(draw.take(static_cast<size_t>(draw.pick(0, 48))));
  Case c = draw_case(draw);
  bool changed = false;
  while (c.content && !draw.empty() && !c.stored.empty()) {
    const auto at = static_cast<size_t>(draw.pick(0, 65'535)) % c.stored.size();
    const uint8_t byte = draw.byte();
    changed = changed || c.stored[at] != byte;
    c.stored[at] = byte;
  }
  const std::optional<ByteVector> whole = decode_whole(c);
  if (c.content && !changed) CHECK(whole == c.content);
  check_scatter(c, whole, numbers);
}

std::vector<ByteVector> make_seeds() {
  constexpr uint8_t kTypesizes[] = {1, 2, 3, 4, 7, 8, 16, 17, 255};
  constexpr int64_t kBlocks[] = {0, 1, 512, 1024, 4096, 4800, 5003};
  std::vector<ByteVector> seeds;
  for (int64_t number = 0; number < 200; ++number) {
    const auto n = static_cast<size_t>(number);
    Pen numbers;
    numbers.pick(number % 12, 0, 20);
    const int64_t rows = 1 + number % static_cast<int64_t>(kMaxRows);
    for (int64_t slot = 0; slot < number % 12; ++slot) numbers.pick((slot * 7 + number) % rows, 0, rows - 1);
    numbers.byte(number % 3 == 0 ? 1 : 0).byte(number % 2 == 0 ? 1 : 0).byte(0);
    Pen pen;
    pen.pick(std::ssize(numbers.input()), 0, 48).bytes(numbers.input());
    const int64_t row_kind = number % std::ssize(kRowBytes);
    pen.pick(row_kind, 0, std::ssize(kRowBytes) - 1).pick(rows, 1, kMaxRows);
    const int64_t block = kBlocks[n % std::size(kBlocks)];
    if (number % 4 == 0) {
      const size_t size = kRowBytes[row_kind] * static_cast<size_t>(rows);
      Blosc1Options options;
      options.compressor = kCompressors[n / 4 % std::size(kCompressors)];
      options.shuffle = kShuffles[n / 4 % std::size(kShuffles)];
      options.typesize = kTypesizes[n % std::size(kTypesizes)];
      options.blocksize = std::min(size, block == 0 ? size : std::max(size / 12 + 1, static_cast<size_t>(block)));
      options.split = options.blocksize > 0 && options.blocksize % options.typesize == 0;
      pen.byte(1).bytes(n % 40 == 0 ? testing::store_blosc1(make_content(size, 5))
                                    : testing::compress_blosc1(make_content(size, static_cast<uint8_t>(n)), options));
    } else {
      pen.byte(0).byte(static_cast<uint8_t>(n));
      pen.pick(number % std::ssize(kCompressors), 0, std::ssize(kCompressors) - 1);
      pen.pick(number / 4 % std::ssize(kShuffles), 0, std::ssize(kShuffles) - 1);
      pen.pick(kTypesizes[n % std::size(kTypesizes)], 1, 255).pick(block, 0, kMaxBlock);
      pen.byte(1).byte(static_cast<uint8_t>(number % 2));
    }
    seeds.push_back(pen.input());
  }
  return seeds;
}

std::vector<Finding> findings() {
  return {};
}

}  // namespace zarrfeed::fuzzing
