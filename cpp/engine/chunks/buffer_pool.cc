#include "engine/chunks/buffer_pool.h"

#include <algorithm>

#include "base/huge_pages.h"
#include "base/process.h"

namespace zarrfeed {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSlabTarget = size_t{8} << 20;

}  // namespace

BufferPool::BufferPool(size_t buffer_bytes, bool provided)
    : buffer_bytes_(buffer_bytes),
      spacing_(round_up(std::max<size_t>(buffer_bytes, 1), buffer_bytes >= kPage ? kPage : 64)),
      provided_(provided),
      owner_(process_id()) {}

BufferPool::~BufferPool() {
  for (const Slab& slab : slabs_) {
    if (slab.base != nullptr) unmap_pages(slab.base, slab.bytes);
  }
}

void BufferPool::add_slab() {
  const size_t count = std::max<size_t>(1, kSlabTarget / spacing_);
  const size_t bytes = round_up(count * spacing_, kPage);
  uint8_t* const base = map_pages(bytes);
  const size_t slab = slabs_.size();
  slabs_.push_back({base, bytes, 0});
  for (size_t i = count; i-- > 0;) free_.push_back({slabs_[slab].base + i * spacing_, slab});
}

uint8_t* BufferPool::acquire() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    if (provided_) return nullptr;
    add_slab();
  }
  const FreeBuffer taken = free_.back();
  free_.pop_back();
  if (!provided_) {
    ++slabs_[taken.slab].out;
    slab_of_.emplace(taken.buffer, taken.slab);
  }
  return taken.buffer;
}

void BufferPool::release(uint8_t* buffer) {
  // A forked child has copies of the parent's buffers and may have inherited the mutex locked.
  if (process_id() != owner_) return;
  const std::lock_guard lock(mutex_);
  if (provided_) {
    free_.push_back({buffer, 0});
    return;
  }
  const auto entry = slab_of_.find(buffer);
  if (entry == slab_of_.end()) return;
  const size_t slab = entry->second;
  slab_of_.erase(entry);
  --slabs_[slab].out;
  if (retired_) {
    unmap_if_unused(slab);
  } else {
    free_.push_back({buffer, slab});
  }
}

void BufferPool::provide(uint8_t* buffer) {
  const std::lock_guard lock(mutex_);
  free_.push_back({buffer, 0});
}

void BufferPool::retire() {
  const std::lock_guard lock(mutex_);
  retired_ = true;
  free_.clear();
  for (size_t slab = 0; slab < slabs_.size(); ++slab) unmap_if_unused(slab);
}

void BufferPool::unmap_if_unused(size_t slab) {
  Slab& s = slabs_[slab];
  if (s.out > 0 || s.base == nullptr) return;
  unmap_pages(s.base, s.bytes);
  s.base = nullptr;
  s.bytes = 0;
}

size_t BufferPool::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t total = 0;
  for (const Slab& slab : slabs_) total += slab.bytes;
  return total;
}

}  // namespace zarrfeed
