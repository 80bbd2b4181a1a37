#pragma once
// A codec, as the metadata of an array name it.

#include <cstddef>
#include <string>

namespace zarrfeed {

/// One bytes-to-bytes codec, in the order of decoding.
struct CodecSpec {
  std::string name;                ///< one of codecs/codec_table.h
  bool checksum_at_start = false;  ///< checksums only: the four bytes stand in front of the payload
  size_t element_bytes = 1;        ///< filters only: the bytes of an element, at least 1
};

}  // namespace zarrfeed
