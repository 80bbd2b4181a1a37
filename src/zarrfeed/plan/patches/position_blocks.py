"""Patches that begin at listed voxels: the blocks in which they are read.

The volumes are cut into *cells*, boxes of the size of a chunk or of a part of one, and each patch lies in the cell of
its first voxel. All patches of a cell touch no more than one box of voxels: the cell, and one voxel less than a patch
behind it. These boxes are the tiles of a grid, so columns of cells are chosen, cut and swept as columns of tiles are
(sweep.py).

Invariants:

- **Partition.** A block is patches of a column of cells that begin in one layer of chunks. There are no empty blocks.
- **Bounded.** No block has more than `max_rows` patches. A layer with more is cut into several blocks, which follow
  each other in their run, so that a lane carries their chunks from one to the next.
- **Duplicates** are patches of their own: as many are read as are listed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.plan.patches.patch_numbers import Numbering
from zarrfeed.plan.patches.sweep import Sweep
from zarrfeed.plan.patches.tiling import TileGrid, Tiling
from zarrfeed.plan.samples.selection import Int64

#: Cells are halved until half of those with patches have no more than this, but not more often than that.
_PATCHES_OF_CELL, _MOST_HALVINGS = 2, 4
#: Largest number of patches of a block, as a multiple of the average over its cells.
_MOST_ROWS = 1.25


class PatchPositions(Protocol):
    """The first voxels of the patches of each epoch; all epochs have the same number of patches."""

    @property
    def num_samples(self) -> int:
        """Patches of an epoch."""

    @property
    def changes(self) -> bool:
        """True if epochs have different patches."""

    def at(self, seed: int, epoch: int) -> tuple[Int64, Int64]:
        """Return the volume of each patch, shape (n,), and its first voxel there, shape (n, D)."""

    def describe(self) -> dict[str, Any]:
        """Return the terms that the patches depend on, beside seed and epoch, as JSON."""

    def concat(self, parts: Sequence[tuple[Any, int]]) -> PatchPositions:
        """Return several sources of this kind as one, each given with the number of its volumes; this is the first."""


@dataclass(frozen=True, eq=False)
class ListedPositions:
    """Patches that are the same in each epoch.

    Attributes
    ----------
    volume
        Volume of each patch, shape (n,).
    start
        First voxel of each patch, shape (n, D). Below 0 where it begins in the padding; in [0, N) where a dimension is
        periodic.
    """

    volume: Int64
    start: Int64

    @property
    def num_samples(self) -> int:
        """Patches of an epoch."""
        return len(self.volume)

    @property
    def changes(self) -> bool:
        """True if epochs have different patches: never."""
        return False

    def at(self, seed: int, epoch: int) -> tuple[Int64, Int64]:
        """Return the volume and the first voxel of each patch, which depend neither on the seed nor on the epoch."""
        del seed, epoch
        return self.volume, self.start

    def describe(self) -> dict[str, Any]:
        """Return the number of patches, and a hash of them."""
        listed = np.concatenate([self.volume[:, None], self.start], axis=1)
        digest = hashlib.sha256(np.ascontiguousarray(listed.astype("<i8")).tobytes()).hexdigest()
        return {"positions": f"{len(listed)} ({digest[:16]})"}

    def concat(self, parts: Sequence[tuple[Any, int]]) -> ListedPositions:
        """Return the patches of several volumes one after another."""
        first = np.cumsum([0, *(volumes for _, volumes in parts)])
        volume = np.concatenate([one.volume + base for (one, _), base in zip(parts, first[:-1], strict=True)])
        return ListedPositions(volume, np.concatenate([one.start for one, _ in parts]))


@dataclass(frozen=True, eq=False)
class PositionsOfSource:
    """Patches of one of several sources, whose volumes are numbered over all sources.

    Attributes
    ----------
    alone
        The patches of the source alone.
    first_volume
        The number of its first volume.
    """

    alone: PatchPositions
    first_volume: int

    @property
    def num_samples(self) -> int:
        """Patches of an epoch."""
        return self.alone.num_samples

    @property
    def changes(self) -> bool:
        """True if epochs have different patches."""
        return self.alone.changes

    def at(self, seed: int, epoch: int) -> tuple[Int64, Int64]:
        """Return the volume of each patch, shape (n,), and its first voxel there, shape (n, D)."""
        volume, start = self.alone.at(seed, epoch)
        return volume + self.first_volume, start

    def describe(self) -> dict[str, Any]:
        """Return the terms that the patches depend on, beside seed and epoch, as JSON."""
        return {**self.alone.describe(), "first_volume": self.first_volume}

    def concat(self, parts: Sequence[tuple[Any, int]]) -> PatchPositions:
        """Never called: sources are put together by a mixture."""
        raise AssertionError(parts)


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells that patches are sorted into.

    Attributes
    ----------
    tiling
        For each cell, the voxels that patches of it can touch, as tiles that overlap.
    chunk
        Shape (D,) of a chunk of the array that was cut into cells.
    size
        Voxels of a patch, shape (D,).
    wraps
        For each dimension: True if it is periodic.
    density
        Patches of a cell, on average over the cells that have any, where many are counted as few.
    """

    tiling: Tiling
    chunk: Int64
    size: Int64
    wraps: tuple[bool, ...]
    density: float

    @classmethod
    def of(
        cls,
        source: PatchPositions,
        extents: Int64,
        size: tuple[int, ...],
        wraps: tuple[bool, ...],
        chunk: tuple[int, ...],
    ) -> Cells:
        """Return cells of the size of a chunk, or smaller ones where chunks have many patches."""
        volume, start = source.at(0, 0)
        sizes = np.array(size)
        # where a dimension is periodic, the voxels that patches of a cell touch go around once at most
        most = np.where(wraps, (extents - sizes + 1).min(axis=0), extents.max(axis=0))
        for halvings in range(_MOST_HALVINGS + 1):
            cell = np.maximum(1, np.minimum(-(-np.array(chunk) // 2**halvings), most))
            tiling = Tiling(
                extents,
                tuple((cell + sizes - 1).tolist()),
                "grid",
                tuple("wrap" if one else "pad" for one in wraps),
                tuple(cell.tolist()),
            )
            index = _cell_of(tiling, volume, start)
            _, patches = np.unique(_numbers(volume, index, tiling.most_tiles), return_counts=True)
            if np.median(patches) <= _PATCHES_OF_CELL or (cell == 1).all():
                break
        return cls(tiling, np.array(chunk), sizes, wraps, float(np.minimum(patches, _PATCHES_OF_CELL).mean()))

    def max_rows(self, sweep: Sweep) -> int:
        """Return the most patches that a block may have."""
        most: list[int] = self.tiling.most_tiles.max(axis=0).tolist()
        cells = math.prod(map(min, sweep.width, most))
        return math.ceil(_MOST_ROWS * self.density * cells)

    @property
    def patches(self) -> TileGrid:
        """The volumes and the size of a patch, as a grid: what says which chunks patches touch."""
        extents = self.tiling.extents
        origin = np.zeros_like(extents)
        return TileGrid(
            size=self.size,
            step=self.size,
            extents=extents,
            origin=origin,
            first=origin,
            last=extents,
            count=self.tiling.most_tiles,
            wraps=self.wraps,
        )


@dataclass(frozen=True, eq=False)
class PositionBlocks:
    """The blocks of an epoch's patches: what `TileBlocks` is for tiles.

    Attributes
    ----------
    grid
        The volumes, and the size of a patch.
    sweep
        The cut of cells into columns.
    volume, start
        Volume of each sample, shape (n,), and its first voxel, shape (n, D).
    first
        Number of the first sample of each block, and the number of samples at the end, shape (B + 1,).
    run
        Number of the run that each block belongs to, shape (B,).
    """

    grid: TileGrid
    sweep: Sweep
    volume: Int64
    start: Int64
    first: Int64
    run: Int64

    @classmethod
    def of(cls, cells: Cells, sweep: Sweep, volume: Int64, start: Int64) -> PositionBlocks:
        """Sort patches into blocks, given the volume and the first voxel of each."""
        index = _cell_of(cells.tiling, volume, start)
        column = _column_of(cells.tiling, sweep, volume, index)
        cell, chunk = cells.tiling.step[sweep.axis], int(cells.chunk[sweep.axis])
        layer = index[:, sweep.axis] * cell // chunk
        # along the sweep axis, so that the blocks of a layer that is cut are thin
        order = np.lexsort((start[:, sweep.axis], layer, column))
        column, layer = column[order], layer[order]
        begins = np.flatnonzero(_differs(column) | _differs(layer))
        rows = np.diff(begins, append=len(column))
        parts = -(-rows // cells.max_rows(sweep))
        # one entry per block from here on
        part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        first = np.repeat(begins, parts) + part * np.repeat(rows, parts) // np.repeat(parts, parts)
        run_layer = layer[first] * chunk // cell // (sweep.layers or cells.tiling.most_tiles[:, sweep.axis].max())
        run = np.cumsum(_differs(column[first]) | _differs(run_layer)) - 1
        return cls(cells.patches, sweep, volume[order], start[order], np.append(first, len(column)), run)

    def __len__(self) -> int:
        return len(self.run)

    @property
    def num_samples(self) -> int:
        """Patches of all volumes."""
        return len(self.volume)

    @property
    def max_rows(self) -> int:
        """Samples of a block, at most."""
        return int(np.diff(self.first).max())

    def starts(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return the volume of samples, shape (n,), and the first voxel of each, shape (n, D)."""
        return self.volume[samples], self.start[samples]

    def table(self, numbering: Numbering, periods: Int64, orientations: Int64) -> core.PatchTable:
        """Convert the first voxels of samples, and their possible turns, to the form that the engine takes."""
        nothing = np.zeros(0, dtype=np.int64)
        return core.PatchTable(
            num_dims=len(self.grid.size),
            step=nothing,
            origin=nothing,
            least=nothing,
            last=nothing,
            block_first=nothing,
            block_volume=nothing,
            block_begin=nothing,
            block_count=nothing,
            sweep_axis=-1,
            volume_of=self.volume,
            start_of=self.start,
            margin=numbering.margin,
            period=periods,
            stride=numbering.stride,
            volume_number=numbering.first[:-1],
            orientations=orientations,
        )


def _cell_of(tiling: Tiling, volume: Int64, start: Int64) -> Int64:
    """Return the index of the cell of patches, shape (n, D); patches beyond the border have a cell at the border."""
    last = tiling.most_tiles[volume] - 1
    index: Int64 = np.clip(start // np.array(tiling.step), 0, last)
    return index


def _numbers(volume: Int64, index: Int64, count: Int64) -> Int64:
    """Return a number for each index, shape (n, D), among the `count` ones of its volume, shape (volumes, D)."""
    of_volume = count.prod(axis=1)
    number = np.zeros_like(volume)
    for d in range(index.shape[1]):
        number = number * count[volume, d] + index[:, d]
    found: Int64 = (np.cumsum(of_volume) - of_volume)[volume] + number
    return found


def _column_of(tiling: Tiling, sweep: Sweep, volume: Int64, index: Int64) -> Int64:
    """Return in which column cells lie, numbered over all volumes."""
    count = tiling.most_tiles
    parts, part = sweep.parts(count), sweep.part_of(count[volume], index)
    parts[:, sweep.axis], part[:, sweep.axis] = 1, 0
    return _numbers(volume, part, parts)


def _differs(values: Int64) -> npt.NDArray[np.bool_]:
    """Return a mask of the values that differ from the one before; the first one does."""
    differs: npt.NDArray[np.bool_] = np.diff(values, prepend=values[0] - 1) != 0
    return differs
