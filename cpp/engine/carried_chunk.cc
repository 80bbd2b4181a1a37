#include "engine/carried_chunk.h"

namespace zarrfeed {

CarryMemory::CarryMemory(const std::vector<size_t>& chunk_bytes, size_t max_bytes) : max_bytes_(max_bytes) {
  pools_.reserve(chunk_bytes.size());
  for (const size_t size : chunk_bytes) pools_.push_back(std::make_unique<BufferPool>(size, false));
}

uint8_t* CarryMemory::acquire(size_t field) {
  BufferPool& pool = *pools_[field];
  const size_t size = pool.buffer_bytes();
  if (in_use_.fetch_add(size) + size <= max_bytes_) {
    try {
      return pool.acquire();
    } catch (...) {
      in_use_ -= size;
      throw;
    }
  }
  in_use_ -= size;
  return nullptr;
}

void CarryMemory::release(size_t field, uint8_t* bytes) {
  pools_[field]->release(bytes);
  in_use_ -= pools_[field]->buffer_bytes();
}

size_t CarryMemory::mapped_bytes() const {
  size_t total = 0;
  for (const auto& pool : pools_) total += pool->mapped_bytes();
  return total;
}

}  // namespace zarrfeed
