// LZ4 in the framing of numcodecs: the decoded size as a little-endian 32-bit integer, then one LZ4 block.

#include <limits>
#include <string>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {

size_t decode_lz4(Bytes in, MutableBytes out, DecodeScratch&) {
  constexpr size_t kHeader = 4;
  if (in.size() <= kHeader) {
    throw_corrupt("lz4 data needs more than a 4-byte header, the chunk holds " + std::to_string(in.size()));
  }
  const size_t declared = load_le32(in.data());
  if (declared > out.size()) {
    throw_corrupt("lz4 header declares " + std::to_string(declared) + " bytes, the metadata implies " +
                  std::to_string(out.size()));
  }
  const Bytes payload = in.subspan(kHeader);
  constexpr size_t kMax = std::numeric_limits<int>::max();
  if (payload.size() > kMax || declared > kMax) throw_corrupt("lz4 block of 2 GiB or more");
  const int n = LZ4_decompress_safe(reinterpret_cast<const char*>(payload.data()), reinterpret_cast<char*>(out.data()),
                                    static_cast<int>(payload.size()), static_cast<int>(declared));
  if (n < 0 || static_cast<size_t>(n) != declared) throw_corrupt("lz4 block is corrupt");
  return declared;
}

}  // namespace zarrfeed
