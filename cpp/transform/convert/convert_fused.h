#pragma once
// All that becomes of an item in one loop, in registers, for what is converted most: integers and float32 to float32 and
// to 16 bit floats, with at most one fill value, and of one channel.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "spec/conversion_spec.h"
#include "transform/convert/isa.h"

namespace zarrfeed {

/// The values here change no number.
struct FusedConstants {
  double fill = std::numeric_limits<double>::quiet_NaN();
  double scale = 1;
  double offset = -0.0;
  double mean = 0;
  double std = 1;
};

using FusedKernel = void (*)(uint8_t* dest, const uint8_t* source, size_t count, const FusedConstants& constants);

/// The loop that gives the same bits as the passes of a Converter do; null if there is none. `unpacks`: fill value,
/// scale and offset count; `normalises`: mean and standard deviation do.
FusedKernel find_fused(ItemType from, ItemType to, bool in_double, bool unpacks, bool normalises, Isa isa);

}  // namespace zarrfeed
