#pragma once
// The other direction of the codecs of HDF5 and TIFF files, for tests: plain writers of the same formats.

#include <cstddef>

#include "spec/codec_spec.h"
#include "tests/support/compress.h"

namespace zarrfeed::testing {

/// Chooses the writer by the codec's name. For "zarrfeed.short", the first codec.run_bytes bytes of `data`.
ByteVector encode_for_file(const CodecSpec& codec, ByteView data);

}  // namespace zarrfeed::testing
