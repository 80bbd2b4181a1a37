// PatchCopy against a loop over the items of a patch, each of which is looked up in the whole array.

#include "transform/patches/patch_copy.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "spec/array_spec.h"
#include "spec/patch_spec.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::patch_copy_test {
namespace {

constexpr uint16_t kUntouched = 0xa5a5;
constexpr uint16_t kPadded = 0xfffe;
constexpr uint16_t kMissing = 0xfffd;

/// The index of the array that an index beyond its ends stands for, walked to step by step; -1 if there is none.
int64_t walk(int64_t index, int64_t extent, Border border) {
  switch (border) {
    case Border::kFill:
      return index < 0 || index >= extent ? -1 : index;
    case Border::kEdge:
      return std::min(std::max<int64_t>(index, 0), extent - 1);
    case Border::kWrap:
      while (index < 0) index += extent;
      while (index >= extent) index -= extent;
      return index;
    case Border::kReflect:
      while (extent > 1 && (index < 0 || index >= extent)) index = index < 0 ? -index : 2 * (extent - 1) - index;
      return extent == 1 ? 0 : index;
  }
  return -1;
}

int64_t floor_of(int64_t a, int64_t b) {
  int64_t result = 0;
  while (result * b > a) --result;
  while ((result + 1) * b <= a) ++result;
  return result;
}

struct Case {
  explicit Case(std::mt19937_64& random) {
    const auto axes = static_cast<size_t>(pick(random, 1, 4));
    array.name = "volume";
    array.item_bytes = 2;
    array.fill = {kMissing & 0xff, kMissing >> 8};
    array.sample_axis = static_cast<int>(pick(random, 0, static_cast<int64_t>(axes) - 1));
    for (size_t a = 0; a < axes; ++a) {
      array.shape.push_back(pick(random, 1, 12));
      array.chunk_shape.push_back(pick(random, 1, 7));
      array.storage_order.push_back(static_cast<int>(a));
    }
    if (random() % 2 == 0) std::shuffle(array.storage_order.begin(), array.storage_order.end(), random);
    int dims = 0;
    for (size_t a = 0; a < axes; ++a) {
      PatchAxis axis;
      const bool is_sample_axis = static_cast<int>(a) == array.sample_axis;
      if (is_sample_axis || random() % 4 != 0) {
        axis.dim = dims++;
        axis.size = pick(random, 1, 9);
        axis.border = std::array{Border::kFill, Border::kEdge, Border::kReflect, Border::kWrap}[random() % 4];
        axis.scale = random() % 2 == 0 ? pick(random, 2, 4) : 1;
        axis.origin = random() % 2 == 0 ? pick(random, -9, 9) : 0;
        axis.shift = pick(random, -2, 2);
        for (int64_t i = 0; i < axis.size && random() % 16 < 2; ++i) {
          axis.offsets.assign(static_cast<size_t>(axis.size), 0);
          for (int64_t& offset : axis.offsets) offset = pick(random, -4, 4);
        }
      } else {
        axis.size = array.shape[a];
        if (random() % 3 == 0) {  // some items of it, in any order
          axis.size = pick(random, 1, 6);
          for (int64_t i = 0; i < axis.size; ++i) axis.offsets.push_back(pick(random, 0, array.shape[a] - 1));
        }
      }
      patch.axes.push_back(axis);
    }
    // A volume of some rows of the array, which has chunks of another one before it.
    const int64_t rows = array.shape[static_cast<size_t>(array.sample_axis)];
    const int64_t begin = pick(random, 0, rows - 1);
    patch.volumes = {{}, {pick(random, 0, 3), begin, pick(random, begin + 1, rows)}};
    patch.fill = {kPadded & 0xff, kPadded >> 8};
    start.volume = 1;
    for (size_t d = 0; d < kMaxPatchDims; ++d) start.at[d] = pick(random, -9, 12);
    if (random() % 2 == 0) turn(random);
  }

