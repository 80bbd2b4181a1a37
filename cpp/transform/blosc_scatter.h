#pragma once
// The fast path of the commonest chunks: Blosc, whole samples, native byte order. Each Blosc block goes from the cache to
// the slots of its rows; there is no decoded chunk in between, and a block that no wanted row touches is not decoded.

#include "base/buffer.h"
#include "base/bytes.h"
#include "codecs/codec.h"
#include "transform/scatter.h"

namespace zarrfeed {

/// What scatter_blosc keeps between chunks.
struct BloscScatterScratch {
  std::vector<uint8_t*> dest_of_row;
  std::vector<RowTarget> again;  ///< of rows that were named before
  Buffer block;
};

/// Decodes `stored` and copies row targets[i].row of the chunk, `row_bytes` long, to targets[i].dest.
/// The chunk must decode to exactly `decoded_bytes`, a multiple of row_bytes. A row may be named more than once.
/// `streaming`: the slots are so many that they leave the cache anyway. Throws Error(kCorrupt) if the chunk does not
/// decode.
void scatter_blosc(Bytes stored, size_t decoded_bytes, size_t row_bytes, std::span<const RowTarget> targets,
                   bool streaming, DecodeScratch& codecs, BloscScatterScratch& scratch);

}  // namespace zarrfeed
