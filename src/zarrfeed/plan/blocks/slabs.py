"""`Slabs`: the runs of rows that chunks are cut into, so that an epoch order can shuffle less than a chunk at a time.

Invariants:

1. The slabs of a chunk partition its rows: each slab but the last one of a chunk has the same number of rows.
2. No slab crosses the end of a chunk, or of a store.
3. Only the epoch order knows slabs. What deals samples to parts and to nodes, and what states tell selections apart by,
   has blocks of whole chunks. Slabs are cut from these blocks afterwards, so a slab has samples of one block alone.

Pure: slabs follow from the layout of the array that makes the blocks, and from the rows of a slab.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zarrfeed.plan.blocks.decoded_bytes import Grain, can_be_cut
from zarrfeed.plan.samples.held_blocks import ListedBlocks, RunBlocks
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import ArraySource
from zarrfeed.spec.samples.block_edges import Int64, StoreEdges

#: A run of slabs of one length, in whose chunk a first and a last one may be cut by what is selected.
_BYTES_OF_RUN = 256


@dataclass(frozen=True)
class Slabs:
    """The cut of an array's chunks into slabs.

    Attributes
    ----------
    rows
        Rows of a full slab.
    edges
        The edges of the slabs.
    grains
        The grain of each of the `array_sources`, for counting. Empty: nothing is known.
    strip_reaches
        As in `Edition`. 0: each slab decodes all rows that it needs.

    Examples
    --------
    >>> slabs = Slabs(3, StoreEdges(np.array([0, 8, 10]), np.array([3, 3])))  # chunks of 8 rows, the last one short
    >>> cut = slabs.cut(None, 10)
    >>> cut.first.tolist(), cut.rows.tolist()
    ([0, 3, 6, 8], [3, 3, 2, 2])
    """

    rows: int
    edges: StoreEdges = field(compare=False, repr=False)
    grains: tuple[Grain, ...] = ()
    strip_reaches: int = 0
    _last: list[tuple[Selection | None, Selection]] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def carries_rows(self) -> bool:
        """True if lanes hand rows that windows share from slab to slab, in runs as long as a slab (`RowRuns`)."""
        return self.strip_reaches > 0

    @property
    def nbytes(self) -> int:
        """Bytes that the begins of slabs take, here and in the engine."""
        return _BYTES_OF_RUN * len(self.edges.rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": []}

    @classmethod
    def of(cls, layouts: Sequence[Layout], num_samples: int, rows: int) -> Slabs:
        """Return the slabs of an array that makes the blocks, or of its first samples.

        A chunk with fewer rows than a slab is one.
        """
        begins = [_begins(layout, num_samples, rows) for layout in layouts]
        each = [np.full(len(of_one), _rows_of(layout, rows)) for layout, of_one in zip(layouts, begins, strict=True)]
        first = np.concatenate(begins)
        ascending = np.argsort(first, kind="stable")
        return cls(rows, StoreEdges(np.append(first[ascending], num_samples), np.concatenate(each)[ascending]))

    def runs_of(self, sources: Sequence[ArraySource]) -> tuple[RowRuns, ...]:
        """Return the runs of each of the `array_sources` that slabs share: runs of rows, or whole chunks.

        Runs that lanes hand on are as long as a slab. Those that are cached alone end where grains do, if grains have
        no more rows than a slab: no grain is decoded for two of them.
        """
        if not self.grains:
            return tuple(RowRuns(source.layout) for source in sources)
        return tuple(
            RowRuns(source.layout, self._rows_of_run(source.spec, grain) if can_be_cut(source.spec, grain) else 0)
            for source, grain in zip(sources, self.grains, strict=True)
        )

    def _rows_of_run(self, spec: ArraySpec, grain: Grain) -> int:
        row_bytes = max(1, spec.decoded_bytes // spec.rows_per_chunk)
        rows_of_grains = grain.nbytes // math.gcd(grain.nbytes, row_bytes)  # the fewest rows that are whole grains
        whole = max(1, round(self.rows / rows_of_grains)) * rows_of_grains
        return self.rows if self.carries_rows or whole > 2 * self.rows else whole

    def cut(self, selection: Selection | None, num_samples: int) -> Selection:
        """Cut a selection whose blocks are whole chunks into slabs, with the same samples; None: all samples.

        The result of the last call is remembered, as an order is copied with other lanes, and the same samples.
        """
        for known, made in self._last:
            if known is selection:
                return made
        run = range(num_samples) if selection is None else selection.as_run()
        if run is not None:
            held = RunBlocks.between(run.start, run.stop, self.edges)
            made = (
                Selection(held)
                if selection is None
                else Selection(held, left_out=selection.left_out, dealt=selection.dealt)
            )
        else:
            assert selection is not None
            made = replace(selection, held=self._cut_blocks(selection), whole_blocks=False)
        self._last[:] = [(selection, made)]
        return made

    def _cut_blocks(self, selection: Selection) -> ListedBlocks:
        first, rows, samples, step = selection.first, selection.rows, selection.samples, selection.step
        if samples is None:
            low, high = first, first + step * (rows - 1)
        else:
            low, high = samples.at(first), samples.at(first + rows - 1)
        slab = self.edges.block_of(low)
        counts = self.edges.block_of(high) - slab + 1
        if rows.sum() < counts.sum():
            return self._slabs_of_each(selection)
        # one entry for each block and slab from here on
        slab, first, rows = joined_ranges(slab, counts), np.repeat(first, counts), np.repeat(rows, counts)
        begin, end = self.edges.samples_of(slab)
        if samples is None:
            below, before = (np.clip(-(-(of - first) // step), 0, rows) for of in (begin, end))
        else:
            below, before = (np.clip(samples.rank(of) - first, 0, rows) for of in (begin, end))
        some = np.flatnonzero(before > below)
        start = first + (step if samples is None else 1) * below
        return ListedBlocks(slab[some], (before - below)[some], start[some])

    def _slabs_of_each(self, selection: Selection) -> ListedBlocks:
        """Cut blocks with fewer samples than slabs, such as every thousandth row: look up the slab of each sample."""
        block = np.repeat(np.arange(len(selection.rows)), selection.rows)
        within = joined_ranges(0, selection.rows)
        if selection.samples is None:
            number = at = np.repeat(selection.first, selection.rows) + selection.step * within
        else:
            number = np.repeat(selection.first, selection.rows) + within
            at = selection.samples.at(number)
        slab = self.edges.block_of(at)
        begins = np.flatnonzero(np.append(True, (np.diff(slab) != 0) | (np.diff(block) != 0)))
        return ListedBlocks(slab[begins], np.diff(begins, append=len(slab)), number[begins])


def _rows_of(layout: Layout, rows: int) -> int:
    return min(rows, layout.spec.rows_per_chunk)


def _begins(layout: Layout, num_samples: int, rows: int) -> Int64:
    """Return the begin of each run of slabs of one length: of each store, or of each chunk if slabs are uneven."""
    chunk, parts, rows = layout.spec.rows_per_chunk, layout.parts, _rows_of(layout, rows)
    begin, end = (np.array([0]), np.array([layout.spec.num_samples])) if parts is None else (parts.begin, parts.end)
    end = np.minimum(end, num_samples)
    begin, end = begin[end > begin], end[end > begin]
    if chunk % rows == 0:
        return begin
    chunks = -(-(end - begin) // chunk)
    return np.repeat(begin, chunks) + chunk * joined_ranges(0, chunks)
