#pragma once
// Where one row of one sample goes.

#include <cstdint>

namespace zarrfeed {

/// One row of one sample: which sample, and where it goes.
struct Placement {
  int64_t sample;  ///< global sample index
  int64_t step;    ///< position in this consumer's stream: batch = step / batch_size, slot = step % batch_size
};

}  // namespace zarrfeed
