// BoxCopy against a loop over elements.

#include "transform/scatter.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "base/streaming_store.h"
#include "spec/array_spec.h"
#include "spec/chunk_grid.h"
#include "tests/support/check.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/plans.h"

namespace zarrfeed::testing::scatter_test {
namespace {

constexpr uint8_t kUntouched = 0xa5;

/// (item_bytes, swap_bytes): every dtype that torch knows, in native and in foreign byte order.
constexpr std::pair<size_t, size_t> kItems[] = {{1, 0}, {2, 0}, {2, 2}, {4, 0},  {4, 4},
                                                {8, 0}, {8, 4}, {8, 8}, {16, 0}, {16, 8}};

struct Case {
  ArraySpec array;
  std::vector<int64_t> cell;

  [[nodiscard]] size_t ndim() const { return array.shape.size(); }
  [[nodiscard]] bool is_sample_axis(size_t axis) const { return static_cast<int>(axis) == array.sample_axis; }
  [[nodiscard]] size_t chunk_bytes() const {
    size_t n = array.item_bytes;
    for (const int64_t extent : array.chunk_shape) n *= static_cast<size_t>(extent);
    return n;
  }
  [[nodiscard]] size_t sample_bytes() const {
    size_t n = array.item_bytes;
    for (size_t axis = 0; axis < ndim(); ++axis) {
      if (!is_sample_axis(axis)) n *= static_cast<size_t>(array.extent(axis));
    }
    return n;
  }
  /// The item of the array that a sample has at an index along an axis.
  [[nodiscard]] int64_t item_at(size_t axis, int64_t index) const {
    return array.has_all(axis) ? index : array.chosen[axis][static_cast<size_t>(index)];
  }
  [[nodiscard]] int64_t rows() const { return array.chunk_shape[static_cast<size_t>(array.sample_axis)]; }
  [[nodiscard]] BoxCopy box() const { return {array, cell}; }
};

std::string show_chosen(const Case& c) {
  std::string text;
  for (const std::vector<int64_t>& of_axis : c.array.chosen) text += show(of_axis) + " ";
  return text;
}

std::string describe(const Case& c) {
  return "shape " + show(c.array.shape) + " chunks " + show(c.array.chunk_shape) + " order " +
         show(c.array.storage_order) + " cell " + show(c.cell) + " sample axis " + show(c.array.sample_axis) +
         " item " + show(c.array.item_bytes) + " swap " + show(c.array.swap_bytes) + " chosen " + show_chosen(c);
}

std::vector<uint8_t> random_bytes(std::mt19937_64& random, size_t n) {
  std::vector<uint8_t> out(n);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(random());
  return out;
}

/// Chooses items of some axes, in any order, some of them several times; at least one is in the cell.
void choose_items(std::mt19937_64& random, Case& c) {
  c.array.chosen.resize(c.ndim());
  for (size_t axis = 0; axis < c.ndim(); ++axis) {
    if (c.is_sample_axis(axis) || random() % 4 == 0) continue;
    std::vector<int64_t>& chosen = c.array.chosen[axis];
    const int64_t length = c.array.shape[axis];
    const int64_t step = pick(random, -2, 2);
    for (int64_t item = pick(random, 0, length - 1); item >= 0 && item < length && std::ssize(chosen) < 9;
         item += step) {
      chosen.push_back(item);
    }
    for (int64_t more = pick(random, 0, 4); more > 0; --more) chosen.push_back(pick(random, 0, length - 1));
    const int64_t first = c.cell[axis] * c.array.chunk_shape[axis];
    const int64_t last = std::min(length, first + c.array.chunk_shape[axis]) - 1;
    chosen.insert(chosen.begin() + pick(random, 0, std::ssize(chosen)), pick(random, first, last));
  }
}

Case random_case(std::mt19937_64& random) {
  Case c;
  ArraySpec& array = c.array;
  const auto ndim = static_cast<size_t>(pick(random, 1, 4));
  for (size_t axis = 0; axis < ndim; ++axis) {
    array.shape.push_back(pick(random, 1, 7));
    array.chunk_shape.push_back(random() % 3 == 0 ? array.shape.back() : pick(random, 1, 9));
    array.storage_order.push_back(static_cast<int>(axis));
    c.cell.push_back(pick(random, 0, (array.shape.back() - 1) / array.chunk_shape.back()));
  }
  if (random() % 3 == 0) std::shuffle(array.storage_order.begin(), array.storage_order.end(), random);
  array.sample_axis = random() % 2 == 0 ? 0 : static_cast<int>(random() % ndim);
  std::tie(array.item_bytes, array.swap_bytes) = kItems[random() % std::size(kItems)];
  array.fill = random_bytes(random, array.item_bytes * static_cast<size_t>(random() % 3 == 0 ? pick(random, 2, 5) : 1));
  if (random() % 2 == 0) std::fill(array.fill.begin(), array.fill.end(), array.fill.front());
  if (random() % 3 == 0) choose_items(random, c);
  return c;
}

/// Calls visit(offset in the sample, offset in the chunk) for every element of a sample that the cell has, in row `row`.
template <typename Visit>
void for_each_element(const Case& c, int64_t row, const Visit& visit) {
  std::vector<int64_t> index(c.ndim(), 0);  // in the sample
  for (;;) {
    bool inside = true;
    int64_t in_sample = 0;
    std::vector<int64_t> at(c.ndim(), row);  // in the chunk
    for (size_t axis = 0; axis < c.ndim(); ++axis) {
      if (c.is_sample_axis(axis)) continue;
      at[axis] = c.item_at(axis, index[axis]) - c.cell[axis] * c.array.chunk_shape[axis];
      inside = inside && at[axis] >= 0 && at[axis] < c.array.chunk_shape[axis];
      in_sample = in_sample * c.array.extent(axis) + index[axis];
    }
    int64_t in_chunk = 0;
    for (const int axis : c.array.storage_order) {
      const auto a = static_cast<size_t>(axis);
      in_chunk = in_chunk * c.array.chunk_shape[a] + at[a];
    }
    if (inside) {
      visit(static_cast<size_t>(in_sample) * c.array.item_bytes, static_cast<size_t>(in_chunk) * c.array.item_bytes);
    }
    size_t axis = c.ndim();
    while (axis-- > 0) {
      if (c.is_sample_axis(axis)) continue;
      if (++index[axis] < c.array.extent(axis)) break;
      index[axis] = 0;
    }
    if (axis == static_cast<size_t>(-1)) return;
  }
}

/// The sample that `row` must become, with the bytes outside of the box untouched.
std::vector<uint8_t> expected_sample(const Case& c, std::span<const uint8_t> chunk, int64_t row) {
  std::vector<uint8_t> sample(c.sample_bytes(), kUntouched);
  const size_t item = c.array.item_bytes;
  const size_t unit = c.array.swap_bytes == 0 ? item : c.array.swap_bytes;
  for_each_element(c, row, [&](size_t to, size_t from) {
    for (size_t u = 0; u < item; u += unit) {
      for (size_t b = 0; b < unit; ++b) {
        sample[to + u + b] = chunk[from + u + (c.array.swap_bytes == 0 ? b : unit - 1 - b)];
      }
    }
  });
  return sample;
}

std::vector<uint8_t> expected_fill(const Case& c) {
  std::vector<uint8_t> sample(c.sample_bytes(), kUntouched);
  for_each_element(c, 0, [&](size_t to, size_t) {
    for (size_t b = to; b < to + c.array.item_bytes; ++b) sample[b] = c.array.fill[b % c.array.fill.size()];
  });
  return sample;
}

/// Some slots, each a sample between guard bytes, in memory that ends with the last of them.
class Slots {
 public:
  Slots(size_t count, size_t sample_bytes)
      : sample_bytes_(sample_bytes), memory_(count * (sample_bytes + kGuard) - kGuard) {
    std::memset(memory_.span().data(), kUntouched, memory_.span().size());
  }
  [[nodiscard]] uint8_t* at(size_t slot) const { return memory_.span().data() + slot * (sample_bytes_ + kGuard); }

