#pragma once
// A codec, as the metadata of an array name it.

#include <string>

namespace zarrfeed {

/// One bytes-to-bytes codec, in the order of decoding.
struct CodecSpec {
  std::string name;                ///< one of codecs/codec_table.h
  bool checksum_at_start = false;  ///< crc32c only: the four bytes stand in front of the payload
};

}  // namespace zarrfeed
