#pragma once
// The table of the codecs that the engine decodes. A codec is added by its file, a row here, and its test.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "codecs/codec.h"
#include "spec/codec_spec.h"

namespace zarrfeed {

/// One codec: what Zarr's metadata call it, and its function, which is one of three.
struct CodecEntry {
  std::string_view name;  ///< in v2 and v3 metadata, without the prefix "numcodecs."
  /// A compressor decodes `in` into `out`, see codec.h.
  size_t (*decode)(Bytes in, MutableBytes out, const CodecSpec& codec, DecodeScratch& scratch) = nullptr;
  /// A filter makes as many bytes as it is given, see codec.h.
  void (*undo)(Bytes in, uint8_t* out, const CodecSpec& codec) = nullptr;
  /// A checksum leaves the bytes as they are, and stands in 4 bytes beside them, little-endian.
  uint32_t (*checksum)(Bytes data) = nullptr;
};

/// Every codec, in the order in which messages list them.
std::span<const CodecEntry> codec_table();

/// The row of a codec. Throws Error(kUnsupported) if there is none.
const CodecEntry& find_codec(std::string_view name);

}  // namespace zarrfeed
