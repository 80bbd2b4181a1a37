#include "codecs/codec_table.h"

#include <algorithm>
#include <string>

namespace zarrfeed {
namespace {

/// A decoder for which the stored bytes say all that it needs.
template <size_t (*kDecode)(Bytes, MutableBytes, DecodeScratch&)>
size_t by_bytes(Bytes in, MutableBytes out, const CodecSpec&, DecodeScratch& scratch) {
  return kDecode(in, out, scratch);
}

// Names with "zarrfeed." are those of codecs of other formats, which Zarr has not.
constexpr CodecEntry kTable[] = {
    {.name = "blosc", .decode = by_bytes<decode_blosc>},
    {.name = "zstd", .decode = by_bytes<decode_zstd>},
    {.name = "gzip", .decode = by_bytes<decode_gzip>},
    {.name = "zlib", .decode = by_bytes<decode_zlib>},
    {.name = "lz4", .decode = by_bytes<decode_lz4>},
    {.name = "shuffle", .undo = undo_shuffle},
    {.name = "delta", .undo = undo_delta},
    {.name = "crc32c", .checksum = crc32c},
    {.name = "fletcher32", .checksum = fletcher32},
    {.name = "zarrfeed.lzf", .decode = decode_lzf},
    {.name = "zarrfeed.lzw", .decode = decode_lzw},
    {.name = "zarrfeed.hdf5_lz4", .decode = decode_hdf5_lz4},
    {.name = "zarrfeed.bitshuffle_lz4", .decode = decode_bitshuffle_lz4},
    {.name = "zarrfeed.bitshuffle_zstd", .decode = decode_bitshuffle_zstd},
    {.name = "zarrfeed.shuffle", .undo = undo_hdf5_shuffle},
    {.name = "zarrfeed.bitshuffle", .undo = undo_bitshuffle},
    {.name = "zarrfeed.delta", .undo = undo_delta},
    {.name = "zarrfeed.short", .decode = decode_short},
};

}  // namespace

std::span<const CodecEntry> codec_table() {
  return kTable;
}

const CodecEntry& find_codec(std::string_view name) {
  const auto* const found = std::ranges::find(kTable, name, &CodecEntry::name);
  if (found == std::end(kTable)) throw Error(ErrorKind::kUnsupported, "codec " + std::string(name));
  return *found;
}

}  // namespace zarrfeed