  /// Turns patches in a random way; often with sides of the same length, so that dimensions can be exchanged.
  void turn(std::mt19937_64& random) {
    std::vector<int8_t> dims;
    const bool is_cube = random() % 4 != 0;
    const int64_t side = pick(random, 1, 9);
    for (PatchAxis& axis : patch.axes) {
      if (axis.dim < 0) continue;
      dims.push_back(static_cast<int8_t>(axis.dim));
      if (!is_cube) continue;
      axis.size = side;
      axis.offsets.clear();
    }
    const std::vector<int8_t> from = dims;
    if (is_cube) std::shuffle(dims.begin(), dims.end(), random);
    for (size_t d = 0; d < dims.size(); ++d) {
      turned.source[static_cast<size_t>(from[d])] =
          random() % 2 == 0 ? dims[d] : static_cast<int8_t>(~static_cast<int>(dims[d]));
    }
  }

  /// The indices in the patch as it lies in the volume of an item of the turned one.
  [[nodiscard]] std::vector<int64_t> unturned(const std::vector<int64_t>& in_turned) const {
    std::vector<int64_t> found = in_turned;
    for (size_t to = 0; to < in_turned.size(); ++to) {
      const int dim = patch.axes[to].dim;
      if (dim < 0) continue;
      const int8_t source = turned.source[static_cast<size_t>(dim)];
      for (size_t from = 0; from < in_turned.size(); ++from) {
        const PatchAxis& axis = patch.axes[from];
        if (axis.dim < 0) continue;
        if (axis.dim == source) found[from] = in_turned[to];
        if (axis.dim == -source - 1) found[from] = axis.size - 1 - in_turned[to];
      }
    }
    return found;
  }

  [[nodiscard]] bool is_sample_axis(size_t axis) const { return static_cast<int>(axis) == array.sample_axis; }
  [[nodiscard]] int64_t extent(size_t axis) const {
    return is_sample_axis(axis) ? patch.volumes[1].end - patch.volumes[1].begin : array.shape[axis];
  }
  [[nodiscard]] size_t items() const {
    size_t n = 1;
    for (const PatchAxis& axis : patch.axes) n *= static_cast<size_t>(axis.size);
    return n;
  }
  /// The number of an item of the array, which is its value.
  [[nodiscard]] uint16_t value(const std::vector<int64_t>& at) const {
    int64_t number = 0;
    for (size_t a = 0; a < at.size(); ++a) number = number * array.shape[a] + at[a];
    return static_cast<uint16_t>(number);
  }
  /// The chunk with these indices, as decoded; what lies beyond the array has no number of the array.
  [[nodiscard]] std::vector<uint16_t> chunk(const std::vector<int64_t>& index) const {
    const int64_t size =
        std::accumulate(array.chunk_shape.begin(), array.chunk_shape.end(), int64_t{1}, std::multiplies<>());
    std::vector<uint16_t> items(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      std::vector<int64_t> at(index.size());
      int64_t left = i;
      bool inside = true;
      for (size_t k = index.size(); k-- > 0;) {
        const auto a = static_cast<size_t>(array.storage_order[k]);
        at[a] = index[a] * array.chunk_shape[a] + left % array.chunk_shape[a];
        left /= array.chunk_shape[a];
        inside = inside && at[a] < array.shape[a];
      }
      items[static_cast<size_t>(i)] = inside ? value(at) : uint16_t{0xbad};
    }
    return items;
  }
  /// What the patch has to be; items in `missing` chunks have the fill value.
  [[nodiscard]] std::vector<uint16_t> expected(const std::vector<PatchCell>& missing, const PatchCopy& copy) const {
    std::vector<uint16_t> out(items());
    for (size_t i = 0; i < out.size(); ++i) {
      std::vector<int64_t> at(array.shape.size());
      std::vector<int64_t> in_patch(at.size());
      auto left = static_cast<int64_t>(i);
      bool padded = false;
      for (size_t a = at.size(); a-- > 0;) {
        in_patch[a] = left % patch.axes[a].size;
        left /= patch.axes[a].size;
      }
      in_patch = unturned(in_patch);
      for (size_t a = at.size(); a-- > 0;) {
        const PatchAxis& axis = patch.axes[a];
        const int64_t one = in_patch[a];
        int64_t base = 0;
        if (axis.dim >= 0)
          base = floor_of(start.at[static_cast<size_t>(axis.dim)] - axis.origin, axis.scale) + axis.shift;
        at[a] =
            walk(base + (axis.offsets.empty() ? one : axis.offsets[static_cast<size_t>(one)]), extent(a), axis.border);
        padded = padded || at[a] < 0;
        if (is_sample_axis(a)) at[a] += patch.volumes[1].begin;
      }
      out[i] = padded ? kPadded : value(at);
      if (padded) continue;
      std::vector<std::vector<int64_t>> index(at.size());
      for (size_t a = 0; a < at.size(); ++a) index[a] = {at[a] / array.chunk_shape[a]};
      std::vector<PatchCell> cell;
      copy.add_cells(start.volume, index, cell);
      if (std::ranges::find(missing, cell.at(0)) != missing.end()) out[i] = kMissing;
    }
    return out;
  }
  /// The indices of a chunk, from what names it.
  [[nodiscard]] std::vector<int64_t> index_of(const PatchCell& cell) const {
    std::vector<int64_t> index(array.shape.size());
    size_t left = cell.cell;
    for (size_t a = index.size(); a-- > 0;) {
      if (static_cast<int>(a) == array.sample_axis) {
        index[a] = cell.chunk - patch.volumes[1].first_chunk;
        continue;
      }
      const auto count = static_cast<size_t>((array.shape[a] - 1) / array.chunk_shape[a] + 1);
      index[a] = static_cast<int64_t>(left % count);
      left /= count;
    }
    return index;
  }

