// Chunks of which parts were read, against chunks that were read whole: the same rows and patches, from less bytes.

#include "transform/wanted_parts.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "codecs/blosc_table.h"
#include "storage/access/read_parts.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/plans.h"
#include "transform/few_blocks.h"
#include "transform/output.h"

namespace zarrfeed::testing::wanted_parts_test {
namespace {

constexpr uint8_t kUntouched = 0xa5;

/// A random array, with one chunk of it: Blosc with small blocks, or without codecs.
struct Case {
  explicit Case(std::mt19937_64& random, bool may_be_raw = true) {
    const auto ndim = static_cast<size_t>(pick(random, 1, 3));
    for (size_t a = 0; a < ndim; ++a) {
      array.chunk_shape.push_back(pick(random, 1, std::array{9000, 120, 30}[ndim - 1]));
      array.shape.push_back(pick(random, 1, 2 * array.chunk_shape[a]));
      array.storage_order.push_back(static_cast<int>(a));
    }
    if (random() % 3 == 0) std::shuffle(array.storage_order.begin(), array.storage_order.end(), random);
    if (random() % 3 == 0) array.sample_axis = static_cast<int>(pick(random, 0, static_cast<int64_t>(ndim) - 1));
    array.item_bytes = size_t{1} << random() % 4;
    if (array.item_bytes > 1 && random() % 3 == 0) array.swap_bytes = array.item_bytes;
    array.fill.assign(array.item_bytes, 0);
    array.name = "array";
    size = chunk_bytes(array);
    chunk = noise(size, random());
    is_raw = may_be_raw && random() % 4 == 0;
    if (is_raw) {
      stored = chunk;
    } else {
      array.codecs = {{"blosc"}};
      constexpr std::array kShuffles = {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit};
      Blosc1Options options{.shuffle = kShuffles[random() % 3], .typesize = static_cast<uint8_t>(array.item_bytes)};
      options.blocksize = std::min(size, 128 + static_cast<size_t>(pick(random, 0, 12)) * array.item_bytes * 8);
      options.reverse_blocks = random() % 2 == 0;
      stored = random() % 6 == 0 ? store_blosc1(chunk) : compress_blosc1(chunk, options);
      for (int64_t n = pick(random, 0, 1) * pick(random, 1, 2000); n > 0; --n) stored.push_back(1);  // behind the chunk
    }
    costs = {.least_chunk = 1, .max_gap = static_cast<size_t>(pick(random, 0, 2) * pick(random, 0, 100))};
    costs.first_bytes = static_cast<size_t>(pick(random, 0, 300));
  }

  [[nodiscard]] FieldSpec field() const {
    FieldSpec spec;
    spec.array = array;
    return spec;
  }

