"""The bytes of arrays that the segments of a plan decode, if each decodes what it wants by itself.

Invariant: a segment wants the rows that its samples have, however many samples the plan has of it, and no other ones.
The samples of a segment follow from the order, so they are listed and not estimated, up to `MOST_ROWS`
rows. Of longer plans, each segment is taken to want the rows of its whole block, a random share of which it decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.blocks.decoded_bytes import Grain, bytes_in_runs, bytes_of_rows, rows_of_grain
from zarrfeed.plan.order.order import EpochPlan
from zarrfeed.plan.samples.field_rows import find_rows
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.sample_set import distinct
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.fields.array_sources import ArraySource
from zarrfeed.spec.fields.field import Field

#: Rows of samples that are listed, at most: some tenths of a second.
MOST_ROWS = 1 << 19


@dataclass(frozen=True, eq=False)
class WantedBytes:
    """The runs of an array that segments of a plan want some rows of.

    Attributes
    ----------
    segment, run
        The number of a segment, and a run that it wants rows of; each pair once, ascending.
    nbytes
        The bytes that the segment decodes of the run in one cell, by itself; expected ones, where they are not counted.
    """

    segment: Int64
    run: Int64
    nbytes: Int64


class SegmentSamples:
    """The samples of a plan with their segments, listed when an array asks for them first."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan

    def wanted(self, source: ArraySource, fields: Sequence[Field], grain: Grain, runs: RowRuns) -> WantedBytes:
        """Return the bytes that segments decode of an array for the fields that draw from it."""
        drawing = [fields[number] for number in source.fields]
        offsets = [(0,) if one.window is None else one.window.reads for one in drawing]
        if self._plan.steps * sum(map(len, offsets)) > MOST_ROWS:
            return _of_blocks(self._plan, source, fields, grain, runs)
        segment, samples = self._listed
        num_rows = max(1, source.spec.num_samples)
        found = []
        for field, of_field in zip(drawing, offsets, strict=True):
            for offset in of_field:
                rows = find_rows(field, samples, offset)
                there = (rows >= 0) & (rows < num_rows)
                found.append(distinct(segment[there] * num_rows + rows[there]))
        pair = distinct(np.concatenate(found))
        segment, rows = np.divmod(pair, num_rows)
        run = runs.of(rows)
        there = run >= 0
        segment, run, row = segment[there], run[there], runs.in_chunk(rows[there])
        num_runs = int(run.max(initial=0)) + 1
        pair = segment * num_runs + run
        goes_on = (np.diff(pair) == 0) & (np.diff(row) == 1)
        first, last = np.append(True, ~goes_on)[: len(row)], np.append(~goes_on, True)[: len(row)]
        pair, low, high = pair[first], row[first], row[last]
        pair, nbytes = bytes_of_rows(source.spec, grain, pair, low, high)
        return WantedBytes(*np.divmod(pair, num_runs), nbytes)

    @cached_property
    def _listed(self) -> tuple[Int64, Int64]:
        made = self._plan.to_core()
        return made.segments(), core.sample_order(made)


def _of_blocks(
    plan: EpochPlan, source: ArraySource, fields: Sequence[Field], grain: Grain, runs: RowRuns
) -> WantedBytes:
    """Return the bytes of segments that want all rows of their blocks, or a random share of these."""
    groups, own = plan.groups, plan.order.pieces_of(plan)
    pieces, piece_of = (plan.order.listed_reads, groups.held_index) if own is None else (own, own.blocks)
    share = groups.length / groups.block_rows if own is None else np.ones(len(piece_of))
    held_index, run, nbytes = bytes_in_runs(pieces, source, fields, grain, runs)
    begin = np.searchsorted(held_index, np.arange(len(pieces.held) + 1))
    first = begin[piece_of]
    counts = begin[piece_of + 1] - first
    entry, segment = joined_ranges(first, counts), np.repeat(np.arange(len(counts)), counts)
    wanted = 1 - (1 - share) ** rows_of_grain(source.spec, grain)
    return WantedBytes(segment, run[entry], np.rint(nbytes[entry] * wanted[segment]).astype(np.int64))
