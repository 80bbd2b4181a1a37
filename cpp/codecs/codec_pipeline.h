#pragma once
// The chain of codecs of one array: stored bytes in, exactly one decoded read chunk out.

#include <vector>

#include "base/bytes.h"
#include "codecs/codec.h"
#include "codecs/codec_table.h"
#include "spec/codec_spec.h"

namespace zarrfeed {

class CodecPipeline {
 public:
  /// `decoded_bytes` is the size of a decoded chunk, from the array's metadata.
  /// Throws Error(kUnsupported) for a codec that is not in the table.
  CodecPipeline(const std::vector<CodecSpec>& codecs, size_t decoded_bytes);

  /// Decodes `stored`, using `out` (of decoded_bytes) as the memory for the result.
  /// Returns a view of exactly decoded_bytes: of `out`, of `stored` where nothing had to be decompressed, or of the
  /// scratch where a checksum lies behind the decompressed bytes.
  /// Throws Error(kCorrupt) if the chunk does not decode to that size. Thread-safe with a scratch of one's own.
  Bytes decode(Bytes stored, MutableBytes out, DecodeScratch& scratch) const;
  /// Decodes `stored` up to the byte shuffle that is the last step; only if shuffled_element() > 0. Returns a view of
  /// decoded_bytes, of the scratch or of `stored`: byte k of element i lies at k * elements + i. Throws as decode() does.
  Bytes decode_planes(Bytes stored, DecodeScratch& scratch) const;
  /// The bytes of an element if the last step undoes a byte shuffle of whole elements; else 0.
  [[nodiscard]] size_t shuffled_element() const { return shuffled_element_; }

  [[nodiscard]] size_t decoded_bytes() const { return decoded_bytes_; }
  /// True if every codec only looks at the bytes: decode() then returns a view of its input.
  [[nodiscard]] bool is_view() const { return is_view_; }
  /// True if there is no codec: chunks are stored as they are.
  [[nodiscard]] bool is_raw() const { return steps_.empty(); }
  /// True if Blosc is the only codec.
  [[nodiscard]] bool is_blosc() const { return is_blosc_; }
  /// The longest stored object that is still plausible; a longer one is refused before it is read.
  [[nodiscard]] size_t max_stored_bytes() const;

 private:
  struct Step {
    const CodecEntry* entry;
    CodecSpec codec;
    size_t room = 0;        ///< the bytes that it decodes to, at most
    bool is_exact = false;  ///< it decodes to exactly so many
  };

  void find_rooms();
  /// Runs the first `count` steps; the last step of all writes to `out`.
  Bytes run(size_t count, Bytes stored, MutableBytes out, DecodeScratch& scratch) const;

  std::vector<Step> steps_;
  size_t decoded_bytes_;
  bool is_view_ = true;
  bool is_blosc_ = false;
  size_t shuffled_element_ = 0;
};

/// Throws Error(kCorrupt) unless a chunk of `implied` bytes decodes to so many.
void check_decoded_bytes(size_t decoded, size_t implied);

}  // namespace zarrfeed