  /// Checks all of the memory; slots without a sample in `samples` must be untouched, as the guards.
  void check(const std::vector<std::vector<uint8_t>>& samples) const {
    std::vector<uint8_t> expected(memory_.span().size(), kUntouched);
    for (size_t slot = 0; slot < samples.size(); ++slot) {
      std::copy(samples[slot].begin(), samples[slot].end(),
                expected.begin() + static_cast<std::ptrdiff_t>(slot * (sample_bytes_ + kGuard)));
    }
    CHECK(memory_.copy() == expected);
  }

 private:
  static constexpr size_t kGuard = 13;
  size_t sample_bytes_;
  GuardedBytes memory_;
};

ArraySpec array_of(std::vector<int64_t> shape, std::vector<int64_t> chunk_shape, size_t item_bytes) {
  ArraySpec array;
  array.storage_order.resize(shape.size());
  std::iota(array.storage_order.begin(), array.storage_order.end(), 0);
  array.shape = std::move(shape);
  array.chunk_shape = std::move(chunk_shape);
  array.item_bytes = item_bytes;
  array.fill.assign(item_bytes, 0);
  return array;
}

bool is_plain(const ArraySpec& array) {
  const std::vector<int64_t> cell(array.shape.size(), 0);
  return BoxCopy(array, cell).is_plain();
}

}  // namespace

TEST(rows_arrive_as_an_element_loop_writes_them_and_nothing_else_is_written) {
  std::mt19937_64 random(11);
  for (int i = 0; i < draws(4000); ++i) {
    const Case c = random_case(random);
    const Context context(describe(c));
    const BoxCopy box = c.box();
    const GuardedBytes chunk(random_bytes(random, c.chunk_bytes()));
    const size_t slots = 4;
    const Slots out(slots, c.sample_bytes());
    std::vector<RowTarget> targets;
    std::vector<std::vector<uint8_t>> expected(slots);
    for (size_t slot = 0; slot < slots; ++slot) {
      expected[slot].assign(c.sample_bytes(), kUntouched);
      if (random() % 4 == 0) continue;
      const int64_t row = pick(random, 0, c.rows() - 1);
      targets.push_back({row, out.at(slot)});
      expected[slot] = expected_sample(c, chunk.span(), row);
    }
    std::shuffle(targets.begin(), targets.end(), random);
    box.copy_rows(chunk.span().data(), targets);
    out.check(expected);
  }
}

TEST(whole_rows_of_every_size_arrive_however_they_are_stored) {
  std::mt19937_64 random(14);
  for (const int64_t bytes : {1, 2, 3, 4, 8, 12, 16, 64, 255, 256, 260, 512, 4097}) {
    for (const bool streaming : {false, true}) {
      const Context context(show(bytes) + " bytes");
      const int64_t rows = 24;
      const BoxCopy box(array_of({rows, bytes}, {rows, bytes}, 1), std::vector<int64_t>{0, 0});
      const GuardedBytes chunk(random_bytes(random, static_cast<size_t>(rows * bytes)));
      const size_t slots = 50;  // some rows go to several
      const Slots out(slots, static_cast<size_t>(bytes));
      std::vector<RowTarget> targets;
      std::vector<std::vector<uint8_t>> expected(slots);
      for (size_t slot = 0; slot < slots; ++slot) {
        const int64_t row = pick(random, 0, rows - 1);
        targets.push_back({row, out.at(slot)});
        const auto from = chunk.span().subspan(static_cast<size_t>(row * bytes), static_cast<size_t>(bytes));
        expected[slot].assign(from.begin(), from.end());
      }
      std::shuffle(targets.begin(), targets.end(), random);
      box.copy_rows(chunk.span().data(), targets, streaming);
      if (streaming) fence_streaming_stores();
      out.check(expected);
    }
  }
}

TEST(the_fill_value_goes_to_the_box_and_nowhere_else) {
  std::mt19937_64 random(12);
  for (int i = 0; i < draws(2000); ++i) {
    const Case c = random_case(random);
    const Context context(describe(c));
    const Slots out(3, c.sample_bytes());
    const RowTarget targets[] = {{0, out.at(2)}, {c.rows() - 1, out.at(0)}};
    c.box().fill_rows(targets);
    out.check({expected_fill(c), {}, expected_fill(c)});
  }
}

TEST(the_bytes_of_a_box_are_those_that_it_writes) {
  std::mt19937_64 random(13);
  for (int i = 0; i < draws(1000); ++i) {
    const Case c = random_case(random);
    const Context context(describe(c));
    size_t elements = 0;
    for_each_element(c, 0, [&](size_t, size_t) { ++elements; });
    CHECK_EQ(c.box().bytes(), elements * c.array.item_bytes);
  }
}

TEST(the_boxes_of_all_cells_tile_the_sample) {
  std::mt19937_64 random(14);
  for (int i = 0; i < 300; ++i) {
    Case c = random_case(random);
    std::vector<int64_t> times_written(c.sample_bytes(), 0);
    const CellGrid cells(c.array);
    c.array.fill.assign(c.array.item_bytes, 1);
    for (size_t cell = 0; cell < cells.num_cells(); ++cell) {
      size_t number = 0;
      for (size_t axis = 0; axis < c.ndim(); ++axis) {
        c.cell[axis] = cells.index(cell, axis);
        if (!c.is_sample_axis(axis)) number += cells.ordinal(c.cell[axis], axis) * cells.stride(axis);
      }
      CHECK_EQ(number, cell);
      std::vector<uint8_t> sample(c.sample_bytes(), 0);
      const RowTarget target[] = {{0, sample.data()}};
      c.box().fill_rows(target);
      for (size_t b = 0; b < sample.size(); ++b) times_written[b] += sample[b];
    }
    CHECK_EQ(times_written, std::vector<int64_t>(c.sample_bytes(), 1));
  }
}

TEST(plain_means_that_the_row_is_the_sample) {
  std::mt19937_64 random(15);
  int plain = 0;
  for (int i = 0; i < draws(4000); ++i) {
    const Case c = random_case(random);
    if (!c.box().is_plain()) continue;
    ++plain;
    const Context context(describe(c));
    CHECK_EQ(c.box().bytes(), c.sample_bytes());
    const std::vector<uint8_t> chunk = random_bytes(random, c.chunk_bytes());
    for (int64_t row = 0; row < c.rows(); ++row) {
      const auto begin = chunk.begin() + row * static_cast<int64_t>(c.sample_bytes());
      CHECK(expected_sample(c, chunk, row) ==
            std::vector<uint8_t>(begin, begin + static_cast<std::ptrdiff_t>(c.sample_bytes())));
    }
  }
  CHECK(plain > draws(100));
}

TEST(whole_samples_in_c_order_are_plain_and_others_are_not) {
  CHECK(is_plain(array_of({10, 4, 5}, {3, 4, 5}, 4)));
  CHECK(is_plain(array_of({10}, {4}, 8)));
  CHECK(is_plain(array_of({10, 1, 1}, {20, 1, 1}, 2)));
  CHECK(!is_plain(array_of({10, 4, 5}, {3, 4, 6}, 4)));  // padded rows
  CHECK(!is_plain(array_of({10, 4, 5}, {3, 2, 5}, 4)));  // half a sample
  CHECK(!is_plain(array_of({10, 4, 5}, {3, 5, 5}, 4)));  // padded behind each sample
  ArraySpec swapped = array_of({10, 4}, {3, 4}, 4);
  swapped.swap_bytes = 4;
  CHECK(!is_plain(swapped));
  ArraySpec fortran = array_of({10, 4}, {3, 4}, 4);
  fortran.storage_order = {1, 0};
  CHECK(!is_plain(fortran));
  ArraySpec last_axis = array_of({4, 10}, {4, 3}, 4);
  last_axis.sample_axis = 1;
  CHECK(!is_plain(last_axis));
  last_axis.storage_order = {1, 0};  // sample axis outermost again
  CHECK(is_plain(last_axis));
}

TEST(parts_of_complex_numbers_are_swapped_each_for_itself) {
  ArraySpec array = array_of({1, 1}, {1, 1}, 8);
  array.swap_bytes = 4;
  const uint8_t chunk[] = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<uint8_t> sample(8);
  const int64_t cell[] = {0, 0};
  const RowTarget target[] = {{0, sample.data()}};
  BoxCopy(array, cell).copy_rows(chunk, target);
  CHECK_EQ(sample, (std::vector<uint8_t>{4, 3, 2, 1, 8, 7, 6, 5}));
}

TEST(an_item_size_without_a_kernel_is_refused_when_the_box_is_made) {
  const int64_t cell[] = {0};
  for (const auto& [item, swap] : {std::pair<size_t, size_t>{3, 0}, {4, 2}, {32, 0}, {1, 1}, {16, 16}}) {
    ArraySpec array = array_of({4}, {2}, item);
    array.swap_bytes = swap;
    CHECK_THROWS(kUnsupported, "items of " + std::to_string(item), BoxCopy(array, cell));
  }
}

}  // namespace zarrfeed::testing::scatter_test
