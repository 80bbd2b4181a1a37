// Boxes of decoded chunks to slots, with arbitrary geometry, rows, slots, byte order and conversion.
//
// What must hold: every element of the box lands in its place, as a loop over elements finds it, converted or not; the
// rest of the slots is not written; nothing outside of chunk and slots is read or written.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <tuple>

#include "base/bytes.h"
#include "base/streaming_store.h"
#include "fuzz/support/fuzz.h"
#include "spec/array_spec.h"
#include "spec/conversion_spec.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "transform/scatter.h"

namespace zarrfeed::fuzzing::scatter_fuzz {
namespace {

using testing::GuardedBytes;

constexpr uint8_t kUntouched = 0xa5;
constexpr size_t kMaxBytes = size_t{1} << 16;
/// (item_bytes, swap_bytes)
constexpr std::pair<size_t, size_t> kItems[] = {{1, 0}, {2, 0}, {2, 2}, {4, 0},  {4, 4},
                                                {8, 0}, {8, 4}, {8, 8}, {16, 0}, {16, 8}};
/// Conversions of items of 1, 2, 4 and 8 bytes.
constexpr ItemType kFrom[] = {ItemType::kUint8, ItemType::kInt16, ItemType::kFloat32, ItemType::kInt64};
constexpr ItemType kTo[] = {ItemType::kFloat16, ItemType::kFloat32, ItemType::kFloat64, ItemType::kBfloat16};

struct Case {
  ArraySpec array;
  std::vector<int64_t> cell;
  std::unique_ptr<Converter> converter;
  ItemType to = ItemType::kFloat32;  ///< what it makes

