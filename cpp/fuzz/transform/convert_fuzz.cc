// Conversion of items: any two types, any constants, any bytes, indices and alignments.
//
// What must hold: what becomes of an item depends on the item and its position alone, and not on how many are converted
// at once, nor on alignment; float32 and float64 are what the definition in types.h gives, step by step; nothing outside
// of source and destination is read or written.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>

#include "base/bytes.h"
#include "fuzz/support/fuzz.h"
#include "spec/conversion_spec.h"
#include "tests/support/check.h"
#include "tests/support/decoding.h"
#include "tests/support/guarded_bytes.h"
#include "transform/convert/convert.h"

namespace zarrfeed::fuzzing::convert_fuzz {
namespace {

using testing::GuardedBytes;

constexpr int64_t kNumTypes = 13;
constexpr double kTelling[] = {0.0,
                               -0.0,
                               1.0,
                               -1.0,
                               255.0,
                               -32768.0,
                               -9999.0,
                               0.1,
                               1e-40,
                               1e300,
                               std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN(),
                               9223372036854775807.0,
                               65504.0,
                               0x1p-24,
                               0x1p-1074};

constexpr StepKind kSteps[] = {StepKind::kNormalize, StepKind::kClip, StepKind::kFillNan, StepKind::kIsNan,
                               StepKind::kLog1p,     StepKind::kLog,  StepKind::kSqrt,    StepKind::kExp};

double draw_number(Draw& draw) {
  return draw.coin() ? std::bit_cast<double>(draw.word64()) : draw.one_of(kTelling);
}

ConversionSpec draw_spec(Draw& draw) {
  ConversionSpec spec;
  spec.from = static_cast<ItemType>(draw.pick(0, kNumTypes - 1));
  spec.to = static_cast<ItemType>(draw.pick(0, kNumTypes - 1));
  spec.decode_in_double = draw.coin();
  const int64_t fills = draw.pick(0, 3);
  for (int64_t i = 0; i < fills; ++i) spec.fills.push_back(draw_number(draw));
  if (draw.coin()) spec.scale = draw_number(draw);
  if (draw.coin()) spec.offset = draw_number(draw);
  const int64_t steps = draw.pick(0, 3);
  for (int64_t n = 0; n < steps; ++n) {
    ValueStep& step = spec.steps.emplace_back();
    step.kind = draw.one_of(kSteps);
    const int64_t channels = draw.pick(0, 5);
    for (int64_t i = 0; i < channels; ++i) {
      step.first.push_back(draw_number(draw));
      step.second.push_back(draw_number(draw));
    }
    step.channel_items = static_cast<size_t>(draw.pick(0, 300));
  }
  return spec;
}

template <typename T>
T load(const uint8_t* from) {
  T item;
  std::memcpy(&item, from, sizeof(T));
  return item;
}

/// An item as a number of the arithmetic; false for types that only convert.cc knows to read.
template <typename Real>
bool load_as(ItemType type, const uint8_t* item, Real& out) {
  switch (type) {
    case ItemType::kBool:
      out = static_cast<Real>(*item != 0 ? 1 : 0);
      return true;
    case ItemType::kInt8:
      out = static_cast<Real>(load<int8_t>(item));
      return true;
    case ItemType::kUint8:
      out = static_cast<Real>(*item);
      return true;
    case ItemType::kInt16:
      out = static_cast<Real>(load<int16_t>(item));
      return true;
    case ItemType::kUint16:
      out = static_cast<Real>(load<uint16_t>(item));
      return true;
    case ItemType::kInt32:
      out = static_cast<Real>(load<int32_t>(item));
      return true;
    case ItemType::kUint32:
      out = static_cast<Real>(load<uint32_t>(item));
      return true;
    case ItemType::kInt64:
      out = static_cast<Real>(load<int64_t>(item));
      return true;
    case ItemType::kUint64:
      out = static_cast<Real>(load<uint64_t>(item));
      return true;
    case ItemType::kFloat32:
      out = static_cast<Real>(load<float>(item));
      return true;
    case ItemType::kFloat64:
      out = static_cast<Real>(load<double>(item));
      return true;
    default:
      return false;
  }
}

bool is_function(const ValueStep& step) {
  return step.kind == StepKind::kLog1p || step.kind == StepKind::kLog || step.kind == StepKind::kSqrt ||
         step.kind == StepKind::kExp;
}

/// The value after a step by the definition; functions have an oracle of their own in value_steps_test.cc.
template <typename Real>
Real after_step(const ValueStep& step, Real item, size_t position) {
  const size_t channel = step.first.size() == 1 ? 0 : position / step.channel_items % step.first.size();
  const auto a = static_cast<Real>(step.first[channel]);
  const auto b = static_cast<Real>(step.second[channel]);
  volatile Real x = item;
  switch (step.kind) {
    case StepKind::kNormalize:
      x = x - a;
      x = x / b;
      break;
    case StepKind::kClip:
      if (x < a) x = a;
      if (x > b) x = b;
      break;
    case StepKind::kFillNan:
      if (std::isnan(x)) x = a;
      break;
    case StepKind::kIsNan:
      x = std::isnan(x) ? Real{1} : Real{0};
      break;
    default:
      break;
  }
  return x;
}

/// One item by the definition; volatile keeps every rounding apart.
template <typename Real>
Real calculate(const ConversionSpec& spec, Real item, size_t position) {
  volatile Real x = item;
  for (const double fill : spec.fills) {
    if (static_cast<double>(static_cast<Real>(fill)) == fill && item == static_cast<Real>(fill)) {
      x = std::numeric_limits<Real>::quiet_NaN();
    }
  }
  if (spec.scale) x = x * static_cast<Real>(*spec.scale);
  if (spec.offset) x = x + static_cast<Real>(*spec.offset);
  for (const ValueStep& step : spec.steps) x = after_step<Real>(step, x, position);
  return x;
}

bool fits_float(ItemType type) {
  return type == ItemType::kFloat32 || bytes_of(type) <= 2;
}

bool equal_number(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

void check_definition(const ConversionSpec& spec, const uint8_t* item, const uint8_t* got, size_t position) {
  if (std::ranges::any_of(spec.steps, is_function)) return;
  const bool calculates = !spec.fills.empty() || spec.scale || spec.offset || !spec.steps.empty();
  const bool in_double =
      spec.decode_in_double || spec.to == ItemType::kFloat64 || (!fits_float(spec.from) && calculates);
  double expected = 0;
  if (in_double) {
    double x = 0;
    if (!load_as(spec.from, item, x)) return;
    expected = calculate(spec, x, position);
  } else {
    float x = 0;
    if (!load_as(spec.from, item, x)) return;
    expected = static_cast<double>(calculate(spec, x, position));
  }
  if (spec.to == ItemType::kFloat32) {
    CHECK(equal_number(static_cast<double>(load<float>(got)), static_cast<double>(static_cast<float>(expected))));
  } else if (spec.to == ItemType::kFloat64) {
    CHECK(equal_number(load<double>(got), expected));
  }
}

/// Bytes that are the same, or two NaN.
bool same_item(ItemType type, const uint8_t* a, const uint8_t* b) {
  const size_t size = bytes_of(type);
  if (std::equal(a, a + size, b)) return true;
  if (type == ItemType::kFloat32) return std::isnan(load<float>(a)) && std::isnan(load<float>(b));
  if (type == ItemType::kFloat64) return std::isnan(load<double>(a)) && std::isnan(load<double>(b));
  const int infinity = type == ItemType::kFloat16 ? 0x7c00 : 0x7f80;
  if (type != ItemType::kFloat16 && type != ItemType::kBfloat16) return false;
  return (load<uint16_t>(a) & 0x7fff) > infinity && (load<uint16_t>(b) & 0x7fff) > infinity;
}

void run_input(Bytes input) {
  Draw draw(input);
  const ConversionSpec spec = draw_spec(draw);
  const auto count = static_cast<size_t>(draw.pick(0, 7) == 7 ? draw.pick(0, 2600) : draw.pick(0, 70));
  const auto position = static_cast<size_t>(draw.pick(0, 5000));
  const uint8_t seed = draw.byte();
  const Bytes given = draw.rest();
  try {
    const Converter converter(spec);
    const size_t from = converter.source_item_bytes();
    const size_t to = converter.dest_item_bytes();
    ByteVector content = testing::noise(count * from, seed);
    std::copy_n(given.begin(), std::min(given.size(), content.size()), content.begin());
    const GuardedBytes source(content);
    const GuardedBytes dest(count * to);
    converter.convert(dest.span().data(), source.span().data(), count, position);
    CHECK(source.is_untouched_before() && dest.is_untouched_before());
    CHECK(std::equal(content.begin(), content.end(), source.span().begin()));
    // One by one, at another alignment; not all of many.
    const size_t stride = count > 200 ? 7 : 1;
    for (size_t i = 0; i < count; i += stride) {
      uint8_t one[9] = {};
      converter.convert(one + 1, &content[i * from], 1, position + i);
      CHECK(same_item(spec.to, one + 1, &dest.span()[i * to]));
      check_definition(spec, &content[i * from], one + 1, position + i);
    }
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kConfig);
  }
}

std::vector<ByteVector> make_seeds() {
  std::vector<ByteVector> seeds;
  for (int64_t from = 0; from < kNumTypes; ++from) {
    for (int64_t to = 0; to < kNumTypes; ++to) {
      const int64_t number = from * kNumTypes + to;
      Pen pen;
      pen.pick(from, 0, kNumTypes - 1).pick(to, 0, kNumTypes - 1).byte(number % 5 == 0 ? 1 : 0);
      const bool calculates = number % 2 == 0;
      const int64_t fills = calculates ? number % 3 : 0;
      pen.pick(fills, 0, 3);
      for (int64_t i = 0; i < fills; ++i) pen.byte(0).pick(4 + i, 0, 15);
      for (int64_t i = 0; i < 2; ++i) {  // scale, offset
        const bool given = calculates && (number / 4 + i) % 2 == 0;
        pen.byte(given ? 1 : 0);
        if (given) pen.byte(1).word64(std::bit_cast<uint64_t>(0.25 + static_cast<double>(i)));
      }
      const int64_t channels = calculates ? number / 2 % 6 : 0;
      pen.pick(channels, 0, 5);
      for (int64_t i = 0; i < channels; ++i) pen.byte(0).pick(i, 0, 15).byte(0).pick(7 - i, 0, 15);
      pen.pick(1 + number % 3 * 70, 0, 300);
      if (number % 4 == 0) {
        pen.pick(7, 0, 7).pick(2000, 0, 2600);
      } else {
        pen.pick(0, 0, 7).pick(number % 71, 0, 70);
      }
      seeds.push_back(
          pen.pick(number * 7, 0, 5000).byte(static_cast<uint8_t>(number)).bytes(ByteVector(16, 0xff)).input());
    }
  }
  return seeds;
}

std::vector<Finding> findings() {
  return {
      {"means of channels of no items divided by zero",
       "020a1800000101000000000000f43f0201005f24027407d007fc0024ff00"
       "000000f4ffffff001e00010000ffffffffffffffffffffffffffff"},
  };
}

const Target target("convert", run_input, make_seeds, findings, kQuickChanges);

}  // namespace
}  // namespace zarrfeed::fuzzing::convert_fuzz
