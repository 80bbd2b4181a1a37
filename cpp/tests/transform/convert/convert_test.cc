// Converter against numbers worked out in long double, which holds every item exactly, and a search for the nearest one.

#include "transform/convert/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "spec/array_spec.h"
#include "spec/conversion_spec.h"
#include "tests/support/check.h"
#include "tests/support/guarded_bytes.h"
#include "tests/support/plans.h"
#include "transform/convert/isa.h"
#include "transform/scatter.h"

namespace zarrfeed::testing::convert_test {

static_assert(std::numeric_limits<long double>::digits >= 64 || sizeof(long double) == 8,
              "the oracle wants a long double that holds 64 bit integers");

namespace {

constexpr ItemType kInts[] = {ItemType::kBool,   ItemType::kInt8,   ItemType::kUint8,
                              ItemType::kInt16,  ItemType::kUint16, ItemType::kInt32,
                              ItemType::kUint32, ItemType::kInt64,  ItemType::kUint64};
constexpr ItemType kFloats[] = {ItemType::kFloat16, ItemType::kBfloat16, ItemType::kFloat32, ItemType::kFloat64};

/// (bits of the exponent, bits of the fraction) of a 16 bit float.
struct Short {
  ItemType type;
  int exponent;
  int fraction;

  [[nodiscard]] uint16_t infinity() const { return static_cast<uint16_t>(((1 << exponent) - 1) << fraction); }
  [[nodiscard]] double value(uint16_t bits) const {
    const int bias = (1 << (exponent - 1)) - 1;
    const int power = (bits & 0x7fff) >> fraction;
    const int low = bits & ((1 << fraction) - 1);
    double out =
        power == 0 ? std::ldexp(low, 1 - bias - fraction) : std::ldexp((1 << fraction) + low, power - bias - fraction);
    if ((bits & 0x7fff) == infinity()) out = std::numeric_limits<double>::infinity();
    if ((bits & 0x7fff) > infinity()) out = std::numeric_limits<double>::quiet_NaN();
    return (bits & 0x8000) != 0 ? -out : out;
  }
  /// The nearest one; of two, the one with an even fraction.
  [[nodiscard]] uint16_t nearest(long double x) const {
    const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
    const long double magnitude = std::abs(x);
    uint16_t low = 0;
    for (int bit = 14; bit >= 0; --bit) {
      const auto next = static_cast<uint16_t>(low | (1 << bit));
      if (next < infinity() && static_cast<long double>(value(next)) <= magnitude) low = next;
    }
    const auto high = static_cast<uint16_t>(low + 1);
    // Behind the largest one the next step would have been as wide.
    const long double step =
        high == infinity() ? value(low) - value(static_cast<uint16_t>(low - 1)) : value(high) - value(low);
    const long double above = magnitude - static_cast<long double>(value(low));
    const bool up = above > step / 2 || (above == step / 2 && (low & 1) != 0);
    return static_cast<uint16_t>((up ? high : low) | sign);
  }
};

constexpr Short kHalf{ItemType::kFloat16, 5, 10};
constexpr Short kBrain{ItemType::kBfloat16, 8, 7};

ConversionSpec cast(ItemType from, ItemType to) {
  ConversionSpec spec;
  spec.from = from;
  spec.to = to;
  return spec;
}

ValueStep normalised(double mean, double std) {
  return {StepKind::kNormalize, {mean}, {std}, 1};
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename To, typename From>
std::vector<To> convert_for(Isa isa, const ConversionSpec& spec, const std::vector<From>& items, size_t position) {
  const Converter converter(spec, isa);
  CHECK_EQ(converter.source_item_bytes(), sizeof(From));
  CHECK_EQ(converter.dest_item_bytes(), sizeof(To));
  std::vector<To> out(items.size());
  converter.convert(reinterpret_cast<uint8_t*>(out.data()), reinterpret_cast<const uint8_t*>(items.data()),
                    items.size(), position);
  return out;
}

/// What every instruction set of this processor makes of the items.
template <typename To, typename From>
std::vector<To> convert(const ConversionSpec& spec, const std::vector<From>& items, size_t position = 0) {
  const std::vector<To> out = convert_for<To>(Isa::kBase, spec, items, position);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    const Context context("instruction set " + show(isa));
    if (isa <= best_isa()) CHECK(same_bits(convert_for<To>(isa, spec, items, position), out));
  }
  return out;
}

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> out(1 << 16);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint16_t>(i);
  return out;
}

/// Values at, and just beside, every number of a 16 bit float and every tie between two of them.
template <typename Real>
std::vector<Real> delicate(const Short& type) {
  constexpr Real kFar = std::numeric_limits<Real>::infinity();
  std::vector<Real> out = {0, kFar, std::numeric_limits<Real>::max(), std::numeric_limits<Real>::denorm_min(),
                           std::numeric_limits<Real>::min()};
  for (uint16_t bits = 0; bits < type.infinity(); ++bits) {
    const auto low = static_cast<Real>(type.value(bits));
    const auto high = static_cast<Real>(type.value(static_cast<uint16_t>(bits + 1)));
    const Real tie = std::isinf(high) ? low + (low - static_cast<Real>(type.value(static_cast<uint16_t>(bits - 1)))) / 2
                                      : low + (high - low) / 2;
    for (const Real at : {low, tie}) {
      out.push_back(at);
      out.push_back(std::nextafter(at, kFar));
      out.push_back(std::nextafter(at, Real{0}));
    }
  }
  const size_t positive = out.size();
  for (size_t i = 0; i < positive; ++i) out.push_back(-out[i]);
  return out;
}

template <typename Real>
void check_rounding(const Short& type, ItemType from, const std::vector<Real>& items) {
  const auto got = convert<uint16_t>(cast(from, type.type), items);
  for (size_t i = 0; i < items.size(); ++i) {
    const Context context("item " +
                          show(std::bit_cast<std::conditional_t<sizeof(Real) == 4, uint32_t, uint64_t>>(items[i])));
    if (std::isnan(items[i])) {
      CHECK(std::isnan(type.value(got[i])));
      CHECK_EQ(std::signbit(type.value(got[i])), std::signbit(items[i]));
    } else {
      CHECK_EQ(got[i], type.nearest(items[i]));
    }
  }
}

/// Integers at which rounding goes wrong most easily: powers of two, and halfway between floats, and beside them.
template <typename T>
std::vector<T> delicate_ints() {
  std::vector<T> out = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), 0, 1};
  std::mt19937_64 random(3);
  for (int bit = 0; bit < std::numeric_limits<T>::digits; ++bit) {
    for (const int below : {8, 9, 11, 12, 24, 25, 53, 54}) {
      uint64_t value = uint64_t{1} << bit;
      if (bit >= below) value |= uint64_t{1} << (bit - below);
      for (const uint64_t near : {value - 1, value, value + 1, value | (value >> 1), (value | random()) >> 1}) {
        out.push_back(static_cast<T>(near));
        out.push_back(static_cast<T>(uint64_t{0} - near));
      }
    }
  }
  return out;
}

