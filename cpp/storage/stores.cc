#include "storage/stores.h"

#include <algorithm>
#include <utility>

#include "storage/file_store.h"

namespace zarrfeed {

Stores::Stores(size_t max_reads, size_t max_requests, Coalesce coalesce)
    : max_requests_(std::max<size_t>(1, max_requests)),
      coalesce_(coalesce),
      io_(std::make_shared<IoThreads>(max_reads)) {}

std::shared_ptr<ByteStore> Stores::make(size_t field, const ArraySpec& array, size_t max_chunk_bytes) {
  auto store = make_uncached(field, array, max_chunk_bytes);
  const auto cached = cached_.find(field);
  if (cached == cached_.end()) return store;
  return std::make_shared<NodeCache>(std::move(store), cached->second, max_chunk_bytes, io_->max_threads(),
                                     cache_counters_);
}

std::shared_ptr<ByteStore> Stores::make_uncached(size_t field, const ArraySpec& array, size_t max_chunk_bytes) {
  if (array.in_python) {
    if (bridge_ == nullptr) bridge_ = std::make_shared<StoreBridge>();
    return std::make_shared<PythonStore>(bridge_, field, max_requests_, coalesce_);
  }
  return std::make_shared<FileStore>(array.root, array.metadata_key, max_chunk_bytes, io_);
}

}  // namespace zarrfeed
