"""Chunks that neighbouring blocks share, where samples are windows: decoded once, and carried from group to group.

Invariant: a window that crosses the end of its block has rows in the chunks behind it. Where a lane goes on with the
neighbouring block, the engine keeps those chunks, decoded, until that block's group has copied its rows. So a lane
decodes a chunk once for a strip of neighbouring blocks. The chunks at the two ends of a strip are needed by the strips
beside it, too: the engine caches them in what is left of the memory (cpp/engine/chunks/planned_cache.h), and where
that has no room, each strip decodes them. What is carried is a part of the memory budget. Where that has no room,
nothing is carried, and a chunk is decoded for each block that needs it. Of an array that several fields draw from, a
block needs the chunks that any of them needs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.plan.blocks.chunks_over_blocks import chunks_over_blocks
from zarrfeed.plan.blocks.decoded_bytes import Grain, bytes_of_runs
from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.order.cached_decodes import Chains, SharingMemory, saved_decodes
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.wanted_bytes import SegmentSamples, WantedBytes
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.sample_set import distinct
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.plan.windows.windows import reach
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.description.edition import FIRST_REACHES
from zarrfeed.spec.fields.array_sources import ArraySource, array_sources
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.sparse import CsrField
from zarrfeed.spec.samples.row_map import GridRows

#: A strip of neighbouring blocks has so many times the chunks that it shares with others: these are decoded again.
STRIP_REACHES = FIRST_REACHES
#: Strips that an epoch permutes, at least, where lanes are shorter than strips.
_LEAST_STRIPS = 32
#: A lane carries chunks to its next group, while the ones from the group before are still in use.
_GROUPS_AT_ONCE = 2


@dataclass(frozen=True)
class Overlap:
    """The chunks that neighbouring blocks share.

    Attributes
    ----------
    chunks
        Fraction of its own chunks that a block shares with its neighbours, for the field that shares most.
    carried_bytes
        Decoded bytes that one lane carries, of all arrays, each once however many fields draw from it.
    """

    chunks: float
    carried_bytes: int

    @classmethod
    def of(cls, fields: Sequence[Field], block_rows: int, slabs: Slabs | None = None) -> Overlap | None:
        """Measure the chunks that blocks of `block_rows` samples share; None if they share none.

        Blocks that are `slabs` share runs of rows.
        """
        shared, carried_bytes = 0.0, 0
        sources = array_sources(fields)
        runs_of_sources = runs_of(sources, slabs)
        cut = {(runs.layout.spec.rows_per_chunk, runs.rows) for runs in runs_of_sources if not runs.are_chunks}
        # runs of several arrays end where slabs do, if chunks have whole slabs, or all end together
        are_even = (len(cut) <= 1 or not any(length % block_rows for length, _ in cut)) and all(
            rows == block_rows for _, rows in cut
        )

        grids = [f.row_map.grid for f in fields if isinstance(f.row_map, GridRows)]
        box = tuple(map(max, zip(*(grid.box for grid in grids), strict=True)))

        def chunks(runs: RowRuns, drawing: Sequence[Field]) -> int:
            rows, beyond = runs.rows, reach(f.window for f in drawing)
            row_map = drawing[0].row_map
            if isinstance(row_map, GridRows):
                return row_map.grid.chunks_beyond(box, beyond)
            straddles = block_rows % rows != 0 if runs.are_chunks else runs.fewest_rows < rows or not are_even
            return sum(-(-one // rows) for one in beyond) + straddles

        for f in fields:
            if isinstance(f, CsrField):  # the last row of a block ends in the next block's chunk
                share = f.primary.num_blocks / max(1, f.num_samples / block_rows)
                shared = max(shared, 1 / max(1.0, share))
                carried_bytes += _GROUPS_AT_ONCE * f.block_bytes
        for source, runs in zip(sources, runs_of_sources, strict=True):
            drawing = [fields[number] for number, layout in source.draws if layout == 0 and carries(fields[number])]
            windows = [f for f in drawing if f.window is not None]
            shared = max([shared, *(chunks(runs, [f]) * runs.rows / block_rows for f in windows)])
            if drawing and drawing[0].patch is None:
                num_runs = chunks(runs, drawing)
                # a slab decodes one run that the slab before it does not share
                at_once = _GROUPS_AT_ONCE * num_runs if runs.are_chunks else num_runs + _GROUPS_AT_ONCE - 1
                carried_bytes += at_once * runs.nbytes * source.spec.num_cells
        return cls(shared, carried_bytes) if carried_bytes else None

    @property
    def reads_of_cut(self) -> float:
        """Blocks that are decoded once more where the end of a lane cuts a block."""
        return 1 + self.chunks

    def strip(self, order: Order) -> int:
        """Return the length of a strip in blocks: so many that strips share little, but less than a lane.

        Lanes that hand rows of slabs on may be shorter than strips, as long as there are enough of these to permute:
        the end of a lane costs as much as that of a strip.
        """
        hands_rows_on = order.slabs is not None and order.slabs.carries_rows
        pieces = min(order.lanes, _LEAST_STRIPS) if hands_rows_on else order.lanes
        reaches = order.slabs.strip_reaches if order.slabs is not None and hands_rows_on else STRIP_REACHES
        return max(1, min(self.wanted_strip(reaches), order.num_blocks // pieces))

    def wanted_strip(self, reaches: int = STRIP_REACHES) -> int:
        """Return how many neighbouring blocks stay together if lanes are long: so many that strips share little."""
        return math.ceil(reaches * self.chunks)


def carries(field: Field) -> bool:
    """Return whether chunks of a field may serve several blocks: those of patches, and of windows of several rows."""
    return field.patch is not None or (field.is_streamed and any(reach([field.window])))


def lanes_of(order: Order, stride: int) -> int:
    """Return the number of lanes that a consumer reads if it takes every `stride`-th position."""
    return sum(one.lanes // math.gcd(one.lanes, stride) for one in order.orders)


def runs_of(sources: Sequence[ArraySource], slabs: Slabs | None) -> tuple[RowRuns, ...]:
    """Return the runs that lanes hand on of each of the `array_sources`: whole chunks, or the runs of rows of slabs."""
    return tuple(RowRuns(one.layout) for one in sources) if slabs is None else slabs.runs_of(sources)


@dataclass(frozen=True)
class CarryPlan:
    """The chunks that each group of a plan shares with others, in the form that the engine takes.

    `run_rows` has the rows of the runs that the chunks of each source are cut into, or 0; it is empty if none is cut.
    The chunks below are numbers of such runs (`RowRuns`).

    Group i shares the entries `begin[i]:begin[i + 1]`: a source (`array_sources`), a chunk of it along the sample axis,
    and whether `next_group[i]`, the next one of its lane, needs the chunk, too. If it does not, several segments of
    group i do. The entries `take_begin[i]:take_begin[i + 1]` are the chunks that several chains of groups need, and
    that group i is the first of its chain to need.
    """

    next_group: Int64
    begin: Int64
    source: Int64
    chunk: Int64
    on: Int64
    take_begin: Int64
    take_source: Int64
    take_chunk: Int64
    run_rows: Int64

    def to_core(self) -> core.CarryPlan:
        """Convert the plan to the form that the engine takes."""
        arrays = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        if not len(self.run_rows):
            del arrays["run_rows"]
        return core.CarryPlan(**arrays)


def plan_carry(plan: EpochPlan, fields: Sequence[Field]) -> CarryPlan:
    """Plan the chunks of `fields` that the groups of a plan share."""
    lanes = _Lanes.of(plan)
    shared, takes = [_no_entries()], [_no_entries()]
    run_rows = np.zeros(0, dtype=np.int64)
    if not any(f.patch is not None for f in fields):  # of patches, the engine finds which chunks are shared
        sources = array_sources(fields)
        for source, runs in zip(sources, runs_of(sources, plan.order.slabs), strict=True):
            if not _carries_some(source, fields):
                continue
            if not runs.are_chunks:
                run_rows = np.append(run_rows, np.zeros(source.number + 1 - len(run_rows), dtype=np.int64))
                run_rows[source.number] = runs.rows
            needs = _Needs.of(plan, *_runs_over_blocks(plan.order.listed_reads, source, fields, runs))
            group, chunk, on = needs.shared(lanes)
            shared.append((group, np.full(len(group), source.number), chunk, on))
            chains = needs.chains(lanes).of_shared_chunks()
            takes.append((chains.first, np.full(len(chains), source.number), chains.cell, np.zeros_like(chains.cell)))
    begin, source_of, chunk, on = _by_group(shared, plan)
    take_begin, take_source, take_chunk, _ = _by_group(takes, plan)
    return CarryPlan(lanes.following, begin, source_of, chunk, on, take_begin, take_source, take_chunk, run_rows)


_Entries: TypeAlias = tuple[Int64, Int64, Int64, Int64]


def _no_entries() -> _Entries:
    nothing = np.zeros(0, dtype=np.int64)
    return nothing, nothing, nothing, nothing


def _by_group(entries: Sequence[_Entries], plan: EpochPlan) -> _Entries:
    """Return entries, which begin with their group, in the order of these; and in its place where each group begins."""
    group, *columns = (np.concatenate(column) for column in zip(*entries, strict=True))
    order = np.argsort(group, kind="stable")
    begin = np.searchsorted(group[order], np.arange(len(plan.groups.lane) + 1)).astype(np.int64)
    first, second, third = (column[order] for column in columns)
    return begin, first, second, third


def next_groups(plan: EpochPlan) -> Int64:
    """Return for each group the next one of its lane, in the same turn; -1 for the last one."""
    return _Lanes.of(plan).following


@dataclass(frozen=True, eq=False)
class _Lanes:
    """The groups of a plan lane by lane, those of each turn over a lane apart.

    Attributes
    ----------
    groups
        The groups, numbered in the order in which they are begun.
    goes_on
        True for each group that follows the one before it in a lane.
    """

    groups: Int64
    goes_on: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, plan: EpochPlan) -> Self:
        of_sources = () if plan.sources is None else (plan.sources.source, plan.sources.which_pass)
        lanes = (plan.groups.lane, plan.turn, *of_sources)
        groups = np.lexsort((np.arange(len(plan.groups.lane)), *lanes))
        same = np.all([np.diff(of_group[groups]) == 0 for of_group in lanes], axis=0)
        return cls(groups, np.concatenate((np.zeros(min(1, len(groups)), dtype=bool), same)))

    @cached_property
    def following(self) -> Int64:
        """The next group of the lane of each group; -1 for the last one."""
        following = np.full(len(self.groups), -1, dtype=np.int64)
        following[self.groups[:-1][self.goes_on[1:]]] = self.groups[1:][self.goes_on[1:]]
        return following


@dataclass(frozen=True, eq=False)
class _Needs:
    """The chunks of a source that the groups of a plan need.

    Attributes
    ----------
    group, chunk
        Each pair once, sorted.
    segments
        Number of the group's segments that need the chunk.
    """

    group: Int64
    chunk: Int64
    segments: Int64

    @classmethod
    def of(cls, plan: EpochPlan, held_index: Int64, chunk: Int64) -> Self:
        """Find the needs of a plan's groups, from held indices of blocks and the chunks that their samples need."""
        begin = np.searchsorted(held_index, np.arange(plan.order.num_blocks + 1))
        # one entry per segment
        first = begin[plan.groups.held_index]
        counts = begin[plan.groups.held_index + 1] - first
        group = np.repeat(np.arange(len(plan.groups.lane)), np.diff(plan.groups.begin))
        # one entry per segment and chunk
        entry = joined_ranges(first, counts)
        num_chunks = int(chunk.max(initial=0)) + 1
        pairs, segments = np.unique(np.repeat(group, counts) * num_chunks + chunk[entry], return_counts=True)
        return cls(*np.divmod(pairs, num_chunks), segments.astype(np.int64))

    @property
    def shared_pairs(self) -> Int64:
        """The pairs of a group and a chunk that several segments of the group need: group x `num_chunks` + chunk."""
        several = self.segments > 1
        return self.group[several] * self.num_chunks + self.chunk[several]

    @property
    def num_chunks(self) -> int:
        """More than any number of a chunk."""
        return int(self.chunk.max(initial=0)) + 1

    def shared(self, lanes: _Lanes) -> tuple[Int64, Int64, Int64]:
        """Return groups, the chunks that they share, and 1 where the group that follows needs the chunk, else 0."""
        following = lanes.following[self.group]
        pairs, wanted = (group * self.num_chunks + self.chunk for group in (self.group, following))
        at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)  # pairs ascend
        on = (pairs[at] == wanted) & (following >= 0)
        shared = on | (self.segments > 1)
        return self.group[shared], self.chunk[shared], on[shared].astype(np.int64)

    def chains(self, lanes: _Lanes) -> Chains:
        """Return the chains of groups that hand a chunk on, each of which decodes it, or finds it cached."""
        number = np.empty_like(lanes.groups)
        number[lanes.groups] = np.arange(len(lanes.groups))
        pairs = np.sort(number[self.group] * self.num_chunks + self.chunk)
        return Chains.of(self.num_chunks, pairs, lanes.goes_on, lanes.groups)