template <typename T>
void check_ints_to_floats(ItemType from) {
  const Context context("from " + show(from));
  const std::vector<T> items = delicate_ints<T>();
  const auto halves = convert<uint16_t>(cast(from, ItemType::kFloat16), items);
  const auto brains = convert<uint16_t>(cast(from, ItemType::kBfloat16), items);
  const auto singles = convert<float>(cast(from, ItemType::kFloat32), items);
  const auto doubles = convert<double>(cast(from, ItemType::kFloat64), items);
  for (size_t i = 0; i < items.size(); ++i) {
    const auto exact = static_cast<long double>(items[i]);
    CHECK_EQ(halves[i], kHalf.nearest(exact));
    CHECK_EQ(brains[i], kBrain.nearest(exact));
    CHECK_EQ(singles[i], static_cast<float>(exact));
    CHECK_EQ(doubles[i], static_cast<double>(exact));
  }
}

}  // namespace

TEST(every_16_bit_float_becomes_the_number_that_it_is) {
  for (const Short& type : {kHalf, kBrain}) {
    const std::vector<uint16_t> items = all_patterns();
    const auto singles = convert<float>(cast(type.type, ItemType::kFloat32), items);
    const auto doubles = convert<double>(cast(type.type, ItemType::kFloat64), items);
    for (const uint16_t bits : items) {
      const Context context(show(type.type) + " bits " + show(bits));
      const double value = type.value(bits);
      CHECK_EQ(std::isnan(singles[bits]), std::isnan(value));
      CHECK_EQ(std::isnan(doubles[bits]), std::isnan(value));
      CHECK_EQ(std::signbit(singles[bits]), std::signbit(value));
      CHECK_EQ(std::signbit(doubles[bits]), std::signbit(value));
      if (std::isnan(value)) continue;
      CHECK_EQ(static_cast<double>(singles[bits]), value);
      CHECK_EQ(doubles[bits], value);
    }
  }
}

