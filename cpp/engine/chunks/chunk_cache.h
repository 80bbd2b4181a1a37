#pragma once
// The cache of decoded chunks, for plans that read the same chunks again: random access.
//
// To cache a chunk, the engine must decode all of it; for a sample, some of it may be enough. So a chunk that is needed
// in part, or any chunk once the cache is full, is cached only if it was requested before, not long ago. Random samples
// from a much larger array then decode little more than they need, and a plan that stays with some chunks for a while
// gets cache hits from its third visit on, or from its second one if it needs most of them.
//
// Invariant: the cached chunks have at most `max_bytes` in all. A chunk that find() returned stays alive as long as the
// caller holds it, also if the cache drops it.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "base/bytes.h"
#include "transform/array_source.h"

namespace zarrfeed {

class ChunkCache {
 public:
  struct Key {
    size_t source = 0;
    int64_t chunk = 0;
    size_t cell = 0;
    bool operator==(const Key&) const = default;
  };

  explicit ChunkCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Returns the chunk and marks it as used last; null if it is not cached. Thread-safe.
  std::shared_ptr<const DecodedChunk> find(const Key& key);
  /// True if the chunk is cached now; a later find() may miss it. Thread-safe.
  [[nodiscard]] bool contains(const Key& key) const;
  /// True if a chunk of `bytes`, which find() missed, is worth caching. Remembers that it was requested.
  /// `less_would_do`: the request alone needs little of it. Thread-safe.
  bool admits(const Key& key, size_t bytes, bool less_would_do = false);
  /// True if admits() will say yes to the next request that needs little of a chunk of `bytes`, as far as is known now.
  /// Thread-safe.
  [[nodiscard]] bool will_admit(const Key& key, size_t bytes) const;
  /// Caches a chunk and drops the least recently used ones. A chunk larger than `max_bytes` is not cached. Thread-safe.
  void insert(const Key& key, std::shared_ptr<const DecodedChunk> chunk);

  [[nodiscard]] size_t max_bytes() const { return max_bytes_; }
  /// Bytes that are cached now. Thread-safe.
  [[nodiscard]] size_t bytes() const;

 private:
  /// Memory of an entry beside its bytes, so that missing or tiny chunks count, too.
  static constexpr size_t kEntryBytes = 256;
  /// Requests that are remembered as long as there is room.
  static constexpr size_t kMostWanted = 1024;

  struct Hash {
    size_t operator()(const Key& key) const;
  };
  struct Entry {
    Key key;
    std::shared_ptr<const DecodedChunk> chunk;
  };

  const size_t max_bytes_;
  mutable std::mutex mutex_;
  size_t bytes_ = 0;
  std::list<Key>
      wanted_;  ///< keys of chunks that are not cached, the last requested first; in a full cache half as many as are
  std::unordered_map<Key, std::list<Key>::iterator, Hash> wanted_at_;
  std::list<Entry> entries_;  ///< the most recently used first
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> entry_at_;
};

}  // namespace zarrfeed
