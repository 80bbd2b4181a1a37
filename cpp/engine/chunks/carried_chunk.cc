#include "engine/chunks/carried_chunk.h"

namespace zarrfeed {

CarryMemory::CarryMemory(const std::vector<size_t>& chunk_bytes, size_t max_bytes)
    : max_bytes_(max_bytes), crops_(max_bytes) {
  pools_.reserve(chunk_bytes.size());
  for (const size_t size : chunk_bytes) pools_.push_back(std::make_unique<BufferPool>(size, false));
}

uint8_t* CarryMemory::acquire(size_t source, size_t crop_room) {
  BufferPool& pool = *pools_[source];
  const size_t size = crop_room > 0 ? crop_room : pool.buffer_bytes();
  uint8_t* bytes = nullptr;
  if (in_use_.fetch_add(size) + size <= max_bytes_) {
    try {
      bytes = crop_room > 0 ? crops_.acquire(crop_room) : pool.acquire();
    } catch (...) {
      in_use_ -= size;
      throw;
    }
  }
  if (bytes == nullptr) in_use_ -= size;
  return bytes;
}

void CarryMemory::release(size_t source, uint8_t* bytes, size_t crop_room) {
  if (crop_room > 0) {
    crops_.release(bytes, crop_room);
    in_use_ -= crop_room;
    return;
  }
  pools_[source]->release(bytes);
  in_use_ -= pools_[source]->buffer_bytes();
}

bool CarryMemory::reserve(size_t bytes) {
  if (reserved_.fetch_add(bytes) + bytes <= max_bytes_) return true;
  reserved_ -= bytes;
  return false;
}

size_t CarryMemory::mapped_bytes() const {
  size_t total = crops_.held_bytes();
  for (const auto& pool : pools_) total += pool->mapped_bytes();
  return total;
}

bool CarriedChunk::defer(Task& task) {
  if (task.carried == nullptr || task.decodes_carried) return false;
  const std::shared_ptr<CarriedChunk> chunk = std::move(task.carried);
  const std::lock_guard lock(chunk->mutex_);
  if (chunk->state_ == State::kDecoding) {
    chunk->waiting_.push_back(std::move(task));
    return true;
  }
  if (chunk->state_ == State::kIdle) {
    chunk->state_ = State::kDecoding;
    task.decodes_carried = true;
  }
  task.carried = chunk;
  return false;
}

std::vector<Task> CarriedChunk::end_decoding(Task& task, State state, uint8_t* bytes) {
  std::vector<Task> waiting;
  if (!task.decodes_carried) return waiting;
  task.decodes_carried = false;
  CarriedChunk& chunk = *task.carried;
  {
    const std::lock_guard lock(chunk.mutex_);
    chunk.bytes_ = bytes;
    chunk.state_ = state;
    waiting.swap(chunk.waiting_);
  }
  for (Task& other : waiting) other.carried = task.carried;
  return waiting;
}

void share_chunks(const CarriedChunks& chunks, std::span<Task> tasks) {
  if (chunks.empty()) return;
  for (Task& task : tasks) {
    const auto found = chunks.find(ChunkKey(task.source, task.run, task.cell));
    if (found != chunks.end()) task.carried = found->second;
  }
}

CarriedChunks CarryTable::take(size_t group, int64_t next, std::span<const SharedChunk> shared, CarriedChunks cached) {
  CarriedChunks of_group;
  if (auto node = for_later_.extract(group)) of_group = std::move(node.mapped());
  of_group.merge(cached);
  CarriedChunks to_next;
  for (const SharedChunk& one : shared) {
    const ChunkKey key(one.source, one.run, one.cell);
    auto& chunk = of_group[key];
    if (chunk == nullptr) chunk = std::make_shared<CarriedChunk>(one, memory_);
    if (one.next) to_next.emplace(key, chunk);
  }
  if (!to_next.empty()) for_later_.emplace(static_cast<size_t>(next), std::move(to_next));
  return of_group;
}

}  // namespace zarrfeed