TEST(floats_become_the_nearest_16_bit_float_and_of_two_the_even_one) {
  std::mt19937_64 random(1);
  std::vector<float> singles;
  std::vector<double> doubles;
  for (int i = 0; i < draws(100000); ++i) {
    singles.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    doubles.push_back(std::bit_cast<double>(random()));
    // those that a short float can hold, or nearly; ilogb of what is no number has no negative
    const double any = doubles.back();
    const int exponent = std::isfinite(any) && any != 0 ? std::ilogb(any) : 0;
    doubles.push_back(std::ldexp(any, 10 - exponent - static_cast<int>(random() % 150)));
  }
  for (const uint64_t nan : {0x7ff0000000000001, 0x7ff8000000000000, 0x7fffffffffffffff}) {
    doubles.push_back(std::bit_cast<double>(nan));
    doubles.push_back(-doubles.back());
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0x7f80ffffu}) {
    singles.push_back(std::bit_cast<float>(nan));
    singles.push_back(-singles.back());
  }
  for (const Short& type : {kHalf, kBrain}) {
    const Context context("to " + show(type.type));
    check_rounding(type, ItemType::kFloat32, singles);
    check_rounding(type, ItemType::kFloat64, doubles);
    check_rounding(type, ItemType::kFloat32, delicate<float>(type));
    check_rounding(type, ItemType::kFloat64, delicate<double>(type));
  }
}

TEST(one_16_bit_float_becomes_the_other_by_one_rounding) {
  for (const auto& [from, to] : {std::pair{kHalf, kBrain}, std::pair{kBrain, kHalf}}) {
    const std::vector<uint16_t> items = all_patterns();
    const auto got = convert<uint16_t>(cast(from.type, to.type), items);
    for (const uint16_t bits : items) {
      const double value = from.value(bits);
      if (std::isnan(value)) {
        CHECK(std::isnan(to.value(got[bits])));
      } else {
        CHECK_EQ(got[bits], to.nearest(value));
      }
    }
  }
}

TEST(float32_and_float64_become_each_other_as_the_processor_does_it) {
  std::mt19937_64 random(2);
  std::vector<double> doubles;
  std::vector<float> expected;
  for (int i = 0; i < draws(10000); ++i) {
    doubles.push_back(std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 400) - 250));
    expected.push_back(static_cast<float>(doubles.back()));
  }
  CHECK(same_bits(convert<float>(cast(ItemType::kFloat64, ItemType::kFloat32), doubles), expected));
  const std::vector<double> widened(expected.begin(), expected.end());
  CHECK(same_bits(convert<double>(cast(ItemType::kFloat32, ItemType::kFloat64), expected), widened));
}

TEST(integers_become_the_nearest_float_by_one_rounding) {
  check_ints_to_floats<int8_t>(ItemType::kInt8);
  check_ints_to_floats<uint8_t>(ItemType::kUint8);
  check_ints_to_floats<int16_t>(ItemType::kInt16);
  check_ints_to_floats<uint16_t>(ItemType::kUint16);
  check_ints_to_floats<int32_t>(ItemType::kInt32);
  check_ints_to_floats<uint32_t>(ItemType::kUint32);
  check_ints_to_floats<int64_t>(ItemType::kInt64);
  check_ints_to_floats<uint64_t>(ItemType::kUint64);
  CHECK_EQ(convert<float>(cast(ItemType::kBool, ItemType::kFloat32), std::vector<uint8_t>{0, 1, 2, 255}),
           (std::vector<float>{0, 1, 1, 1}));
}

