#pragma once
// The tables of one array's chunks in files: finds by the key of a chunk where its bytes lie.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "spec/array_spec.h"
#include "spec/chunk_table.h"

namespace zarrfeed {

class ChunkTables {
 public:
  using Tables = std::vector<std::shared_ptr<const ChunkTable>>;

  /// `tables`: of each part of the array, or of the array as a whole.
  ChunkTables(Tables tables, KeySpec key, bool has_parts)
      : tables_(std::move(tables)), key_(std::move(key)), has_parts_(has_parts) {}

  /// The location of a chunk.
  struct Found {
    std::shared_ptr<const ChunkTable> table;
    size_t part = 0;
    std::optional<ChunkTable::Extent> extent{};  ///< nothing if the chunk was never written
  };
  /// Throws Error(kConfig) if no chunk of the array has this key.
  [[nodiscard]] Found find(const std::string& key) const;
  [[nodiscard]] bool has_parts() const { return has_parts_; }

  /// The bytes of a chunk that lies in memory.
  static const uint8_t* in_memory(const ChunkTable& table);

 private:
  const Tables tables_;
  const KeySpec key_;
  const bool has_parts_;
};

}  // namespace zarrfeed
