#pragma once
// The best that this machine could do with one array: bare loops over its chunks on all cores, without a pipeline.
// The yardstick of benchmarks/ and of `zarrfeed bench`.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/field_spec.h"

namespace zarrfeed {

struct CeilingOptions {
  size_t num_threads = 1;
  size_t window_chunks = 64;      ///< rows are scattered over the memory of so many chunks, recycled
  bool scatter = true;            ///< false: decode into a small hot buffer only
  std::vector<int64_t> blocks{};  ///< which chunks along the sample axis; empty: all
  size_t copies = 1;              ///< how many slots each row is copied to
};

struct CeilingResult {
  double seconds = 0;
  double cpu_seconds = 0;  ///< of all threads, without their set-up
  uint64_t decoded_bytes = 0;
  uint64_t stored_bytes = 0;
};

/// Reads, decodes and (if asked) scatters every chunk of a stored field, or of these blocks, once, in random order.
CeilingResult measure_ceiling(const FieldSpec& field, const CeilingOptions& options);

}  // namespace zarrfeed
