// Blosc blocks of a chunk that wanted bytes touch: exactly those are decoded, and nobody gets others.

#include "transform/touched_blocks.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::touched_blocks_test {
namespace {

ArraySpec array_of(std::vector<int64_t> chunk_shape, std::vector<int> order, size_t item_bytes) {
  ArraySpec array;
  array.shape = chunk_shape;
  array.chunk_shape = std::move(chunk_shape);
  array.storage_order = std::move(order);
  array.item_bytes = item_bytes;
  return array;
}

/// A chunk of 16 blocks of 256 bytes.
struct Chunk {
  ByteVector data = smooth(4096);
  ByteVector stored = compress_blosc1(data, {.blocksize = 256, .reverse_blocks = true});
  ArraySpec array = array_of({64, 16}, {0, 1}, 4);  // rows of 64 bytes
};

/// The bytes of a crop, item by item.
ByteVector crop_by_hand(const ArraySpec& array, const ChunkCrop& crop, const ByteVector& chunk,
                        std::set<size_t>* offsets = nullptr) {
  const size_t ndim = array.shape.size();
  ByteVector out;
  std::vector<int64_t> at(ndim);
  for (size_t i = 0; i < ndim; ++i) at[i] = crop.begin[i];
  const size_t items = crop_bytes(array, crop) / array.item_bytes;
  for (size_t n = 0; n < items; ++n) {
    size_t offset = 0;
    for (size_t i = 0; i < ndim; ++i) {
      const auto axis = static_cast<size_t>(array.storage_order[i]);
      offset = offset * static_cast<size_t>(array.chunk_shape[axis]) + static_cast<size_t>(at[axis]);
    }
    offset *= array.item_bytes;
    for (size_t b = 0; b < array.item_bytes; ++b) {
      out.push_back(chunk[offset + b]);
      if (offsets != nullptr) offsets->insert(offset + b);
    }
    for (size_t i = ndim; i-- > 0;) {
      const auto axis = static_cast<size_t>(array.storage_order[i]);
      if (++at[axis] < crop.end[axis]) break;
      at[axis] = crop.begin[axis];
    }
  }
  return out;
}

}  // namespace

TEST(exactly_the_blocks_that_crops_have_items_in_are_decoded) {
  std::mt19937_64 random(11);
  TouchedBlocks touched;
  Buffer room;
  DecodeScratch scratch;
  int few = 0;
  for (int i = 0; i < draws(3000); ++i) {
    const Context context("case " + std::to_string(i));
    const auto ndim = static_cast<size_t>(pick(random, 1, 4));
    std::vector<int64_t> shape;
    for (size_t a = 0; a < ndim; ++a) shape.push_back(pick(random, 1, ndim == 1 ? 900 : 14));
    std::vector<int> order(ndim);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const ArraySpec array = array_of(shape, order, static_cast<size_t>(pick(random, 1, 9)));
    const size_t size = crop_bytes(array, whole_chunk(array));
    const ByteVector data = noise(size, random());
    const auto blocksize = static_cast<size_t>(pick(random, 128, 400));
    const ByteVector stored =
        compress_blosc1(data, {.typesize = 1, .blocksize = std::min(size, blocksize), .reverse_blocks = i % 2 == 0});
    const size_t block_bytes = std::min(size, blocksize);

    if (!touched.begin(array, stored, size)) {
      CHECK(block_bytes < 128 || block_bytes == size);
      continue;
    }
    std::vector<ChunkCrop> crops;
    std::set<size_t> offsets;
    for (int64_t n = pick(random, 1, 3); n > 0; --n) {
      ChunkCrop crop;
      for (size_t a = 0; a < ndim; ++a) {
        crop.begin[a] = pick(random, 0, shape[a] - 1);
        crop.end[a] = pick(random, crop.begin[a] + 1, shape[a]);
      }
      crops.push_back(crop);
      crop_by_hand(array, crop, data, &offsets);
      touched.add(crop);
    }
    std::set<size_t> blocks;
    for (const size_t offset : offsets) blocks.insert(offset / block_bytes);
    size_t expected = 0;
    for (const size_t block : blocks) expected += std::min(block_bytes, size - block * block_bytes);
    if (2 * blocks.size() > (size + block_bytes - 1) / block_bytes) CHECK(touched.are_most());
    few += touched.are_most() ? 0 : 1;
    CHECK_EQ(touched.decode(room, scratch), expected);
    for (const ChunkCrop& crop : crops) {
      const ByteVector wanted = crop_by_hand(array, crop, data);
      const uint8_t* const found = touched.crop(crop);
      CHECK(std::equal(wanted.begin(), wanted.end(), found));
      const GuardedBytes copied(wanted.size());
      touched.copy(crop, copied.span().data());
      CHECK(copied.copy() == wanted);
    }
  }
  CHECK(few > draws(300));
}

