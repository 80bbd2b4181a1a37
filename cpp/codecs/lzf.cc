// LZF, which h5py brings to HDF5 (filter 32000): runs of literal bytes, and copies of up to 264 bytes from up to 8 KiB before.
// A chunk that does not become smaller is stored as it is, so that its size says so.
//
// Source: liblzf 3.6, lzf_d.c.

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {

size_t decode_lzf(Bytes in, MutableBytes out, const CodecSpec&, DecodeScratch&) {
  constexpr size_t kMostLiterals = 32;
  constexpr size_t kLongCopy = 7;
  if (in.size() == out.size()) {
    std::ranges::copy(in, out.begin());
    return out.size();
  }
  size_t at = 0;
  size_t made = 0;
  while (at < in.size()) {
    const size_t control = in[at++];
    size_t length = control < kMostLiterals ? control + 1 : (control >> 5U) + 2;
    if (control < kMostLiterals) {
      if (length > in.size() - at || length > out.size() - made) throw_corrupt("lzf literals go beyond the chunk");
      std::memcpy(out.data() + made, in.data() + at, length);
      at += length;
      made += length;
      continue;
    }
    const bool is_long = control >> 5U == kLongCopy;
    if (in.size() - at < (is_long ? 2U : 1U)) throw_corrupt("lzf data end inside of a copy");
    if (is_long) length += in[at++];
    const size_t distance = ((control & 0x1fU) << 8U | in[at++]) + 1;
    if (distance > made || length > out.size() - made) throw_corrupt("lzf copies bytes from outside of the chunk");
    uint8_t* const to = out.data() + made;
    if (distance >= length) {
      std::memcpy(to, to - distance, length);
    } else {  // the copy repeats its own bytes
      for (size_t i = 0; i < length; ++i) to[i] = to[i - distance];
    }
    made += length;
  }
  return made;
}

}  // namespace zarrfeed
