#include "storage/cache/transcoder.h"

#include <algorithm>

namespace zarrfeed {

BloscContainer Transcoder::decode(Bytes stored, DecodeScratch& scratch) const {
  BloscContainer plain = make_plain_blosc(pipeline_.decoded_bytes(), item_bytes_);
  const Bytes decoded = pipeline_.decode(stored, plain.payload(), scratch);
  if (decoded.data() != plain.payload().data()) std::ranges::copy(decoded, plain.payload().begin());
  return plain;
}

}  // namespace zarrfeed
