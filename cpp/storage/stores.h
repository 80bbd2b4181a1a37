#pragma once
// The stores of one engine: which ByteStore holds the chunks of each array.

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "spec/array_spec.h"
#include "storage/access/byte_store.h"
#include "storage/access/io_threads.h"
#include "storage/cache/node_cache.h"
#include "storage/python_store.h"

namespace zarrfeed {

class Stores {
 public:
  /// `max_reads`: threads that wait for files; 0: whoever reads does. `max_requests`: those that Python is asked at once.
  /// `coalesce`: what it reads together.
  Stores(size_t max_reads, size_t max_requests, Coalesce coalesce = {});
  virtual ~Stores() = default;
  Stores(const Stores&) = delete;
  Stores& operator=(const Stores&) = delete;

  /// The store of an array, which is source number `source`. `max_chunk_bytes`: a larger object is no chunk of it.
  /// Another kind of store is added here, or by a class that overrides this.
  virtual std::shared_ptr<ByteStore> make(size_t source, const ArraySpec& array, size_t max_chunk_bytes);
  /// Makes the store of that source one with a node cache around it. Before make().
  void cache(size_t source, CachedArray array) { cached_.insert_or_assign(source, std::move(array)); }
  /// Reads of all node caches.
  [[nodiscard]] const std::shared_ptr<CacheCounters>& cache_counters() const { return cache_counters_; }
  /// Replaces the threads that wait for storage, after one of them hung and was given up: stores that are made from here
  /// on share no thread with those made before.
  void renew() { io_ = std::make_shared<IoThreads>(io_->max_threads()); }

  /// Threads that wait for storage, and the clock of retries.
  [[nodiscard]] const std::shared_ptr<IoThreads>& io() const { return io_; }
  /// The way to stores that Python reads; null if there are none.
  [[nodiscard]] StoreBridge* bridge() const { return bridge_.get(); }

 private:
  const size_t max_requests_;
  const Coalesce coalesce_;
  std::shared_ptr<IoThreads> io_;
  std::shared_ptr<StoreBridge> bridge_;
  std::map<size_t, CachedArray> cached_;
  const std::shared_ptr<CacheCounters> cache_counters_ = std::make_shared<CacheCounters>();

  std::shared_ptr<ByteStore> make_uncached(size_t source, const ArraySpec& array, size_t max_chunk_bytes);
};

}  // namespace zarrfeed
