#include "engine/chunks/crop_memory.h"

#include <algorithm>
#include <bit>

#include "base/huge_pages.h"
#include "base/process.h"

namespace zarrfeed {
namespace {

/// Smaller memory is not mapped, since a process may have no more than some ten thousand mappings.
constexpr size_t kMapped = size_t{1} << 20;
constexpr size_t kLeast = 64;
constexpr size_t kSizesOfOctave = 16;

uint8_t* allocate(size_t bytes) {
  return bytes >= kMapped ? map_pages(bytes) : static_cast<uint8_t*>(operator new(bytes));
}

void deallocate(uint8_t* memory, size_t bytes) {
  if (bytes >= kMapped) {
    unmap_pages(memory, bytes);
  } else {
    operator delete(memory);
  }
}

}  // namespace

CropMemory::CropMemory(size_t max_bytes) : max_bytes_(max_bytes), owner_(process_id()) {}

CropMemory::~CropMemory() {
  for (const auto& [bytes, list] : free_) {
    for (const Free& one : list) deallocate(one.memory, bytes);
  }
}

size_t CropMemory::room_for(size_t bytes) {
  return round_up(bytes, std::max(kLeast, std::bit_floor(bytes) / kSizesOfOctave));
}

uint8_t* CropMemory::acquire(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const auto found = free_.find(bytes); found != free_.end()) {
    uint8_t* const memory = found->second.back().memory;
    found->second.pop_back();
    if (found->second.empty()) free_.erase(found);
    return memory;
  }
  while (held_bytes_ + bytes > max_bytes_) {
    if (!give_back()) return nullptr;
  }
  uint8_t* const memory = allocate(bytes);
  held_bytes_ += bytes;
  return memory;
}

void CropMemory::release(uint8_t* memory, size_t bytes) {
  // A forked child has copies of the parent's memory and may have inherited the mutex locked.
  if (process_id() != owner_) return;
  const std::lock_guard lock(mutex_);
  free_[bytes].push_back({memory, released_++});
}

bool CropMemory::give_back() {
  if (free_.empty()) return false;
  const auto oldest = std::ranges::min_element(
      free_, [](const auto& a, const auto& b) { return a.second.front().released < b.second.front().released; });
  deallocate(oldest->second.front().memory, oldest->first);
  held_bytes_ -= oldest->first;
  oldest->second.pop_front();
  if (oldest->second.empty()) free_.erase(oldest);
  return true;
}

size_t CropMemory::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return held_bytes_;
}

}  // namespace zarrfeed
