// The shuffle filter of numcodecs, which is that of HDF5: byte k of all elements, then byte k + 1 of all elements.

#include <string>

#include "base/bytes.h"
#include "codecs/codec.h"
#include "codecs/unshuffle.h"

namespace zarrfeed {

void undo_shuffle(Bytes in, uint8_t* out, const CodecSpec& codec) {
  if (in.size() % codec.element_bytes != 0) {
    throw_corrupt("shuffle of elements of " + std::to_string(codec.element_bytes) + " bytes cannot have made " +
                  std::to_string(in.size()) + " bytes");
  }
  unshuffle(codec.element_bytes, in, out);
}

}  // namespace zarrfeed
