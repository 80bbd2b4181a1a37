"""The bytes that blocks of samples decode of an array, where a chunk may be decoded in part: counted, not estimated.

A *grain* is the run of decoded bytes that is decoded together: a Blosc block, an item of a chunk without codecs, or the
whole chunk. Invariant: a block of samples decodes each grain once that a wanted row lies in, and no other one. The
engine decodes a chunk as a whole if more than half of its grains are wanted and its rows need more than to be copied
(cpp/transform/touched_blocks.h); so does this count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.sample_set import distinct
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import ArraySource
from zarrfeed.spec.fields.field import Field

#: Runs of rows that are looked at one by one, in chunks whose rows are scattered; more are counted as whole chunks.
_MOST_RUNS = 1 << 22
#: Axes of an array of whose chunks a crop is kept, at most (cpp/transform/patches/chunk_crop.h).
_MOST_AXES = 16


@dataclass(frozen=True)
class Grain:
    """The bytes of a chunk that are decoded together.

    Attributes
    ----------
    nbytes
        Decoded bytes of a grain. 0: chunks are decoded whole.
    is_fused
        True if rows go from the grains to their batches, however many grains are wanted.
    """

    nbytes: int = 0
    is_fused: bool = False


WHOLE_CHUNK = Grain()


def decoded_bytes(selection: Selection, source: ArraySource, fields: Sequence[Field], grain: Grain) -> Int64:
    """Return the bytes that each block of a selection decodes of an array, for all fields that draw from it.

    Returns
    -------
    Decoded bytes by held index, in all cells, shape (blocks,).
    """
    spec, layout = source.spec, source.layout
    held_index, chunk, low, high = _cut_at_chunks(layout, *_runs_of_rows(selection, source, fields))
    pair, of_pair = bytes_of_rows(spec, grain, held_index * (layout.num_chunks + 1) + chunk, low, high)
    of_block = np.zeros(len(selection.held), dtype=np.int64)
    np.add.at(of_block, pair // (layout.num_chunks + 1), of_pair)
    return of_block * spec.num_cells


def rows_of_grain(spec: ArraySpec, grain: Grain) -> float:
    """Return the number of rows of a chunk that a grain has bytes of, on average; more than there are: all of them."""
    inner, outer = _runs_of_row(spec)
    if _is_whole(spec, grain) or outer > 1:
        return math.inf
    return 1 + (grain.nbytes - math.gcd(grain.nbytes, inner)) / inner


def _is_whole(spec: ArraySpec, grain: Grain) -> bool:
    return not 0 < grain.nbytes < spec.decoded_bytes


def can_be_cut(spec: ArraySpec, grain: Grain) -> bool:
    """Return whether lanes may hand on some rows of a chunk: its rows lie side by side, and need not all be decoded."""
    side_by_side = spec.choice is None and _runs_of_row(spec)[1] == 1
    return side_by_side and not _is_whole(spec, grain) and len(spec.shape) <= _MOST_AXES


def bytes_of_runs(runs: RowRuns, grain: Grain) -> Int64:
    """Return the bytes that each run of a chunk decodes, in one cell, shape (runs of a chunk,)."""
    number = np.arange(runs.of_chunk)
    if runs.are_chunks:
        return np.array([runs.nbytes])
    return bytes_of_rows(runs.layout.spec, grain, number, *runs.rows_in_chunk(number))[1]


def bytes_in_runs(
    selection: Selection, source: ArraySource, fields: Sequence[Field], grain: Grain, runs: RowRuns
) -> tuple[Int64, Int64, Int64]:
    """Return held indices of blocks, runs, and the bytes that the rows that a block needs of a run decode, in one cell.

    Each pair comes once; pairs ascend.
    """
    layout, num_runs = source.layout, (source.layout.num_chunks + 1) * runs.of_chunk
    held_index, chunk, low, high = _cut_at_chunks(layout, *_runs_of_rows(selection, source, fields))
    counts = high // runs.rows - low // runs.rows + 1
    held_index, chunk, low, high = (np.repeat(of_rows, counts) for of_rows in (held_index, chunk, low, high))
    number = joined_ranges(0, counts) + low // runs.rows
    low, high = np.maximum(low, number * runs.rows), np.minimum(high, (number + 1) * runs.rows - 1)
    pair = held_index * num_runs + chunk * runs.of_chunk + number
    pair, of_pair = bytes_of_rows(source.spec, grain, pair, low, high)
    return *np.divmod(pair, num_runs), of_pair


def bytes_of_rows(spec: ArraySpec, grain: Grain, pair: Int64, low: Int64, high: Int64) -> tuple[Int64, Int64]:
    """Return distinct pairs of a reader and a chunk, ascending, and the bytes that rows of the chunk decode in a cell.

    Each entry of `pair` has the rows from `low` to `high`, counted from the first one of the chunk.
    """
    rows, size = spec.rows_per_chunk, spec.decoded_bytes
    inner, outer = _runs_of_row(spec)
    if _is_whole(spec, grain) or (outer > 1 and outer * len(low) > _MOST_RUNS):
        pair = distinct(pair)
        return pair, np.full(len(pair), size)
    # one entry for each run of bytes from here on
    begin = (np.arange(outer) * rows * inner)[:, None]
    first = ((begin + low * inner) // grain.nbytes).ravel()
    last = ((begin + (high + 1) * inner - 1) // grain.nbytes).ravel()
    pair = np.tile(pair, outer)
    order = np.lexsort((first, pair))
    pair, first, last = pair[order], first[order], last[order]
    # the grains of a run that no run before it touches: runs are ordered by pair, and by their first grain
    num_grains = -(-size // grain.nbytes)
    number = np.cumsum(np.append(False, np.diff(pair) != 0)[: len(pair)])
    reached = np.maximum.accumulate(number * num_grains + last) - number * num_grains
    before = np.append(-1, reached[:-1])[: len(pair)]
    first = np.where(np.append(True, np.diff(number) != 0)[: len(pair)], first, np.maximum(first, before + 1))
    touched = np.maximum(last - first + 1, 0)
    short = num_grains * grain.nbytes - size  # what the last grain lacks
    taken = touched * grain.nbytes - np.where((touched > 0) & (last == num_grains - 1), short, 0)
    # one entry for each pair from here on
    starts = np.flatnonzero(np.append(True, np.diff(number) != 0)[: len(pair)])
    of_pair = np.add.reduceat(taken, starts) if len(starts) else taken
    if not grain.is_fused and len(starts):
        of_pair = np.where(2 * np.add.reduceat(touched, starts) > num_grains, size, of_pair)
    return pair[starts], of_pair


def _runs_of_rows(selection: Selection, source: ArraySource, fields: Sequence[Field]) -> tuple[Int64, Int64, Int64]:
    """Return runs of rows that blocks need of an array: the held index of the block, the first and the last row."""
    windows = [fields[number].window for number in source.fields]
    offsets = np.unique([offset for window in windows for offset in ((0,) if window is None else window.reads)])
    held_index, begin, last = selection.runs()
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    first_of, last_of = offsets[np.append(0, breaks + 1)], offsets[np.append(breaks, len(offsets) - 1)]
    end = fields[source.fields[0]].num_samples - 1
    low = np.clip(begin + first_of[:, None], 0, end).ravel()  # rows that are padded are near ones, or none
    high = np.clip(last + last_of[:, None], 0, end).ravel()
    return np.tile(held_index, len(first_of)), low, high


def _cut_at_chunks(layout: Layout, held_index: Int64, low: Int64, high: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Cut runs of rows at the ends of chunks: held index, chunk, and first and last row, counted from the chunk's."""
    rows = layout.spec.rows_per_chunk
    first_chunk = np.zeros(1, dtype=np.int64)
    begin, end = np.zeros(1, dtype=np.int64), np.array([layout.spec.num_samples])
    if layout.parts is not None:
        begin, end = layout.parts.begin, layout.parts.end
        first_chunk = layout.parts.first_chunk
    store = np.searchsorted(end, low, side="right")
    counts = np.maximum(0, np.searchsorted(begin, high, side="right") - store)
    held_index, low, high = (np.repeat(of_runs, counts) for of_runs in (held_index, low, high))
    store = joined_ranges(store, counts)
    low, high = np.maximum(low, begin[store]) - begin[store], np.minimum(high, end[store] - 1) - begin[store]
    counts = high // rows - low // rows + 1
    held_index, low, high, store = (np.repeat(of_runs, counts) for of_runs in (held_index, low, high, store))
    within = joined_ranges(0, counts) + low // rows
    chunk_begin = within * rows
    low, high = np.maximum(low - chunk_begin, 0), np.minimum(high - chunk_begin, rows - 1)
    return held_index, first_chunk[store] + within, low, high


def _runs_of_row(spec: ArraySpec) -> tuple[int, int]:
    """Return the bytes of a run of a row in a decoded chunk, and how many runs a row has there."""
    at = spec.storage_order.index(spec.sample_axis)
    inner = spec.dtype.itemsize
    for axis in spec.storage_order[at + 1 :]:
        inner *= spec.chunk_shape[axis]
    outer = 1
    for axis in spec.storage_order[:at]:
        outer *= spec.chunk_shape[axis]
    return inner, outer