  [[nodiscard]] size_t num_axes() const { return array.shape.size(); }
  [[nodiscard]] bool is_sample_axis(size_t axis) const { return static_cast<int>(axis) == array.sample_axis; }
  [[nodiscard]] int64_t rows() const { return array.chunk_shape[static_cast<size_t>(array.sample_axis)]; }
  [[nodiscard]] size_t dest_item() const { return converter ? converter->dest_item_bytes() : array.item_bytes; }
  [[nodiscard]] size_t items_in_chunk() const {
    return std::accumulate(array.chunk_shape.begin(), array.chunk_shape.end(), size_t{1},
                           [](size_t n, int64_t extent) { return n * static_cast<size_t>(extent); });
  }
  [[nodiscard]] size_t items_in_sample() const {
    size_t n = 1;
    for (size_t axis = 0; axis < num_axes(); ++axis) {
      if (!is_sample_axis(axis)) n *= static_cast<size_t>(array.shape[axis]);
    }
    return n;
  }
};

/// An extent, which is rarely large: loops beyond a block of the converter are another path.
int64_t draw_extent(Draw& draw) {
  return draw.pick(0, 15) == 15 ? draw.pick(1, 2200) : draw.pick(1, 7);
}

Case draw_case(Draw& draw) {
  Case c;
  ArraySpec& array = c.array;
  const int64_t axes = draw.pick(1, 4);
  for (int64_t axis = 0; axis < axes; ++axis) {
    const int64_t shape = draw_extent(draw);
    array.shape.push_back(shape);
    array.chunk_shape.push_back(draw.coin() ? shape : draw_extent(draw));
    array.storage_order.push_back(static_cast<int>(axis));
    c.cell.push_back(draw.pick(0, (shape - 1) / array.chunk_shape.back()));
  }
  for (size_t i = array.storage_order.size(); i-- > 1;) {
    std::swap(array.storage_order[i], array.storage_order[static_cast<size_t>(draw.pick(0, static_cast<int64_t>(i)))]);
  }
  array.sample_axis = static_cast<int>(draw.pick(0, axes - 1));
  std::tie(array.item_bytes, array.swap_bytes) = draw.one_of(kItems);
  const Bytes fill = draw.take(array.item_bytes);
  array.fill.assign(fill.begin(), fill.end());
  array.fill.resize(array.item_bytes);
  if (array.item_bytes <= 8 && array.swap_bytes != 4 && draw.coin()) {
    ConversionSpec spec;
    for (const ItemType from : kFrom) {
      if (bytes_of(from) == array.item_bytes) spec.from = from;
    }
    spec.to = c.to = draw.one_of(kTo);
    if (draw.coin()) spec.fills.push_back(static_cast<double>(draw.byte()));
    if (draw.coin()) spec.scale = 0.5;
    const int64_t channels = draw.pick(0, 3);
    const auto channel_items = static_cast<size_t>(draw.pick(1, 200));
    if (channels > 0) spec.steps = {{StepKind::kNormalize, {}, {}, channel_items}};
    for (int64_t i = 0; i < channels; ++i) {
      spec.steps[0].first.push_back(static_cast<double>(i));
      spec.steps[0].second.push_back(static_cast<double>(i + 2));
    }
    c.converter = std::make_unique<Converter>(spec);
  }
  return c;
}

/// Calls visit(item in the sample, item in the chunk) for every element of the box in row `row`.
template <typename Visit>
void for_each_element(const Case& c, int64_t row, const Visit& visit) {
  std::vector<int64_t> index(c.num_axes(), 0);  // in the chunk
  index[static_cast<size_t>(c.array.sample_axis)] = row;
  for (;;) {
    bool inside = true;
    int64_t in_sample = 0;
    int64_t in_chunk = 0;
    for (size_t axis = 0; axis < c.num_axes(); ++axis) {
      const auto stored = static_cast<size_t>(c.array.storage_order[axis]);
      in_chunk = in_chunk * c.array.chunk_shape[stored] + index[stored];
      if (c.is_sample_axis(axis)) continue;
      const int64_t global = c.cell[axis] * c.array.chunk_shape[axis] + index[axis];
      inside = inside && global < c.array.shape[axis];
      in_sample = in_sample * c.array.shape[axis] + global;
    }
    if (inside) visit(static_cast<size_t>(in_sample), static_cast<size_t>(in_chunk));
    size_t axis = c.num_axes();
    while (axis > 0) {
      --axis;
      if (c.is_sample_axis(axis)) {
        if (axis == 0) return;
        continue;
      }
      if (++index[axis] < c.array.chunk_shape[axis]) break;
      index[axis] = 0;
      if (axis == 0) return;
    }
    if (c.num_axes() == 1) return;
  }
}

/// Writes one stored item to its place, the byte order made native.
void put(const Case& c, const uint8_t* stored, size_t swap_bytes, size_t position, uint8_t* sample) {
  ByteVector item(stored, stored + c.array.item_bytes);
  const size_t unit = swap_bytes == 0 ? 1 : swap_bytes;
  for (size_t at = 0; at < item.size(); at += unit) {
    std::reverse(item.begin() + static_cast<std::ptrdiff_t>(at), item.begin() + static_cast<std::ptrdiff_t>(at + unit));
  }
  uint8_t* const dest = sample + position * c.dest_item();
  if (c.converter) {
    c.converter->convert(dest, item.data(), 1, position);
  } else {
    std::copy(item.begin(), item.end(), dest);
  }
}

bool is_nan(ItemType type, const uint8_t* item) {
  uint64_t bits = 0;
  std::memcpy(&bits, item, bytes_of(type));
  switch (type) {
    case ItemType::kFloat16:
      return (bits & 0x7fff) > 0x7c00;
    case ItemType::kBfloat16:
      return (bits & 0x7fff) > 0x7f80;
    case ItemType::kFloat32:
      return (bits & 0x7fffffff) > 0x7f800000;
    default:
      return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
  }
}

/// Whether slots are as they must be; any NaN is as good as another.
bool same(const Case& c, Bytes got, Bytes expected) {
  if (std::equal(got.begin(), got.end(), expected.begin())) return true;
  if (!c.converter) return false;
  const size_t item = c.dest_item();
  for (size_t at = 0; at + item <= got.size(); at += item) {
    if (std::equal(&got[at], &got[at] + item, &expected[at])) continue;
    if (!is_nan(c.to, &got[at]) || !is_nan(c.to, &expected[at])) return false;
  }
  return true;
}

void run_input(Bytes input) {
  Draw draw(input);
  const Case c = draw_case(draw);
  const size_t chunk_bytes = c.items_in_chunk() * c.array.item_bytes;
  const size_t sample_bytes = c.items_in_sample() * c.dest_item();
  if (chunk_bytes > kMaxBytes || sample_bytes > kMaxBytes) return;
  const int64_t most = static_cast<int64_t>(std::min<size_t>(24, kMaxBytes / sample_bytes));
  const auto count = static_cast<size_t>(draw.pick(0, most));
  const bool fill = draw.pick(0, 3) == 3;
  const bool streaming = draw.coin();
  const auto lead = static_cast<size_t>(draw.pick(0, 40));
  std::vector<int64_t> rows;
  for (size_t i = 0; i < count; ++i) rows.push_back(draw.pick(0, c.rows() - 1));
  ByteVector content = testing::noise(chunk_bytes, draw.byte());
  const Bytes given = draw.rest();
  std::copy_n(given.begin(), std::min(given.size(), content.size()), content.begin());

  const BoxCopy box(c.array, c.cell, c.converter.get());
  const GuardedBytes chunk(content);
  const GuardedBytes slots(lead + count * sample_bytes);
  std::fill(slots.span().begin(), slots.span().end(), kUntouched);
  ByteVector expected(slots.span().size(), kUntouched);
  std::vector<RowTarget> targets;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = lead + (count - 1 - i) * sample_bytes;
    targets.push_back({rows[i], slots.span().data() + at});
    size_t elements = 0;
    for_each_element(c, rows[i], [&](size_t position, size_t in_chunk) {
      ++elements;
      // A fill value is in native byte order.
      put(c, fill ? c.array.fill.data() : &content[in_chunk * c.array.item_bytes], fill ? 0 : c.array.swap_bytes,
          position, &expected[at]);
    });
    CHECK_EQ(box.bytes(), elements * c.dest_item());
  }
  if (fill) {
    box.fill_rows(targets);
  } else {
    box.copy_rows(chunk.span().data(), targets, streaming);
    if (streaming) fence_streaming_stores();
  }
  CHECK(same(c, Bytes(slots.span()).subspan(lead), Bytes(expected).subspan(lead)));
  CHECK(std::all_of(slots.span().begin(), slots.span().begin() + static_cast<std::ptrdiff_t>(lead),
                    [](uint8_t byte) { return byte == kUntouched; }));
  CHECK(slots.is_untouched_before() && chunk.is_untouched_before());
  if (box.is_plain() && !fill) {
    for (size_t i = 0; i < count; ++i) {
      CHECK(std::equal(content.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(rows[i]) * sample_bytes),
                       content.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(rows[i] + 1) * sample_bytes),
                       targets[i].dest));
    }
  }
}

