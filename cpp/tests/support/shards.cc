#include "tests/support/shards.h"

#include "tests/support/compress.h"

namespace zarrfeed::testing {

std::vector<uint8_t> make_index(const ShardSpec& spec, const std::vector<ShardEntry>& entries) {
  std::vector<uint8_t> out;
  for (const auto& [offset, size] : entries) {
    for (const uint64_t word : {offset, size}) {
      for (int i = 0; i < 8; ++i) out.push_back(static_cast<uint8_t>(word >> 8 * (spec.index_big_endian ? 7 - i : i)));
    }
  }
  return spec.index_has_crc32c ? append_crc32c(out) : out;
}

std::vector<uint8_t> make_shard(const ShardSpec& spec, const std::vector<std::optional<std::vector<uint8_t>>>& chunks,
                                size_t gap) {
  const size_t index_bytes = chunks.size() * 16 + (spec.index_has_crc32c ? 4 : 0);
  const size_t begin = spec.index_at_start ? index_bytes : 0;
  std::vector<uint8_t> body;
  std::vector<ShardEntry> entries(chunks.size(), {kNoChunk, kNoChunk});
  for (size_t i = chunks.size(); i-- > 0;) {
    if (!chunks[i]) continue;
    body.insert(body.end(), gap, 0xbb);
    entries[i] = {begin + body.size(), chunks[i]->size()};
    body.insert(body.end(), chunks[i]->begin(), chunks[i]->end());
  }
  const std::vector<uint8_t> index = make_index(spec, entries);
  body.insert(spec.index_at_start ? body.begin() : body.end(), index.begin(), index.end());
  return body;
}

}  // namespace zarrfeed::testing
