#include "codecs/codec_table.h"

#include <algorithm>
#include <string>

namespace zarrfeed {
namespace {

constexpr CodecEntry kTable[] = {
    {.name = "blosc", .decode = decode_blosc}, {.name = "zstd", .decode = decode_zstd},
    {.name = "gzip", .decode = decode_gzip},   {.name = "zlib", .decode = decode_zlib},
    {.name = "lz4", .decode = decode_lz4},     {.name = "shuffle", .undo = undo_shuffle},
    {.name = "crc32c", .checksum = crc32c},    {.name = "fletcher32", .checksum = fletcher32},
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
