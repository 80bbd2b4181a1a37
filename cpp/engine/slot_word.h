#pragma once
// The word of a slot of a SharedPool: its numbers of tensors, of messages, and of times that it was acquired.

#include <cstdint>

namespace zarrfeed {

// Generation (24 bits), messages (20 bits), leases (20 bits).
inline constexpr uint64_t kLease = 1;
inline constexpr uint64_t kMessage = uint64_t{1} << 20;
inline constexpr uint64_t kGeneration = uint64_t{1} << 40;
inline constexpr uint64_t kMost = kMessage - 1;

constexpr uint64_t leases_of(uint64_t word) {
  return word & kMost;
}
constexpr uint64_t messages_of(uint64_t word) {
  return word / kMessage & kMost;
}
constexpr uint32_t generation_of(uint64_t word) {
  return static_cast<uint32_t>(word / kGeneration);
}
constexpr bool is_free(uint64_t word) {
  return word % kGeneration == 0;
}

}  // namespace zarrfeed
