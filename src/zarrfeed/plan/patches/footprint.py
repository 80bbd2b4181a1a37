"""`Footprint`: the items, and the chunks, of an array that patches touch.

Patches lie on a grid of voxels. The array may have these voxels, or one item for several of them (a level of a
pyramid), and a patch may have more items of it than the box of the grid (a context).

Invariants, along each dimension:

- **One rule.** A patch that begins at voxel s of the grid has `size` items, from `(s - origin) // scale + shift` on.
  So patches that begin later have later items, and those of a run of tiles lie between the first item of the
  first tile and the last item of the last one.
- **Inside.** Items below 0 or beyond the array are in no chunk, or in the nearest one if the border mirrors or
  repeats. Where the dimension wraps, they are those of the other end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from zarrfeed.plan.patches.tiling import TileGrid, Tiling
from zarrfeed.plan.samples.selection import Int64


@dataclass(frozen=True, eq=False)
class Footprint:
    """The region of an array that each patch has, in V volumes of D dimensions.

    Attributes
    ----------
    chunk
        Items of a chunk, shape (D,).
    size
        Items of a patch.
    extents
        Items of each volume, shape (V, D).
    scale, origin, shift
        The numbers of the rule above.
    pads
        For each dimension: True if items outside are in no chunk.
    """

    chunk: tuple[int, ...]
    size: tuple[int, ...]
    extents: Int64
    scale: tuple[int, ...]
    origin: tuple[int, ...]
    shift: tuple[int, ...]
    pads: tuple[bool, ...]

    @classmethod
    def plain(cls, chunk: Sequence[int], size: Sequence[int] | Int64, extents: Int64) -> Footprint:
        """Return the footprint on an array whose items are the voxels of the grid."""
        once, nothing = (1,) * len(chunk), (0,) * len(chunk)
        length = tuple(int(one) for one in size)
        return cls(tuple(chunk), length, extents, once, nothing, nothing, (True,) * len(chunk))

    def of_cells(self, cell: Sequence[int]) -> Footprint:
        """Return the footprint of all patches that begin in a cell, as a tile that begins with the cell."""
        more = [-(-(voxels - 1) // scale) for voxels, scale in zip(cell, self.scale, strict=True)]
        return replace(self, size=tuple(size + items for size, items in zip(self.size, more, strict=True)))

    def num_chunks(self, volume: int, dimension: int) -> int:
        """Return the chunks of a volume along a dimension."""
        return int(-(-self.extents[volume, dimension] // self.chunk[dimension]))

    @property
    def shape(self) -> Int64:
        """Chunks of each volume along each dimension, shape (V, D)."""
        chunks: Int64 = -(-self.extents // np.array(self.chunk))
        return chunks

    def chunks(
        self, grid: TileGrid, volume: Int64, dimension: int, first: Int64, last: Int64 | None = None
    ) -> tuple[Int64, Int64]:
        """Return the first and the last chunk that patches touch, shape (n,).

        If they touch none, the last one is the one before the first. Where the dimension wraps, chunks are counted on:
        chunk k of the second turn is chunk k plus all of them.

        Parameters
        ----------
        grid
            The grid of the patches, which knows the dimensions that wrap.
        volume, dimension
            Volume of each patch, and the number of the dimension.
        first, last
            The voxel that each patch begins at; or with `last`, of runs of patches, the first and the last one.
        """
        d, chunk, extent = dimension, self.chunk[dimension], self.extents[volume, dimension]
        begin = (first - self.origin[d]) // self.scale[d] + self.shift[d]
        end = ((first if last is None else last) - self.origin[d]) // self.scale[d] + self.shift[d] + self.size[d]
        if grid.wraps[d]:
            of_turn = -(-extent // chunk)
            low, high = (x // extent * of_turn + x % extent // chunk for x in (begin, end - 1))
            return low, high
        low, high = np.clip(begin, 0, extent - 1) // chunk, np.clip(end - 1, 0, extent - 1) // chunk
        if self.pads[d]:
            high = np.where((end <= 0) | (begin >= extent), low - 1, high)
        return low, high

    def first_item(self, dimension: int) -> int:
        """Return the first item of a patch that begins at voxel 0."""
        return -self.origin[dimension] // self.scale[dimension] + self.shift[dimension]

    def ends_with_chunks(self, step: int, dimension: int) -> bool:
        """Return whether tiles lie side by side, `step` voxels apart, and the first one begins with a chunk."""
        is_side_by_side = self.size[dimension] * self.scale[dimension] == step
        return is_side_by_side and self.first_item(dimension) % self.chunk[dimension] == 0


#: An array, by the chunk along each dimension if its items are the voxels of the grid.
Footprints: TypeAlias = "Footprint | Sequence[int]"


def footprint_of(array: Footprints, grid: TileGrid | Tiling) -> Footprint:
    """Return the items that patches have of an array."""
    return array if isinstance(array, Footprint) else Footprint.plain(array, grid.size, grid.extents)


def steps_of_whole_chunks(of: Sequence[Footprint], step: int, dimension: int) -> int:
    """Return the number of steps of `step` voxels along a dimension after which a chunk of each array ends."""
    voxels = [one.chunk[dimension] * one.scale[dimension] for one in of]
    return math.lcm(*(chunk // math.gcd(chunk, step) for chunk in voxels))