  ArraySpec array;
  PatchSpec patch;
  PatchStart start;
  Orientation turned;
};

/// An array of bytes in C order.
ArraySpec bytes_of(std::vector<int64_t> shape, std::vector<int64_t> chunk_shape) {
  ArraySpec array;
  array.storage_order.resize(shape.size());
  std::iota(array.storage_order.begin(), array.storage_order.end(), 0);
  array.shape = std::move(shape);
  array.chunk_shape = std::move(chunk_shape);
  array.item_bytes = 1;
  array.fill = {0};
  return array;
}

}  // namespace

TEST(each_item_of_a_patch_is_that_of_the_array) {
  std::mt19937_64 random(1);
  int padded = 0;
  int turns = 0;
  for (int i = 0; i < draws(8000); ++i) {
    const Context context("case " + std::to_string(i));
    const Case c(random);
    const PatchCopy copy(c.array, c.patch);
    CHECK_EQ(copy.sample_bytes(), c.items() * 2);
    std::vector<uint16_t> out(c.items(), kUntouched);
    copy.check(c.turned);
    const bool is_turned = c.turned != Orientation{};
    turns += is_turned ? 1 : 0;
    const PatchTarget target{c.start, reinterpret_cast<uint8_t*>(out.data()), is_turned ? &c.turned : nullptr};
    std::vector<PatchCell> cells, missing;
    copy.find_cells(c.start, cells);
    CHECK(std::ranges::adjacent_find(cells, std::equal_to<>()) == cells.end());
    size_t written = 0;
    for (const PatchCell& cell : cells) {
      if (random() % 8 == 0) {
        missing.push_back(cell);
        written += copy.cut(cell, nullptr, {&target, 1});
        continue;
      }
      const std::vector<uint16_t> chunk = c.chunk(c.index_of(cell));
      const size_t bytes = copy.cut(cell, reinterpret_cast<const uint8_t*>(chunk.data()), {&target, 1});
      CHECK(bytes > 0);  // no chunk is named in vain
      written += bytes;
    }
    // Each byte is written once: what is left is what the padding writes.
    const size_t left = static_cast<size_t>(std::ranges::count(out, kUntouched));
    CHECK_EQ(written, (out.size() - left) * 2);
    CHECK_EQ(copy.reaches_out(c.start), left > 0);
    copy.pad({&target, 1});
    padded += left > 0 ? 1 : 0;
    CHECK(out == c.expected(missing, copy));
  }
  CHECK(padded > draws(1000));
  CHECK(turns > draws(2000));
}

