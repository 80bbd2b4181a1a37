#pragma once
// The table of the codecs that the engine decodes. A codec is added by its file, a row here, and its test.

#include <cstddef>
#include <span>
#include <string_view>

#include "base/bytes.h"
#include "codecs/codec.h"

namespace zarrfeed {

/// One codec: what Zarr's metadata call it, and what it does.
struct CodecEntry {
  std::string_view name;  ///< in v2 and v3 metadata, without the prefix "numcodecs."
  /// Decodes `in` into `out`, see codec.h. Null for a checksum, which only looks at the bytes.
  size_t (*decode)(Bytes in, MutableBytes out, DecodeScratch& scratch);
};

/// Every codec, in the order in which messages list them.
std::span<const CodecEntry> codec_table();

/// The row of a codec. Throws Error(kUnsupported) if there is none.
const CodecEntry& find_codec(std::string_view name);

}  // namespace zarrfeed
