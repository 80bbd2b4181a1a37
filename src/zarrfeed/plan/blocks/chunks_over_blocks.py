"""The chunks of a field that hold the rows that blocks of samples need: arithmetic on runs of samples and on offsets.

Invariant: nothing is made for each sample or each offset. Samples that are less than a chunk apart are looked up by
the first and the last of them, and so are offsets: no chunk lies between the rows of two neighbours. So the work grows
with the chunks that are found.
"""

from __future__ import annotations

import numpy as np

from zarrfeed.plan.samples.field_rows import FindChunks, chunk_finder, find_rows
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.sample_set import AT_ONCE, Int64, common_runs, distinct
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.arrays.array_parts import ArrayParts
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.samples.sample_runs import SampleRuns


def chunks_over_blocks(selection: Selection, field: Field, layout: Layout, run_rows: int = 0) -> tuple[Int64, Int64]:
    """Return held indices of blocks and the chunks of a layout that their samples need, each pair once; sorted.

    With `run_rows`, chunks are cut into runs of so many rows (`RowRuns`), and the numbers are those of runs.
    """
    runs = RowRuns(layout, run_rows)
    window = field.window
    offsets = np.unique((0,) if window is None else window.reads)
    find_chunks = chunk_finder(field, runs)
    if isinstance(field.row_map, SampleRuns) and offsets[-1] - offsets[0] == len(offsets) - 1:
        return _pairs_of_map_runs(selection, offsets, field.row_map, chunk_finder(field.without_window(), runs))
    if field.row_map is not None and not field.row_map.follows_rule:
        return _pairs_of_samples(selection, offsets, find_chunks, None)
    apart = _samples_of_run(field, runs)
    held_index, begin, end = selection.runs(apart)
    breaks = np.flatnonzero(np.diff(offsets) > apart)
    first, last = offsets[np.append(0, breaks + 1)], offsets[np.append(breaks, len(offsets) - 1)]
    found = _Pairs()
    unclear = np.zeros(len(held_index), dtype=bool)
    at_once = max(1, AT_ONCE // len(first))
    for some in (slice(i, i + at_once) for i in range(0, len(held_index), at_once)):
        # shape (runs, groups of offsets)
        low = np.stack([find_chunks(begin[some], offset) for offset in first.tolist()], axis=1)
        high = np.stack([find_chunks(end[some], offset) for offset in last.tolist()], axis=1)
        if _lacks_rows(field, layout) and (len(offsets) > 1 or not selection.ascends):  # which crosses stores
            unclear[some] = ((low < 0) | (high < 0)).any(axis=1)
        low[unclear[some]] = -1
        found.add(np.broadcast_to(held_index[some, None], low.shape), low, high)
    if unclear.any():  # where another layout, or no array, has some of the rows
        held_indices = distinct(held_index[unclear])
        if layout.parts is not None and field.row_map is None:
            found.add_pairs(*_pairs_in_parts(selection, offsets, field, layout.parts, runs, held_indices))
        else:  # row by row
            found.add_pairs(*_pairs_of_samples(selection, offsets, find_chunks, held_indices))
    return found.sorted()


def _pairs_in_parts(
    selection: Selection,
    offsets: Int64,
    field: Field,
    parts: ArrayParts,
    runs: RowRuns,
    held_indices: Int64,
) -> tuple[Int64, Int64]:
    """Return held indices of blocks and chunks of a layout that has parts of the rows: of some blocks.

    Neighbours that are as many as offsets are apart read all rows from the first offset of the first one to the last
    offset of the last one, and those rows lie in parts.
    """
    found = _Pairs()
    apart = _samples_of_run(field, runs)
    held_index, begin, last = _runs_in_segments(selection, field, held_indices)
    is_long = last - begin >= apart
    for some, most in ((np.flatnonzero(is_long), apart), (np.flatnonzero(~is_long), 1)):
        breaks = np.flatnonzero(np.diff(offsets) > most)
        first, behind = offsets[np.append(0, breaks + 1)], offsets[np.append(breaks, len(offsets) - 1)]
        at_once = max(1, AT_ONCE // len(first))
        for each in (some[i : i + at_once] for i in range(0, len(some), at_once)):
            # the rows of runs and groups of offsets, one entry for each of them
            low = np.stack([find_rows(field, begin[each], offset) for offset in first.tolist()], axis=1).ravel()
            high = np.stack([find_rows(field, last[each], offset) for offset in behind.tolist()], axis=1).ravel()
            of_block = np.repeat(held_index[each], len(first))
            # and of each part that they meet from here on
            part = np.searchsorted(parts.end, low, side="right")
            counts = np.maximum(0, np.searchsorted(parts.begin, high, side="right") - part)
            part = joined_ranges(part, counts)
            low = np.maximum(np.repeat(low, counts), parts.begin[part])
            high = np.minimum(np.repeat(high, counts), parts.end[part] - 1)
            there = low <= high
            found.add(np.repeat(of_block, counts)[there], runs.of(low[there]), runs.of(high[there]))
    return found.sorted()


def _runs_in_segments(selection: Selection, field: Field, held_indices: Int64) -> tuple[Int64, Int64, Int64]:
    """Return runs of neighbours, which lie in one segment where windows are padded.

    Returns
    -------
    Held index of the block, first and last sample of each run, shape (runs,).
    """
    held_index, begin, last = selection.runs(1, held_indices)
    window = field.window
    pad = None if window is None else window.pad
    if pad is None or pad.borders is None:
        return held_index, begin, last
    borders = pad.borders.first
    low, high = common_runs(begin, last + 1, borders[:-1], borders[1:])
    return held_index[np.searchsorted(begin, low, side="right") - 1], low, high - 1


def _samples_of_run(field: Field, runs: RowRuns) -> int:
    """Return the longest distance between two samples that lets no run of rows lie between their rows."""
    rows = None if field.row_map is None else field.row_map.rows
    step = abs(rows.step) if isinstance(rows, range) else 1
    return max(1, runs.fewest_rows // step)


def _lacks_rows(field: Field, layout: Layout) -> bool:
    """Return whether a layout of a field lacks rows, which another one has, or nothing."""
    return layout.parts is not None or field.row_map is not None


def _pairs_of_samples(
    selection: Selection, offsets: Int64, find_chunks: FindChunks, held_indices: Int64 | None
) -> tuple[Int64, Int64]:
    """Return held indices of blocks and chunks, looked up for each sample and offset: of all blocks, or of some."""
    found = _Pairs()
    held_index, begin, end = selection.runs(1, held_indices)
    ends: Int64 = np.cumsum(end - begin + 1)
    at_once = max(1, AT_ONCE // len(offsets))
    for first in range(0, int(ends[-1]) if len(ends) else 0, at_once):
        number = np.arange(first, min(first + at_once, int(ends[-1])))
        run = np.searchsorted(ends, number, side="right")
        samples: Int64 = end[run] - (ends[run] - 1 - number)
        chunk = np.stack([find_chunks(samples, offset) for offset in offsets.tolist()], axis=1)
        found.add(np.broadcast_to(held_index[run, None], chunk.shape), chunk, chunk)
    return found.sorted()


def _pairs_of_map_runs(
    selection: Selection, offsets: Int64, rows: SampleRuns, find_chunks: FindChunks
) -> tuple[Int64, Int64]:
    """Return held indices of blocks and chunks of windows without a gap, where a row map has runs.

    `find_chunks` finds the chunk of the row of a sample itself.
    """
    held_index, begin, end = selection.runs(1)
    begin, end = begin + offsets[0], np.minimum(end + offsets[-1], len(rows) - 1)
    run, counts = rows.runs_between(begin, end)
    run = joined_ranges(run, counts)
    behind = np.append(rows.table[0][1:], len(rows))
    found = _Pairs()
    found.add(
        np.repeat(held_index, counts),
        find_chunks(np.maximum(rows.table[0][run], np.repeat(begin, counts)), 0),
        find_chunks(np.minimum(behind[run], np.repeat(end, counts) + 1) - 1, 0),
    )
    return found.sorted()


class _Pairs:
    """Held indices of blocks, and chunks, each pair once."""

    def __init__(self) -> None:
        self._held_index: list[Int64] = []
        self._chunk: list[Int64] = []

    def add(self, held_index: Int64, low: Int64, high: Int64) -> None:
        """Add the chunks from `low` to `high`; below 0 there are none."""
        some = (low >= 0) & (high >= 0)
        held_index, low, counts = held_index[some], low[some], (high - low + 1)[some]
        counts = np.maximum(counts, 0)
        chunk = joined_ranges(low, counts)
        self.add_pairs(*_once(np.repeat(held_index, counts), chunk))

    def add_pairs(self, held_index: Int64, chunk: Int64) -> None:
        """Add pairs."""
        self._held_index.append(held_index)
        self._chunk.append(chunk)

    def sorted(self) -> tuple[Int64, Int64]:
        """Return all pairs, sorted."""
        nothing = np.zeros(0, dtype=np.int64)
        held_index, chunk = np.concatenate([nothing, *self._held_index]), np.concatenate([nothing, *self._chunk])
        return (held_index, chunk) if len(self._held_index) == 1 else _once(held_index, chunk)


def _once(held_index: Int64, chunk: Int64) -> tuple[Int64, Int64]:
    """Return each pair once, sorted."""
    num_chunks = int(chunk.max(initial=0)) + 1
    return np.divmod(distinct(held_index * num_chunks + chunk), num_chunks)
