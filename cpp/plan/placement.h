#pragma once
// A placement: which sample a batch slot gets.

#include <cstdint>

namespace zarrfeed {

/// A sample and the step that gets it. In a task whose field has windows: a row of the array, and the step counted in
/// rows.
struct Placement {
  int64_t sample;  ///< global sample index
  int64_t
      step;  ///< number of the sample in what this consumer reads: batch = step / batch_size, slot = step % batch_size
};

}  // namespace zarrfeed
