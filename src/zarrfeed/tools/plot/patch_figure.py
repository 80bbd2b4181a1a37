"""Compute the figure of patches: a section through a volume, its tiles in two epochs, and the step of each tile.

A pure function of the plans; `draw_patches.py` draws its arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.patches.columns import patch_fields
from zarrfeed.plan.patches.sweep import TileBlocks
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.samples.selection import Int64, block_of
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.tools.plot.lane_rows import LaneRows
from zarrfeed.tools.plot.pieces import Pieces

Float64 = npt.NDArray[np.float64]

#: Tiles along each axis of the section, at most; of more, some are drawn.
MOST_TILES = 300
#: Boxes of the first batch, at most.
MOST_BOXES = 64
#: In place of a rank: several ranks read the block.
SEVERAL = -2


@dataclass(frozen=True, eq=False)
class Plane:
    """The section: two dimensions of one volume, in the middle of the others.

    Attributes
    ----------
    volume, num_volumes
        The number of the volume, and the number of all volumes.
    along, across
        The dimension that columns are swept along, and the other one; None where patches have one dimension.
    at
        The voxel of each dimension that the section goes through, shape (D,); -1 for those of the section itself.
    """

    volume: int
    num_volumes: int
    along: int
    across: int | None
    at: Int64

    @classmethod
    def through(cls, tiles: TileBlocks) -> Plane:
        """Return the section through the largest volume, across the dimension with the most tiles of several voxels."""
        grid, along = tiles.grid, tiles.sweep.axis
        volume = int(grid.extents.prod(axis=1).argmax())
        others = [d for d in range(len(grid.size)) if d != along]
        across = max(others, key=lambda d: (bool(grid.size[d] > 1), grid.extents[volume, d]), default=None)
        at = grid.extents[volume] // 2
        at[[d for d in (along, across) if d is not None]] = -1
        return cls(volume, len(grid.extents), along, across, at)


@dataclass(frozen=True, eq=False)
class Section:
    """The tiles of one epoch in the section.

    Attributes
    ----------
    epoch
        The number of the epoch.
    num_patches
        Number of patches of all volumes.
    every
        One of so many tiles is drawn, along and across.
    edges
        The first voxels of the tiles, and the end of the last tile: along and across, shape (tiles + 1,) each. Where
        tiles overlap, each is drawn up to the next one.
    sample
        The sample that each tile is, shape (along, across).
    when
        The step at which its layer is decoded, by the rank that is first, shape (along, across); NaN: not in the epoch.
    rank
        The rank that reads the layer of each tile, shape (along, across); -1: no rank; SEVERAL: more than one.
    walls
        The first voxels of the columns across, and the end of the last column, shape (columns + 1,).
    column
        The numbers of the columns, among those of all volumes, shape (columns,).
    lane, lane_at
        The lanes that begin with a layer in the section: their numbers, shape (n,), and the middle of the layer along
        and across, shape (n, 2).
    boxes, inside
        Patches of the first batch of rank 0: their first voxel along and across, shape (n, 2), and whether the section
        goes through them, shape (n,).
    """

    epoch: int
    num_patches: int
    every: tuple[int, int]
    edges: tuple[Int64, Int64]
    sample: Int64
    when: Float64
    rank: Int64
    walls: Int64
    column: Int64
    lane: Int64
    lane_at: Float64
    boxes: Int64
    inside: npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PatchFigure:
    """The tiles of two epochs, if they differ, or of one.

    Attributes
    ----------
    plane
        The section through one volume.
    patch_size
        Voxels of a patch, for each dimension.
    batch_size
        Patches of a batch; None: single ones.
    extent, size, chunk
        Voxels of the volume, of a patch, and of a chunk of the first array, along and across.
    steps
        Samples that each rank delivers, in the epoch that is longer, shape (ranks,).
    overlaps
        True if patches overlap.
    """

    plane: Plane
    patch_size: tuple[int, ...]
    batch_size: int | None
    extent: tuple[int, int]
    size: tuple[int, int]
    chunk: tuple[int, int]
    steps: Int64
    overlaps: bool
    num_columns: int
    sections: tuple[Section, ...]
    lanes: LaneRows

    @classmethod
    def of(cls, schedule: Schedule, epoch: int = 0, ranks: int = 1) -> PatchFigure:
        """Return the figure of an epoch that `ranks` ranks share, and of the next one.

        Raises
        ------
        UnsupportedError
            If patches are listed or drawn, so that they are no tiles.
        """
        order = _swept(schedule.order)
        if not isinstance(order.tiles, TileBlocks):
            raise UnsupportedError("plot: patches that are listed or drawn are no tiles, and are not drawn")
        epochs = (epoch, epoch + 1) if order.shuffle else (epoch,)
        pieces = [Pieces.of(schedule, one, ranks, schedule.options.batch_size or 1) for one in epochs]
        plane = Plane.through(order.tiles)
        grid = order.tiles.grid
        chunk = patch_fields(schedule.fields.fields)[0].chunk

        def pair(values: Int64) -> tuple[int, int]:
            return int(values[plane.along]), 1 if plane.across is None else int(values[plane.across])

        sections = tuple(_section(one, number, plane) for one, number in zip(pieces, epochs, strict=True))
        return cls(
            plane,
            order.epochs.size,
            schedule.options.batch_size,
            pair(grid.extents[plane.volume]),
            pair(grid.size),
            pair(np.array(chunk)),
            np.max([one.steps for one in pieces], axis=0),
            bool((grid.step < grid.size).any()),
            _num_columns(order.tiles),
            sections,
            LaneRows.of(pieces[0], columns_of(pieces[0].order.tiles)[pieces[0].block]),  # type: ignore[attr-defined]
        )


def _swept(order: Order) -> SweptOrder:
    assert isinstance(order, SweptOrder)
    return order


def _num_columns(tiles: TileBlocks) -> int:
    parts = tiles.sweep.parts(tiles.grid.count)
    parts[:, tiles.sweep.axis] = 1
    return int(parts.prod(axis=1).sum())


def _section(pieces: Pieces, epoch: int, plane: Plane) -> Section:
    order = _swept(pieces.order)
    assert isinstance(order.tiles, TileBlocks)
    tiles, grid, volume = order.tiles, order.tiles.grid, plane.volume
    fixed = np.array([_index_at(tiles, plane, d) for d in range(len(grid.size))])
    drawn = [_drawn(int(grid.count[volume, d]) if d is not None else 1) for d in (plane.along, plane.across)]
    # shape (along, across, D)
    index = np.tile(fixed, (len(drawn[0]), len(drawn[1]), 1))
    index[..., plane.along] = drawn[0][:, None]
    if plane.across is not None:
        index[..., plane.across] = drawn[1]
    sample = tiles.samples(np.full(index[..., 0].size, volume), index.reshape(-1, len(fixed)))
    block = block_of(sample, 1, tiles.first)
    when, rank = _by_block(pieces, len(tiles))
    shape = index.shape[:2]
    lane, lane_at = _lane_begins(pieces, plane, fixed)
    boxes, inside = _boxes(order, pieces.first_samples[0], plane)
    return Section(
        epoch,
        tiles.num_samples,
        (_every(drawn[0]), _every(drawn[1])),
        (_edges(tiles, volume, plane.along, drawn[0]), _edges(tiles, volume, plane.across, drawn[1])),
        sample.reshape(shape),
        when[block].reshape(shape),
        rank[block].reshape(shape),
        *_columns(tiles, plane, fixed),
        lane,
        lane_at,
        boxes,
        inside,
    )


def _drawn(count: int) -> Int64:
    return np.arange(0, count, max(1, -(-count // MOST_TILES)))


def _every(drawn: Int64) -> int:
    return int(drawn[1] - drawn[0]) if len(drawn) > 1 else 1


def _index_at(tiles: TileBlocks, plane: Plane, dimension: int) -> int:
    """Return the tile of a dimension that the section goes through: the last one that begins before it."""
    starts = tiles.grid.starts_along(plane.volume, dimension)
    return max(0, int(np.searchsorted(starts, plane.at[dimension], side="right")) - 1)


def _edges(tiles: TileBlocks, volume: int, dimension: int | None, drawn: Int64) -> Int64:
    if dimension is None:
        return np.array([0, 1])
    grid = tiles.grid
    starts = grid.starts_along(volume, dimension)
    return np.append(starts[drawn], starts[-1] + grid.size[dimension])


def _by_block(pieces: Pieces, num_blocks: int) -> tuple[Float64, Int64]:
    """Return of each block when it is decoded first, and which rank reads it."""
    when = np.full(num_blocks, np.inf)
    np.minimum.at(when, pieces.block, pieces.first_step)
    least, most = np.full(num_blocks, len(pieces.steps)), np.full(num_blocks, -1)
    np.minimum.at(least, pieces.block, pieces.rank)
    np.maximum.at(most, pieces.block, pieces.rank)
    when[np.isinf(when)] = np.nan
    return when, np.where(most < 0, -1, np.where(least == most, most, SEVERAL))


def columns_of(tiles: TileBlocks) -> Int64:
    """Return the column of each block, numbered over all volumes."""
    column: Int64 = np.cumsum(tiles.begin[:, tiles.sweep.axis] == 0) - 1
    return column


def _columns(tiles: TileBlocks, plane: Plane, fixed: Int64) -> tuple[Int64, Int64]:
    """Return the begins and ends of the section's columns, in voxels across, and their numbers."""
    here = _crossed(tiles, np.arange(len(tiles)), plane, fixed)
    here = here[tiles.begin[here, plane.along] == 0]
    column = columns_of(tiles)[here]
    if plane.across is None:
        return np.array([0, 1]), column
    starts = tiles.grid.starts_along(plane.volume, plane.across)
    ends = np.append(starts, starts[-1:] + tiles.grid.size[plane.across])
    return np.append(ends[tiles.begin[here, plane.across]], ends[-1:]), column


