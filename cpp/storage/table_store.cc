#include "storage/table_store.h"

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace zarrfeed {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;
constexpr uint8_t kNoByte = 0;

/// Takes a number, and the separator behind it, from the beginning of a key. Nothing if there is none.
std::optional<int64_t> take_number(std::string_view& key, char separator) {
  int64_t number = -1;
  const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), number);
  if (code != std::errc() || number < 0) return std::nullopt;
  key.remove_prefix(static_cast<size_t>(end - key.data()));
  if (!key.empty()) {
    if (key.front() != separator || key.size() == 1) return std::nullopt;
    key.remove_prefix(1);
  }
  return number;
}

/// The numbers of a key, which chunk_key() made. Nothing if it is none of an array.
std::optional<std::vector<int64_t>> index_of(std::string_view key, const KeySpec& spec) {
  if (!key.starts_with(spec.prefix)) return std::nullopt;
  key.remove_prefix(spec.prefix.size());
  if (!spec.prefix.empty() && key.starts_with(spec.separator)) key.remove_prefix(1);
  std::vector<int64_t> index;
  while (!key.empty()) {
    const auto number = take_number(key, spec.separator);
    if (!number) return std::nullopt;
    index.push_back(*number);
  }
  return index;
}

}  // namespace

TableStore::TableStore(std::vector<std::shared_ptr<const ChunkTable>> tables, KeySpec key, bool has_parts,
                       size_t max_bytes, std::shared_ptr<IoThreads> io)
    : FileStore("", "", max_bytes, std::move(io)),
      tables_(std::move(tables)),
      key_(std::move(key)),
      has_parts_(has_parts) {}

ReadStatus TableStore::open_chunk(const std::string& key, PendingRead& pending, const ByteRange& range) const {
  std::string_view rest = key;
  const auto part = has_parts_ ? take_number(rest, '/') : std::optional<int64_t>(0);
  const auto index = index_of(rest, key_);
  if (!part || static_cast<size_t>(*part) >= tables_.size() || !index) {
    throw Error(ErrorKind::kConfig, key + " is no key of a chunk");
  }
  const ChunkTable& table = *tables_[static_cast<size_t>(*part)];
  const auto extent = table.find(*index);
  if (!extent) return ReadStatus::kMissing;
  if (extent->file_index == ChunkTable::kInMemory) {
    pending.memory = table.in_memory.empty() ? &kNoByte : table.in_memory.data();
  } else {
    open_unchanged(table.files[static_cast<size_t>(extent->file_index)], pending);
  }
  const uint64_t bytes = table.padded_bytes > 0 ? table.padded_bytes : extent->length;
  return select(pending, range, {.begin = extent->offset, .bytes = bytes, .end = extent->offset + extent->length});
}

void TableStore::open_unchanged(const ChunkTable::File& file, PendingRead& pending) const {
  if (!open_file(file.path, pending)) throw Error::io(file.path + " is gone", ENOENT);
  const int64_t modified_ns = pending.version.seconds * kNanoseconds + pending.version.nanoseconds;
  if (pending.version.size != file.bytes || modified_ns != file.modified_ns) {
    throw Error::io(file.path + " has changed since it was opened", EINVAL);  // no other try helps
  }
}

}  // namespace zarrfeed