@dataclass(frozen=True)
class SourceReads:
    """The read chunks that a consumer's epoch decodes of a source.

    Attributes
    ----------
    decoded
        Chunks that are decoded, if every piece of a block touches all it could.
    distinct
        Number of different chunks that are decoded.
    of_all
        Different ones that all consumers together decode.
    most
        Chunks that are decoded at most, however long threads hold memory. None: it is not known.
    in_part
        The bytes that are decoded, as a number of whole chunks. None: they are not known, and those of `decoded` chunks
        at most.
    """

    decoded: int
    distinct: int
    of_all: int
    most: int | None = None
    in_part: float | None = None


def source_reads(
    plan: EpochPlan, fields: Sequence[Field], memory: SharingMemory, grains: Sequence[Grain] = ()
) -> list[SourceReads]:
    """Return the reads of an epoch for each of the `array_sources` of fields that are no patches.

    `grains` has the grain of each source; empty: those of slabs, or bytes are not counted.
    """
    lanes, sources, slabs = _Lanes.of(plan), array_sources(fields), plan.order.slabs
    own = plan.order.pieces_of(plan)
    pieces, piece_of = (plan.order.listed_reads, plan.groups.held_index) if own is None else (own, own.blocks)
    runs_of_sources, grains = runs_of(sources, slabs), grains or (() if slabs is None else slabs.grains)
    listed = SegmentSamples(plan)
    needs: dict[int, _Needs] = {}
    found = []
    for number, source in enumerate(sources):
        cells = source.spec.num_cells
        runs = runs_of_sources[number]
        hands_on = bool(memory.carry_bytes) and _carries_some(source, fields)
        if not hands_on:
            runs = RowRuns(source.layout)
        held_index, chunk = _runs_over_blocks(pieces, source, fields, runs)
        if hands_on:
            needs[number] = _Needs.of(plan, held_index, chunk)
            decoded = 0  # which the memory that is shared decides
        else:
            over_block = np.bincount(held_index, minlength=len(pieces.held))
            # the rows of a piece of k samples cannot lie in more chunks than there are rows
            windows = [fields[one].window for one in source.fields]
            rows = plan.groups.length * sum(1 if one is None else len(one.offsets) for one in windows)
            decoded = int(np.minimum(over_block[piece_of], rows).sum())
        in_part = None
        if grains and not hands_on:
            of_segments = listed.wanted(source, fields, grains[number], runs)
            in_part = float(of_segments.nbytes.sum()) / source.spec.decoded_bytes * cells
        of_consumer, everybody = _in_pieces(piece_of, held_index, chunk), chunk
        if own is not None:
            _, everybody = _runs_over_blocks(plan.order.listed_reads, source, fields, runs)
        read, of_all = (np.unique(one // runs.of_chunk) for one in (of_consumer, everybody))
        found.append(SourceReads(decoded * cells, len(read) * cells, len(of_all) * cells, decoded * cells, in_part))
    chains = [one.chains(lanes) for one in needs.values()]
    chunk_bytes = [runs_of_sources[number].nbytes * sources[number].spec.num_cells for number in needs]
    saved = saved_decodes(chains, chunk_bytes, memory.keep_bytes)
    most = _most_decodes(list(needs.values()), chains, chunk_bytes, memory, memory.ends(plan.last_step))
    for number, made, less, at_most in zip(needs, chains, saved, most, strict=True):
        cells = sources[number].spec.num_cells
        found[number] = replace(found[number], decoded=(len(made) - less) * cells, most=at_most * cells)
    if not grains:
        return found
    of_chains = [
        _bytes_of_chains(plan, lanes, needs[number], made, runs_of_sources[number], grains[number], memory, wanted)
        for number, made in zip(needs, chains, strict=True)
        for wanted in [listed.wanted(sources[number], fields, grains[number], runs_of_sources[number])]
    ]
    read_chains = [made.taken(nbytes > 0) for made, nbytes in zip(chains, of_chains, strict=True)]
    saved = saved_decodes(read_chains, chunk_bytes, memory.keep_bytes)
    for number, made, nbytes, less in zip(needs, chains, of_chains, saved, strict=True):
        alike = made.num_alike() > 1
        of_cached = float(nbytes[alike & (nbytes > 0)].mean()) if less else 0.0
        spec = sources[number].spec
        in_part = float(nbytes.sum() - less * of_cached) / spec.decoded_bytes * spec.num_cells
        found[number] = replace(found[number], in_part=in_part)
    return found


def _bytes_of_chains(
    plan: EpochPlan,
    lanes: _Lanes,
    needs: _Needs,
    chains: Chains,
    runs: RowRuns,
    grain: Grain,
    memory: SharingMemory,
    wanted: WantedBytes,
) -> npt.NDArray[np.float64]:
    """Return the bytes that each chain of groups decodes of its run of rows in one cell, if it finds it nowhere.

    A chain that hands a run on, or may cache it, decodes all of its rows; another one decodes those that it wants. A
    chain none of whose samples wants a row decodes nothing.
    """
    number = np.empty_like(lanes.groups)
    number[lanes.groups] = np.arange(len(lanes.groups))
    group = np.repeat(np.arange(len(lanes.groups)), np.diff(plan.groups.begin))[wanted.segment]
    begins = chains.cell * len(number) + number[chains.first]  # ascending
    chain = np.searchsorted(begins, wanted.run * len(number) + number[group], side="right") - 1
    alone = np.bincount(chain, wanted.nbytes, minlength=len(chains))
    alike = chains.num_alike() > 1 if memory.keep_bytes else np.zeros(len(chains), dtype=bool)
    several = np.isin(chains.first * needs.num_chunks + chains.cell, needs.shared_pairs)
    is_shared = several | alike | (chains.last > chains.first)
    of_run = bytes_of_runs(runs, grain)[chains.cell % runs.of_chunk]
    return np.where(is_shared & (alone > 0), of_run, alone)


def _most_decodes(
    needs: Sequence[_Needs], chains: Sequence[Chains], chunk_bytes: Sequence[int], memory: SharingMemory, ends: Int64
) -> list[int]:
    """Return the largest number of chunks of each array that are decoded, however long threads hold memory.

    If memory may be short, every chain decodes the chunks that several chains need, and every piece of a block decodes
    those that chains hand on.
    """
    kept = memory.keeps_all(chains, ends, chunk_bytes)
    rest = [one.taken(one.num_alike() == 1) for one in chains] if kept else chains
    # memory is for chunks that a chain hands on, or that several pieces of a group need
    held = [
        one.taken((one.last > one.first) | np.isin(one.cell, need.chunk[need.segments > 1]))
        for one, need in zip(rest, needs, strict=True)
    ]
    are_carried = memory.carries_all(held, ends, chunk_bytes)
    most = []
    for all_of, of_rest, need in zip(chains, rest, needs, strict=True):
        num_kept = len(np.unique(all_of.cell)) - len(np.unique(of_rest.cell))
        pieces = int(need.segments[np.isin(need.chunk, of_rest.cell)].sum())
        most.append(num_kept + (len(of_rest) if are_carried else pieces))
    return most


def chunks_of_order(order: Order, field: Field, layout: Layout) -> Int64:
    """Return the chunks of a layout that the epochs of all consumers read: indices along the sample axis, ascending."""
    return np.unique(chunks_over_blocks(order.listed_reads, field, layout)[1])


def chunks_of_plan(plan: EpochPlan, field: Field, layout: Layout) -> Int64:
    """Return the chunks of a layout that a consumer's epoch reads: indices along the sample axis, ascending."""
    pieces = plan.order.pieces_of(plan)
    if pieces is not None:
        return np.unique(chunks_over_blocks(pieces, field, layout)[1])
    return _in_pieces(plan.groups.held_index, *chunks_over_blocks(plan.order.listed_reads, field, layout))


def _in_pieces(piece_of: Int64, held_index: Int64, chunk: Int64) -> Int64:
    """Return those chunks of blocks, ascending, of whose blocks there is a piece."""
    read = np.zeros(max(piece_of.max(initial=-1), held_index.max(initial=-1)) + 1, dtype=bool)
    read[piece_of] = True
    return np.unique(chunk[read[held_index]])


def _runs_over_blocks(
    selection: Selection, source: ArraySource, fields: Sequence[Field], runs: RowRuns
) -> tuple[Int64, Int64]:
    """Return held indices of blocks and the runs of a source that their samples need, each pair once; sorted."""
    found = []
    for number, layout in source.draws:
        field = fields[number]
        found.append(chunks_over_blocks(selection, field, field.layouts[layout], runs.cut))
    if len(found) == 1:
        return found[0]
    held_index, chunk = (np.concatenate(column) for column in zip(*found, strict=True))
    num_chunks = int(chunk.max(initial=0)) + 1
    return np.divmod(distinct(held_index * num_chunks + chunk), num_chunks)


def _carries_some(source: ArraySource, fields: Sequence[Field]) -> bool:
    return any(carries(fields[number]) for number in source.fields)
