#pragma once
// Runs of bytes of a Blosc chunk -> slots, block by block: the fast path of arrays with chosen items, whose rows are no single
// run. Each touched block is decompressed once, to memory that stays in the processor's cache, and the byte shuffle is undone
// on the way to the slots. No decoded chunk lies in between. Pure: memory in, memory out.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/stored_bytes.h"
#include "codecs/codec.h"
#include "transform/blosc_scatter.h"
#include "transform/scatter.h"

namespace zarrfeed {

/// Copies runs of bytes of a stored chunk, which must decode to `decoded_bytes`, to where they go. Sorts `runs`. Decodes exactly
/// the blocks that they touch, and returns how many bytes that is. With `streaming`, stores bypass the cache. Throws
/// Error(kCorrupt).
size_t scatter_runs(const StoredBytes& stored, size_t decoded_bytes, std::span<ByteRun> runs, bool streaming,
                    DecodeScratch& codecs, BloscScatterScratch& scratch);

}  // namespace zarrfeed