TEST(a_patch_is_the_same_cut_out_of_a_crop) {
  std::mt19937_64 random(2);
  int refused = 0;
  for (int i = 0; i < draws(2000); ++i) {
    const Context context("case " + std::to_string(i));
    const Case c(random);
    const PatchCopy copy(c.array, c.patch);
    std::vector<uint16_t> out(c.items(), kUntouched);
    std::vector<uint16_t> expected = out;
    const PatchTarget target{c.start, reinterpret_cast<uint8_t*>(out.data()), &c.turned};
    const PatchTarget reference{c.start, reinterpret_cast<uint8_t*>(expected.data()), &c.turned};
    std::vector<PatchCell> cells;
    copy.find_cells(c.start, cells);
    std::vector<std::vector<ChunkSpan>> spans(copy.num_axes());
    for (size_t a = 0; a < spans.size(); ++a) {
      copy.add_spans(a, c.start, spans[a]);
      std::ranges::sort(spans[a], {}, &ChunkSpan::chunk);
      for (ChunkSpan& span : spans[a]) {
        const ChunkSpan inside = copy.span_in_volume(a, 1, span.chunk);
        CHECK(inside.begin <= span.begin && span.begin < span.end && span.end <= inside.end);
        if (random() % 4 == 0) span = inside;
      }
    }
    for (const PatchCell& cell : cells) {
      const std::vector<uint16_t> chunk = c.chunk(c.index_of(cell));
      const auto* const bytes = reinterpret_cast<const uint8_t*>(chunk.data());
      copy.cut(cell, bytes, {&reference, 1});
      ChunkCrop crop = copy.crop_of(cell, 1, spans);
      CHECK(whole_chunk(c.array).holds(crop));
      const size_t size = crop_bytes(c.array, crop);
      const auto cropped = std::make_unique<uint8_t[]>(size);  // of exactly its size, for the sanitizer
      copy_crop(c.array, crop, bytes, cropped.get());
      copy.cut(cell, cropped.get(), {&target, 1}, &crop);
      // A crop without the first or the last item that the patch needs is refused, before anything is read of it.
      const auto axis = static_cast<size_t>(pick(random, 0, std::ssize(spans) - 1));
      std::vector<ChunkSpan> exact;
      copy.add_spans(axis, c.start, exact);
      std::erase_if(exact, [&](const ChunkSpan& span) { return span.chunk != c.index_of(cell)[axis]; });
      ChunkCrop later = crop;
      later.begin[axis] = std::ranges::min(exact, {}, &ChunkSpan::begin).begin + 1;
      later.end[axis] = std::max(crop.end[axis], later.begin[axis]);
      crop.end[axis] = std::ranges::max(exact, {}, &ChunkSpan::end).end - 1;
      crop.begin[axis] = std::min(crop.begin[axis], crop.end[axis]);
      for (const ChunkCrop& bad : {later, crop}) {
        CHECK_THROWS(kConfig, "more of a chunk than its crop has", copy.cut(cell, cropped.get(), {&target, 1}, &bad));
      }
      ++refused;
    }
    CHECK(out == expected);
  }
  CHECK(refused > draws(2000));
}

