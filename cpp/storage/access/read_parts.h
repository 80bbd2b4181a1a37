#pragma once
// Reads the parts of a chunk that are wanted, from any file that reads bytes at an offset.

#include <cstddef>
#include <functional>
#include <memory>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/stored_bytes.h"

namespace zarrfeed {

/// Costs for files that lie in the page cache, from where a read of 16 KiB takes hardly longer than one of a byte. The
/// tables of most Blosc chunks are shorter.
inline constexpr PartCosts kLocalPartCosts{
    .least_chunk = size_t{128} << 10, .max_gap = size_t{16} << 10, .first_bytes = size_t{16} << 10};

/// Bytes that were read of a chunk: all of them, or parts of them.
struct PartsRead {
  Bytes bytes{};
  std::shared_ptr<const StoredParts> parts{};  ///< null: `bytes` are all of the chunk
};

/// Reads exactly out.size() bytes of a chunk, from `offset` on. Returns false to give up.
using ReadAt = std::function<bool(size_t offset, MutableBytes out)>;

/// Reads what `wanted` finds of a chunk of `stored_bytes` bytes into `room`, each byte once, and in ascending order. Returns
/// false if `read_at` gave up. All that `read_at` reads has to be one version of the chunk: see to it.
bool read_parts(const ChunkParts& wanted, size_t stored_bytes, Buffer& room, const ReadAt& read_at, PartsRead& out);

}  // namespace zarrfeed
