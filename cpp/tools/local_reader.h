#pragma once
// The chunks of one array in a local directory, for tools that wait for storage themselves.

#include <memory>

#include "base/error.h"
#include "storage/chunk_reader.h"
#include "storage/stores.h"
#include "transform/field_decoder.h"

namespace zarrfeed {

/// Opens the array of a stored field. Throws Error(kConfig) if it is not in a local directory, Error(kIo) if it is gone.
inline std::shared_ptr<ChunkReader> open_local(const FieldDecoder& field, ReadPolicy policy = {}) {
  const ArraySpec& array = field.spec().array;
  if (!field.is_stored() || array.in_python) {
    throw Error(ErrorKind::kConfig, array.name + ": its chunks are not in a local directory");
  }
  Stores stores(0, 1);
  const size_t max_bytes = field.max_stored_bytes();
  auto reader = std::make_shared<ChunkReader>(array, stores.make(0, array, max_bytes), stores.io(), max_bytes, policy);
  reader->open();
  return reader;
}

/// Reads a chunk: what is in the page cache at once, and else with further tries. Throws Error.
inline ReadResult read_chunk(ChunkReader& reader, int64_t chunk, size_t cell, Buffer& room) {
  const ChunkLocation at = reader.locate(chunk, cell);
  ReadResult result = reader.try_read(at, room);
  return result.status == ReadStatus::kWouldBlock ? reader.read_here(at, room) : result;
}

}  // namespace zarrfeed
