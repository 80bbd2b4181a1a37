#include "storage/far_table_store.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <new>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace zarrfeed {
namespace {

/// The bytes of a chunk that is no whole file.
Extent bytes_of(const ChunkTable::Extent& chunk) {
  return {chunk.offset, chunk.offset + chunk.length};
}

bool is_range(const ReadRequest& request) {
  return request.range.kind == ByteRange::Kind::kAt;
}

/// Adds the zeros that readers of a chunk get behind its bytes.
Completion padding(size_t padded_bytes, Completion done) {
  return [padded_bytes, done = std::move(done)](ReadResult result) {
    if (!result.error && result.status == ReadStatus::kOk && result.bytes.size() < padded_bytes) {
      try {
        const auto padded = std::make_shared<std::vector<uint8_t>>(padded_bytes);
        std::ranges::copy(result.bytes, padded->begin());
        result.bytes = *padded;
        result.hold = padded;
      } catch (const std::bad_alloc&) {
        result.error = Error::io("no memory for it", ENOMEM);
      }
    }
    done(std::move(result));
  };
}

}  // namespace

std::string FarTableStore::file_key(const ChunkTables::Found& found) const {
  const std::string name = kBeforeFileNumber + std::to_string(found.extent->file_index);
  return tables_.has_parts() ? std::to_string(found.part) + '/' + name : name;
}

bool FarTableStore::are_near(const std::string& one, const std::string& other) const {
  const auto found = tables_.find(one);
  const auto next = tables_.find(other);
  if (!found.extent || !next.extent || found.part != next.part) return false;
  if (found.extent->file_index != next.extent->file_index || found.extent->file_index == ChunkTable::kInMemory) {
    return false;
  }
  if (found.extent->is_whole() || next.extent->is_whole()) return false;
  std::vector<Extent> extents{bytes_of(*found.extent), bytes_of(*next.extent)};
  std::ranges::sort(extents, {}, &Extent::begin);
  return runs_together(extents, limits_.coalesce).size() == 1;
}

void FarTableStore::locate(ReadRequest request, std::vector<ReadRequest>& ranges) const {
  try {
    const ChunkTables::Found found = tables_.find(request.key);
    if (!found.extent) {
      request.done({.status = ReadStatus::kMissing});
      return;
    }
    const size_t padded_bytes = found.table->padded_bytes;
    if (padded_bytes > 0) request.done = padding(padded_bytes, std::move(request.done));
    if (found.extent->is_whole()) {
      request.range = {};
    } else {
      check_stored_size(found.extent->length, max_bytes_);
      request.range = ByteRange::at(found.extent->offset, found.extent->length);
    }
    if (found.extent->file_index == ChunkTable::kInMemory) {
      const uint8_t* const begin = ChunkTables::in_memory(*found.table) + request.range.offset;
      request.done({.status = ReadStatus::kOk, .bytes = {begin, request.range.size}, .hold = found.table});
      return;
    }
    request.key = file_key(found);
    ranges.push_back(std::move(request));
  } catch (const Error& error) {
    request.done({.error = error});
  }
}

void FarTableStore::read(std::vector<ReadRequest> requests) {
  std::vector<ReadRequest> ranges;
  ranges.reserve(requests.size());
  for (ReadRequest& request : requests) locate(std::move(request), ranges);
  const auto location = [](const ReadRequest& one) {
    return std::tuple<const std::string&, bool, uint64_t>(one.key, is_range(one), one.range.offset);
  };
  std::ranges::stable_sort(ranges, {}, location);
  for (size_t begin = 0; begin < ranges.size();) {
    std::vector<Extent> extents;
    size_t end = begin;
    do {
      extents.push_back({ranges[end].range.offset, ranges[end].range.offset + ranges[end].range.size});
      ++end;
    } while (end < ranges.size() && is_range(ranges[end - 1]) && ranges[end].key == ranges[begin].key);
    const auto from = std::make_move_iterator(ranges.begin() + static_cast<std::ptrdiff_t>(begin));
    std::ptrdiff_t first = 0;
    for (const size_t run : runs_together(extents, limits_.coalesce)) {
      const auto last = static_cast<std::ptrdiff_t>(run);
      files_->read(std::vector<ReadRequest>(from + first, from + last));
      first = last;
    }
    begin = end;
  }
}

}  // namespace zarrfeed