TEST(integers_become_integers_only_where_nothing_is_lost) {
  const auto range = [](ItemType type) -> std::pair<long double, long double> {
    if (type == ItemType::kBool) return {0, 1};
    const bool is_signed = static_cast<int>(type) % 2 == 1;
    const int bits = static_cast<int>(bytes_of(type)) * 8 - (is_signed ? 1 : 0);
    return {is_signed ? -std::ldexp(1.0L, bits) : 0.0L, std::ldexp(1.0L, bits) - 1};
  };
  for (const ItemType from : kInts) {
    for (const ItemType to : kInts) {
      const Context context(show(from) + " to " + show(to));
      const bool is_bytes = to == ItemType::kBool && bytes_of(from) == 1;
      if (is_bytes || (range(to).first <= range(from).first && range(from).second <= range(to).second)) {
        CHECK_EQ(Converter(cast(from, to)).dest_item_bytes(), bytes_of(to));
      } else {
        CHECK_THROWS(kUnsupported, "would lose values", Converter(cast(from, to)));
      }
    }
  }
  for (const ItemType from : kFloats) {
    for (const ItemType to : kInts) CHECK_THROWS(kUnsupported, "would lose values", Converter(cast(from, to)));
  }
  const std::vector<int8_t> items = {-128, -1, 0, 1, 127};
  CHECK_EQ(convert<int64_t>(cast(ItemType::kInt8, ItemType::kInt64), items),
           (std::vector<int64_t>{-128, -1, 0, 1, 127}));
  CHECK_EQ(convert<uint8_t>(cast(ItemType::kInt8, ItemType::kBool), items), (std::vector<uint8_t>{1, 1, 0, 1, 1}));
}

TEST(arithmetic_is_what_the_header_says_in_float32_and_in_float64) {
  std::mt19937_64 random(5);
  for (const size_t channel_items : {size_t{1}, size_t{3}, size_t{63}, size_t{64}, size_t{1000}, size_t{5000}}) {
    for (const bool in_double : {false, true}) {
      for (const size_t channels : {size_t{0}, size_t{1}, size_t{5}}) {
        ConversionSpec spec = cast(ItemType::kInt16, ItemType::kFloat32);
        spec.decode_in_double = in_double;
        spec.fills = {-7, 0.5, 3};
        if (random() % 3 != 0) spec.scale = 0.1;
        if (random() % 3 != 0) spec.offset = 273.15;
        if (channels > 0) spec.steps = {{StepKind::kNormalize, {}, {}, channel_items}};
        for (size_t i = 0; i < channels; ++i) {
          spec.steps[0].first.push_back(0.3 * static_cast<double>(i));
          spec.steps[0].second.push_back(1.7 + static_cast<double>(i));
        }
        std::vector<int16_t> items(3 * Converter::kBlock + 17);
        for (auto& item : items) item = static_cast<int16_t>(random() % 40 - 20);
        const size_t position = random() % 3000;
        const auto got = convert<float>(spec, items, position);
        const auto expect = [&]<typename Real>(Real x, size_t channel) {
          if (x == -7 || x == 3) x = std::numeric_limits<Real>::quiet_NaN();
          if (spec.scale) x = static_cast<Real>(x * static_cast<Real>(*spec.scale));
          if (spec.offset) x = static_cast<Real>(x + static_cast<Real>(*spec.offset));
          if (channels > 0) {
            const auto& [kind, mean, std, run] = spec.steps[0];
            x = static_cast<Real>((x - static_cast<Real>(mean[channel])) / static_cast<Real>(std[channel]));
          }
          return static_cast<float>(x);
        };
        for (size_t i = 0; i < items.size(); ++i) {
          const size_t channel = channels == 0 ? 0 : (position + i) / channel_items % channels;
          volatile float single = static_cast<float>(items[i]);  // so that nothing is worked out in more precision
          const float expected =
              in_double ? expect(static_cast<double>(items[i]), channel) : expect(static_cast<float>(single), channel);
          if (std::isnan(expected)) {
            CHECK(std::isnan(got[i]));
          } else {
            CHECK_EQ(got[i], expected);
          }
        }
      }
    }
  }
}

