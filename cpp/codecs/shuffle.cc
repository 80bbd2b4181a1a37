// The shuffle filter of numcodecs: byte k of all elements, then byte k + 1 of all elements. HDF5's is the same, and leaves
// bytes that are no whole element at the end, such as a checksum.

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

void undo_hdf5_shuffle(Bytes in, uint8_t* out, const CodecSpec& codec) {
  unshuffle(codec.element_bytes, in, out);
}

}  // namespace zarrfeed
