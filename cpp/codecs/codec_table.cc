#include "codecs/codec_table.h"

#include <algorithm>
#include <string>

namespace zarrfeed {
namespace {

constexpr CodecEntry kTable[] = {
    {"blosc", decode_blosc}, {"zstd", decode_zstd}, {"gzip", decode_gzip},
    {"zlib", decode_zlib},   {"lz4", decode_lz4},   {"crc32c", nullptr},
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
