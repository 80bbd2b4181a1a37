// Rows and patches of Blosc chunks that were decoded in part, against those of the decoded chunk.

#include "transform/few_blocks.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "spec/chunk_grid.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/plans.h"
#include "transform/output.h"

namespace zarrfeed::testing::few_blocks_test {
namespace {

constexpr uint8_t kUntouched = 0xa5;

/// A random array with Blosc chunks of small blocks, and one chunk of it.
struct Case {
  explicit Case(std::mt19937_64& random) {
    const auto ndim = static_cast<size_t>(pick(random, 1, 4));
    for (size_t a = 0; a < ndim; ++a) {
      array.chunk_shape.push_back(pick(random, 1, std::array{900, 40, 14, 8}[ndim - 1]));
      array.shape.push_back(pick(random, 1, 2 * array.chunk_shape[a]));
      array.storage_order.push_back(static_cast<int>(a));
    }
    if (random() % 2 == 0) std::shuffle(array.storage_order.begin(), array.storage_order.end(), random);
    array.sample_axis = static_cast<int>(pick(random, 0, static_cast<int64_t>(ndim) - 1));
    is_converted = random() % 3 == 0;
    array.item_bytes = is_converted ? 2 : size_t{1} << random() % 5;
    if (array.item_bytes > 1 && random() % 3 == 0) array.swap_bytes = std::min<size_t>(array.item_bytes, 8);
    array.fill.assign(array.item_bytes, 0);
    array.codecs = {{"blosc"}};
    array.name = "array";
    size = chunk_bytes(array);
    chunk = noise(size, random());
    constexpr std::array kShuffles = {Blosc1Shuffle::kNone, Blosc1Shuffle::kByte, Blosc1Shuffle::kBit};
    Blosc1Options options{.shuffle = kShuffles[random() % 3], .typesize = static_cast<uint8_t>(array.item_bytes)};
    block_bytes = std::min(size, 128 + static_cast<size_t>(pick(random, 0, 12)) * array.item_bytes * 8);
    options.blocksize = block_bytes;
    options.reverse_blocks = random() % 2 == 0;
    stored = compress_blosc1(chunk, options);
  }

  [[nodiscard]] FieldSpec field() const {
    FieldSpec spec;
    spec.array = array;
    if (is_converted) {
      spec.conversion.emplace();
      spec.conversion->from = ItemType::kUint16;
      spec.conversion->to = ItemType::kFloat32;
      spec.conversion->scale = 0.5;
    }
    return spec;
  }
  /// The decoded bytes of blocks that bytes lie in.
  [[nodiscard]] size_t bytes_of_blocks(const std::set<size_t>& blocks) const {
    size_t bytes = 0;
    for (const size_t block : blocks) bytes += std::min(block_bytes, size - block * block_bytes);
    return bytes;
  }
  [[nodiscard]] bool are_most(const std::set<size_t>& blocks) const {
    return 2 * blocks.size() > (size + block_bytes - 1) / block_bytes;
  }
  /// Adds the blocks of a row of a cell, item by item.
  void add_row(size_t cell, int64_t row, std::set<size_t>& blocks) const {
    const CellGrid grid(array);
    for (size_t item = 0; item * array.item_bytes < size; ++item) {
      bool is_wanted = true;
      size_t left = item;
      for (size_t i = array.shape.size(); i-- > 0;) {
        const auto axis = static_cast<size_t>(array.storage_order[i]);
        const auto at = static_cast<int64_t>(left) % array.chunk_shape[axis];
        left /= static_cast<size_t>(array.chunk_shape[axis]);
        const bool is_sample_axis = static_cast<int>(axis) == array.sample_axis;
        const int64_t begin = is_sample_axis ? 0 : grid.index(cell, axis) * array.chunk_shape[axis];
        is_wanted = is_wanted && (is_sample_axis ? at == row : begin + at < array.shape[axis]);
      }
      if (!is_wanted) continue;
      for (size_t byte = item * array.item_bytes; byte < (item + 1) * array.item_bytes; ++byte) {
        blocks.insert(byte / block_bytes);
      }
    }
  }

