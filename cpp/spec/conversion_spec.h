#pragma once
// The conversion of the items of a field on the way to their batch.

#include <cstddef>
#include <optional>
#include <vector>

namespace zarrfeed {

/// The kind of an item. `kBool` is a byte, true unless 0.
enum class ItemType {
  kBool,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64
};

/// The result of a step for a value x, given the numbers a and b of its channel. Functions leave x alone where a is 0.
enum class StepKind {
  kNormalize,  ///< (x - a) / b: by mean and standard deviation, or by minimum and range
  kClip,       ///< x, but at least a and at most b; NaN stays NaN
  kFillNan,    ///< a where x is NaN; an a of NaN leaves x alone
  kIsNan,      ///< 1 where x is NaN, else 0
  kLog1p,      ///< log(1 + x)
  kLog,        ///< natural logarithm
  kSqrt,       ///< square root
  kExp         ///< e^x
};

/// One of the steps that follow decoding.
struct ValueStep {
  StepKind kind = StepKind::kNormalize;
  std::vector<double> first;   ///< a: one for all items, or one a channel, which may be an item
  std::vector<double> second;  ///< b: as many
  size_t channel_items = 1;    ///< items of a sample that follow each other in one channel, in C order
};

/// The conversion of the items of a field:
///
///     x = item                              in float32 or float64, see below
///     x = NaN where x is one of `fills`
///     x = x * scale + offset                two roundings, never fused
///     x = step(x)                           for each of `steps`, in their order
///     item of type `to` = x                 rounded to nearest, ties to even; NaN stays NaN, too large is infinite
///
/// The arithmetic is that of float64 if float32 cannot hold every stored value, `to` is float64, or a step is a logarithm, a
/// root or an exponential; else of float32. A mere cast is rounded once, whatever the types. Integers become other integers
/// only where nothing is lost; values become bool (whether they are not 0) behind kIsNan alone.
struct ConversionSpec {
  ItemType from = ItemType::kFloat32;
  ItemType to = ItemType::kFloat32;
  bool decode_in_double = false;  ///< calculate in float64 in any case
  std::vector<double> fills;
  std::optional<double> scale;
  std::optional<double> offset;
  std::vector<ValueStep> steps;
};

}  // namespace zarrfeed
