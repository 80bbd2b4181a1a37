#pragma once
// A codec, as the metadata of an array name it.

namespace zarrfeed {

/// One bytes-to-bytes codec, in the order of decoding.
struct CodecSpec {
  enum class Kind { kBlosc, kZstd, kGzip, kZlib, kLz4, kCrc32c };
  Kind kind;
  bool checksum_at_start = false;  ///< crc32c only: the four bytes stand in front of the payload
};

}  // namespace zarrfeed