  ArraySpec array;
  bool is_converted = false;
  size_t size = 0;
  size_t block_bytes = 0;
  ByteVector chunk;
  ByteVector stored;
};

}  // namespace

TEST(rows_from_few_blocks_are_those_of_the_whole_chunk_and_no_other_block_is_decoded) {
  std::mt19937_64 random(21);
  WorkerScratch scratch;
  int few = 0;
  for (int i = 0; i < draws(3000); ++i) {
    const Context context("case " + std::to_string(i));
    const Case c(random);
    const Output first(c.field());
    const Output second(c.field(), first.shared_source());
    const auto cell = static_cast<size_t>(pick(random, 0, static_cast<int64_t>(first.num_cells()) - 1));
    const int64_t rows = std::min(first.source()->rows_per_chunk(), first.source()->num_rows());
    const size_t row_bytes = first.row_bytes();
    const auto count = static_cast<size_t>(random() % 8 == 0 ? pick(random, 65, 90) : pick(random, 1, 5));
    const size_t of_second = random() % 2 == 0 ? 0 : static_cast<size_t>(pick(random, 1, 3));
    const GuardedBytes out((count + of_second) * row_bytes);
    ByteVector expected(out.span().size(), kUntouched);
    std::ranges::fill(out.span(), kUntouched);
    std::vector<RowTarget> targets;
    std::vector<RowTarget> reference;
    std::set<size_t> blocks;
    for (size_t slot = 0; slot < count + of_second; ++slot) {
      const int64_t row = pick(random, 0, random() % 2 == 0 ? rows - 1 : std::min<int64_t>(rows - 1, 2));
      targets.push_back({row, out.span().data() + slot * row_bytes});
      reference.push_back({row, expected.data() + slot * row_bytes});
      c.add_row(cell, row, blocks);
    }
    std::vector<OutputRows> outputs = {{&first, count}};
    if (of_second > 0) outputs.push_back({&second, of_second});
    Stats stats;
    StageTimer timer(stats.decode_ns);
    const GuardedBytes stored(c.stored);
    const bool streaming = random() % 2 == 0;
    const size_t decoded =
        scatter_from_few_blocks(cell, stored.span(), outputs, targets, streaming, scratch, timer, stats);
    if (decoded == 0) {
      CHECK(std::ranges::all_of(out.span(), [](uint8_t byte) { return byte == kUntouched; }));
      continue;
    }
    ++few;
    CHECK(!c.are_most(blocks));
    CHECK_EQ(decoded, c.bytes_of_blocks(blocks));
    first.box(cell).copy_rows(c.chunk.data(), reference);
    CHECK(out.copy() == expected);
    CHECK_EQ(stats.bytes_scattered.load(), (count + of_second) * first.box(cell).bytes());
  }
  CHECK(few > draws(500));
}

TEST(patches_from_few_blocks_are_those_of_the_whole_chunk) {
  std::mt19937_64 random(22);
  WorkerScratch scratch;
  int few = 0;
  for (int i = 0; i < draws(4000); ++i) {
    const Context context("case " + std::to_string(i));
    const Case c(random);
    FieldSpec field = c.field();
    PatchSpec patch;
    int dims = 0;
    for (size_t a = 0; a < c.array.shape.size(); ++a) {
      PatchAxis axis;
      const bool is_sample_axis = static_cast<int>(a) == c.array.sample_axis;
      if (is_sample_axis || random() % 2 == 0) {
        axis.dim = dims++;
        axis.size = pick(random, 1, 4);
        axis.border = std::array{Border::kFill, Border::kEdge, Border::kReflect, Border::kWrap}[random() % 4];
      } else {
        axis.size = c.array.shape[a];
        if (random() % 2 == 0) {
          axis.size = pick(random, 1, 3);
          for (int64_t n = 0; n < axis.size; ++n) axis.offsets.push_back(pick(random, 0, c.array.shape[a] - 1));
        }
      }
      patch.axes.push_back(axis);
    }
    patch.volumes = {{0, 0, c.array.shape[static_cast<size_t>(c.array.sample_axis)]}};
    field.patch = patch;
    const Output output(field);
    const PatchCopy& copy = *output.patches();
    const size_t bytes = output.row_bytes();
    const size_t count = static_cast<size_t>(pick(random, 1, 3));
    const GuardedBytes out(count * bytes);
    std::ranges::fill(out.span(), kUntouched);
    ByteVector expected(count * bytes, kUntouched);
    Orientation turned;
    for (int d = 0; d < dims; ++d) {
      if (random() % 3 == 0) turned.source[static_cast<size_t>(d)] = static_cast<int8_t>(~d);
    }
    std::vector<PatchTarget> targets;
    std::vector<PatchTarget> reference;
    std::vector<PatchCell> cells;
    for (size_t slot = 0; slot < count; ++slot) {
      PatchStart start;
      for (size_t d = 0; d < kMaxPatchDims; ++d) start.at[d] = pick(random, -2, 14);
      targets.push_back({start, out.span().data() + slot * bytes, &turned});
      reference.push_back({start, expected.data() + slot * bytes, &turned});
      copy.find_cells(start, cells);
    }
    if (cells.empty()) continue;
    const PatchCell from = cells[random() % cells.size()];
    const OutputRows of_output{&output, count};
    Stats stats;
    StageTimer timer(stats.decode_ns);
    const GuardedBytes stored(c.stored);
    const size_t decoded = cut_from_few_blocks(from, stored.span(), {&of_output, 1}, targets, scratch, timer, stats);
    const size_t written = copy.cut(from, c.chunk.data(), reference);
    if (decoded == 0) continue;
    ++few;
    CHECK(out.copy() == expected);
    CHECK_EQ(stats.bytes_scattered.load(), written);
    // Each decoded block has an item of a patch: a chunk with other bytes there cuts to other patches.
    for (size_t block = 0, of_blocks = 0; c.size < 30'000 && block * c.block_bytes < c.size; ++block) {
      ByteVector other = c.chunk;
      const size_t begin = block * c.block_bytes;
      const size_t end = std::min(c.size, begin + c.block_bytes);
      for (size_t at = begin; at < end; ++at) other[at] = static_cast<uint8_t>(~other[at]);
      ByteVector changed(count * bytes, kUntouched);
      for (size_t slot = 0; slot < count; ++slot) reference[slot].dest = changed.data() + slot * bytes;
      copy.cut(from, other.data(), reference);
      if (changed != expected) of_blocks += end - begin;
      if (end == c.size) CHECK_EQ(of_blocks, decoded);
    }
  }
  CHECK(few > draws(500));
}

TEST(a_bad_block_is_an_error_for_those_who_want_it) {
  const ByteVector data = smooth(64 * 64);
  ByteVector stored = compress_blosc1(data, {.blocksize = 256});
  const BloscHeader header = BloscHeader::read(stored, stored.size(), data.size());
  const BloscTable table(header, Bytes(stored).subspan(BloscHeader::kBytes));
  store_le32(stored, table.range_of(3).begin, 0x7fffffff);
  FieldSpec field;
  field.array.name = "array";
  field.array.shape = field.array.chunk_shape = {64, 16};
  field.array.storage_order = {0, 1};
  field.array.item_bytes = 4;
  field.array.fill.assign(4, 0);
  field.array.codecs = {{"blosc"}};
  const Output output(field);
  WorkerScratch scratch;
  for (int64_t row = 0; row < 64; ++row) {
    ByteVector out(64);
    RowTarget target{row, out.data()};
    const OutputRows of_output{&output, 1};
    Stats stats;
    const auto read = [&] { decode_and_scatter(0, 0, stored, {&of_output, 1}, {&target, 1}, false, scratch, stats); };
    if (row / 4 == 3) {
      CHECK_THROWS(kCorrupt, "Blosc stream", read());
    } else {
      read();
      CHECK(std::equal(out.begin(), out.end(), data.begin() + row * 64));
      CHECK_EQ(stats.bytes_decoded.load(), uint64_t{256});
    }
  }
}

TEST(half_of_the_blocks_with_chosen_items_are_few) {
  // A block is a row, of which one item is chosen.
  FieldSpec field;
  field.array.name = "array";
  field.array.shape = field.array.chunk_shape = {16, 256};
  field.array.storage_order = {0, 1};
  field.array.item_bytes = 1;
  field.array.fill = {0};
  field.array.codecs = {{"blosc"}};
  field.array.chosen = {{}, {7}};
  const ByteVector stored = compress_blosc1(smooth(4096), {.blocksize = 256});
  const Output output(field);
  WorkerScratch scratch;
  std::vector<RowTarget> rows;
  for (int64_t row = 0; row < 9; ++row) rows.push_back({row, nullptr});
  for (const size_t count : {size_t{1}, size_t{8}, size_t{9}}) {
    const OutputRows some{&output, count};
    CHECK_EQ(touch_few_blocks(0, stored, {&some, 1}, std::span(rows).first(count), scratch), count <= 8);
    CHECK_EQ(scratch.touched.num_touched(), count);
  }
}

TEST(all_rows_of_a_chunk_are_not_looked_at_one_by_one) {
  // Rows in the first blocks first: whoever looked at half of them would find few blocks, and later go on.
  const ByteVector data = smooth(4096);
  const ByteVector stored = compress_blosc1(data, {.blocksize = 256});
  FieldSpec field;
  field.array.name = "array";
  field.array.shape = field.array.chunk_shape = {1024};
  field.array.storage_order = {0};
  field.array.item_bytes = 4;
  field.array.fill.assign(4, 0);
  field.array.codecs = {{"blosc"}};
  const Output output(field);
  WorkerScratch scratch;
  std::vector<RowTarget> rows;
  for (int64_t row = 0; row < 1024; ++row) rows.push_back({row, nullptr});
  const OutputRows all{&output, 1024};
  ByteVector bad = stored;
  bad[0] = 9;  // not even the header is read
  CHECK(!touch_few_blocks(0, bad, {&all, 1}, rows, scratch));
  const OutputRows some{&output, 200};
  CHECK(touch_few_blocks(0, stored, {&some, 1}, std::span(rows).first(200), scratch));
  // Half of the chunk may be few blocks, and so may 64 rows of any length.
  CHECK(!may_be_most(512, 4, *output.source()));
  CHECK(may_be_most(513, 4, *output.source()));
  CHECK(!may_be_most(64, 4096, *output.source()));
  CHECK(may_be_most(65, 4096, *output.source()));
}

}  // namespace zarrfeed::testing::few_blocks_test
