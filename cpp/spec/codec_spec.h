#pragma once
// A codec, as the metadata of an array name it.

#include <cstddef>
#include <string>

namespace zarrfeed {

/// One bytes-to-bytes codec, in the order of decoding.
struct CodecSpec {
  std::string name;                ///< one of codecs/codec_table.h
  bool checksum_at_start = false;  ///< checksums only: the four bytes stand in front of the payload
  size_t element_bytes = 1;        ///< the bytes of an element, at least 1; of filters, and of bitshuffle
  size_t run_bytes = 0;            ///< bytes after which a filter begins anew, 0: never; those that decode_short takes
  size_t stride = 1;               ///< delta only: the distance of the elements that it subtracts, at least 1
  bool big_endian = false;         ///< delta only: the byte order of the elements
};

}  // namespace zarrfeed
