#include "storage/chunk_tables.h"

#include <charconv>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace zarrfeed {
namespace {

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

ChunkTables::Found ChunkTables::find(const std::string& key) const {
  std::string_view rest = key;
  const auto part = has_parts_ ? take_number(rest, '/') : std::optional<int64_t>(0);
  const auto index = index_of(rest, key_);
  if (!part || static_cast<size_t>(*part) >= tables_.size() || !index) {
    throw Error(ErrorKind::kConfig, key + " is no key of a chunk");
  }
  const auto number = static_cast<size_t>(*part);
  return {.table = tables_[number], .part = number, .extent = tables_[number]->find(*index)};
}

const uint8_t* ChunkTables::in_memory(const ChunkTable& table) {
  return table.in_memory.empty() ? &kNoByte : table.in_memory.data();
}

}  // namespace zarrfeed
