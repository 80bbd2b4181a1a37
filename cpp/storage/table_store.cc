#include "storage/table_store.h"

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace zarrfeed {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;

}  // namespace

TableStore::TableStore(ChunkTables tables, size_t max_bytes, std::shared_ptr<IoThreads> io)
    : FileStore("", "", max_bytes, std::move(io)), tables_(std::move(tables)) {}

ReadStatus TableStore::open_chunk(const std::string& key, PendingRead& pending, const ByteRange& range) const {
  const auto [table, part, extent] = tables_.find(key);
  if (!extent) return ReadStatus::kMissing;
  if (extent->file_index == ChunkTable::kInMemory) {
    pending.memory = ChunkTables::in_memory(*table);
  } else {
    open_unchanged(table->files[static_cast<size_t>(extent->file_index)], pending);
  }
  const uint64_t bytes = table->padded_bytes > 0 ? table->padded_bytes : extent->length;
  return select(pending, range, {.begin = extent->offset, .bytes = bytes, .end = extent->offset + extent->length});
}

void TableStore::open_unchanged(const ChunkTable::File& file, PendingRead& pending) const {
  if (!open_file(file.path, pending)) throw Error::io(file.path + " is gone", ENOENT);
  const int64_t modified_ns = pending.version.seconds * kNanoseconds + pending.version.nanoseconds;
  if (pending.version.size != file.bytes || modified_ns != file.modified_ns) {
    throw Error::io(file.path + " has changed since it was opened", EINVAL);  // no other try helps
  }
}

}  // namespace zarrfeed
