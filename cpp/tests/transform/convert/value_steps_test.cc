// Steps of a Converter, in any sequence and for any channels, against each step by itself and against libm.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "spec/conversion_spec.h"
#include "tests/support/check.h"
#include "tests/support/plans.h"
#include "transform/convert/convert.h"
#include "transform/convert/isa.h"

namespace zarrfeed::testing::value_steps_test {
namespace {

constexpr StepKind kFunctions[] = {StepKind::kLog1p, StepKind::kLog, StepKind::kSqrt, StepKind::kExp};
constexpr StepKind kPlain[] = {StepKind::kNormalize, StepKind::kClip, StepKind::kFillNan, StepKind::kIsNan};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
std::vector<T> converted(const ConversionSpec& spec, const std::vector<T>& items, Isa isa, size_t position) {
  std::vector<T> out(items.size());
  const Converter converter(spec, isa);
  converter.convert(reinterpret_cast<uint8_t*>(out.data()), reinterpret_cast<const uint8_t*>(items.data()),
                    items.size(), position);
  return out;
}

/// What every instruction set of this processor makes of the items: the same bits.
template <typename T>
std::vector<T> after(const std::vector<ValueStep>& steps, const std::vector<T>& items, size_t position = 0) {
  ConversionSpec spec;
  spec.from = spec.to = sizeof(T) == 8 ? ItemType::kFloat64 : ItemType::kFloat32;
  spec.steps = steps;
  const std::vector<T> out = converted(spec, items, Isa::kBase, position);
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    const std::vector<T> same = converted(spec, items, isa, position);
    CHECK(std::memcmp(same.data(), out.data(), out.size() * sizeof(T)) == 0);
  }
  return out;
}

ValueStep plain(StepKind kind, double first = 1, double second = 1) {
  return {kind, {first}, {second}, 1};
}

long double by_libm(StepKind kind, long double x) {
  if (kind == StepKind::kLog1p) return std::log1p(x);
  if (kind == StepKind::kLog) return std::log(x);
  return kind == StepKind::kSqrt ? std::sqrt(x) : std::exp(x);
}

/// Numbers of all sizes, those where the functions are delicate, and what is no number.
std::vector<double> numbers(std::mt19937_64& random, size_t count) {
  std::vector<double> out = {
      0.0,       -0.0,       1,          -1,      kInfinity,        -kInfinity, std::nan(""),
      0x1p-1074, 0x1p-1022,  -0x1p-1074, 0x1p-53, 709.782712893384, 709.79,     -745.1332191019411,
      -745.2,    -0x1.fp-53, 0x1.fp+1023};
  std::normal_distribution<double> normal;
  while (out.size() < count) {
    out.push_back(std::bit_cast<double>(random()));
    out.push_back(normal(random));
    out.push_back(1 + normal(random) * 0x1p-20);
    out.push_back(300 * normal(random));
    out.push_back(std::exp(100 * normal(random)) - 1);
  }
  return out;
}

bool same_number(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

}  // namespace

TEST(functions_are_within_one_unit_in_the_last_place_on_every_instruction_set) {
  std::mt19937_64 random(1);
  const std::vector<double> items = numbers(random, static_cast<size_t>(draws(100'000)));
  for (const StepKind kind : kFunctions) {
    const std::vector<double> out = after({plain(kind)}, items);
    for (size_t i = 0; i < items.size(); ++i) {
      const long double exact = by_libm(kind, static_cast<long double>(items[i]));
      const auto nearest = static_cast<double>(exact);
      const Context context("function " + std::to_string(static_cast<int>(kind)) + " of " + std::to_string(items[i]));
      if (std::isnan(nearest) || std::isinf(nearest) || nearest == 0) {
        CHECK(same_number(out[i], nearest));
      } else {
        const double unit = std::nextafter(std::abs(nearest), kInfinity) - std::abs(nearest);
        CHECK(std::isfinite(out[i]));
        CHECK(std::abs(static_cast<long double>(out[i]) - exact) <= static_cast<long double>(unit));
      }
    }
  }
}

TEST(float32_items_become_the_float64_result_rounded_once) {
  std::mt19937_64 random(2);
  std::vector<float> items(50'000);
  for (float& item : items) item = std::bit_cast<float>(static_cast<uint32_t>(random()));
  const std::vector<double> wide(items.begin(), items.end());
  for (const StepKind kind : kFunctions) {
    const std::vector<ValueStep> steps = {plain(kind), plain(StepKind::kNormalize, 0.3, 7),
                                          plain(StepKind::kClip, -2, 9)};
    const std::vector<float> out = after(steps, items);
    const std::vector<double> expected = after(steps, wide);
    for (size_t i = 0; i < items.size(); ++i) {
      CHECK(same_number(static_cast<double>(out[i]), static_cast<double>(static_cast<float>(expected[i]))));
    }
  }
}

TEST(a_sequence_is_its_steps_one_after_another_for_any_channels) {
  std::mt19937_64 random(3);
  for (int turn = 0; turn < draws(200); ++turn) {
    const std::vector<double> items = numbers(random, 2200);
    const auto position = random() % 5000;
    std::vector<ValueStep> steps;
    std::vector<double> expected = items;
    for (auto n = pick(random, 1, 4); n > 0; --n) {
      const bool is_function = random() % 2 == 0;
      ValueStep step;
      step.kind = is_function ? kFunctions[random() % 4] : kPlain[random() % 4];
      step.channel_items = static_cast<size_t>(pick(random, 1, random() % 2 == 0 ? 5 : 900));
      for (auto channels = pick(random, 1, 5); channels > 0; --channels) {
        step.first.push_back(is_function ? static_cast<double>(random() % 2) : static_cast<double>(random() % 9));
        step.second.push_back(static_cast<double>(10 + random() % 9));
      }
      steps.push_back(step);
      // Each item by a step that has the numbers of its channel alone.
      for (size_t i = 0; i < expected.size(); ++i) {
        const size_t channel = (position + i) / step.channel_items % step.first.size();
        if (is_function && step.first[channel] == 0) continue;
        ConversionSpec spec;
        spec.from = spec.to = ItemType::kFloat64;
        spec.steps = {plain(step.kind, step.first[channel], step.second[channel])};
        expected[i] = converted(spec, std::vector<double>{expected[i]}, Isa::kBase, 0)[0];
      }
    }
    const std::vector<double> out = after(steps, items, position);
    for (size_t i = 0; i < items.size(); ++i) CHECK(same_number(out[i], expected[i]));
  }
}

TEST(plain_steps_are_what_the_header_says) {
  const double nan = std::nan("");
  const std::vector<float> items = {-3, -0.0F, 2, 7, std::numeric_limits<float>::infinity(), std::nanf("")};
  const auto check = [&](const ValueStep& step, const std::vector<double>& expected) {
    const std::vector<float> out = after({step}, items);
    for (size_t i = 0; i < items.size(); ++i) CHECK(same_number(static_cast<double>(out[i]), expected[i]));
  };
  check(plain(StepKind::kClip, -1, 5), {-1, -0.0, 2, 5, 5, nan});
  check(plain(StepKind::kClip, -kInfinity, 5), {-3, -0.0, 2, 5, 5, nan});
  check(plain(StepKind::kFillNan, 9), {-3, -0.0, 2, 7, kInfinity, 9});
  check(plain(StepKind::kFillNan, nan), {-3, -0.0, 2, 7, kInfinity, nan});
  check(plain(StepKind::kIsNan), {0, 0, 0, 0, 0, 1});
  check(plain(StepKind::kNormalize, 2, 4), {-1.25, -0.5, 0, 1.25, kInfinity, nan});
}

TEST(values_become_bool_behind_is_nan_alone) {
  ConversionSpec spec;
  spec.from = ItemType::kFloat32;
  spec.to = ItemType::kBool;
  spec.steps = {plain(StepKind::kLog), plain(StepKind::kIsNan)};
  const std::vector<float> items = {-1, 0, 1, std::nanf("")};
  std::vector<uint8_t> out(items.size());
  Converter(spec).convert(out.data(), reinterpret_cast<const uint8_t*>(items.data()), items.size(), 0);
  CHECK_EQ(out, (std::vector<uint8_t>{1, 0, 0, 1}));
  spec.steps.pop_back();
  CHECK_THROWS(kUnsupported, "would lose values", Converter(spec));
  spec.to = ItemType::kFloat32;
  spec.steps = {{StepKind::kClip, {1, 2}, {3}, 1}};
  CHECK_THROWS(kConfig, "lacks some of its numbers", Converter(spec));
}

}  // namespace zarrfeed::testing::value_steps_test