  ArraySpec array;
  PartCosts costs;
  bool is_raw = false;
  size_t size = 0;
  ByteVector chunk;
  ByteVector stored;
};

/// What is read of a chunk in memory, at the end of accessible memory.
struct Read {
  Read(const ByteVector& chunk, const ChunkParts& wanted) {
    Buffer room;
    PartsRead out;
    CHECK(read_parts(
        wanted, chunk.size(), room,
        [&](size_t offset, MutableBytes to) {
          std::copy_n(chunk.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
          return true;
        },
        out));
    memory.emplace(out.bytes);
    stored = {memory->span(), out.parts};
  }

  std::optional<GuardedBytes> memory;
  StoredBytes stored;
};

}  // namespace

TEST(rows_of_parts_are_those_of_the_whole_chunk_whatever_path_they_take) {
  std::mt19937_64 random(31);
  WorkerScratch scratch;
  int in_parts = 0;
  int raw = 0;
  for (int i = 0; i < draws(2000); ++i) {
    const Context context("case " + std::to_string(i));
    const Case c(random);
    const Output first(c.field());
    const Output second(c.field(), first.shared_source());
    const ArraySource& source = *first.source();
    const auto cell = static_cast<size_t>(pick(random, 0, static_cast<int64_t>(first.num_cells()) - 1));
    const int64_t rows = std::min(source.rows_per_chunk(), source.num_rows());
    const auto count = static_cast<size_t>(pick(random, 1, 5));
    const size_t of_second = random() % 2 == 0 ? 0 : static_cast<size_t>(pick(random, 1, 3));
    const size_t row_bytes = first.row_bytes();
    const GuardedBytes out((count + of_second) * row_bytes);
    ByteVector expected(out.span().size(), kUntouched);
    std::ranges::fill(out.span(), kUntouched);
    std::vector<RowTarget> targets;
    std::vector<RowTarget> reference;
    std::vector<int64_t> wanted;
    for (size_t slot = 0; slot < count + of_second; ++slot) {
      const int64_t row = pick(random, 0, rows - 1);
      targets.push_back({row, out.span().data() + slot * row_bytes});
      reference.push_back({row, expected.data() + slot * row_bytes});
      wanted.push_back(row);
    }
    const auto parts = WantedParts::of_rows(first.shared_source(), cell, join_items(wanted), c.costs);
    if (parts == nullptr) continue;
    const Read read(c.stored, *parts);
    in_parts += read.stored.is_whole() ? 0 : 1;
    raw += !read.stored.is_whole() && c.is_raw ? 1 : 0;
    std::vector<OutputRows> outputs = {{&first, count}};
    if (of_second > 0) outputs.push_back({&second, of_second});
    Stats stats;
    decode_and_scatter(0, cell, read.stored, outputs, targets, random() % 2 == 0, scratch, stats);
    first.box(cell).copy_rows(c.chunk.data(), reference);
    CHECK(out.copy() == expected);
    CHECK_EQ(stats.bytes_read.load(), read.stored.bytes_read());
    CHECK_EQ(stats.stored_bytes.load(), c.stored.size());
    if (c.is_raw && !read.stored.is_whole()) {
      const std::set<int64_t> rows_once(wanted.begin(), wanted.end());
      CHECK_EQ(stats.bytes_decoded.load(), rows_once.size() * (c.size / static_cast<size_t>(source.rows_per_chunk())));
    }
  }
  CHECK(in_parts > draws(400));
  CHECK(raw > draws(25));
}

TEST(patches_and_crops_of_parts_are_those_of_the_whole_chunk) {
  std::mt19937_64 random(32);
  WorkerScratch scratch;
  int in_parts = 0;
  int cropped = 0;
  for (int i = 0; i < draws(2000); ++i) {
    const Context context("case " + std::to_string(i));
    const Case c(random);
    FieldSpec field = c.field();
    PatchSpec patch;
    int dims = 0;
    for (size_t a = 0; a < c.array.shape.size(); ++a) {
      PatchAxis axis;
      axis.dim = dims++;
      axis.size = pick(random, 1, 4);
      axis.border = std::array{Border::kFill, Border::kEdge, Border::kReflect, Border::kWrap}[random() % 4];
      patch.axes.push_back(axis);
    }
    patch.volumes = {{0, 0, c.array.shape[static_cast<size_t>(c.array.sample_axis)]}};
    field.patch = patch;
    const Output output(field);
    const PatchCopy& copy = *output.patches();
    const size_t count = static_cast<size_t>(pick(random, 1, 3));
    const GuardedBytes out(count * output.row_bytes());
    std::ranges::fill(out.span(), kUntouched);
    ByteVector expected(out.span().size(), kUntouched);
    const Orientation as_it_is;
    std::vector<PatchTarget> targets;
    std::vector<PatchTarget> reference;
    std::vector<PatchCell> cells;
    for (size_t slot = 0; slot < count; ++slot) {
      PatchStart start;
      for (size_t d = 0; d < kMaxPatchDims; ++d) start.at[d] = pick(random, -2, 60);
      targets.push_back({start, out.span().data() + slot * output.row_bytes(), &as_it_is});
      reference.push_back({start, expected.data() + slot * output.row_bytes(), &as_it_is});
      copy.find_cells(start, cells);
    }
    if (cells.empty()) continue;
    const PatchCell from = cells[random() % cells.size()];
    const OutputRows of_output{&output, count};
    const std::vector<ChunkCrop> crops = list_crops(from, {&of_output, 1}, targets);
    const auto parts = WantedParts::of_crops(output.shared_source(), crops, c.costs);
    if (parts == nullptr) continue;
    const Read read(c.stored, *parts);
    in_parts += read.stored.is_whole() ? 0 : 1;
    Stats stats;
    decode_and_cut(from, read.stored, {&of_output, 1}, targets, scratch, stats);
    copy.cut(from, c.chunk.data(), reference);
    CHECK(out.copy() == expected);

    if (crops.size() != 1 || read.stored.is_whole()) continue;
    const size_t bytes = crop_bytes(c.array, crops[0]);
    const GuardedBytes carried(bytes);
    ByteVector by_hand(bytes);
    copy_crop(c.array, crops[0], c.chunk.data(), by_hand.data());
    CHECK(output.source()->decode_crop(read.stored, crops[0], carried.span().data(), scratch, stats));
    CHECK(carried.copy() == by_hand);
    ++cropped;
  }
  CHECK(in_parts > draws(250));
  CHECK(cropped > draws(50));
}

TEST(only_the_header_the_table_and_the_blocks_of_rows_are_read) {
  std::mt19937_64 random(33);
  for (int i = 0; i < 500; ++i) {
    const Context context("case " + std::to_string(i));
    const auto rows = pick(random, 8, 60);
    const auto row_bytes = static_cast<size_t>(pick(random, 40, 900));
    const ByteVector data = smooth(static_cast<size_t>(rows) * row_bytes, random());
    const size_t block = static_cast<size_t>(pick(random, 128, 600));
    ByteVector stored = compress_blosc1(data, {.typesize = 1, .blocksize = block, .reverse_blocks = random() % 2 == 0});
    FieldSpec field;
    field.array.shape = field.array.chunk_shape = {rows, static_cast<int64_t>(row_bytes)};
    field.array.storage_order = {0, 1};
    field.array.item_bytes = 1;
    field.array.fill = {0};
    field.array.codecs = {{"blosc"}};
    const Output output(field);
    const PartCosts costs{.least_chunk = 1, .max_gap = static_cast<size_t>(pick(random, 0, 60)), .first_bytes = 16};
    const int64_t row = pick(random, 0, rows - 1);
    const auto parts = WantedParts::of_rows(output.shared_source(), 0, join_items({row, row}), costs);
    CHECK(parts != nullptr);

    const BloscHeader header = BloscHeader::read(stored, stored.size(), data.size());
    const BloscTable table(header, Bytes(stored).subspan(BloscHeader::kBytes));
    std::vector<StoredRange> ranges{{0, BloscHeader::kBytes + header.table_bytes()}};
    size_t bytes = 0;
    const size_t begin = static_cast<size_t>(row) * row_bytes;
    for (size_t b = begin / block; b <= (begin + row_bytes - 1) / block; ++b) ranges.push_back(table.range_of(b));
    std::set<size_t> expected;
    std::ranges::sort(ranges, {}, &StoredRange::begin);
    for (size_t r = 0; r < ranges.size(); ++r) {
      bytes += r == 0 ? 0 : ranges[r].end - ranges[r].begin + costs.max_gap;
      // The header is read before it is known what else is: no gap behind it is filled.
      const bool is_near = r > 1 && ranges[r].begin <= ranges[r - 1].end + costs.max_gap;
      for (size_t at = is_near ? ranges[r - 1].end : ranges[r].begin; at < ranges[r].end; ++at) expected.insert(at);
    }
    const Read read(stored, *parts);
    if (read.stored.is_whole()) {
      CHECK(2 * bytes > stored.size() || 2 * (ranges.size() - 1) > header.num_blocks);
      continue;
    }
    CHECK_EQ(read.stored.bytes_read(), expected.size());
    for (const size_t at : expected) CHECK_EQ(read.stored.from(at)[0], stored[at]);
  }
}

TEST(most_of_a_chunk_and_small_chunks_are_read_whole) {
  FieldSpec field;
  field.array.shape = field.array.chunk_shape = {16, 1024};
  field.array.storage_order = {0, 1};
  field.array.item_bytes = 1;
  field.array.fill = {0};
  const Output output(field);
  const auto& source = output.shared_source();
  const PartCosts costs{.least_chunk = 16384};
  CHECK(WantedParts::has_parts(*source, costs));
  CHECK(!WantedParts::has_parts(*source, {.least_chunk = 16385}));
  CHECK(!WantedParts::has_parts(*source, {}));
  CHECK(WantedParts::of_rows(source, 0, {{0, 9}}, costs) == nullptr);
  CHECK(WantedParts::of_rows(source, 0, {{0, 8}}, costs) != nullptr);
  CHECK(WantedParts::of_rows(source, 0, join_items({3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}), costs) != nullptr);
  ChunkCrop crop = whole_chunk(output.source()->array());
  CHECK(WantedParts::of_crops(source, {crop}, costs) == nullptr);
  crop.end[0] = 9;
  CHECK(WantedParts::of_crops(source, {crop}, costs) == nullptr);
  crop.end[0] = 8;
  const auto half = WantedParts::of_crops(source, {crop}, costs);
  CHECK(half->find({}, 16384).ranges == (std::vector<StoredRange>{{0, 8192}}));
  const PartCosts gaps{.least_chunk = 16384, .max_gap = 1};  // a range costs a gap, too: more than half of the chunk
  CHECK(WantedParts::of_crops(source, {crop}, gaps)->find({}, 16384).ranges.empty());
  crop.end[0] = 2;
  const auto parts = WantedParts::of_crops(source, {crop}, costs);
  CHECK(parts->find({}, 16384).ranges == (std::vector<StoredRange>{{0, 4096}}));
  // A chunk of another size is bad, and whoever decodes it says so.
  for (const size_t bytes : {size_t{16383}, size_t{16385}, size_t{0}}) CHECK(parts->find({}, bytes).ranges.empty());
}

TEST(damage_of_header_or_table_makes_no_rows_that_the_whole_chunk_does_not_have) {
  std::mt19937_64 random(34);
  WorkerScratch scratch;
  int refused = 0;
  int decoded = 0;
  for (int i = 0; i < 40; ++i) {
    const Case c(random, false);
    const Output output(c.field());
    const int64_t row = pick(random, 0, std::min(output.source()->rows_per_chunk(), output.source()->num_rows()) - 1);
    const auto parts = WantedParts::of_rows(output.shared_source(), 0, {{row, row + 1}}, c.costs);
    if (parts == nullptr) continue;
    const auto scatter = [&](const StoredBytes& stored) -> std::optional<ByteVector> {
      const GuardedBytes out(output.row_bytes());
      std::vector<RowTarget> target{{row, out.span().data()}};
      const OutputRows of_output{&output, 1};
      Stats stats;
      try {
        decode_and_scatter(0, 0, stored, {&of_output, 1}, target, false, scratch, stats);
      } catch (const Error& error) {
        CHECK_EQ(error.kind(), ErrorKind::kCorrupt);
        return std::nullopt;
      }
      return out.copy();
    };
    for (int n = 0; n < 100; ++n) {
      const Context context("case " + std::to_string(i) + " damage " + std::to_string(n));
      ByteVector bad = c.stored;
      const auto end = std::min<int64_t>(std::ssize(bad), 16 + 4 * 60) - 1;
      bad[static_cast<size_t>(pick(random, 0, end))] = static_cast<uint8_t>(random());
      if (random() % 10 == 0) bad.resize(static_cast<size_t>(pick(random, 0, std::ssize(bad))));
      const Read read(bad, *parts);
      const auto of_parts = scatter(read.stored);
      const auto of_whole = scatter(bad);
      if (read.stored.is_whole()) CHECK_EQ(of_parts.has_value(), of_whole.has_value());
      if (of_parts) CHECK(of_parts == of_whole);
      (of_parts ? decoded : refused) += 1;
    }
  }
  CHECK(refused > 200);
  CHECK(decoded > 200);
}

}  // namespace zarrfeed::testing::wanted_parts_test