TEST(exactly_the_blocks_that_items_of_ranges_lie_in_are_decoded_where_they_lie) {
  std::mt19937_64 random(12);
  TouchedBlocks touched;
  DecodeScratch scratch;
  int some = 0;
  for (int i = 0; i < draws(3000); ++i) {
    const Context context("case " + std::to_string(i));
    const auto ndim = static_cast<size_t>(pick(random, 1, 4));
    std::vector<int64_t> shape;
    for (size_t a = 0; a < ndim; ++a) shape.push_back(pick(random, 1, ndim == 1 ? 900 : 14));
    std::vector<int> order(ndim);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const ArraySpec array = array_of(shape, order, static_cast<size_t>(pick(random, 1, 9)));
    const size_t size = crop_bytes(array, whole_chunk(array));
    const ByteVector data = noise(size, random());
    const size_t block_bytes = std::min(size, static_cast<size_t>(pick(random, 128, 400)));
    const ByteVector stored = compress_blosc1(data, {.typesize = 1, .blocksize = block_bytes});
    if (!touched.begin(array, stored, size)) continue;

    std::vector<std::vector<ChunkItems>> ranges(ndim);
    std::vector<ChunkCrop> crops(1);
    for (size_t a = 0; a < ndim; ++a) {
      for (int64_t at = pick(random, 0, shape[a] - 1); at < shape[a]; at += pick(random, 1, 8)) {
        const int64_t end = pick(random, at + 1, shape[a]);
        ranges[a].push_back({at, end});
        at = end;
      }
      std::vector<ChunkCrop> more;
      for (const ChunkCrop& crop : crops) {
        for (const ChunkItems& range : ranges[a]) {
          more.push_back(crop);
          more.back().begin[a] = range.begin;
          more.back().end[a] = range.end;
        }
      }
      crops = std::move(more);
    }
    std::set<size_t> blocks;
    std::set<size_t> offsets;
    for (const ChunkCrop& crop : crops) crop_by_hand(array, crop, data, &offsets);
    for (const size_t offset : offsets) blocks.insert(offset / block_bytes);
    size_t expected = 0;
    ByteVector chunk(size, 0x5a);
    for (const size_t block : blocks) {
      const size_t begin = block * block_bytes;
      const size_t of_block = std::min(block_bytes, size - begin);
      std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(begin), of_block,
                  chunk.begin() + static_cast<std::ptrdiff_t>(begin));
      expected += of_block;
    }
    touched.add(ranges);
    CHECK_EQ(touched.num_touched(), blocks.size());
    ByteVector decoded(size, 0x5a);
    CHECK_EQ(touched.decode_in_place(decoded, scratch), expected);
    CHECK(decoded == chunk);
    some += expected < size ? 1 : 0;
  }
  CHECK(some > draws(300));
}

TEST(memory_is_that_of_the_touched_blocks) {
  const Chunk c;
  TouchedBlocks touched;
  CHECK(touched.begin(c.array, c.stored, c.data.size()));
  touched.add(300, 10);
  touched.add(3000, 300);
  Buffer room;
  DecodeScratch scratch;
  CHECK_EQ(touched.decode(room, scratch), size_t{3 * 256});
  CHECK(room.capacity() < 1024);
  CHECK(std::equal(touched.bytes(3000, 300), touched.bytes(3000, 300) + 300, c.data.begin() + 3000));
}