std::vector<ByteVector> make_seeds() {
  std::vector<ByteVector> seeds;
  for (int64_t number = 0; number < 96; ++number) {
    Pen pen;
    const int64_t axes = 1 + number % 4;
    pen.pick(axes, 1, 4);
    for (int64_t axis = 0; axis < axes; ++axis) {
      const bool large = number % 6 == 0 && axis == axes - 1;
      const int64_t shape = large ? 1500 : 1 + (number * 3 + axis * 5) % 7;
      if (large) {
        pen.pick(15, 0, 15).pick(shape, 1, 2200);
      } else {
        pen.pick(0, 0, 15).pick(shape, 1, 7);
      }
      const bool whole = (number / 4 + axis) % 2 == 0;
      pen.byte(whole ? 1 : 0);
      const int64_t chunk = whole ? shape : 1 + (number + axis) % 7;
      if (!whole) pen.pick(0, 0, 15).pick(chunk, 1, 7);
      pen.pick(number % ((shape - 1) / chunk + 1), 0, (shape - 1) / chunk);
    }
    for (int64_t i = axes - 1; i >= 1; --i) pen.pick(number % 3 == 0 ? 0 : i, 0, i);
    pen.pick(number % 5 == 0 ? axes - 1 : 0, 0, axes - 1);
    const int64_t items = number % std::ssize(kItems);
    const auto [item_bytes, swap_bytes] = kItems[items];
    pen.pick(items, 0, std::ssize(kItems) - 1).bytes(ByteVector(item_bytes, static_cast<uint8_t>(number)));
    if (item_bytes <= 8 && swap_bytes != 4) {
      const bool converts = number / 2 % 2 == 0;
      pen.byte(converts ? 1 : 0);
      if (converts) {
        pen.pick(number % 4, 0, 3).byte(1).byte(7).byte(number % 2 == 0 ? 1 : 0);
        pen.pick(number % 4, 0, 3).pick(1 + number % 90, 1, 200);
      }
    }
    pen.pick(3 + number % 20, 0, 24).pick(number % 4, 0, 3).byte(number % 3 == 0 ? 1 : 0).pick(number % 41, 0, 40);
    seeds.push_back(pen.bytes(ByteVector(40, static_cast<uint8_t>(number))).input());
  }
  return seeds;
}

std::vector<Finding> findings() {
  return {};
}

const Target target("scatter", run_input, make_seeds, findings, kQuickChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::scatter_fuzz
