#pragma once
// Chunks of one array at offsets in files, or in memory: a FileStore whose objects are parts of files.
//
// Invariant: a read of a file begins by a look at it, and is an error if its size or its time is not that of the table.

#include <memory>
#include <string>
#include <vector>

#include "spec/array_spec.h"
#include "storage/file_store.h"

namespace zarrfeed {

class TableStore : public FileStore {
 public:
  /// `tables`: of each part of the array, or of the array as a whole. The other parameters are those of FileStore.
  TableStore(std::vector<std::shared_ptr<const ChunkTable>> tables, KeySpec key, bool has_parts, size_t max_bytes,
             std::shared_ptr<IoThreads> io);

  void open() override {}

 protected:
  ReadStatus open_chunk(const std::string& key, PendingRead& pending, const ByteRange& range) const override;

 private:
  const std::vector<std::shared_ptr<const ChunkTable>> tables_;
  const KeySpec key_;
  const bool has_parts_;

  void open_unchanged(const ChunkTable::File& file, PendingRead& pending) const;
};

}  // namespace zarrfeed
