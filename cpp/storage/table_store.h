#pragma once
// Chunks of one array at offsets in files, or in memory: a FileStore whose objects are parts of files.
//
// Invariant: a read of a file begins by a look at it, and is an error if its size or its time is not that of the table.

#include <memory>
#include <string>

#include "spec/chunk_table.h"
#include "storage/chunk_tables.h"
#include "storage/file_store.h"

namespace zarrfeed {

class TableStore : public FileStore {
 public:
  /// The other parameters are those of FileStore.
  TableStore(ChunkTables tables, size_t max_bytes, std::shared_ptr<IoThreads> io);

  void open() override {}

 protected:
  ReadStatus open_chunk(const std::string& key, PendingRead& pending, const ByteRange& range) const override;

 private:
  const ChunkTables tables_;

  void open_unchanged(const ChunkTable::File& file, PendingRead& pending) const;
};

}  // namespace zarrfeed
