"""The plan of a request: some samples, in any order and as often as wanted, as one batch.

The distinct samples, ascending, are a selection whose epoch order is not shuffled. Every position of the request is
handed to the engine by itself. Of patches, the distinct ones are listed, and are one block.
Invariant: the work for a plan grows with the request and not with the array.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.groups import Groups
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import Strides
from zarrfeed.plan.patches.position_blocks import PositionBlocks
from zarrfeed.plan.patches.sweep import Sweep
from zarrfeed.plan.patches.swept_order import PatchOrder, SweptOrder
from zarrfeed.plan.patches.tiling import TileGrid
from zarrfeed.plan.samples.given_samples import GivenSamples
from zarrfeed.plan.samples.held_blocks import ListedBlocks
from zarrfeed.plan.samples.sample_set import SampleSet
from zarrfeed.plan.samples.selection import Int64, Selection


class Requests(Protocol):
    """Samples that can be asked for by their position among all of them."""

    def __len__(self) -> int: ...

    def plan(self, positions: Int64) -> EpochPlan:
        """Return a plan whose batch has the samples at some positions, in this order."""


@dataclass(frozen=True, eq=False)
class RowRequests:
    """Samples that are rows of arrays, or windows of them.

    Attributes
    ----------
    num_samples, block_rows
        Samples of the arrays, and of a block of them.
    selection
        The samples that can be asked for. None: all.
    given
        The same in the order of their positions. None: that of the array.
    """

    num_samples: int
    block_rows: int
    selection: Selection | None
    given: GivenSamples | None = None

    def __len__(self) -> int:
        if self.given is not None:
            return len(self.given)
        return self.num_samples if self.selection is None else self.selection.length

    def plan(self, positions: Int64) -> EpochPlan:
        """Return a plan whose batch has the samples at some positions, in this order."""
        if self.given is not None:
            samples = self.given.at(positions)
        else:
            samples = positions if self.selection is None else self.selection.samples_at(positions)
        return plan_request(samples, self.num_samples, self.block_rows)


@dataclass(frozen=True, eq=False)
class TileRequests:
    """Patches of a grid: volume by volume, the tiles of each in C order."""

    grid: TileGrid

    def __len__(self) -> int:
        return self.grid.num_tiles

    def plan(self, positions: Int64) -> EpochPlan:
        """Return a plan whose batch has the patches at some positions, in this order."""
        volume, index = self.grid.tiles(positions)
        return plan_patches(self.grid, volume, self.grid.starts(volume, index))


@dataclass(frozen=True, eq=False)
class ListedRequests:
    """Patches that are listed, in the order of the list.

    Attributes
    ----------
    grid
        The volumes, and the size of a patch.
    volume, start
        Volume of each patch, shape (n,), and its first voxel there, shape (n, D).
    """

    grid: TileGrid
    volume: Int64
    start: Int64

    def __len__(self) -> int:
        return len(self.volume)

    def plan(self, positions: Int64) -> EpochPlan:
        """Return a plan whose batch has the patches at some positions, in this order."""
        return plan_patches(self.grid, self.volume[positions], self.start[positions])


def positions_of(indices: npt.NDArray[Any], length: int) -> Int64:
    """Return the positions that indices name, each in [0, length).

    Raises
    ------
    ConfigError
        If they are no 1-d array of integers.
    IndexError
        If one is out of range; negative ones count from the end.
    """
    if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
        raise ConfigError(
            f"got indices of shape {indices.shape} and dtype {indices.dtype}, must be an int or a 1-d sequence of ints"
        )
    outside = np.flatnonzero((indices < -length) | (indices >= length))
    if len(outside):
        raise IndexError(f"index {indices[outside[0]]}, must be in [{-length}, {length - 1}]")
    return indices.astype(np.int64) % length


def plan_request(wanted: Int64, num_samples: int, block_rows: int) -> EpochPlan:
    """Return a plan whose batch has these samples, named by their index in the array, in this order.

    Its epoch order has each of them once, in order and block by block. Every block is a group, and every step of the
    batch is an extra position of that order.
    """
    by_position = np.argsort(wanted, kind="stable")
    in_order = wanted[by_position]
    is_new = _differ_from_last(in_order)
    samples = in_order[is_new]
    block = samples // block_rows
    first = np.flatnonzero(_differ_from_last(block))
    ends = np.append(first[1:], len(samples))
    rows = ends - first
    selection = Selection(ListedBlocks(block[first], rows, first), samples=SampleSet("list", (samples,)))
    nothing, numbers = np.zeros_like(first), np.arange(len(first))
    groups = Groups(
        lane=nothing,
        offset=first,
        rows=rows,
        number=nothing,
        sequence_begin=first,
        begin=np.arange(len(first) + 1),
        held_index=numbers,
        first_row=first,
        block_rows=rows,
        start=nothing,
        length=rows,
    )
    return EpochPlan(
        order=Order(num_samples, block_rows, shuffle=False, seed=0, lanes=1, selection=selection),
        epoch=0,
        strides=Strides(0, 1, 0, 0),
        extra_position=np.cumsum(is_new) - 1,
        extra_step=by_position,
        groups=groups,
        turn=nothing,
        first_step=nothing,
        last_step=np.full_like(first, len(wanted) - 1),
    )


def plan_patches(
    grid: TileGrid, volume: Int64, start: Int64, of: PatchOrder | None = None, epoch: int = 0
) -> EpochPlan:
    """Return a plan whose batch has the patches that begin at some voxels, in this order.

    Parameters
    ----------
    grid
        The volumes, and the size of a patch.
    volume, start
        Volume of each patch, shape (n,), and its first voxel there, shape (n, D).
    of, epoch
        The orders that say how patches are turned in an epoch. None: they are not.
    """
    patches = np.column_stack([volume, start])
    distinct, which = np.unique(patches, axis=0, return_inverse=True)
    count, first = len(distinct), np.array([0, len(distinct)])
    sweep = Sweep(0, (1,) * start.shape[1])
    blocks = PositionBlocks(grid, sweep, distinct[:, 0].copy(), distinct[:, 1:].copy(), first, np.zeros(1, np.int64))
    order = SweptOrder.of(blocks, shuffle=False, seed=0 if of is None else of.seed, lanes=1)
    return replace(plan_request(which.reshape(-1), count, count), order=replace(order, of_epochs=of), epoch=epoch)


def _differ_from_last(ascending: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements that differ from the one before; the first does."""
    differ = np.ones(len(ascending), dtype=bool)
    np.not_equal(ascending[1:], ascending[:-1], out=differ[1:])
    return differ
