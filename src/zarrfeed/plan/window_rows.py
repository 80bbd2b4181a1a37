"""Which rows windows may read: those that are selected, and of a split those of the window's own part.

What holds, unless the user asks for something else:

1. `Data.select`: no window reads a row that is not selected. A slice selects all rows between its bounds, whatever its
   step; a list or a mask selects the rows that it names.
2. `Data.split`: no row is read for two parts. A row that is a sample belongs to the part of that sample. Any other row,
   such as one at the end of an episode, belongs to the part of the nearest sample before it whose window has the row,
   else of the nearest sample behind it.

A sample whose window would break a rule is left out, and counted (`LeftOut`). Where that would leave less than half of
a list, a mask or a part, nobody can have meant it: it is refused. The offsets of all fields count, and a sample's own
row does in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.plan.left_out import (
    OTHER_PART,
    OUTSIDE_ARRAY,
    OUTSIDE_SEGMENT,
    OUTSIDE_SELECTION,
    OUTSIDE_WINDOW_ROWS,
    WITHIN_GAP,
    LeftOut,
)
from zarrfeed.plan.selection import (
    Int64,
    Select,
    Selection,
    as_range,
    common_samples,
    select_samples,
)
from zarrfeed.plan.windows import check_segment_ends, offsets_of, samples_with_windows
from zarrfeed.spec.field import FieldSet
from zarrfeed.spec.window import Window

#: What `rows=` of `Data.window` may be.
WindowRows: TypeAlias = "Literal['selected', 'all'] | Select"

_NO_PART = -1


def choose_windows(
    named: range | Int64,
    windows: Sequence[Window | None],
    num_samples: int,
    *,
    selected: range | Int64,
    by_list: bool,
    segment_ends: npt.ArrayLike | None,
    window_rows: WindowRows | None,
) -> tuple[range | Int64, tuple[LeftOut, ...]]:
    """Return the samples, of some named ones, whose windows have all of their rows and read no others.

    Parameters
    ----------
    named
        Samples, ascending.
    windows
        The rows of a sample in each field; at least one is not None.
    num_samples
        Length of the sample axis.
    selected
        The rows that `window_rows` means by "selected", ascending.
    by_list
        Whether the samples were named by a list or a mask, or dealt at random; else by slices.
    segment_ends, window_rows
        As the user gave them.

    Returns
    -------
    The samples, ascending, and why others are left out.

    Raises
    ------
    ConfigError
        If no sample is left, or, unless `window_rows` is given, less than half of a list; or if an argument is wrong.
    """
    ends = None if segment_ends is None else check_segment_ends(segment_ends, num_samples)
    complete = samples_with_windows(windows, num_samples, ends)
    assert complete is not None
    whole = common_samples(named, complete)
    if not len(whole):
        raise ConfigError("no sample that select names has all rows of its window in the array, and its segment")
    left_out = []
    if len(whole) < len(named):
        left_out.append(_count_incomplete(named, whole, ends))

    rows, reason = _readable_rows(window_rows, selected, num_samples)
    samples = _samples_reading_only(whole, offsets_of(windows), rows)
    lost = len(whole) - len(samples)
    halves = window_rows is None and by_list and 2 * len(samples) < len(whole)
    if not len(samples) or halves:
        or_not = ", or rows='selected' to leave these samples out" if len(samples) else ""
        raise ConfigError(
            f"{lost} of {len(whole)} samples would be left out, as {reason}. Pass rows='all' to let windows read "
            f"every row of the array, rows= with the rows that they may read (a slice, indices or a mask)"
            f"{or_not}"
        )
    if lost:
        left_out.append(LeftOut(lost, len(whole), reason))
    return samples, tuple(left_out)


def _count_incomplete(named: range | Int64, whole: range | Int64, ends: Int64 | None) -> LeftOut:
    """Count the samples that are named and lack rows of their windows."""
    lost = len(named) - len(whole)
    if ends is None:
        return LeftOut(lost, len(named), OUTSIDE_ARRAY)
    begins = np.concatenate(([0], ends[:-1]))
    had = _count_between(named, begins, ends) > 0
    has = _count_between(whole, begins, ends) > 0
    return LeftOut(lost, len(named), OUTSIDE_SEGMENT, int((had & ~has).sum()), int(had.sum()))


def _count_between(samples: range | Int64, begins: Int64, ends: Int64) -> Int64:
    """Return how many of some ascending samples lie in each [begin, end)."""
    if isinstance(samples, range):
        edges = np.stack([begins, ends]) - samples.start
        before = np.clip(-(-edges // samples.step), 0, len(samples))
    else:
        before = np.searchsorted(samples, np.stack([begins, ends]))
    counts: Int64 = before[1] - before[0]
    return counts


def _readable_rows(
    window_rows: WindowRows | None, selected: range | Int64, num_samples: int
) -> tuple[range | Int64, str]:
    """Return the rows that windows may read, ascending, and why samples that read others are left out."""
    if isinstance(window_rows, str):
        if window_rows == "all":
            return range(num_samples), OUTSIDE_WINDOW_ROWS
        if window_rows != "selected":
            raise ConfigError(
                f"rows = {window_rows!r}, must be 'selected', 'all', or rows: a slice, indices, or a mask"
                f"{did_you_mean(window_rows, ('selected', 'all'))}"
            )
    elif window_rows is not None:
        return _rows_named_by(window_rows, num_samples), OUTSIDE_WINDOW_ROWS
    return selected, OUTSIDE_SELECTION


def _rows_named_by(rows: Select, num_samples: int) -> range | Int64:
    """Return the rows that a user named: of a slice all between its bounds, else those that are listed."""
    named = select_samples(rows, num_samples)
    return range(*bounds_of(rows, num_samples)) if isinstance(rows, slice) else named


def bounds_of(select: slice, length: int) -> tuple[int, int]:
    """Return the bounds [start, stop) of a slice of a sequence, whatever its step."""
    start, stop, step = select.indices(length)
    return (start, stop) if step > 0 else (stop + 1, start + 1)


def _samples_reading_only(samples: range | Int64, offsets: Sequence[int], rows: range | Int64) -> range | Int64:
    """Return the samples, of some ascending ones, all of whose rows are among `rows`."""
    if isinstance(rows, range) and rows.step == 1:
        return common_samples(samples, range(rows.start - offsets[0], rows.stop - offsets[-1]))
    allowed, listed = np.asarray(rows, dtype=np.int64), np.asarray(samples, dtype=np.int64)
    inside = np.ones(len(listed), dtype=bool)
    for offset in offsets:
        row = listed + offset
        place = np.searchsorted(allowed, row)
        inside &= allowed[np.minimum(place, len(allowed) - 1)] == row
    return as_range(listed[inside])


def separate_parts(
    parts: Sequence[Selection], fields: FieldSet, *, gap: int, exactly: bool, left_out: tuple[LeftOut, ...]
) -> list[Selection]:
    """Leave out what makes two parts of a split read one row, or rows with fewer than `gap` others between them.

    Parameters
    ----------
    parts
        Disjoint selections.
    fields
        Of the dataset that is split.
    gap
        How many rows that no part reads follow what a part reads, before the rows of another part.
    exactly
        Whether a part that loses a sample is refused; else one that loses more than half of them is.
    left_out
        What was left out before the split.

    Raises
    ------
    ConfigError
        If a part is refused.
    """
    offsets = offsets_of(fields.windows)
    if gap == 0 and offsets == (0,):
        return [replace(part, left_out=left_out) for part in parts]
    listed = [part.listed() for part in parts]
    owner = np.full(fields.num_samples, _NO_PART, dtype=np.int32)
    for number, samples in enumerate(listed):
        owner[samples] = number
    # Only these can meet another part; they are few.
    borders = _borders(owner)
    near = [_near_borders(samples, *borders, offsets[-1] - offsets[0] + gap) for samples in listed]
    _claim_rows(owner, [samples[places] for samples, places in zip(listed, near, strict=True)], offsets)
    # the first row of each other part, in the order of the array; behind the last one there is none
    begins = np.append(_borders(owner)[1], np.iinfo(np.int64).max)

    separated = []
    for number, (part, samples, places) in enumerate(zip(parts, listed, near, strict=True)):
        leaves = np.zeros(len(places), dtype=bool)
        for offset in offsets:
            row = samples[places] + offset
            leaves |= owner[row] != number
            if gap:
                leaves |= begins[np.searchsorted(begins, row, side="right")] - row <= gap
        if not leaves.any():
            separated.append(replace(part, left_out=left_out))
            continue
        lost = LeftOut(int(leaves.sum()), len(samples), WITHIN_GAP if gap else OTHER_PART)
        if exactly or 2 * lost.samples > lost.of:
            before, after = -offsets[0], offsets[-1]
            raise ConfigError(
                f"part {number} of the split: {lost}. Windows reach {before} rows back and {after} ahead, gap = {gap}. "
                'Use by="contiguous" or longer parts, or let windows read rows of other parts with gap=None'
            )
        selection = Selection.of_runs(np.delete(samples, places[leaves]), fields.block_rows, fields.edges)
        separated.append(replace(selection, left_out=(*left_out, lost)))
    return separated


def _borders(owner: npt.NDArray[np.int32]) -> tuple[Int64, Int64]:
    """Return the rows on both sides of each change of owner; rows without an owner are passed over."""
    rows = np.flatnonzero(owner != _NO_PART)
    changes = np.flatnonzero(np.diff(owner[rows]))
    return rows[changes], rows[changes + 1]


def _near_borders(samples: Int64, before: Int64, behind: Int64, distance: int) -> Int64:
    """Return the places of samples that have a sample of another part at most so far away, and of some others."""
    is_near = np.zeros(len(samples) + 1, dtype=np.int32)
    np.add.at(is_near, np.searchsorted(samples, behind - distance), 1)
    np.add.at(is_near, np.searchsorted(samples, before + distance, side="right"), -1)
    return np.flatnonzero(np.cumsum(is_near[:-1], dtype=np.int32))


def _claim_rows(owner: npt.NDArray[np.int32], parts: Sequence[Int64], offsets: Sequence[int]) -> None:
    """Enter the owners of rows that are no samples, by rule 2 of the module."""
    for distance in sorted(offsets, key=lambda offset: (offset < 0, abs(offset))):
        for number, samples in enumerate(parts):
            rows = samples + distance
            owner[rows[owner[rows] == _NO_PART]] = number
