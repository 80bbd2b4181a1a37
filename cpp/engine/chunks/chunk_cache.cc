#include "engine/chunks/chunk_cache.h"

#include <algorithm>
#include <utility>

namespace zarrfeed {

size_t ChunkCache::Hash::operator()(const Key& key) const {
  uint64_t z = static_cast<uint64_t>(key.chunk) * 0x9e3779b97f4a7c15 + key.cell;
  z = (z ^ (z >> 32)) * 0xbf58476d1ce4e5b9 + key.source;
  return static_cast<size_t>(z ^ (z >> 31));
}

std::shared_ptr<const DecodedChunk> ChunkCache::find(const Key& key) {
  const std::lock_guard lock(mutex_);
  const auto found = entry_at_.find(key);
  if (found == entry_at_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->chunk;
}

bool ChunkCache::contains(const Key& key) const {
  const std::lock_guard lock(mutex_);
  return entry_at_.contains(key);
}

bool ChunkCache::will_admit(const Key& key, size_t bytes) const {
  if (bytes + kEntryBytes > max_bytes_) return false;
  const std::lock_guard lock(mutex_);
  return wanted_at_.contains(key);
}

bool ChunkCache::admits(const Key& key, size_t bytes, bool less_would_do) {
  const size_t cost = bytes + kEntryBytes;
  if (cost > max_bytes_) return false;
  const std::lock_guard lock(mutex_);
  const bool has_room = bytes_ + cost <= max_bytes_;
  if (has_room && !less_would_do) return true;
  if (const auto found = wanted_at_.find(key); found != wanted_at_.end()) {
    wanted_.erase(found->second);
    wanted_at_.erase(found);
    return true;
  }
  wanted_.push_front(key);
  wanted_at_.emplace(key, wanted_.begin());
  const size_t most = has_room ? kMostWanted : std::max<size_t>(1, entries_.size() / 2);
  while (wanted_.size() > most) {
    wanted_at_.erase(wanted_.back());
    wanted_.pop_back();
  }
  return false;
}

void ChunkCache::insert(const Key& key, std::shared_ptr<const DecodedChunk> chunk) {
  const size_t cost = chunk->size + kEntryBytes;
  if (cost > max_bytes_) return;
  const std::lock_guard lock(mutex_);
  if (entry_at_.contains(key)) return;  // two threads decoded it at once
  while (bytes_ + cost > max_bytes_) {
    bytes_ -= entries_.back().chunk->size + kEntryBytes;
    entry_at_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front({key, std::move(chunk)});
  entry_at_.emplace(key, entries_.begin());
  bytes_ += cost;
}

size_t ChunkCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace zarrfeed
