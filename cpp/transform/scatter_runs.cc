#include "transform/scatter_runs.h"

#include <algorithm>
#include <cstring>

#include "base/streaming_store.h"
#include "codecs/blosc.h"
#include "codecs/codec_pipeline.h"
#include "codecs/unshuffle.h"

namespace zarrfeed {
namespace {

/// True if runs begin and end between elements of a Blosc chunk, so that the shuffle can be undone run by run.
bool are_between_elements(std::span<const ByteRun> runs, size_t typesize) {
  return std::ranges::all_of(runs,
                             [=](const ByteRun& run) { return run.begin % typesize == 0 && run.size % typesize == 0; });
}

}  // namespace

size_t scatter_runs(const StoredBytes& stored, size_t decoded_bytes, std::span<ByteRun> runs, bool streaming,
                    DecodeScratch& codecs, BloscScatterScratch& scratch) {
  const BloscChunk chunk(stored, decoded_bytes);
  check_decoded_bytes(chunk.decoded_bytes(), decoded_bytes);
  std::ranges::sort(runs, {}, &ByteRun::begin);
  const size_t typesize = chunk.typesize();
  const UnshuffleRange unshuffle =
      chunk.is_byte_shuffled() && chunk.block_bytes() % typesize == 0 && are_between_elements(runs, typesize)
          ? find_unshuffle_range(typesize)
          : nullptr;
  size_t decoded = 0;
  size_t first = 0;  // runs before it end before the block
  for (size_t b = 0; b < chunk.num_blocks() && first < runs.size(); ++b) {
    const size_t begin = b * chunk.block_bytes();
    const size_t size = chunk.header().size_of(b);
    const size_t end = begin + size;
    while (first < runs.size() && runs[first].begin + runs[first].size <= begin) ++first;
    bool is_decoded = false;
    MutableBytes block;
    for (size_t i = first; i < runs.size() && runs[i].begin < end; ++i) {
      const ByteRun& run = runs[i];
      const size_t from = std::max(begin, run.begin);
      const size_t to = std::min(end, run.begin + run.size);
      if (from >= to) continue;
      if (!is_decoded) {
        block = codecs.reserve_block(scratch.block, size);
        if (unshuffle != nullptr) {
          chunk.decompress_block(b, block, codecs);
        } else {
          chunk.decode_block(b, block, codecs);
        }
        is_decoded = true;
        decoded += size;
      }
      uint8_t* const dest = run.dest + (from - run.begin);
      if (unshuffle != nullptr) {
        unshuffle(block.data(), size / typesize, (from - begin) / typesize, (to - from) / typesize, dest, streaming);
      } else {
        std::memcpy(dest, block.data() + (from - begin), to - from);
      }
    }
  }
  if (streaming) fence_streaming_stores();
  return decoded;
}

}  // namespace zarrfeed
