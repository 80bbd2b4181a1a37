#pragma once
// Temporary memory of one decode thread.

#include <vector>

#include "base/buffer.h"
#include "codecs/codec.h"
#include "transform/blosc_scatter.h"
#include "transform/patches/patch_copy.h"
#include "transform/scatter.h"
#include "transform/touched_blocks.h"

namespace zarrfeed {

class Output;

/// The rows that one output takes of a chunk: so many targets, after those of the outputs before it.
struct OutputRows {
  const Output* output = nullptr;
  size_t count = 0;
};

struct WorkerScratch {
  DecodeScratch codecs;
  Buffer stored;   ///< chunk as read, when read by the decode thread itself
  Buffer decoded;  ///< chunk after decoding: small enough to stay in cache
  std::vector<RowTarget> targets;
  std::vector<StretchTarget> stretches;
  std::vector<OutputRows> outputs;
  std::vector<PatchTarget> patches;
  BloscScatterScratch blosc;
  TouchedBlocks touched;         ///< of a chunk of which few are; decodes to `decoded`
  std::vector<ChunkCrop> crops;  ///< what a patch has of it
  std::vector<ByteRun> runs;     ///< what rows of an array with chosen items have of it
  std::vector<bool> seen_rows;   ///< rows of a chunk without codecs that were counted

  /// The size of the buffers, in bytes.
  [[nodiscard]] size_t bytes() const {
    return stored.capacity() + decoded.capacity() + blosc.block.capacity() + codecs.block.capacity() +
           codecs.intermediate[0].capacity() + codecs.intermediate[1].capacity();
  }
};

}  // namespace zarrfeed