TEST(bytes_that_were_not_wanted_are_refused) {
  const Chunk c;
  TouchedBlocks touched;
  CHECK(touched.begin(c.array, c.stored, c.data.size()));
  touched.add(600, 1);  // block 2
  Buffer room;
  DecodeScratch scratch;
  touched.decode(room, scratch);
  CHECK_EQ(int{*touched.bytes(767, 1)}, int{c.data[767]});
  for (const auto& [begin, size] : {std::pair<size_t, size_t>{511, 2}, {767, 2}, {0, 1}, {4095, 1}, {0, 4096}}) {
    CHECK_THROWS(kConfig, "were not said to be wanted", static_cast<void>(touched.bytes(begin, size)));
  }
  // Of the chunk before nothing is left.
  CHECK(touched.begin(c.array, c.stored, c.data.size()));
  touched.add(0, 1);
  touched.decode(room, scratch);
  CHECK_THROWS(kConfig, "were not said to be wanted", static_cast<void>(touched.bytes(600, 1)));
}

TEST(a_run_of_bytes_of_which_one_block_was_not_wanted_is_refused) {
  const Chunk c;
  TouchedBlocks touched;
  Buffer room;
  DecodeScratch scratch;
  for (size_t missing = 0; missing < 9; ++missing) {
    const Context context("block " + std::to_string(missing));
    CHECK(touched.begin(c.array, c.stored, c.data.size()));
    const size_t begin = missing * 256;
    const size_t end = begin + 256;
    if (begin > 0) touched.add(0, begin);
    if (end < 2304) touched.add(end, 2304 - end);
    touched.decode(room, scratch);
    CHECK_THROWS(kConfig, "were not said to be wanted", static_cast<void>(touched.bytes(0, 2304)));
    if (begin > 0) CHECK(std::equal(c.data.begin(), c.data.begin() + std::ptrdiff_t(begin), touched.bytes(0, begin)));
    if (end < 2304) CHECK_EQ(int{*touched.bytes(end, 2304 - end)}, int{c.data[end]});
  }
}

TEST(a_block_that_lies_in_a_gap_of_its_length_is_not_decoded) {
  // Rows of two blocks, of which the first is wanted, and then one byte of the second as well.
  const ByteVector data = smooth(4096);
  const ByteVector stored = compress_blosc1(data, {.blocksize = 256});
  const ArraySpec array = array_of({2, 4, 512}, {0, 1, 2}, 1);
  TouchedBlocks touched;
  for (const int64_t columns : {256, 257}) {
    const size_t blocks = columns == 256 ? 8 : 16;
    ChunkCrop crop = whole_chunk(array);
    crop.end[2] = columns;
    CHECK(touched.begin(array, stored, data.size()));
    touched.add(crop);
    CHECK_EQ(touched.num_touched(), blocks);
    CHECK(touched.begin(array, stored, data.size()));
    touched.add({{{0, 2}}, {{0, 4}}, {{0, columns}}});
    CHECK_EQ(touched.num_touched(), blocks);
    CHECK(touched.begin(array, stored, data.size()));
    crop.end[0] = 1;
    touched.begin_rows(crop);
    touched.add_row(1);
    CHECK_EQ(touched.num_touched(), blocks / 2);
  }
  const ArraySpec flat = array_of({4096}, {0}, 1);
  CHECK(touched.begin(flat, stored, data.size()));
  touched.add({{{0, 256}, {512, 768}}});
  CHECK_EQ(touched.num_touched(), size_t{2});
}

TEST(rows_lie_evenly_spaced_whatever_blocks_end_in_them) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 500; ++i) {
    const Context context("case " + std::to_string(i));
    const int64_t rows = pick(random, 16, 160);
    const auto row_bytes = static_cast<size_t>(pick(random, 32, 90));
    const ArraySpec array = array_of({rows, static_cast<int64_t>(row_bytes)}, {0, 1}, 1);
    const ByteVector data = noise(row_bytes * static_cast<size_t>(rows), random());
    const auto blocksize = std::min<size_t>(data.size(), static_cast<size_t>(pick(random, 128, 300)));
    const ByteVector stored = compress_blosc1(data, {.typesize = 1, .blocksize = blocksize});
    TouchedBlocks touched;
    CHECK(touched.begin(array, stored, data.size()));
    ChunkCrop first = whole_chunk(array);
    first.end[0] = 1;
    touched.begin_rows(first);
    std::vector<int64_t> wanted;
    for (int64_t n = pick(random, 1, 6); n > 0; --n) wanted.push_back(pick(random, 0, rows - 1));
    for (const int64_t row : wanted) touched.add_row(row);
    Buffer room;
    DecodeScratch scratch;
    touched.decode(room, scratch, row_bytes);
    for (const int64_t row : wanted) {
      const uint8_t* const found = touched.memory() + static_cast<size_t>(touched.row_at(row)) * row_bytes;
      const auto begin = data.begin() + row * static_cast<std::ptrdiff_t>(row_bytes);
      CHECK(std::equal(begin, begin + static_cast<std::ptrdiff_t>(row_bytes), found));
    }
  }
}

