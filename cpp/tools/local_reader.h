#pragma once
// The chunks of one array in a local directory, for tools that wait for storage themselves.

#include <memory>
#include <string>

#include "base/error.h"
#include "storage/chunk_reader.h"
#include "storage/stores.h"
#include "transform/output.h"

namespace zarrfeed {

/// Opens the array of a stored field. Throws Error(kConfig) if it is not in a local directory, Error(kIo) if it is gone.
inline std::shared_ptr<ChunkReader> open_local(const Output& output, ReadPolicy policy = {}) {
  if (!output.is_stored() || output.source()->array().in_python) {
    const std::string name = output.is_stored() ? output.source()->array().name : "a field in memory";
    throw Error(ErrorKind::kConfig, name + ": its chunks are not in a local directory");
  }
  const ArraySpec& array = output.source()->array();
  Stores stores(0, 1);
  const size_t max_bytes = output.source()->max_stored_bytes();
  auto reader = std::make_shared<ChunkReader>(array, stores.make(0, array, max_bytes), stores.io(), max_bytes, policy);
  reader->open();
  return reader;
}

/// Reads a chunk: at once if it is in the page cache, else with retries. Throws Error.
inline ReadResult read_chunk(ChunkReader& reader, int64_t chunk, size_t cell, Buffer& room) {
  const ChunkLocation at = reader.locate(chunk, cell);
  ReadResult result = reader.try_read(at, room);
  return result.status == ReadStatus::kWouldBlock ? reader.read_here(at, room) : result;
}

}  // namespace zarrfeed