def _crossed(tiles: TileBlocks, blocks: Int64, plane: Plane, fixed: Int64) -> Int64:
    """Return those of some blocks that the section goes through."""
    crossed = tiles.volume[blocks] == plane.volume
    for d in np.flatnonzero(plane.at >= 0):
        begin = tiles.begin[blocks, d]
        crossed &= (begin <= fixed[d]) & (fixed[d] < begin + tiles.count[blocks, d])
    found: Int64 = blocks[crossed]
    return found


def _lane_begins(pieces: Pieces, plane: Plane, fixed: Int64) -> tuple[Int64, Float64]:
    """Return the lanes whose first layer the section goes through, and the middle of these layers in it."""
    tiles = pieces.order.tiles  # type: ignore[attr-defined]  # the order is of patches
    first = np.flatnonzero(np.diff(pieces.lane, prepend=-1) != 0)
    first = first[np.argsort(pieces.lane[first], kind="stable")]
    first = first[np.isin(pieces.block[first], _crossed(tiles, pieces.block[first], plane, fixed))]
    block = pieces.block[first]
    middle = np.full((len(first), 2), 0.5)
    for number, d in enumerate((plane.along, plane.across)):
        if d is not None:
            begin = tiles.grid.starts_along(plane.volume, d, tiles.begin[block, d])
            last = tiles.grid.starts_along(plane.volume, d, tiles.begin[block, d] + tiles.count[block, d] - 1)
            middle[:, number] = (begin + last + tiles.grid.size[d]) / 2
    return pieces.lane[first], middle


def _boxes(order: SweptOrder, samples: Int64, plane: Plane) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return the first voxels of patches, along and across, and whether the section goes through them."""
    volume, start = order.tiles.starts(samples)
    start = start[volume == plane.volume][:MOST_BOXES]
    fixed = plane.at >= 0
    reaches = (start <= plane.at) & (plane.at < start + order.tiles.grid.size)
    across = np.zeros_like(start[:, 0]) if plane.across is None else start[:, plane.across]
    return np.stack([start[:, plane.along], across], axis=1), reaches[:, fixed].all(axis=1)
