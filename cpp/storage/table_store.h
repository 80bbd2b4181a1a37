#pragma once
// Chunks of one array at offsets in files of another format: a FileStore whose objects are parts of files.
//
// Invariant: a read begins by a look at the file, and is an error if its size or its time is not that of the table.

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
};

}  // namespace zarrfeed