TEST(any_number_of_items_becomes_the_same_in_one_loop_and_item_by_item) {
  std::mt19937_64 random(8);
  for (const ItemType from :
       {ItemType::kInt8, ItemType::kUint8, ItemType::kInt16, ItemType::kUint16, ItemType::kInt32, ItemType::kFloat32}) {
    for (const ItemType to : {ItemType::kFloat32, ItemType::kFloat16, ItemType::kBfloat16}) {
      for (const bool unpacks : {false, true}) {
        ConversionSpec spec = cast(from, to);
        spec.decode_in_double = random() % 2 == 0;
        if (unpacks) {
          spec.fills = {7};
          spec.scale = 0.1;
          spec.offset = 273.15;
        }
        spec.steps = {normalised(12.5, 3.7)};
        const size_t bytes = bytes_of(to);
        std::vector<uint8_t> source(300 * bytes_of(from));
        for (uint8_t& byte : source) byte = static_cast<uint8_t>(random() % 4 == 0 ? 7 : random());
        std::vector<uint8_t> expected(300 * bytes);
        const Converter reference(spec, Isa::kBase);
        for (size_t i = 0; i < 300; ++i) {
          reference.convert(expected.data() + i * bytes, source.data() + i * bytes_of(from), 1, 0);
        }
        for (const Isa isa : {Isa::kBase, Isa::kAvx2, Isa::kAvx512}) {
          if (isa > best_isa()) continue;
          const Context context(show(from) + " to " + show(to) + ", instruction set " + show(isa));
          const Converter converter(spec, isa);
          for (size_t count = 0; count <= 300; count += 1 + count / 70) {
            std::vector<uint8_t> out(300 * bytes, 0xab);
            converter.convert(out.data(), source.data(), count, 0);
            const auto end = out.begin() + static_cast<std::ptrdiff_t>(count * bytes);
            CHECK(std::equal(out.begin(), end, expected.begin()));
            CHECK(std::all_of(end, out.end(), [](uint8_t byte) { return byte == 0xab; }));
          }
        }
      }
    }
  }
}

TEST(what_float32_cannot_hold_is_calculated_in_float64) {
  ConversionSpec spec = cast(ItemType::kInt32, ItemType::kFloat32);
  spec.steps = {normalised(16777216, 1)};
  CHECK_EQ(convert<float>(spec, std::vector<int32_t>{16777217, 16777219}), (std::vector<float>{1, 3}));
  spec = cast(ItemType::kFloat32, ItemType::kFloat64);
  spec.steps = {normalised(0, 3)};
  CHECK_EQ(convert<double>(spec, std::vector<float>{1}), (std::vector<double>{1.0 / 3}));
  spec = cast(ItemType::kUint32, ItemType::kFloat32);
  spec.fills = {4294967295};
  const auto out = convert<float>(spec, std::vector<uint32_t>{4294967294, 4294967295});
  CHECK(!std::isnan(out[0]));
  CHECK(std::isnan(out[1]));
}

TEST(a_fill_value_that_is_no_value_of_the_items_matches_nothing) {
  ConversionSpec spec = cast(ItemType::kFloat32, ItemType::kFloat32);
  spec.fills = {-9999.9, std::numeric_limits<double>::quiet_NaN(), 1e300};
  const std::vector<float> items = {-9999.9f, 1, std::numeric_limits<float>::infinity()};
  CHECK(same_bits(convert<float>(spec, items), items));
}

TEST(items_with_any_alignment_are_converted) {
  std::mt19937_64 random(6);
  for (const ItemType from : kInts) {
    for (const ItemType to : kFloats) {
      const Converter converter(cast(from, to));
      const size_t count = 2 * Converter::kBlock + 5;
      std::vector<uint8_t> source(count * bytes_of(from));
      for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
      std::vector<uint8_t> expected(count * bytes_of(to));
      converter.convert(expected.data(), source.data(), count, 0);
      std::vector<uint8_t> shifted(source.size() + 1);
      std::copy(source.begin(), source.end(), shifted.begin() + 1);
      std::vector<uint8_t> out(expected.size() + 1);
      converter.convert(out.data() + 1, shifted.data() + 1, count, 0);
      CHECK(std::equal(expected.begin(), expected.end(), out.begin() + 1));
    }
  }
}