TEST(conversions_know_the_index_in_the_patch) {
  // Channels last: each has its own mean, so an item that is taken for another one of the patch is another number.
  const ArraySpec array = bytes_of({9, 8, 3}, {4, 3, 2});
  PatchSpec patch;
  patch.axes = {{.dim = 0, .size = 5}, {.dim = 1, .size = 4}, {.dim = -1, .size = 3}};
  patch.volumes = {{0, 0, 9}};
  patch.fill = {0, 0, 0xc0, 0x7f};
  ConversionSpec conversion;
  conversion.from = ItemType::kUint8;
  conversion.to = ItemType::kFloat32;
  conversion.steps = {{StepKind::kNormalize, {100, 200, 300}, {1, 2, 4}, 1}};
  const Converter converter(conversion);
  const PatchCopy copy(array, patch, &converter);
  const PatchStart start{0, {3, -1}};
  std::vector<float> out(60, -1);
  const PatchTarget target{start, reinterpret_cast<uint8_t*>(out.data())};
  std::vector<PatchCell> cells;
  copy.find_cells(start, cells);
  for (const PatchCell& cell : cells) {
    const int64_t z = cell.chunk * 4;
    const auto y = static_cast<int64_t>(cell.cell / 2) * 3;
    const auto channel = static_cast<int64_t>(cell.cell % 2) * 2;
    std::vector<uint8_t> chunk;
    for (int64_t i = 0; i < 24; ++i) {
      chunk.push_back(static_cast<uint8_t>((z + i / 6) * 20 + (y + i / 2 % 3) * 3 + channel + i % 2));
    }
    copy.cut(cell, chunk.data(), {&target, 1});
  }
  copy.pad({&target, 1});
  for (int64_t i = 0; i < 60; ++i) {
    const int64_t z = 3 + i / 12;
    const int64_t y = i / 3 % 4 - 1;
    const int64_t channel = i % 3;
    const auto value = static_cast<float>(z * 20 + y * 3 + channel);
    const float mean = 100.0F * static_cast<float>(channel + 1);
    const float expected = (value - mean) / static_cast<float>(1 << channel);
    CHECK(y < 0 ? out[static_cast<size_t>(i)] != out[static_cast<size_t>(i)] : out[static_cast<size_t>(i)] == expected);
  }
}

TEST(turned_patches_have_the_bytes_of_the_others_at_other_indices) {
  // Long enough for every kind of copy: items of all widths, in both byte orders, converted or not.
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    const Context context("case " + std::to_string(i));
    const int64_t side = pick(random, 1, 70);
    const int64_t channels = pick(random, 1, 3);
    const int64_t depth = std::min<int64_t>(side, 6);
    ArraySpec array = bytes_of({depth + 3, side + 9, channels, side + 5}, {});
    for (const int64_t length : array.shape) array.chunk_shape.push_back(length);
    if (random() % 2 == 0) std::shuffle(array.storage_order.begin(), array.storage_order.end(), random);
    ConversionSpec conversion;
    conversion.from = random() % 2 == 0 ? ItemType::kUint8 : ItemType::kUint16;
    std::vector<double> mean(static_cast<size_t>(channels));
    std::iota(mean.begin(), mean.end(), 10.0);
    const std::vector<double> std(mean.size(), 3.0);
    conversion.steps = {{StepKind::kNormalize, mean, std, static_cast<size_t>(side)}};
    const Converter converter(conversion);
    const bool is_converted = random() % 3 == 0;
    array.item_bytes = is_converted ? converter.source_item_bytes() : size_t{1} << random() % 5;
    if (array.item_bytes > 1 && random() % 2 == 0) array.swap_bytes = std::min<size_t>(array.item_bytes, 8);
    array.fill.assign(array.item_bytes, 0);
    PatchSpec patch;
    patch.axes = {{.dim = 0, .size = depth}, {.dim = 1, .size = side}};
    patch.axes.push_back({.dim = -1, .size = channels});
    patch.axes.push_back({.dim = 2, .size = side});
    const bool is_cube = depth == side;
    patch.volumes = {{0, 0, depth + 3}};
    const PatchCopy copy(array, patch, is_converted ? &converter : nullptr);
    Orientation turned;
    if (random() % 4 != 0) std::swap(turned.source[1], turned.source[2]);
    if (is_cube) std::shuffle(turned.source.begin(), turned.source.begin() + 3, random);
    for (size_t d = 0; d < 3; ++d) {
      if (random() % 2 == 0) turned.source[d] = static_cast<int8_t>(~static_cast<int>(turned.source[d]));
    }
    copy.check(turned);
    std::vector<uint8_t> chunk(crop_bytes(array, whole_chunk(array)));
    for (uint8_t& byte : chunk) byte = static_cast<uint8_t>(random());
    const PatchStart start{0, {pick(random, 0, 3), pick(random, 0, 9), pick(random, 0, 5)}};
    std::vector<uint8_t> out(copy.sample_bytes()), plain = out;
    const std::array targets{PatchTarget{start, plain.data()}, PatchTarget{start, out.data(), &turned}};
    CHECK_EQ(copy.cut({}, chunk.data(), targets), 2 * out.size());
    const size_t item = is_converted ? converter.dest_item_bytes() : array.item_bytes;
    const std::array<size_t, 4> axis_of_dim{0, 1, 3};
    std::array<int64_t, 4> at{};
    for (size_t number = 0; number * item < out.size(); ++number) {
      auto left = static_cast<int64_t>(number);
      for (size_t a = 4; a-- > 0;) {
        at[a] = left % patch.axes[a].size;
        left /= patch.axes[a].size;
      }
      std::array<int64_t, 4> from = at;
      for (size_t d = 0; d < 3; ++d) {
        const int source = turned.source[d];
        const size_t axis = axis_of_dim[static_cast<size_t>(source < 0 ? -source - 1 : source)];
        const int64_t one = at[axis_of_dim[d]];
        from[axis] = source < 0 ? patch.axes[axis].size - 1 - one : one;
      }
      int64_t from_number = 0;
      for (size_t a = 0; a < 4; ++a) from_number = from_number * patch.axes[a].size + from[a];
      if (std::memcmp(&out[number * item], &plain[static_cast<size_t>(from_number) * item], item) != 0) {
        CHECK_EQ(number, size_t{0} - 1);  // says which item differs
      }
    }
  }
}

