"""The decodes of chunks for patches, by the formula for what is planned; `decode_count.py` counts what was planned.

Decodes beyond one a chunk have three causes, for columns that are swept layer by layer (sweep.py):

- **Walls.** A chunk that a wall between two columns cuts is decoded for both. For each dimension but the sweep axis,
  add up the chunks that its parts touch. The product of the sums is what one layer costs.
- **Runs.** A run is begun at any of its layers, and the chunks that this layer shares with the one before it are
  decoded twice. So are those that a run shares with the next one of its column.
- **Cuts.** The end of a lane cuts a block into two pieces, each with its share of the tiles. A chunk that t tiles of
  the block touch is missed by one of the pieces with the probability 2 / (t + 1).

A chunk here is one index of the chunk grid over the patched dimensions, with everything that is stored at this index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.patches.footprint import Footprint, Footprints, footprint_of
from zarrfeed.plan.patches.sweep import Sweep, cut_edges, num_parts
from zarrfeed.plan.patches.tiling import TileGrid
from zarrfeed.plan.samples.selection import Int64

Float64 = npt.NDArray[np.float64]

#: Number of volumes that are counted one by one; of more volumes, this many are counted for all.
_MOST_VOLUMES = 64
#: Number of tiles along a dimension that are counted one by one; of more tiles, this many are counted for all, since
#: the chunks that tiles share repeat.
_MOST_TILES = 1 << 16


@dataclass(frozen=True)
class Along:
    """The chunks of one field along one dimension of one volume, and their decodes.

    Attributes
    ----------
    chunks
        Chunks of the volume.
    of_tile
        Chunks that a tile touches, on average.
    of_parts
        For each way to cut the dimension: chunks that its parts touch, all together.
    swept
        Chunks that are decoded if this is the sweep axis, for one column.
    shared
        Chunks that a layer shares with the one before it, on average.
    """

    chunks: int
    of_tile: float
    of_parts: Float64
    swept: float
    shared: float

    @classmethod
    def of(
        cls,
        grid: TileGrid,
        volume: int,
        dimension: int,
        array: Footprint,
        cuts: Sequence[tuple[int, int]],
        layers: int | None,
        *,
        shuffle: bool,
    ) -> Along:
        """Count the chunks of a field, cut into parts of (width, unit) each, or swept in runs of some layers."""
        chunks = array.num_chunks(volume, dimension)
        count = int(grid.count[volume, dimension])

        def chunks_of(first: Int64, last: Int64) -> tuple[Int64, Int64]:
            start, of_last = (grid.starts_along(volume, dimension, one) for one in (first, last))
            return array.chunks(grid, np.full(len(first), volume), dimension, start, of_last)

        of_parts = []
        for width, unit in cuts:
            edges = cut_edges(count, width, unit, _MOST_TILES)
            low, high = chunks_of(edges[:-1], edges[1:] - 1)
            of_parts.append(np.minimum(high - low + 1, chunks).mean() * num_parts(count, width, unit))
        of_run = layers or 1
        seen = min(count, _MOST_TILES // of_run * of_run or _MOST_TILES)
        low, high = chunks_of(np.arange(seen), np.arange(seen))
        turn = chunks if grid.wraps[dimension] and seen == count and layers is None else None
        sizes = np.minimum(high - low + 1, chunks)
        shared = np.minimum(sizes, _shared_with_before(low, high, layers or count, turn, shuffle=shuffle))
        swept = (sizes.sum() - shared.sum()) * count / seen
        return cls(chunks, float(sizes.mean()), np.array(of_parts), float(swept), float(shared.sum() / seen))


def _shared_with_before(low: Int64, high: Int64, layers: int, turn: int | None, *, shuffle: bool) -> Float64:
    """Return how many chunks each layer of a column shares with the layer that is read before it, on average.

    Parameters
    ----------
    low, high
        The first and the last chunk of each layer, shape (layers of the column,).
    layers
        Layers of a run.
    turn
        Chunks of the dimension, if the first layer lies behind the last one. None: it does not.
    shuffle
        True if a run begins at any of its layers.
    """
    before = np.arange(len(low)) - 1
    begin = np.arange(0, len(low), layers)
    size = np.diff(begin, append=len(low))
    if shuffle:  # what is read before the first layer of a run is its last layer
        before[begin] = begin + size - 1
    before_low, before_high = low[before], high[before]
    if turn is not None:
        before_low[0] -= turn
        before_high[0] -= turn
    shared: Float64 = np.maximum(0.0, np.minimum(high, before_high) - np.maximum(low, before_low) + 1)
    if shuffle:  # one of the layers of a run is read first, each as often as another one
        shared *= 1 - 1 / np.repeat(size, size)
    else:
        shared[0] = 0
    return shared


def representatives(grid: TileGrid) -> tuple[Int64, Int64]:
    """Return volumes that stand for all, and how many each stands for."""
    tiles = grid.count.prod(axis=1)
    if len(tiles) <= _MOST_VOLUMES:
        return np.arange(len(tiles)), np.ones_like(tiles)
    by_tiles = np.lexsort((*grid.count.T, tiles))
    edges = np.linspace(0, len(tiles), _MOST_VOLUMES + 1).astype(np.int64)
    return by_tiles[(edges[:-1] + edges[1:]) // 2], np.diff(edges)


def decodes_of_sweeps(
    grid: TileGrid,
    array: Footprints,
    axis: int,
    cuts: Sequence[Sequence[tuple[int, int]]],
    layers: int | None,
    *,
    shuffle: bool,
) -> tuple[Float64, Float64, int]:
    """Count the decodes of a field by sweeps along an axis, for all combinations of cuts of the other dimensions.

    Parameters
    ----------
    grid
        The tiles.
    array
        The items of the field that patches cover: its chunk along each dimension, or a footprint.
    axis
        The sweep axis.
    cuts
        For each dimension, ways to cut it, as (width, unit); one along the sweep axis.
    layers
        Layers of a run. None: all of a column.
    shuffle
        True if runs are shuffled, and begin at random layers.

    Returns
    -------
    Decodes of one lane, and decodes that each lane more adds, both with an axis for each dimension; and the number of
    chunks.
    """
    shape = tuple(len(of_dimension) for of_dimension in cuts)
    decodes, added, num_chunks, of = np.zeros(shape), np.zeros(shape), 0, footprint_of(array, grid)
    volumes, weights = representatives(grid)
    tiles_of_all = int((weights * grid.count[volumes].prod(axis=1)).sum())
    for volume, weight in zip(volumes.tolist(), weights.tolist(), strict=True):
        if not grid.count[volume].all():
            continue
        along = [Along.of(grid, volume, d, of, cuts[d], layers, shuffle=shuffle) for d in range(len(cuts))]
        walls, rows, cross = np.ones(shape), np.ones(shape), np.ones(shape)
        for d, of_dimension in enumerate(along):
            if d == axis:
                continue
            count = int(grid.count[volume, d])
            parts = np.array([num_parts(count, *cut) for cut in cuts[d]])
            as_axis = [-1 if d == other else 1 for other in range(len(shape))]
            walls = walls * of_dimension.of_parts.reshape(as_axis)
            rows = rows * (count / parts).reshape(as_axis)
            cross = cross * (of_dimension.of_parts / parts).reshape(as_axis)
        decodes += weight * walls * along[axis].swept
        of_block = cross * along[axis].of_tile
        # tiles of a block that touch a chunk of it
        times = np.maximum(1.0, rows * np.prod([one.of_tile for one in along]) / np.maximum(of_block, 1e-9))
        of_cut = of_block * (1 - 2 / (times + 1)) + 2 * cross * along[axis].shared / (times + 1)
        added += weight * grid.count[volume].prod() / tiles_of_all * of_cut
        num_chunks += weight * int(np.prod([one.chunks for one in along]))
    return decodes, added, num_chunks


def amplification(grid: TileGrid, array: Footprints, sweep: Sweep, lanes: int, *, shuffle: bool = True) -> float:
    """Return the decodes of a chunk of a field in an epoch, on average over the volumes' chunks: the formula."""
    cuts = [[cut] for cut in zip(sweep.width, sweep.units, strict=True)]
    decodes, added, num_chunks = decodes_of_sweeps(grid, array, sweep.axis, cuts, sweep.layers, shuffle=shuffle)
    return float((decodes + (lanes - 1) * added).item() / max(1, num_chunks))


def num_chunks(grid: TileGrid, array: Footprints) -> int:
    """Return the number of chunks of a field in all volumes."""
    return int(footprint_of(array, grid).shape.prod(axis=1).sum())
