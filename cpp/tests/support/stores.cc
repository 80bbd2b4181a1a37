#include "tests/support/stores.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "spec/array_spec.h"
#include "spec/codec_spec.h"
#include "tests/support/check.h"
#include "tests/support/compress.h"
#include "tests/support/plans.h"
#include "tests/support/shards.h"
#include "tests/support/temp_dir.h"

namespace zarrfeed::testing {
namespace {

constexpr size_t kItem = sizeof(uint32_t);

uint32_t element_of(int64_t sample, size_t number) {
  return static_cast<uint32_t>(sample) * 1'000'003U + static_cast<uint32_t>(number) * 7U;
}

/// Calls visit(index) for every index below `extents`, in C order.
template <typename Visit>
void for_each_index(const std::vector<int64_t>& extents, const Visit& visit) {
  std::vector<int64_t> index(extents.size(), 0);
  for (;;) {
    visit(std::as_const(index));
    size_t axis = extents.size();
    while (axis > 0 && ++index[axis - 1] == extents[axis - 1]) index[--axis] = 0;
    if (axis == 0) return;
  }
}

std::vector<int64_t> grid_of(const ArrayLayout& layout) {
  std::vector<int64_t> grid;
  for (size_t axis = 0; axis < layout.shape.size(); ++axis) {
    grid.push_back((layout.shape[axis] - 1) / layout.chunk_shape[axis] + 1);
  }
  return grid;
}

std::string key_of(const std::vector<int64_t>& cell, char separator) {
  std::string key;
  for (const int64_t index : cell) {
    if (!key.empty()) key += separator;
    key += std::to_string(index);
  }
  return key;
}

/// Number in its sample of an element of the array, by C order over the axes but the sample axis.
size_t number_in_sample(const ArrayLayout& layout, const std::vector<int64_t>& index) {
  int64_t number = 0;
  for (size_t axis = 0; axis < index.size(); ++axis) {
    if (static_cast<int>(axis) != layout.sample_axis) number = number * layout.shape[axis] + index[axis];
  }
  return static_cast<size_t>(number);
}

ByteVector make_chunk(const ArrayLayout& layout, const std::vector<int64_t>& cell) {
  const size_t ndim = layout.shape.size();
  size_t elements = 1;
  for (const int64_t extent : layout.chunk_shape) elements *= static_cast<size_t>(extent);
  ByteVector chunk(elements * kItem, 0xee);  // what padding holds does not matter
  std::vector<int64_t> index(ndim);
  for_each_index(layout.chunk_shape, [&](const std::vector<int64_t>& within) {
    for (size_t axis = 0; axis < ndim; ++axis) {
      index[axis] = cell[axis] * layout.chunk_shape[axis] + within[axis];
      if (index[axis] >= layout.shape[axis]) return;
    }
    size_t at = 0;
    for (size_t i = 0; i < ndim; ++i) {
      const auto axis = layout.storage_order.empty() ? i : static_cast<size_t>(layout.storage_order[i]);
      at = at * static_cast<size_t>(layout.chunk_shape[axis]) + static_cast<size_t>(within[axis]);
    }
    const int64_t sample = layout.first_row + index[static_cast<size_t>(layout.sample_axis)];
    const uint32_t value = element_of(sample, number_in_sample(layout, index));
    for (size_t b = 0; b < kItem; ++b) {
      chunk[at * kItem + (layout.big_endian ? kItem - 1 - b : b)] = static_cast<uint8_t>(value >> 8 * b);
    }
  });
  return chunk;
}

ByteVector packed(const ByteVector& chunk, Packing packing) {
  const size_t blocksize = std::max<size_t>(kItem, chunk.size() / 3 / kItem * kItem);
  switch (packing) {
    case Packing::kRaw:
      break;
    case Packing::kZstd:
      return compress_zstd(chunk);
    case Packing::kZlib:
      return compress_zlib(chunk);
    case Packing::kGzip:
      return compress_gzip(chunk);
    case Packing::kLz4:
      return compress_lz4(chunk);
    case Packing::kBlosc:
      return compress_blosc1(chunk, {.blocksize = blocksize, .split = true});
    case Packing::kBloscBit:
      return compress_blosc1(chunk, {.compressor = Blosc1Compressor::kZstd, .shuffle = Blosc1Shuffle::kBit});
    case Packing::kBloscThenCrc32c:
      return append_crc32c(compress_blosc1(chunk, {}));
  }
  return chunk;
}

std::vector<CodecSpec> codecs_of(Packing packing) {
  switch (packing) {
    case Packing::kRaw:
      break;
    case Packing::kZstd:
      return {{"zstd"}};
    case Packing::kZlib:
      return {{"zlib"}};
    case Packing::kGzip:
      return {{"gzip"}};
    case Packing::kLz4:
      return {{"lz4"}};
    case Packing::kBlosc:
    case Packing::kBloscBit:
      return {{"blosc"}};
    case Packing::kBloscThenCrc32c:
      return {{"crc32c"}, {"blosc"}};
  }
  return {};
}

void append_item(ByteVector& out, uint32_t value) {
  out.resize(out.size() + kItem);
  std::memcpy(&out[out.size() - kItem], &value, kItem);
}

}  // namespace

TestArray::TestArray(std::filesystem::path root, ArrayLayout layout)
    : root_(std::move(root)), layout_(std::move(layout)) {
  for (size_t axis = 0; axis < layout_.shape.size(); ++axis) {
    if (static_cast<int>(axis) != layout_.sample_axis) elements_ *= static_cast<size_t>(layout_.shape[axis]);
  }
  write_file(root_ / ".zarray", {});
  for_each_index(grid_of(layout_), [this](const std::vector<int64_t>& cell) {
    keys_.push_back(key_of(cell, layout_.separator));
    if (!layout_.shard_chunks.empty()) return;
    write_file(chunk_path(keys_.back()), packed(make_chunk(layout_, cell), layout_.packing));
  });
  if (!layout_.shard_chunks.empty()) write_shards();
}

ShardSpec TestArray::shard_spec() const {
  return {.chunks = layout_.shard_chunks, .index_at_start = layout_.big_endian, .index_has_crc32c = true};
}

void TestArray::write_shards() const {
  const std::vector<int64_t> grid = grid_of(layout_);
  std::vector<int64_t> shards;
  for (size_t axis = 0; axis < grid.size(); ++axis) shards.push_back((grid[axis] - 1) / layout_.shard_chunks[axis] + 1);
  for_each_index(shards, [&](const std::vector<int64_t>& shard) {
    std::vector<std::optional<ByteVector>> chunks;
    for_each_index(layout_.shard_chunks, [&](const std::vector<int64_t>& within) {
      std::vector<int64_t> cell = within;
      bool stored = true;
      for (size_t axis = 0; axis < grid.size(); ++axis) {
        cell[axis] += shard[axis] * layout_.shard_chunks[axis];
        stored = stored && cell[axis] < grid[axis];
      }
      stored = stored && !removed_.contains(key_of(cell, layout_.separator));
      chunks.push_back(stored ? std::optional(packed(make_chunk(layout_, cell), layout_.packing)) : std::nullopt);
    });
    write_file(root_ / key_of(shard, layout_.separator), make_shard(shard_spec(), chunks, 3));
  });
}

int64_t TestArray::num_samples() const {
  return layout_.shape[static_cast<size_t>(layout_.sample_axis)];
}

FieldSpec TestArray::field() const {
  FieldSpec field;
  ArraySpec& array = field.array;
  array.name = root_.filename().string();
  array.shape = layout_.shape;
  array.chunk_shape = layout_.chunk_shape;
  array.storage_order = layout_.storage_order;
  if (array.storage_order.empty()) {
    array.storage_order.resize(array.shape.size());
    std::iota(array.storage_order.begin(), array.storage_order.end(), 0);
  }
  array.sample_axis = layout_.sample_axis;
  array.item_bytes = kItem;
  array.swap_bytes = layout_.big_endian ? kItem : 0;
  append_item(array.fill, kFill);
  array.codecs = codecs_of(layout_.packing);
  array.root = root_.string();
  array.metadata_key = ".zarray";
  array.key = {"", layout_.separator};
  array.shard = shard_spec();
  return field;
}

void TestArray::remove_chunk(const std::string& key) {
  removed_.insert(key);
  if (layout_.shard_chunks.empty()) {
    std::filesystem::remove(chunk_path(key));
  } else {
    write_shards();
  }
}

std::vector<uint8_t> TestArray::sample(int64_t index) const {
  std::vector<uint8_t> out;
  out.reserve(sample_bytes());
  for (size_t number = 0; number < elements_; ++number) append_item(out, element_of(layout_.first_row + index, number));
  if (removed_.empty()) return out;
  std::vector<int64_t> extents = layout_.shape;
  extents[static_cast<size_t>(layout_.sample_axis)] = 1;
  for_each_index(extents, [&](const std::vector<int64_t>& within) {
    std::vector<int64_t> cell = within;
    cell[static_cast<size_t>(layout_.sample_axis)] = index;
    const size_t number = number_in_sample(layout_, cell);
    for (size_t axis = 0; axis < cell.size(); ++axis) cell[axis] /= layout_.chunk_shape[axis];
    if (removed_.contains(key_of(cell, layout_.separator))) std::memcpy(&out[number * kItem], &kFill, kItem);
  });
  return out;
}

ArrayLayout random_layout(std::mt19937_64& random, int64_t num_samples) {
  ArrayLayout layout;
  const auto ndim = static_cast<size_t>(pick(random, 1, 3));
  layout.sample_axis = random() % 3 == 0 ? static_cast<int>(random() % ndim) : 0;
  for (size_t axis = 0; axis < ndim; ++axis) {
    const bool samples = static_cast<int>(axis) == layout.sample_axis;
    layout.shape.push_back(samples ? num_samples : pick(random, 1, 9));
    // Not too many files: at most about twenty chunks along the samples.
    layout.chunk_shape.push_back(samples ? pick(random, 1 + num_samples / 20, 3 + num_samples / 3)
                                         : pick(random, 2, 10));
    layout.storage_order.push_back(static_cast<int>(axis));
  }
  if (random() % 4 == 0) std::shuffle(layout.storage_order.begin(), layout.storage_order.end(), random);
  layout.packing = static_cast<Packing>(random() % kNumPackings);
  layout.big_endian = random() % 4 == 0;
  layout.separator = random() % 2 == 0 ? '.' : '/';
  return layout;
}

std::string describe(const ArrayLayout& layout) {
  return "shape " + show(layout.shape) + " chunks " + show(layout.chunk_shape) + " order " +
         show(layout.storage_order) + " sample axis " + show(layout.sample_axis) + " packing " + show(layout.packing) +
         " big_endian " + show(layout.big_endian) + " inner chunks " + show(layout.shard_chunks);
}

}  // namespace zarrfeed::testing
