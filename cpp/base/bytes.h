#pragma once
// Views of bytes in memory, borrowed.

#include <cstdint>
#include <span>

namespace zarrfeed {

using Bytes = std::span<const uint8_t>;
using MutableBytes = std::span<uint8_t>;

}  // namespace zarrfeed
