#include "storage/stores.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "spec/chunk_grid.h"
#include "storage/cache/transcoder.h"
#include "storage/chunk_key.h"
#include "storage/chunk_tables.h"
#include "storage/far_table_store.h"
#include "storage/file_store.h"
#include "storage/table_store.h"

namespace zarrfeed {
namespace {

ChunkTables tables_of(const ArraySpec& array) {
  return {array.tables, array.key, array.parts != nullptr};
}

}  // namespace

Stores::Stores(size_t max_reads, size_t max_requests, Coalesce coalesce)
    : max_requests_(std::max<size_t>(1, max_requests)),
      coalesce_(coalesce),
      io_(std::make_shared<IoThreads>(max_reads)) {}

std::shared_ptr<ByteStore> Stores::make(size_t source, const ArraySpec& array, size_t max_chunk_bytes) {
  auto store = make_uncached(source, array, max_chunk_bytes);
  const auto cached = cached_.find(source);
  const bool has_form = cached != cached_.end() && !cached->second.form.empty();
  if (array.is_transcoded != has_form) throw Error(ErrorKind::kConfig, array.name + ": nothing transcodes it");
  if (cached == cached_.end()) return store;
  const auto transcoder = array.is_transcoded
                              ? std::make_shared<const Transcoder>(array.codecs, chunk_bytes(array), array.item_bytes)
                              : nullptr;
  return std::make_shared<NodeCache>(std::move(store), cached->second, max_chunk_bytes, io_->max_threads(),
                                     cache_counters_, NodeCache::kTimeout, transcoder);
}

std::shared_ptr<ByteStore> Stores::make_uncached(size_t source, const ArraySpec& array, size_t max_chunk_bytes) {
  if (array.in_python) {
    if (bridge_ == nullptr) bridge_ = std::make_shared<StoreBridge>();
    const auto objects = std::make_shared<PythonStore>(bridge_, source, max_requests_, coalesce_);
    if (array.tables.empty()) return objects;
    return std::make_shared<FarTableStore>(objects, tables_of(array), max_chunk_bytes);
  }
  if (!array.tables.empty()) return std::make_shared<TableStore>(tables_of(array), max_chunk_bytes, io_);
  // The keys of an array in several stores are whole paths: no directory is held open for each of them.
  const size_t depth = array.parts != nullptr ? parts_of_key(array) : 0;
  return std::make_shared<FileStore>(array.root, array.metadata_key, max_chunk_bytes, io_, depth);
}

}  // namespace zarrfeed
