#pragma once
// What becomes of the items of a field on the way to their batch.

#include <cstddef>
#include <optional>
#include <vector>

namespace zarrfeed {

/// What an item is. `kBool` is a byte, true unless 0.
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

/// What becomes of the items of a field:
///
///     x = item                              in float32 or float64, see `decode_in_double`
///     x = NaN where x is one of `fills`
///     x = x * scale + offset                two roundings, never fused
///     x = (x - mean) / std                  of the item's channel
///     item of type `to` = x                 rounded to nearest, ties to even; NaN stays NaN, too large is infinite
///
/// The arithmetic is that of float64 if float32 cannot hold every stored value, or `to` is float64; else of float32. A mere
/// cast is rounded once, whatever the types. Integers become other integers only where nothing is lost.
struct ConversionSpec {
  ItemType from = ItemType::kFloat32;
  ItemType to = ItemType::kFloat32;
  bool decode_in_double = false;  ///< calculate in float64 in any case
  std::vector<double> fills;
  std::optional<double> scale;
  std::optional<double> offset;
  std::vector<double> mean;  ///< one for all items, or one a channel, which may be an item; empty: not normalised
  std::vector<double> std;   ///< as many
  size_t channel_items = 1;  ///< items of a sample that follow each other in one channel, in C order
};

}  // namespace zarrfeed
