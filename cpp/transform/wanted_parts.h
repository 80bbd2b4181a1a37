#pragma once
// The parts of a chunk's stored bytes that have its wanted rows or boxes, found before the chunk is read.
//
// Invariants:
//   * The parts are the header and the table of the chunk, and the Blosc blocks that TouchedBlocks would decode: the same class
//     finds them here, and decodes them later. Parts with a small gap between them are one. Of a chunk without codecs they are
//     its pages.
//   * All of the chunk is read where that is cheaper: a small chunk, or one of which more than half of the blocks or of the
//     bytes are wanted. So nothing is asked of those who want all rows of a chunk but how many there are.
//   * A chunk whose header or table is damaged, and one that is no Blosc chunk of this array, is read whole. Whoever decodes it
//     reports what is wrong, as he would have done without parts.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/stored_bytes.h"
#include "transform/array_source.h"
#include "transform/axis_items.h"
#include "transform/patches/chunk_crop.h"
#include "transform/touched_blocks.h"

namespace zarrfeed {

class WantedParts : public ChunkParts {
 public:
  /// True if chunks of an array are ever read in parts.
  [[nodiscard]] static bool has_parts(const ArraySource& source, const PartCosts& costs);
  /// The parts with these rows of a chunk, counted from its first one: of an array with chosen items, with the chosen items of
  /// them. Null: they are most of the chunk.
  static std::shared_ptr<const ChunkParts> of_rows(std::shared_ptr<const ArraySource> source, size_t cell,
                                                   std::vector<ChunkItems> rows, const PartCosts& costs);
  /// The parts with these boxes of a chunk.
  static std::shared_ptr<const ChunkParts> of_crops(std::shared_ptr<const ArraySource> source,
                                                    std::vector<ChunkCrop> crops, const PartCosts& costs);

  /// Made by the functions above: either `rows` of a cell, ascending, or `crops` are wanted.
  WantedParts(std::shared_ptr<const ArraySource> source, size_t cell, std::vector<ChunkItems> rows,
              std::vector<ChunkCrop> crops, const PartCosts& costs)
      : source_(std::move(source)), cell_(cell), rows_(std::move(rows)), crops_(std::move(crops)), costs_(costs) {}

  [[nodiscard]] Found find(Bytes first, size_t stored_bytes) const override;

 private:
  [[nodiscard]] Found find_ranges(const StoredBytes& stored) const;
  /// Marks the blocks of a chunk that have wanted items in `touched`. Returns false if the chunk has no blocks of its own.
  bool touch(const StoredBytes& stored, TouchedBlocks& touched) const;

  const std::shared_ptr<const ArraySource> source_;
  const size_t cell_;
  const std::vector<ChunkItems> rows_;
  const std::vector<ChunkCrop> crops_;
  const PartCosts costs_;
};

}  // namespace zarrfeed