TEST(boxes_write_what_their_samples_become) {
  std::mt19937_64 random(7);
  for (int turn = 0; turn < draws(400); ++turn) {
    ArraySpec array;
    const auto ndim = static_cast<size_t>(pick(random, 1, 4));
    std::vector<int64_t> grid;
    for (size_t axis = 0; axis < ndim; ++axis) {
      array.shape.push_back(pick(random, 1, random() % 8 == 0 ? 60 : 7));
      array.chunk_shape.push_back(random() % 3 == 0 ? array.shape.back() : pick(random, 1, 9));
      array.storage_order.push_back(static_cast<int>(axis));
      grid.push_back((array.shape.back() - 1) / array.chunk_shape.back() + 1);
    }
    if (random() % 3 == 0) std::shuffle(array.storage_order.begin(), array.storage_order.end(), random);
    array.sample_axis = static_cast<int>(random() % ndim);
    array.item_bytes = 2;
    array.swap_bytes = random() % 2 == 0 ? 2 : 0;
    array.fill = {1, 2};
    if (random() % 2 == 0) array.fill = {1, 2, 3, 4, 5, 6};  // a pattern of three items
    size_t chunk_items = 1, sample_items = 1;
    for (size_t axis = 0; axis < ndim; ++axis) {
      chunk_items *= static_cast<size_t>(array.chunk_shape[axis]);
      if (static_cast<int>(axis) != array.sample_axis) sample_items *= static_cast<size_t>(array.shape[axis]);
    }
    ConversionSpec spec = cast(ItemType::kInt16, kFloats[random() % 4]);
    spec.scale = 0.5;
    const auto channels = static_cast<size_t>(pick(random, 1, 4));
    spec.steps = {{StepKind::kNormalize, {}, {}, static_cast<size_t>(pick(random, 1, 100))}};
    for (size_t i = 0; i < channels; ++i) {
      spec.steps[0].first.push_back(static_cast<double>(i));
      spec.steps[0].second.push_back(static_cast<double>(i + 1));
    }
    const Converter converter(spec);

    std::vector<uint8_t> plain(sample_items * 2), plain_fill(sample_items * 2);
    std::vector<uint8_t> got(sample_items * converter.dest_item_bytes()), got_fill(got.size());
    size_t box_bytes = 0;
    std::vector<int64_t> cell(ndim, 0);
    for (bool is_done = false; !is_done;) {
      std::vector<uint8_t> chunk(chunk_items * 2);
      for (uint8_t& byte : chunk) byte = static_cast<uint8_t>(random());
      const GuardedBytes guarded(chunk);
      const int64_t row = pick(random, 0, array.chunk_shape[static_cast<size_t>(array.sample_axis)] - 1);
      const BoxCopy box(array, cell, &converter);
      const RowTarget to_plain[] = {{row, plain.data()}}, to_got[] = {{row, got.data()}};
      const RowTarget to_plain_fill[] = {{0, plain_fill.data()}}, to_got_fill[] = {{0, got_fill.data()}};
      BoxCopy(array, cell).copy_rows(guarded.span().data(), to_plain);
      box.copy_rows(guarded.span().data(), to_got, random() % 2 == 0);
      BoxCopy(array, cell).fill_rows(to_plain_fill);
      box.fill_rows(to_got_fill);
      CHECK(!box.is_plain());
      box_bytes += box.bytes();
      is_done = true;
      for (size_t axis = ndim; is_done && axis-- > 0;) {
        if (static_cast<int>(axis) == array.sample_axis) continue;
        is_done = ++cell[axis] == grid[axis];
        if (is_done) cell[axis] = 0;
      }
    }
    std::vector<uint8_t> expected(got.size()), expected_fill(got.size());
    converter.convert(expected.data(), plain.data(), sample_items, 0);
    converter.convert(expected_fill.data(), plain_fill.data(), sample_items, 0);
    const Context context("shape " + show(array.shape) + " chunks " + show(array.chunk_shape));
    CHECK_EQ(box_bytes, got.size());
    CHECK(got == expected);
    CHECK(got_fill == expected_fill);
  }
}

}  // namespace zarrfeed::testing::convert_test
