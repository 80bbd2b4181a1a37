// Blosc containers, decoded whole, block by block straight to the slots of rows, and as the blocks that some rows touch:
// each checks the others. And where the table says that the stored bytes of each block lie.
//
// An input is a container of arbitrary bytes, or one that was compressed here from drawn options and then changed in some
// bytes, so that every compressor, filter, type size and block size is reached beyond its header.
//
// What must hold: where the whole chunk decodes, scattering it delivers the same rows and writes nothing else; where
// scattering fails, so does decoding; a container that was not changed decodes to what was compressed. A header or a table
// is bad for all or for nobody; ranges of blocks lie in the chunk, are the same or disjoint, and a block that decodes from
// its range alone is that of the chunk. Rows that decode from parts of a chunk are those of the whole one.

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/streaming_store.h"
#include "codecs/blosc.h"
#include "codecs/blosc_table.h"
#include "fuzz/support/fuzz.h"
#include "storage/access/read_parts.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "transform/blosc_scatter.h"
#include "transform/few_blocks.h"
#include "transform/touched_blocks.h"
#include "transform/wanted_parts.h"

namespace zarrfeed::fuzzing::blosc_fuzz {
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

/// What the rows of a draw touch, against the whole chunk.
void check_touched(const Case& c, const std::optional<ByteVector>& whole, Draw& draw) {
  static DecodeScratch codecs;
  static TouchedBlocks touched;
  ArraySpec array;
  array.shape = array.chunk_shape = {static_cast<int64_t>(c.rows), static_cast<int64_t>(c.row_bytes)};
  array.storage_order = {0, 1};
  array.item_bytes = 1;
  const auto targets = draw_targets(draw, c.rows);
  const GuardedBytes in(c.stored);
  Buffer room;
  try {
    if (!touched.begin(array, in.span(), c.decoded_bytes())) return;
    ChunkCrop first = whole_chunk(array);
    first.end[0] = 1;
    touched.begin_rows(first);
    for (const auto& [row, slot] : targets) touched.add_row(static_cast<int64_t>(row));
    const size_t decoded = touched.decode(room, codecs, c.row_bytes);
    CHECK(decoded <= c.decoded_bytes());
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    CHECK(!whole);
    return;
  }
  CHECK(in.is_untouched_before());
  for (const auto& [row, slot] : targets) {
    const uint8_t* const found =
        touched.memory() + static_cast<size_t>(touched.row_at(static_cast<int64_t>(row))) * c.row_bytes;
    if (whole)
      CHECK(std::equal(found, found + c.row_bytes, whole->begin() + static_cast<std::ptrdiff_t>(row * c.row_bytes)));
    CHECK(std::equal(found, found + c.row_bytes, touched.bytes(row * c.row_bytes, c.row_bytes)));
  }
}

/// The rows of a draw, side by side; nothing if they are refused.
std::optional<ByteVector> decode_rows(const ArraySource& source, const StoredBytes& stored,
                                      const std::vector<int64_t>& rows) {
  static DecodeScratch codecs;
  static TouchedBlocks touched;
  Buffer room;
  ByteVector out;
  try {
    if (!source.begin_blocks(stored, touched)) return out;
    ChunkCrop row = whole_chunk(source.array());
    row.end[0] = 1;
    touched.begin_rows(row);
    for (const int64_t at : rows) touched.add_row(at);
    touched.decode(room, codecs);
    for (const int64_t at : rows) {
      row.begin[0] = at;
      row.end[0] = at + 1;
      const uint8_t* const found = touched.crop(row);
      out.insert(out.end(), found, found + crop_bytes(source.array(), row));
    }
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    return std::nullopt;
  }
  return out;
}

/// Rows of a chunk of which parts were read, against those of one that was read whole.
void check_parts(const Case& c, Draw& draw) {
  ArraySpec array;
  array.shape = array.chunk_shape = {static_cast<int64_t>(c.rows), static_cast<int64_t>(c.row_bytes)};
  array.storage_order = {0, 1};
  array.item_bytes = 1;
  array.fill = {0};
  array.codecs = {{"blosc"}};
  const auto source = std::make_shared<const ArraySource>(array);
  std::vector<int64_t> rows;
  for (const auto& [row, slot] : draw_targets(draw, c.rows)) rows.push_back(static_cast<int64_t>(row));
  if (rows.empty()) return;
  const PartCosts costs{.least_chunk = 1,
                        .max_gap = static_cast<size_t>(draw.pick(0, 100)),
                        .first_bytes = static_cast<size_t>(draw.pick(0, 100))};
  const auto parts = WantedParts::of_rows(source, 0, join_items(rows), costs);
  if (parts == nullptr) return;
  Buffer room;
  PartsRead read;
  const auto read_at = [&](size_t offset, MutableBytes to) {
    CHECK(offset + to.size() <= c.stored.size());
    std::copy_n(c.stored.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    return true;
  };
  CHECK(read_parts(*parts, c.stored.size(), room, read_at, read));
  const GuardedBytes memory(read.bytes);
  const auto of_parts = decode_rows(*source, {memory.span(), read.parts}, rows);
  const auto of_whole = decode_rows(*source, c.stored, rows);
  // Parts that do not decode are no proof: then the engine reads all of the chunk.
  if (of_parts) CHECK(of_parts == of_whole);
  if (read.parts == nullptr) CHECK_EQ(of_parts.has_value(), of_whole.has_value());
}

void check_table(const Case& c, const std::optional<ByteVector>& whole, bool is_changed) {
  static DecodeScratch codecs;
  const GuardedBytes in(c.stored);
  std::optional<BloscHeader> header;
  std::optional<BloscTable> table;
  try {
    header = BloscHeader::read(in.span(), c.stored.size(), c.decoded_bytes());
    table.emplace(*header, in.span().subspan(BloscHeader::kBytes));
  } catch (const std::exception& error) {
    if (!is_refusal(error)) throw;
    CHECK(!whole);
    return;
  }
  std::vector<std::pair<size_t, size_t>> ranges;
  for (size_t b = 0; b < header->num_blocks; ++b) {
    const BloscTable::Range range = table->range_of(b);
    CHECK(BloscHeader::kBytes + header->table_bytes() <= range.begin && range.begin < range.end);
    CHECK(range.end <= header->stored_bytes && header->stored_bytes <= c.stored.size());
    ranges.emplace_back(range.begin, range.end);
    const GuardedBytes alone(Bytes(c.stored).subspan(range.begin, range.end - range.begin));
    const GuardedBytes out(header->size_of(b));
    try {
      decode_blosc_block(*header, alone.span(), out.span(), codecs);
    } catch (const std::exception& error) {
      if (!is_refusal(error)) throw;
      CHECK(!c.content || is_changed);
      continue;
    }
    CHECK(alone.is_untouched_before() && out.is_untouched_before());
    const auto begin = static_cast<std::ptrdiff_t>(b * header->block_bytes);
    if (whole) CHECK(std::equal(out.span().begin(), out.span().end(), whole->begin() + begin));
  }
  std::ranges::sort(ranges);
  for (size_t i = 1; i < ranges.size(); ++i)
    CHECK(ranges[i] == ranges[i - 1] || ranges[i].first >= ranges[i - 1].second);
}

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
  check_table(c, whole, changed);
  check_touched(c, whole, numbers);
  check_scatter(c, whole, numbers);
  check_parts(c, numbers);
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

const Target target("blosc", run_input, make_seeds, findings, kQuickChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::blosc_fuzz