TEST(dimensions_of_different_sizes_are_not_exchanged) {
  const ArraySpec array = bytes_of({4, 4}, {2, 2});
  PatchSpec patch;
  patch.axes = {{.dim = 0, .size = 2}, {.dim = 1, .size = 3}};
  patch.volumes = {{0, 0, 4}};
  const PatchCopy copy(array, patch);
  Orientation flipped;
  flipped.source[1] = ~1;
  copy.check(flipped);
  std::swap(flipped.source[0], flipped.source[1]);
  CHECK_THROWS(kConfig, "sides of different lengths", copy.check(flipped));
  Orientation of_others;
  of_others.source[1] = 2;  // which the array has not
  CHECK_THROWS(kConfig, "sides of different lengths", copy.check(of_others));
}

TEST(what_does_not_fit_the_array_is_refused) {
  const ArraySpec array = bytes_of({4, 4}, {2, 2});
  PatchSpec good;
  good.axes = {{.dim = 0, .size = 2}, {.dim = 1, .size = 2}};
  good.volumes = {{0, 0, 4}};
  PatchCopy(array, good);
  PatchSpec chosen = good;
  chosen.axes[1] = {.dim = -1, .size = 3, .offsets = {3, 0, 0}};
  PatchCopy(array, chosen);
  for (int i = 0; i < 11; ++i) {
    PatchSpec bad = good;
    if (i == 0) bad.axes.pop_back();
    if (i == 1) bad.axes[0].size = 0;
    if (i == 2) bad.axes[1].scale = 0;
    if (i == 3) bad.axes[0].offsets = {1};
    if (i == 4) bad.axes[0] = {.dim = -1, .size = 4};  // the sample axis, whole
    if (i == 5) bad.axes[1] = {.dim = -1, .size = 3};
    if (i == 6) bad.volumes.clear();
    if (i == 7) bad.fill = {0, 0};
    if (i == 8) bad.axes[1] = {.dim = -1, .size = 1, .offsets = {4}};
    if (i == 9) bad.axes[1] = {.dim = -1, .size = 1, .offsets = {-1}};
    if (i == 10) bad.axes[0] = {.dim = -1, .size = 1, .offsets = {0}};  // of the sample axis
    CHECK_THROWS(kConfig, "patches do not fit", PatchCopy(array, bad));
  }
}

}  // namespace zarrfeed::testing::patch_copy_test
