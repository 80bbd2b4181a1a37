#pragma once
// The patch table: where the sample with a number begins. There is one for each epoch, as tiles are laid anew.
//
// Samples are numbered block by block. The patches of a block are either tiles, a box of them in C order, or listed. So
// nothing is stored for a tile.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spec/patch_spec.h"

namespace zarrfeed {

struct PatchTable {
  size_t num_dims = 0;
  // Tiles: tile i of a volume along a dimension begins at origin + i * step, but not before `least` or behind `last`.
  std::vector<int64_t> step;          ///< (dims)
  std::vector<int64_t> origin;        ///< (volumes, dims)
  std::vector<int64_t> least;         ///< (volumes, dims)
  std::vector<int64_t> last;          ///< (volumes, dims)
  std::vector<int64_t> block_first;   ///< (blocks + 1): the number of the first sample of each
  std::vector<int64_t> block_volume;  ///< (blocks)
  std::vector<int64_t> block_begin;   ///< (blocks, dims): the first tile
  std::vector<int64_t> block_count;   ///< (blocks, dims): tiles
  int64_t sweep_axis = -1;            ///< the only dimension along which the blocks of a run differ; -1: unknown
  // Listed: where each sample begins. Empty: there are tiles.
  std::vector<int64_t> volume_of;  ///< (samples)
  std::vector<int64_t> start_of;   ///< (samples, dims)
  // The user's number of a patch: volume_number + the sum of (start + margin) * stride over the dimensions. Where a
  // dimension is periodic, a start is taken modulo its period.
  std::vector<int64_t> period;         ///< (volumes, dims); 0: not periodic
  std::vector<int64_t> margin;         ///< (dims)
  std::vector<int64_t> stride;         ///< (volumes, dims)
  std::vector<int64_t> volume_number;  ///< (volumes)
  /// One of these is drawn for each sample, all equally likely; some may be equal. Empty: samples are not turned.
  std::vector<Orientation> orientations;

  /// Throws Error(kConfig) if the arrays do not fit together.
  void check() const;
  [[nodiscard]] int64_t num_samples() const;
  [[nodiscard]] bool is_listed() const { return !volume_of.empty(); }
  /// The block that a sample is of; there are tiles.
  [[nodiscard]] size_t block_of(int64_t sample) const;
  /// The first voxel of tile `tile` of a volume along a dimension.
  [[nodiscard]] int64_t tile_start(int64_t volume, size_t dim, int64_t tile) const;
  /// The first voxel of a sample. Throws Error(kConfig) if there is no such sample.
  [[nodiscard]] PatchStart start(int64_t sample) const;
  /// The user's number of a sample.
  [[nodiscard]] int64_t number(int64_t sample) const;
};

}  // namespace zarrfeed
