#pragma once
// Decoded chunks that may be wanted again, for plans that come back to the same chunks: random access.
//
// To keep a chunk, all of it must be decoded; a part is enough for a sample. So once the cache is full, a chunk is worth
// keeping when it was wanted before, not long ago: draws from a much larger array decode little more than they want, and
// a plan that stays with some chunks for a while finds them kept from its second visit on.
//
// Invariant: the bytes of the chunks that are kept are at most what was allowed. A chunk that is handed out stays alive
// as long as its receiver holds it, also when it is dropped here meanwhile.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>

#include "base/bytes.h"
#include "transform/field_decoder.h"

namespace zarrfeed {

class ChunkCache {
 public:
  struct Key {
    size_t field = 0;
    int64_t chunk = 0;
    size_t cell = 0;
    bool operator==(const Key&) const = default;
  };

  explicit ChunkCache(size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Returns the chunk, which counts as used now, or null. Thread-safe.
  std::shared_ptr<const DecodedChunk> find(const Key& key);
  /// Whether the chunk is kept now; a later find() may not find it any more. Thread-safe.
  [[nodiscard]] bool contains(const Key& key) const;
  /// Whether a chunk of so many bytes, which is wanted and not kept, is worth keeping; notes that it was wanted. Thread-safe.
  bool admits(const Key& key, size_t bytes);
  /// Keeps a chunk, and drops those that were not used for longest. One larger than all the room is not kept. Thread-safe.
  void insert(const Key& key, std::shared_ptr<const DecodedChunk> chunk);

  [[nodiscard]] size_t max_bytes() const { return max_bytes_; }
  /// Bytes that are kept now. Thread-safe.
  [[nodiscard]] size_t bytes() const;

 private:
  /// What an entry costs beside its bytes: chunks that are missing, or tiny, are not kept without end.
  static constexpr size_t kEntryBytes = 256;

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
  std::list<Key> wanted_;  ///< not kept, last first; half as many as are kept
  std::unordered_map<Key, std::list<Key>::iterator, Hash> wanted_places_;
  std::list<Entry> entries_;  ///< used last first
  std::unordered_map<Key, std::list<Entry>::iterator, Hash> places_;
};

}  // namespace zarrfeed
