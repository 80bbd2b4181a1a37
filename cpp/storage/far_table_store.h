#pragma once
// Chunks of one array at offsets in files that only Python can read, such as HDF5 in an object store: a ByteStore over one
// whose objects are these files. Chunks that lie near each other in a file are read by one request, as inner chunks of a
// shard are.
//
// Invariant: a chunk is asked for only if it is no larger than a chunk of the array may be.

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "storage/access/byte_store.h"
#include "storage/chunk_tables.h"

namespace zarrfeed {

/// The name of a file among the objects of an array is this and its number in the table.
inline constexpr char kBeforeFileNumber = '@';

class FarTableStore : public ByteStore {
 public:
  /// `files`: holds the files, by "@" and their number; behind the number of a part and a slash, where there are parts.
  FarTableStore(std::shared_ptr<ByteStore> files, ChunkTables tables, size_t max_bytes)
      : files_(std::move(files)), tables_(std::move(tables)), max_bytes_(max_bytes), limits_(files_->limits()) {}

  void open() override { files_->open(); }
  void close() override { files_->close(); }
  ReadResult try_read(const std::string& /*key*/, const ByteRange& /*range*/, Buffer& /*room*/) override {
    return {.status = ReadStatus::kWouldBlock};
  }
  void read(std::vector<ReadRequest> requests) override;
  [[nodiscard]] bool has_neighbours() const override { return true; }
  [[nodiscard]] bool are_near(const std::string& one, const std::string& other) const override;
  [[nodiscard]] Limits limits() const override { return limits_; }
  bool stop(std::chrono::steady_clock::time_point deadline) override { return files_->stop(deadline); }

 private:
  const std::shared_ptr<ByteStore> files_;
  const ChunkTables tables_;
  const size_t max_bytes_;
  const Limits limits_;

  [[nodiscard]] std::string file_key(const ChunkTables::Found& found) const;
  /// Completes a request that needs no file, or makes it one for a range of a file and appends that to `ranges`.
  void locate(ReadRequest request, std::vector<ReadRequest>& ranges) const;
};

}  // namespace zarrfeed
