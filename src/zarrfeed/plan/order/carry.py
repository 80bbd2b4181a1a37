"""Chunks that neighbouring blocks share, where samples are windows: decoded once, and carried from group to group.

What holds: a window that crosses the end of its block has rows in the chunks behind it. Where a lane goes on with the
neighbouring block, the engine keeps those chunks, decoded, until that block's group has copied its rows. So a lane
decodes a chunk once for a strip of neighbouring blocks; only the chunks at the two ends of a strip are decoded for the
strips beside it, too. What is kept is a part of the memory budget. Where it has no room, nothing is carried, and a
chunk is decoded for each block that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.samples.chunks_over_blocks import chunks_over_blocks
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.plan.samples.windows import reach
from zarrfeed.spec.field import Field, StoredField, VlenField, arrays_of, has_patches, window_of
from zarrfeed.spec.layout import Layout
from zarrfeed.spec.sparse import CsrField

#: A strip of neighbouring blocks has so many times the chunks that it shares with others: these are decoded again.
STRIP_REACHES = 8
#: A lane carries chunks to its next group, while the ones from the group before are still in use.
_GROUPS_AT_ONCE = 2


@dataclass(frozen=True)
class Overlap:
    """What neighbouring blocks share.

    Attributes
    ----------
    chunks
        Chunks that a block shares with its neighbours, as a part of its own; of the field that shares most.
    carried_bytes
        Decoded bytes that one lane carries, of all fields.
    """

    chunks: float
    carried_bytes: int

    @classmethod
    def of(cls, fields: Iterable[Field], block_rows: int) -> Overlap | None:
        """Return what blocks of `block_rows` samples share; None if they share nothing."""
        shared, carried_bytes = 0.0, 0
        for f in fields:
            if isinstance(f, CsrField):  # the last row of a block ends in the next block's chunk
                share = f.primary.num_blocks / max(1, f.num_samples / block_rows)
                shared = max(shared, 1 / max(1.0, share))
                carried_bytes += _GROUPS_AT_ONCE * f.block_bytes
            elif isinstance(f, StoredField) and f.window is not None and carries(f):
                rows = f.spec.rows_per_chunk
                chunks = sum(-(-beyond // rows) for beyond in reach([f.window])) + (block_rows % rows != 0)
                shared = max(shared, chunks * rows / block_rows)
                carried_bytes += _GROUPS_AT_ONCE * chunks * f.spec.decoded_bytes * f.spec.num_cells
        return cls(shared, carried_bytes) if carried_bytes else None

    @property
    def reads_of_cut(self) -> float:
        """Blocks that are decoded once more where the end of a lane cuts a block."""
        return 1 + self.chunks

    def strip(self, order: Order) -> int:
        """Return how many neighbouring blocks stay together: so many that strips share little, but less than a lane."""
        return max(1, min(math.ceil(STRIP_REACHES * self.chunks), order.num_blocks // order.lanes))


def carries(field: Field) -> bool:
    """Return whether chunks of a field may serve several blocks: those of patches, and of windows of several rows."""
    return has_patches(field) or (
        isinstance(field, StoredField)
        and not field.resident
        and field.window is not None
        and any(reach([field.window]))
    )


def keeps_neighbours(order: Order) -> bool:
    """Return whether a lane goes on with the neighbouring block, mostly."""
    return not order.shuffle or any(one.strip > 1 for one in order.orders)


def lanes_of(order: Order, stride: int) -> int:
    """Return how many lanes a consumer reads that takes every `stride`-th position."""
    return sum(one.lanes // math.gcd(one.lanes, stride) for one in order.orders)


@dataclass(frozen=True)
class CarryPlan:
    """What each group of a plan shares, in the form that the engine takes.

    Group i shares the entries `begin[i]:begin[i + 1]`: a field, a chunk of it along the sample axis, and whether
    `next_group[i]`, the next one of its lane, needs the chunk, too. If it does not, several segments of group i do.
    """

    next_group: Int64
    begin: Int64
    field: Int64
    chunk: Int64
    on: Int64

    def to_core(self) -> core.CarryPlan:
        """Return the same in the form that the engine takes."""
        return core.CarryPlan(
            next_group=self.next_group, begin=self.begin, field=self.field, chunk=self.chunk, on=self.on
        )


def plan_carry(plan: EpochPlan, fields: Sequence[Field]) -> CarryPlan:
    """Return what the groups of a plan share of `fields`."""
    following = next_groups(plan)
    if any(map(has_patches, fields)):  # the engine finds which chunks are shared
        nothing = np.zeros(0, dtype=np.int64)
        return CarryPlan(following, np.zeros(len(following) + 1, dtype=np.int64), nothing, nothing, nothing)
    shared = [
        (group, np.full(len(group), number), chunk, on)
        for number, f, layout in arrays_of(fields)
        if isinstance(f, StoredField) and layout is not None and carries(f)
        for group, chunk, on in (_shared(plan, f, layout, following),)
    ]
    group, field, chunk, on = (np.concatenate(column) for column in zip(*shared, strict=True))
    by_group = np.argsort(group, kind="stable")
    begin = np.searchsorted(group[by_group], np.arange(len(plan.group_lane) + 1))
    return CarryPlan(following, begin.astype(np.int64), field[by_group], chunk[by_group], on[by_group])


def next_groups(plan: EpochPlan) -> Int64:
    """Return for each group the next one of its lane, in the same turn; -1 for the last one."""
    of_sources = () if plan.sources is None else (plan.sources.source, plan.sources.which_pass)
    lanes = (plan.group_lane, plan.group_turn, *of_sources)
    by_lane = np.lexsort((np.arange(len(plan.group_lane)), *lanes))
    same = np.all([np.diff(of_group[by_lane]) == 0 for of_group in lanes], axis=0)
    following = np.full(len(by_lane), -1, dtype=np.int64)
    following[by_lane[:-1][same]] = by_lane[1:][same]
    return following


def chunk_reads(plan: EpochPlan, field: StoredField | VlenField, *, carried: bool) -> tuple[int, int]:
    """Return how many chunks are decoded, and how many distinct ones, if every block piece touches all it could."""
    reads = [_layout_reads(plan, field, layout, carried=carried) for layout in field.layouts]
    return sum(decoded for decoded, _ in reads), sum(distinct for _, distinct in reads)


def _layout_reads(plan: EpochPlan, field: StoredField | VlenField, layout: Layout, *, carried: bool) -> tuple[int, int]:
    """Return the same for the stores of one layout."""
    order, cells = plan.order, layout.spec.num_cells
    held_index, chunk, window = *_chunks_over_blocks(order, field, layout), window_of(field)
    read = np.zeros(order.num_blocks, dtype=bool)
    read[plan.segment_held_index] = True
    distinct = len(np.unique(chunk[read[held_index]])) * cells
    if carried and carries(field):
        following = next_groups(plan)
        needs = len(_needs(plan, field, layout)[0])
        return (needs - int(_shared(plan, field, layout, following)[2].sum())) * cells, distinct
    over_block = np.bincount(held_index, minlength=order.num_blocks)
    # the rows of a piece of k samples cannot lie in more chunks than there are rows
    rows = plan.segment_length * (1 if window is None else len(window.offsets))
    return int(np.minimum(over_block[plan.segment_held_index], rows).sum()) * cells, distinct


def chunks_of_order(order: Order, field: StoredField | VlenField, layout: Layout) -> Int64:
    """Return the chunks of a layout that the epochs of all consumers read: indices along the sample axis, ascending."""
    return np.unique(_chunks_over_blocks(order, field, layout)[1])


def _chunks_over_blocks(order: Order, field: StoredField | VlenField, layout: Layout) -> tuple[Int64, Int64]:
    """Return held indices of blocks and the chunks of a layout that their samples need, each pair once; sorted."""
    selection = order.selection or Selection.of_range(range(order.num_samples), order.block_rows)
    return chunks_over_blocks(selection, field, layout)


def _needs(plan: EpochPlan, field: StoredField | VlenField, layout: Layout) -> tuple[Int64, Int64, Int64]:
    """Return groups, the chunks that they need, and how many of their segments need them; each pair once, sorted."""
    held_index, chunk = _chunks_over_blocks(plan.order, field, layout)
    begin = np.searchsorted(held_index, np.arange(plan.order.num_blocks + 1))
    # one entry per segment
    first = begin[plan.segment_held_index]
    counts = begin[plan.segment_held_index + 1] - first
    group = np.repeat(np.arange(len(plan.group_lane)), np.diff(plan.group_begin))
    # one entry per segment and chunk
    entry = joined_ranges(first, counts)
    num_chunks = int(chunk.max(initial=0)) + 1
    pairs, segments = np.unique(np.repeat(group, counts) * num_chunks + chunk[entry], return_counts=True)
    return *np.divmod(pairs, num_chunks), segments.astype(np.int64)


def _shared(
    plan: EpochPlan, field: StoredField | VlenField, layout: Layout, following: Int64
) -> tuple[Int64, Int64, Int64]:
    """Return groups, the chunks that they share, and 1 where the group that follows needs the chunk, else 0."""
    group, chunk, segments = _needs(plan, field, layout)
    num_chunks = int(chunk.max(initial=0)) + 1
    on = np.isin(following[group] * num_chunks + chunk, group * num_chunks + chunk) & (following[group] >= 0)
    shared = on | (segments > 1)
    return group[shared], chunk[shared], on[shared].astype(np.int64)
