#include "transform/patches/copy_runs.h"

#include <cstring>

#include "base/error.h"

namespace zarrfeed {

size_t copy_runs(std::span<const uint8_t> source, std::span<const int64_t> begin, std::span<const int64_t> count,
                 size_t item_bytes, std::span<uint8_t> out) {
  if (begin.size() != count.size() || item_bytes == 0) throw Error(ErrorKind::kConfig, "runs do not belong together");
  const size_t items = source.size() / item_bytes;
  size_t written = 0;
  for (size_t i = 0; i < begin.size(); ++i) {
    const auto first = static_cast<size_t>(begin[i]);
    const auto length = static_cast<size_t>(count[i]);
    if (begin[i] < 0 || count[i] < 0 || first > items || length > items - first) {
      throw Error(ErrorKind::kConfig, "a run is not inside of the items");
    }
    const size_t bytes = length * item_bytes;
    if (bytes > out.size() - written)
      throw Error(ErrorKind::kConfig, "the runs have more items than there is room for");
    if (bytes != 0) std::memcpy(out.data() + written, source.data() + first * item_bytes, bytes);
    written += bytes;
  }
  return written;
}

}  // namespace zarrfeed
