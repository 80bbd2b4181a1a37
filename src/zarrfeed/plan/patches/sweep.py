"""Columns of tiles: the blocks in which the patches of an epoch are read.

A volume is cut into columns along all dimensions but one, the sweep axis. A column is read layer by layer along that
axis, and each layer of its tiles is a block. So neighbouring blocks share chunks, which a lane decodes once and carries
on, and only the walls between columns cost chunks that are decoded twice. A run is a column, or some of its layers: the
blocks that stay together when an epoch is shuffled.

Invariants:

- **Partition.** The columns of a volume partition its tiles, and blocks are boxes of tiles that partition a column.
- **Numbers.** Blocks are numbered volume by volume, column by column (C order of the other dimensions), layer by layer.
  Samples are numbered block by block, and inside a block in C order of the dimensions. So a sample's tile follows from
  its number, and its number from its tile, and nothing is stored for each tile.
- **Even.** The columns of a volume differ by at most one unit in width; the last one also ends where the volume ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.validate import check_counts, check_int
from zarrfeed.plan.order.block_order import MOST_BLOCKS
from zarrfeed.plan.order.order_state import whole_number
from zarrfeed.plan.patches.patch_numbers import Numbering
from zarrfeed.plan.patches.tiling import TileGrid, unravel
from zarrfeed.plan.samples.selection import Int64, block_of

#: The amplification that `good_bytes` of memory suffice for.
GOOD_AMPLIFICATION = 1.2


@dataclass(frozen=True)
class Sweep:
    """The cut of volumes into columns.

    Attributes
    ----------
    axis
        The dimension that columns are swept along.
    width
        Tiles of a column along each dimension, at most; 1 along the sweep axis.
    unit
        Columns are cut at multiples of so many tiles, which divides `width`: it is for tiles that end with their chunk.
        None: at any tile.
    layers
        Layers of a run, at most; a column of more is cut into several runs, which are shuffled apart. None: any number.

    Raises
    ------
    ConfigError
        If one of them is out of its range.
    """

    lasts: ClassVar[bool] = False

    axis: int
    width: tuple[int, ...]
    unit: tuple[int, ...] | None = None
    layers: int | None = None

    def __post_init__(self) -> None:
        if self.unit is None:
            object.__setattr__(self, "unit", (1,) * len(self.width))
        check_int("axis", self.axis, 0, len(self.width) - 1)
        check_counts(layers=self.layers)
        if len(self.units) != len(self.width):
            raise ConfigError(f"unit = {self.unit}, must have one integer for each of {len(self.width)} dimensions")
        for width, unit in zip(self.width, self.units, strict=True):
            check_int("unit", unit, 1)
            check_int("width", width, 1)
            if width % unit:
                raise ConfigError(f"width = {width}, must be a multiple of the unit, {unit}")
        if self.width[self.axis] != 1:
            raise ConfigError(f"width = {self.width}, must be 1 along the sweep axis, {self.axis}")

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the JSON object of a state, which keeps the columns for the rest of its epoch."""
        return {"sweep": {name: value for name, value in asdict(self).items() if value is not None}}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Sweep:
        """Return the columns that the "sweep" of a state describes.

        Raises
        ------
        ValueError, KeyError, TypeError
            If it cannot be one.
        """
        of = dict(json)
        lengths = [tuple(whole_number(one, least=1) for one in of.pop(name)) for name in ("width", "unit")]
        others = {name: whole_number(value) for name, value in of.items()}
        try:
            return cls(width=lengths[0], unit=lengths[1], **others)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @property
    def units(self) -> tuple[int, ...]:
        """Tiles between two neighbouring cuts that columns may have, for each dimension."""
        assert self.unit is not None
        return self.unit

    def num_units(self, count: Int64) -> Int64:
        """Return the units of volumes of `count` tiles, shape (V, D): those that columns are cut between."""
        units: Int64 = np.array(self.units)
        return -(-count // units)

    def parts(self, count: Int64) -> Int64:
        """Return into how many parts each dimension of volumes is cut, shape (V, D): its tiles along the sweep axis."""
        units_of_part: Int64 = np.array(self.width) // np.array(self.units)
        return -(-self.num_units(count) // units_of_part)

    def part_of(self, count: Int64, index: Int64) -> Int64:
        """Return the part of each dimension in which n tiles lie, in volumes of `count` tiles; shapes (n, D)."""
        part: Int64 = ((index // np.array(self.units) + 1) * self.parts(count) - 1) // self.num_units(count)
        return part


@dataclass(frozen=True)
class SweepChoice:
    """The columns and lanes that patches are read with, and their cost.

    Attributes
    ----------
    sweep, lanes
        The sweep and the lanes that were chosen.
    amplification
        Decoded bytes of an epoch, divided by the bytes of all chunks: expected, on average over epochs.
    block_tiles
        Tiles of a block, at most.
    bytes_of_lane
        Memory of a lane at most: two blocks of samples, and the chunks that a layer hands to the next one.
    carried_bytes
        Bytes of chunks among these.
    total_bytes
        Memory of all lanes, and of the chunks that a layer of each thread hands on while it still holds those before.
    fits
        True if this is no more than the memory that there was.
    good_bytes
        Memory with which the amplification would be at most `GOOD_AMPLIFICATION`, with the same lanes. None: no memory
        suffices.
    keeps
        True if memory that is left caches chunks that several columns need, as the amplification takes it to be.
    """

    sweep: Sweep
    lanes: int
    amplification: float
    block_tiles: int
    bytes_of_lane: int
    carried_bytes: int
    total_bytes: int
    fits: bool
    good_bytes: int | None
    keeps: bool = False


@dataclass(frozen=True, eq=False)
class TileBlocks:
    """The blocks of an epoch's tiles.

    Attributes
    ----------
    grid, sweep
        The tiles, and their cut into columns.
    volume
        Volume of each block, shape (B,).
    begin, count
        Index of its first tile, and its tiles, along each dimension, shape (B, D); the count along the sweep axis is 1.
    first
        Number of the first sample of each block, and the number of samples at the end, shape (B + 1,).
    run
        Number of the run that each block belongs to, numbered from 0 over all volumes, shape (B,).
    """

    grid: TileGrid
    sweep: Sweep
    volume: Int64
    begin: Int64
    count: Int64
    first: Int64
    run: Int64

    def __len__(self) -> int:
        return len(self.volume)

    @property
    def num_samples(self) -> int:
        """Tiles of all volumes."""
        return int(self.first[-1])

    @property
    def max_rows(self) -> int:
        """Samples of a block, at most."""
        return int(np.diff(self.first).max())

    def tiles(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return the volume of samples, shape (n,), and the index of their tiles, shape (n, D)."""
        block = block_of(samples, 1, self.first)
        return self.volume[block], self.begin[block] + unravel(samples - self.first[block], self.count[block])

    def starts(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return the volume of samples, shape (n,), and the first voxel of their tiles, before wrapping, (n, D)."""
        volume, index = self.tiles(samples)
        return volume, self.grid.starts(volume, index)

    def table(self, numbering: Numbering, periods: Int64, orientations: Int64) -> core.PatchTable:
        """Convert the first voxels of samples, and their possible turns, to the form that the engine takes."""
        grid, nothing = self.grid, np.zeros(0, dtype=np.int64)
        return core.PatchTable(
            num_dims=len(grid.size),
            step=grid.step,
            origin=grid.origin,
            least=grid.first,
            last=grid.last,
            block_first=self.first,
            block_volume=self.volume,
            block_begin=self.begin,
            block_count=self.count,
            sweep_axis=self.sweep.axis,
            volume_of=nothing,
            start_of=nothing,
            margin=numbering.margin,
            period=periods,
            stride=numbering.stride,
            volume_number=numbering.first[:-1],
            orientations=orientations,
        )

    def samples(self, volume: Int64, index: Int64) -> Int64:
        """Return the samples that tiles of volumes are, given their indices, shape (n, D): what `tiles` takes apart."""
        axis, parts = self.sweep.axis, self.sweep.parts(self.grid.count)[volume]
        part = self.sweep.part_of(self.grid.count[volume], index)
        column = np.zeros_like(volume)
        for d in range(index.shape[1]):
            if d != axis:
                column = column * parts[:, d] + part[:, d]
        volume_begin = np.searchsorted(self.volume, volume)
        block = volume_begin + column * parts[:, axis] + part[:, axis]
        within = np.zeros_like(volume)
        for d in range(index.shape[1]):
            within = within * self.count[block, d] + index[:, d] - self.begin[block, d]
        found: Int64 = self.first[block] + within
        return found


def num_parts(count: int, width: int, unit: int) -> int:
    """Return into how many parts one dimension of `count` tiles is cut."""
    units = -(-count // unit)
    return -(-units // (width // unit))


def cut_edges(count: int, width: int, unit: int, most: int | None = None) -> Int64:
    """Return the edges of the parts that a dimension of `count` tiles is cut into, or of its first `most` parts."""
    units, parts = -(-count // unit), num_parts(count, width, unit)
    shown = parts if most is None else min(parts, most)
    edges: Int64 = np.minimum(np.arange(shown + 1) * units // parts * unit, count)
    return edges


def blocks_of(grid: TileGrid, sweep: Sweep) -> TileBlocks:
    """Cut the tiles of an epoch into blocks.

    Raises
    ------
    ConfigError
        If the sweep has another number of dimensions than the tiles, or there are more blocks than can be planned.
    """
    axis, dimensions = sweep.axis, len(grid.size)
    if len(sweep.width) != dimensions:
        raise ConfigError(f"width = {sweep.width}, must have one integer for each of {dimensions} dimensions")
    num_units, parts = sweep.num_units(grid.count), sweep.parts(grid.count)
    of_volume = parts.prod(axis=1)
    num_blocks = int(of_volume.sum())
    if num_blocks > MOST_BLOCKS:
        raise ConfigError(
            f"{grid.num_tiles} patches in {num_blocks} blocks, must be at most {MOST_BLOCKS} blocks: an epoch is "
            f"planned block by block, in memory; take wider columns (width = {sweep.width}), larger patches or fewer "
            "volumes"
        )
    # one entry per block from here on
    volume = np.repeat(np.arange(len(of_volume)), of_volume)
    number = np.arange(num_blocks) - np.repeat(np.cumsum(of_volume) - of_volume, of_volume)
    begin = np.empty((num_blocks, dimensions), dtype=np.int64)
    count = np.empty_like(begin)
    column, begin[:, axis] = np.divmod(number, parts[volume, axis])
    count[:, axis] = 1
    begins_run = begin[:, axis] % (sweep.layers or MOST_BLOCKS) == 0  # no column has as many layers as that
    run = np.cumsum(begins_run) - 1
    for d in reversed(range(dimensions)):
        if d == axis:
            continue
        cut, units = parts[volume, d], num_units[volume, d]
        column, part = np.divmod(column, cut)
        begin[:, d] = part * units // cut * sweep.units[d]
        end = (part + 1) * units // cut * sweep.units[d]
        count[:, d] = np.minimum(end, grid.count[volume, d]) - begin[:, d]
    first = np.concatenate(([0], np.cumsum(count.prod(axis=1))))
    return TileBlocks(grid, sweep, volume, begin, count, first, run)
