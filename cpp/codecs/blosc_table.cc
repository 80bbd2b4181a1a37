#include "codecs/blosc_table.h"

#include <algorithm>
#include <string>

#include "base/division.h"
#include "codecs/codec.h"

namespace zarrfeed {
namespace {

/// A block begins with the length of its first stream.
constexpr size_t kLeastBlock = 4;

}  // namespace

BloscHeader BloscHeader::read(Bytes stored, size_t stored_bytes, size_t max_decoded_bytes) {
  if (stored.size() < kBytes) {
    throw_corrupt("a Blosc header has 16 bytes, the chunk holds " + std::to_string(stored.size()));
  }
  if (stored[0] != kFormatVersion) {
    throw_corrupt("Blosc format version = " + std::to_string(stored[0]) + ", must be " +
                  std::to_string(kFormatVersion));
  }
  BloscHeader header;
  header.flags = stored[2];
  header.typesize = stored[3];
  const auto nbytes = static_cast<int32_t>(load_le32(&stored[4]));
  const auto blocksize = static_cast<int32_t>(load_le32(&stored[8]));
  const auto cbytes = static_cast<int32_t>(load_le32(&stored[12]));
  if (nbytes < 0 || static_cast<size_t>(nbytes) > max_decoded_bytes) {
    throw_corrupt("Blosc header declares " + std::to_string(nbytes) + " decoded bytes, the metadata implies " +
                  std::to_string(max_decoded_bytes));
  }
  if (cbytes < static_cast<int32_t>(kBytes) || static_cast<size_t>(cbytes) > stored_bytes) {
    throw_corrupt("Blosc header declares " + std::to_string(cbytes) + " stored bytes, the chunk holds " +
                  std::to_string(stored_bytes));
  }
  if (header.typesize < 1) throw_corrupt("Blosc typesize = 0, must be at least 1");
  if (nbytes > 0 && (blocksize < 1 || blocksize > nbytes)) {
    throw_corrupt("Blosc blocksize = " + std::to_string(blocksize) +
                  ", must be between 1 and nbytes = " + std::to_string(nbytes));
  }
  header.stored_bytes = static_cast<size_t>(cbytes);
  header.decoded_bytes = static_cast<size_t>(nbytes);
  header.block_bytes = std::max<size_t>(1, static_cast<size_t>(blocksize));
  header.num_blocks = ceil_div(header.decoded_bytes, header.block_bytes);
  const size_t payload = header.stored_bytes - kBytes;
  if (header.is_memcpyed()) {
    if (payload < header.decoded_bytes) {
      throw_corrupt("Blosc header declares " + std::to_string(header.decoded_bytes) + " raw bytes, the chunk holds " +
                    std::to_string(payload));
    }
  } else if (payload / 4 < header.num_blocks) {
    throw_corrupt("Blosc header implies " + std::to_string(header.num_blocks) +
                  " blocks, more than the chunk has room for");
  }
  return header;
}

size_t BloscHeader::size_of(size_t block) const {
  return std::min(block_bytes, decoded_bytes - block * block_bytes);
}

size_t BloscHeader::num_streams(size_t size) const {
  constexpr size_t kMaxStreams = 16;
  constexpr size_t kLeastItems = 128;
  const bool is_whole = size == block_bytes;
  const bool are_many = (flags & kDontSplit) == 0 && typesize <= kMaxStreams && block_bytes / typesize >= kLeastItems;
  return are_many && is_whole ? typesize : 1;
}

void check_blosc_table(const BloscHeader& header, Bytes table) {
  if (header.is_memcpyed()) return;
  const size_t first = BloscHeader::kBytes + header.table_bytes();
  uint32_t least = UINT32_MAX;
  uint32_t most = 0;
  for (size_t b = 0; b < header.num_blocks; ++b) {
    const uint32_t begin = load_le32(&table[4 * b]);
    least = std::min(least, begin);
    most = std::max(most, begin);
  }
  if (header.num_blocks > 0 && (least < first || size_t{most} + kLeastBlock > header.stored_bytes)) {
    throw_corrupt("Blosc block begins outside of the chunk");
  }
}

BloscTable::BloscTable(const BloscHeader& header, Bytes table) : header_(header) {
  if (header.is_memcpyed()) return;
  if (table.size() < header.table_bytes()) {
    throw_corrupt("Blosc header implies a table of " + std::to_string(header.table_bytes()) +
                  " bytes, the chunk holds " + std::to_string(table.size()));
  }
  check_blosc_table(header, table);
  begins_.reserve(header.num_blocks);
  for (size_t b = 0; b < header.num_blocks; ++b) begins_.push_back(load_le32(&table[4 * b]));
  sorted_ = begins_;
  if (!std::ranges::is_sorted(sorted_)) std::ranges::sort(sorted_);
}

BloscTable::Range BloscTable::range_of(size_t block) const {
  if (header_.is_memcpyed()) {
    const size_t begin = BloscHeader::kBytes + block * header_.block_bytes;
    return {begin, begin + header_.size_of(block)};
  }
  const auto next = std::ranges::upper_bound(sorted_, begins_[block]);
  return {begins_[block], next == sorted_.end() ? header_.stored_bytes : size_t{*next}};
}

}  // namespace zarrfeed
