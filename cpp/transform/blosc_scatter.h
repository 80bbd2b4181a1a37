#pragma once
// The fast path of the commonest chunks: Blosc, whole samples, native byte order. Each Blosc block goes from the cache to
// the slots of its rows; there is no decoded chunk in between, and a block that no wanted row touches is not decoded. A row
// that several slots have is written to all of them while its block is in the cache: copying it from one slot to another
// would read memory that stores have just bypassed the cache for.

#include <cstddef>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/stored_bytes.h"
#include "codecs/codec.h"
#include "transform/scatter.h"

namespace zarrfeed {

/// The memory that scatter_blosc keeps between chunks: the targets of each row as a list. Targets are named by 1 +
/// their number, so that 0 is the end of a list.
struct BloscScatterScratch {
  std::vector<size_t> first_target;  ///< of each row
  std::vector<size_t> next_target;   ///< of each target: another one of its row
  Buffer block;
};

/// A destination for some bytes of a decoded chunk, beside the rows that are wanted.
struct DecodedCopy {
  uint8_t* out = nullptr;  ///< null: they are not
  size_t begin = 0;        ///< in the decoded chunk; rows begin and end there
  size_t end = 0;
};

/// Decodes `stored` and copies row targets[i].row of the chunk, `row_bytes` long, to targets[i].dest.
/// The chunk must decode to exactly `decoded_bytes`, a multiple of row_bytes. A row may be named more than once.
/// `streaming`: the slots are so many that they leave the cache anyway. Returns the bytes of the blocks that were decoded.
/// Throws Error(kCorrupt) if the chunk does not decode.
size_t scatter_blosc(const StoredBytes& stored, size_t decoded_bytes, size_t row_bytes,
                     std::span<const RowTarget> targets, bool streaming, DecodeScratch& codecs,
                     BloscScatterScratch& scratch, const DecodedCopy& also = {});

}  // namespace zarrfeed
