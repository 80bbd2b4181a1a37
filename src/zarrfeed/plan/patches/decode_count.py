"""The chunks that an epoch of patches decodes, counted patch by patch; `sweep_cost.py` predicts them by a formula."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.plan.order.cached_decodes import Chains, saved_decodes
from zarrfeed.plan.order.carry import next_groups
from zarrfeed.plan.order.order import EpochPlan
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.patches.footprint import Footprints, footprint_of
from zarrfeed.plan.patches.mixed_patches import MixedPatches
from zarrfeed.plan.patches.sweep import TileBlocks
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.patches.tiling import TileGrid
from zarrfeed.plan.samples.selection import Int64, block_of

#: Number of patches whose chunks are counted together.
_COUNTED_AT_ONCE = 1 << 20


def count_decodes(
    order: SweptOrder,
    epoch: int,
    arrays: Sequence[Footprints],
    *,
    stride: int = 1,
    samples: int | None = None,
    chunk_bytes: Sequence[int] = (),
    keep_bytes: int = 0,
) -> list[int]:
    """Count the chunks that all consumers decode in an epoch, sample by sample, for fields with chunks of some shapes.

    A group decodes the chunks that its samples touch, but for those that the group before it in its lane had, if it was
    of the same column: no more of a chunk is carried than lies in the column. It takes about a second and 200 MB for a
    million samples.

    Parameters
    ----------
    order, epoch
        The epoch order, with its lanes.
    arrays
        The items of each field that patches cover: its chunk along each dimension, or a footprint.
    stride
        Number of consumers that share the epoch.
    samples
        Number of samples, from the first on, whose chunks are counted. None: all.
    chunk_bytes, keep_bytes
        Bytes of a chunk of each field, and the memory of each consumer for those that several columns need.
    """
    counts = [0] * len(arrays)
    length = order.length if samples is None else samples
    for first in range(min(stride, length)):
        plan = order.plan(epoch, Portion(first, stride, -(-(length - first) // stride)))
        sample, group, goes_on, begun = _groups_of_samples(plan)
        goes_on &= _same_column(order, sample, group)
        volume, start = order.tiles.starts(sample)
        chains = []
        for number, array in enumerate(arrays):
            of_array = Chains.of(*_cells_of_groups(order.tiles.grid, array, volume, start, group), goes_on, begun)
            counts[number] += len(of_array)
            chains.append(of_array)
        if keep_bytes:
            saved = saved_decodes(chains, chunk_bytes, keep_bytes)
            counts = [count - less for count, less in zip(counts, saved, strict=True)]
    return counts


def mixed_decodes(order: MixedPatches, plans: Sequence[EpochPlan], array: Footprints) -> tuple[int, int]:
    """Count the chunks of a field that plans of a mixture decode, each group visited once, and all that they touch.

    A group decodes the chunks that its patches touch, but for those that the group before it in its lane had.
    """
    tiles, decoded, found = order.passes.table.tiles, 0, []
    for plan in plans:
        sample, group = _samples_of_sources(order, plan)
        volume, start = tiles.starts(sample)
        num_cells, pairs = _cells_of_groups(tiles.grid, array, volume, start, group)
        of_group, cell = np.divmod(pairs, num_cells)
        following = next_groups(plan)[of_group]
        handed = (following >= 0) & np.isin(following * num_cells + cell, pairs)
        decoded += len(pairs) - int(handed.sum())
        found.append(cell)
    return decoded, len(np.unique(np.concatenate(found)))


def _samples_of_sources(order: MixedPatches, plan: EpochPlan) -> tuple[Int64, Int64]:
    """Return the samples that a consumer of a mixture takes by stride, and the group that each is of."""
    assert plan.sources is not None
    sample: Int64 = core.sample_order(plan.to_core())
    steps = order.begin_of(plan.epoch) + plan.strides.first + plan.stride * np.arange(len(sample))
    source, position = order.taken_at(steps)
    length, lanes = plan.sources.length, plan.sources.lanes
    number, in_pass = np.divmod(position, length[source])
    most, passes = int(length.max()) + 1, int(number.max()) + 1

    def key(source: Int64, number: Int64, lane: Int64, offset: Int64) -> Int64:
        found: Int64 = ((source * passes + number) * most + lane) * most + offset
        return found

    groups = plan.groups
    begins = key(plan.sources.source, plan.sources.which_pass, groups.lane, groups.offset)
    order_of = np.argsort(begins)
    wanted = key(source, number, in_pass % lanes[source], in_pass // lanes[source])
    return sample, order_of[np.searchsorted(begins[order_of], wanted, side="right") - 1]


def touched_chunks(order: SweptOrder, array: Footprints) -> int:
    """Count the chunks of a field that any patch of an epoch touches, a million patches at a time."""
    found: list[Int64] = []
    for begin in range(0, order.length, _COUNTED_AT_ONCE):
        volume, start = order.tiles.starts(np.arange(begin, min(begin + _COUNTED_AT_ONCE, order.length)))
        _, cells = _cells_of_groups(order.tiles.grid, array, volume, start, np.zeros_like(volume))
        found = [np.unique(np.concatenate([*found, cells]))]
    return len(found[0])


def _groups_of_samples(plan: EpochPlan) -> tuple[Int64, Int64, npt.NDArray[np.bool_], Int64]:
    """Return the samples of a consumer and the group of each, of groups by lane.

    And of each group whether it goes on with the one before, and which number it has in the order in which they begin.
    """
    sample: Int64 = core.sample_order(plan.to_core())
    lanes, length = plan.order.lanes, plan.order.length
    by_lane = np.lexsort((plan.groups.offset, plan.groups.lane))
    begin = (plan.groups.lane * length + plan.groups.offset)[by_lane]
    position = plan.strides.first + plan.stride * np.arange(len(sample))
    group = np.searchsorted(begin, position % lanes * length + position // lanes, side="right") - 1
    return sample, group, np.diff(plan.groups.lane[by_lane], prepend=-1) == 0, by_lane


def _same_column(order: SweptOrder, sample: Int64, group: Int64) -> npt.NDArray[np.bool_]:
    """Return whether a group shares chunks with the one before: for tiles, if the blocks of both are of one column."""
    tiles = order.tiles
    if not isinstance(tiles, TileBlocks):
        return np.ones(len(np.unique(group)), dtype=bool)
    _, one = np.unique(group, return_index=True)
    block = block_of(sample[one], 1, tiles.first)
    column = np.column_stack([tiles.volume[block], np.delete(tiles.begin[block], tiles.sweep.axis, axis=1)])
    same: npt.NDArray[np.bool_] = (np.diff(column, axis=0, prepend=-1) == 0).all(axis=1)
    return same


def _cells_of_groups(grid: TileGrid, array: Footprints, volume: Int64, start: Int64, group: Int64) -> tuple[int, Int64]:
    """Return the number of chunks of all volumes, and group x number + chunk for the chunks of each group, sorted."""
    of = footprint_of(array, grid)
    shape = of.shape
    of_volume = shape.prod(axis=1)
    num_cells = int(of_volume.sum())
    bounds = [of.chunks(grid, volume, d, start[:, d]) for d in range(start.shape[1])]
    spans = [range(int((high - low).max(initial=0)) + 1) for low, high in bounds]
    found = []
    for offsets in itertools.product(*spans):
        cell = np.zeros_like(volume)
        touched = np.ones(len(volume), dtype=bool)
        for d, ((low, high), offset) in enumerate(zip(bounds, offsets, strict=True)):
            cell = cell * shape[volume, d] + (low + offset) % shape[volume, d]
            touched &= low + offset <= high
        pairs = group * num_cells + (np.cumsum(of_volume) - of_volume)[volume] + cell
        found.append(np.unique(pairs[touched]))
    return num_cells, np.unique(np.concatenate(found))