TEST(a_bad_block_harms_those_alone_who_touch_it) {
  Chunk c;
  const BloscHeader header = BloscHeader::read(c.stored, c.stored.size(), c.data.size());
  const BloscTable table(header, Bytes(c.stored).subspan(BloscHeader::kBytes));
  const BloscTable::Range bad = table.range_of(5);
  store_le32(c.stored, bad.begin, 0x7fffffff);
  Buffer room;
  DecodeScratch scratch;
  for (size_t block = 0; block < 16; ++block) {
    TouchedBlocks touched;
    CHECK(touched.begin(c.array, c.stored, c.data.size()));
    touched.add(block * 256, 256);
    if (block == 5) {
      CHECK_THROWS(kCorrupt, "Blosc stream", touched.decode(room, scratch));
    } else {
      touched.decode(room, scratch);
      CHECK(std::equal(touched.bytes(block * 256, 256), touched.bytes(block * 256, 256) + 256,
                       c.data.begin() + static_cast<std::ptrdiff_t>(block * 256)));
    }
  }
}

TEST(a_bad_header_or_table_harms_all) {
  const Chunk c;
  TouchedBlocks touched;
  const ByteVector bad_table = patched(c.stored, BloscHeader::kBytes + 4 * 15, 3);
  CHECK_THROWS(kCorrupt, "begins outside of the chunk",
               static_cast<void>(touched.begin(c.array, bad_table, c.data.size())));
  CHECK_THROWS(kCorrupt, "format version",
               static_cast<void>(touched.begin(c.array, with_byte(c.stored, 0, 4), c.data.size())));
  CHECK_THROWS(kCorrupt, "decodes to 4096 bytes, the metadata implies 4097",
               static_cast<void>(touched.begin(c.array, c.stored, 4097)));
  CHECK_THROWS(kCorrupt, "the metadata implies 4095", static_cast<void>(touched.begin(c.array, c.stored, 4095)));
}

TEST(a_header_that_makes_a_block_of_each_byte_costs_no_memory) {
  ByteVector stored = store_blosc1(noise(1 << 20));
  store_le32(stored, 8, 1);
  const ArraySpec array = array_of({1 << 20}, {0}, 1);
  TouchedBlocks touched;
  CHECK(!touched.begin(array, stored, 1 << 20));
}

TEST(more_than_half_of_the_blocks_are_most) {
  const Chunk c;
  TouchedBlocks touched;
  CHECK(touched.begin(c.array, c.stored, c.data.size()));
  CHECK(!touched.are_most());
  touched.add(0, 8 * 256);
  touched.add(0, 256);  // again
  CHECK(!touched.are_most());
  touched.add(8 * 256, 1);
  CHECK(touched.are_most());
}

TEST(what_would_take_more_memory_than_the_chunk_is_decoded_whole) {
  // Two blocks, of which the first is nearly the chunk; a column of it has to be copied side by side.
  const ByteVector data = smooth(1024);
  const ByteVector stored = compress_blosc1(data, {.blocksize = 1000});
  const ArraySpec array = array_of({16, 16}, {0, 1}, 4);
  TouchedBlocks touched;
  CHECK(touched.begin(array, stored, data.size()));
  ChunkCrop row = whole_chunk(array);
  row.end[0] = 4;
  touched.add(row);
  CHECK(!touched.are_most());
  ChunkCrop column = whole_chunk(array);
  column.end[0] = 15;
  column.end[1] = 8;
  touched.add(column);
  CHECK(touched.are_most());
}

}  // namespace zarrfeed::testing::touched_blocks_test
