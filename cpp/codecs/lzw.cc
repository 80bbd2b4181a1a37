// LZW as TIFF has it: codes of 9 to 12 bits, from the highest bit on, which become longer one code early.
//
// Source: TIFF 6.0, section 13.

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {
namespace {

constexpr unsigned kClear = 256;
constexpr unsigned kEnd = 257;
constexpr unsigned kFirst = 258;
constexpr unsigned kShortest = 9;
constexpr unsigned kLongest = 12;

/// Codes of changing length.
class CodeReader {
 public:
  explicit CodeReader(Bytes in) : in_(in) {}

  /// The next code of `width` bits; the end code where there are no such bits.
  unsigned take(unsigned width) {
    while (count_ < width) {
      if (at_ == in_.size()) return kEnd;
      bits_ = bits_ << 8U | in_[at_++];
      count_ += 8;
    }
    count_ -= width;
    return static_cast<unsigned>(bits_ >> count_) & ((1U << width) - 1);
  }

 private:
  Bytes in_;
  size_t at_ = 0;
  uint32_t bits_ = 0;
  unsigned count_ = 0;
};

}  // namespace

size_t decode_lzw(Bytes in, MutableBytes out, const CodecSpec&, DecodeScratch&) {
  if (in.size() >= 2 && in[0] == 0 && (in[1] & 1U) != 0) throw_corrupt("lzw in the old order of bits, before TIFF 6.0");
  // The string of a code is in the output already: that of the code before it, and one byte more.
  struct Entry {
    size_t begin;
    size_t length;
  };
  std::array<Entry, size_t{1} << kLongest> entries;
  CodeReader codes(in);
  unsigned next = kFirst;
  unsigned width = kShortest;
  Entry last{0, 0};  // no bytes: no code since the table was cleared
  size_t made = 0;
  while (made < out.size()) {
    const unsigned code = codes.take(width);
    if (code == kEnd) break;
    if (code == kClear) {
      next = kFirst;
      width = kShortest;
      last = {0, 0};
      continue;
    }
    if (last.length > 0 && next < entries.size()) {
      entries[next++] = {last.begin, last.length + 1};
      if (next >= (1U << width) - 1) width = std::min(width + 1, kLongest);
    }
    if (code < kClear) {
      last = {made, 1};
      out[made++] = static_cast<uint8_t>(code);
      continue;
    }
    if (code >= next) throw_corrupt("lzw code without a string");
    const Entry found = entries[code];
    if (found.length > out.size() - made) throw_corrupt("lzw data decode to more than the metadata implies");
    // The last byte of a string that is new is the first one that is written here.
    for (size_t i = 0; i < found.length; ++i) out[made + i] = out[found.begin + i];
    last = {made, found.length};
    made += found.length;
  }
  return made;
}

}  // namespace zarrfeed
