#pragma once
// The best that this machine could do with one array by the codec libraries' own calls: neither a codec nor a copy of
// ours is in it, so that a slow kernel of ours cannot lower it. A yardstick of benchmarks/, beside ceiling.h.

#include <cstddef>
#include <string>

#include "spec/field_spec.h"
#include "tools/ceiling.h"

namespace zarrfeed {

struct LibraryCeilingOptions {
  size_t num_threads = 1;
  size_t window_chunks = 64;  ///< rows are copied to the memory of so many chunks, recycled
  /// The destination of samples: sample i goes to out + i * its bytes, to be compared; null: to shuffled slots of
  /// recycled memory.
  uint8_t* out = nullptr;
  /// The shared library of Blosc, for arrays of that codec. The engine has its own decoder, and to link all of Blosc for
  /// this yardstick alone would make the extension larger by half.
  std::string blosc2_library{};
};

/// Reads every chunk of a stored field once, in random order on all threads; decompresses each one by one call of the codec's
/// library (blosc2_decompress_ctx of `blosc2_library`, ZSTD_decompressDCtx, zng_inflate, LZ4_decompress_safe) into memory that stays in the cache;
/// and copies its rows to their slots by memcpy. Nothing is delivered.
/// Throws Error(kConfig) for what that cannot do: several codecs or none, a conversion, another axis or byte order, a
/// Blosc library that cannot be loaded.
CeilingResult measure_library_ceiling(const FieldSpec& field, const LibraryCeilingOptions& options);

}  // namespace zarrfeed
