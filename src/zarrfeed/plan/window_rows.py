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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    OUTSIDE_STORE,
    OUTSIDE_WINDOW_ROWS,
    WITHIN_GAP,
    LeftOut,
)
from zarrfeed.plan.sample_set import Int64, Samples, collected, common_runs, distinct, intersected
from zarrfeed.plan.selection import Select, Selection, select_samples
from zarrfeed.plan.window_samples import count_between, reading_only
from zarrfeed.plan.windows import check_segment_ends, offsets_of, samples_with_windows, unpadded
from zarrfeed.spec.field import FieldSet
from zarrfeed.spec.window import Borders, Window

#: What `rows=` of `Data.window` may be.
WindowRows: TypeAlias = "Literal['selected', 'all'] | Select"

_NO_PART = -1


@dataclass(frozen=True)
class ChosenWindows:
    """Samples whose windows read only what they may.

    Attributes
    ----------
    samples
        The samples, ascending.
    left_out
        Why others are left out.
    borders
        Of the segments at whose ends windows are padded. None: all samples are one segment, or nothing is padded.
    """

    samples: Samples
    left_out: tuple[LeftOut, ...]
    borders: Borders | None


def choose_windows(
    named: Samples,
    windows: Sequence[Window | None],
    num_samples: int,
    *,
    selected: Samples,
    by_list: bool,
    segment_ends: npt.ArrayLike | None,
    window_rows: WindowRows | None,
    borders: Int64 | None = None,
    are_stores: bool = True,
) -> ChosenWindows:
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
    borders, are_stores
        The first sample of each of several stores, or segments, and the number of samples at the end; and which of both
        they are. None: there is one store, which names no segments.

    Raises
    ------
    ConfigError
        If no sample is left, or, unless `window_rows` is given, less than half of a list; or if an argument is wrong.
    """
    ends = None if segment_ends is None else check_segment_ends(segment_ends, num_samples)
    are_named = ends is not None or not are_stores
    if borders is not None:
        ends = borders[1:] if ends is None else distinct(np.concatenate([ends, borders[1:]]))
    complete = samples_with_windows(windows, num_samples, ends)
    assert complete is not None
    whole = intersected(named, complete, num_samples)
    if not len(whole):
        raise ConfigError("no sample that select names has all rows of its window in the array, and its segment")
    left_out = []
    if len(whole) < len(named):
        reason = OUTSIDE_ARRAY if ends is None else OUTSIDE_SEGMENT if are_named else OUTSIDE_STORE
        left_out.append(_count_incomplete(named, whole, ends, reason))

    rows, reason = _readable_rows(window_rows, selected, num_samples)
    samples = reading_only(whole, offsets_of(unpadded(windows)), rows, num_samples)
    padded_at = None
    if unpadded(windows) != list(windows):
        padded_at = _borders_of(ends, rows, num_samples)
        if padded_at is not None:
            one_segment = isinstance(rows, range) and rows.step == 1  # of which `padded_at` has the ends
            samples = (
                intersected(samples, rows, num_samples)
                if one_segment
                else reading_only(samples, offsets_of(windows), rows, num_samples, padded_at)
            )
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
    return ChosenWindows(samples, tuple(left_out), padded_at)


def _count_incomplete(named: Samples, whole: Samples, ends: Int64 | None, reason: str) -> LeftOut:
    """Count the samples that are named and lack rows of their windows."""
    lost = len(named) - len(whole)
    if ends is None or reason != OUTSIDE_SEGMENT:
        return LeftOut(lost, len(named), reason)
    begins = np.concatenate(([0], ends[:-1]))
    had = count_between(named, begins, ends) > 0
    has = count_between(whole, begins, ends) > 0
    return LeftOut(lost, len(named), reason, int((had & ~has).sum()), int(had.sum()))


def _borders_of(ends: Int64 | None, rows: Samples, num_samples: int) -> Borders | None:
    """Return where segments begin at whose ends windows are padded; None where all samples are one segment.

    Rows that are read without gaps are a segment of their own: those of a slice.
    """
    first = np.array([0, num_samples]) if ends is None else np.concatenate(([0], ends))
    if isinstance(rows, range) and rows.step == 1:
        first = np.append(first, [rows.start, rows.stop])
    first = distinct(first)
    return None if len(first) == 2 else Borders(first)


def _readable_rows(window_rows: WindowRows | None, selected: Samples, num_samples: int) -> tuple[Samples, str]:
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


def _rows_named_by(rows: Select, num_samples: int) -> Samples:
    """Return the rows that a user named: of a slice all between its bounds, else those that are listed."""
    named = select_samples(rows, num_samples)
    return range(*bounds_of(rows, num_samples)) if isinstance(rows, slice) else named


def bounds_of(select: slice, length: int) -> tuple[int, int]:
    """Return the bounds [start, stop) of a slice of a sequence, whatever its step."""
    start, stop, step = select.indices(length)
    return (start, stop) if step > 0 else (stop + 1, start + 1)


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
    find_rows = _row_finder(fields)
    if gap == 0 and offsets == (0,):
        return [replace(part, left_out=left_out) for part in parts]
    distance = offsets[-1] - offsets[0] + gap
    runs = [part.runs(1 if exactly or part.samples is not None else part.step) for part in parts]
    borders = _borders_of_parts([(begin, last) for _, begin, last in runs])
    # Only rows near a change of owner can be read for two parts; they are few.
    rows = _RowsNear.of(borders, distance + max(map(abs, offsets)), fields.num_samples)
    near = [
        rows.some_of(begin, last, 1 if exactly or part.samples is not None else part.step)
        for part, (_, begin, last) in zip(parts, runs, strict=True)
    ]
    owner = np.full(len(rows), _NO_PART, dtype=np.int32)
    for number, samples in enumerate(near):
        owner[rows.places(samples)] = number
    near = [_near_borders(samples, borders, distance) for samples in near]
    for distance_of_row in sorted(offsets, key=lambda offset: (offset < 0, abs(offset))):  # by rule 2 of the module
        for number, samples in enumerate(near):
            places = rows.places(find_rows(samples, distance_of_row))
            owner[places[owner[places] == _NO_PART]] = number
    # the first row of each other part, in the order of the array; behind the last one there is none
    owned = np.flatnonzero(owner != _NO_PART)
    begins = rows.at(owned[np.flatnonzero(np.diff(owner[owned])) + 1])
    begins = np.append(begins, np.iinfo(np.int64).max)

    separated = []
    for number, (part, samples) in enumerate(zip(parts, near, strict=True)):
        leaves = np.zeros(len(samples), dtype=bool)
        for offset in offsets:
            row = find_rows(samples, offset)
            leaves |= owner[rows.places(row)] != number
            if gap:
                leaves |= begins[np.searchsorted(begins, row, side="right")] - row <= gap
        if not leaves.any():
            separated.append(replace(part, left_out=left_out))
            continue
        lost = LeftOut(int(leaves.sum()), part.length, WITHIN_GAP if gap else OTHER_PART)
        if exactly or 2 * lost.samples > lost.of:
            before, after = -offsets[0], offsets[-1]
            raise ConfigError(
                f"part {number} of the split: {lost}. Windows reach {before} rows back and {after} ahead, gap = {gap}. "
                'Use by="contiguous" or longer parts, or let windows read rows of other parts with gap=None'
            )
        kept = collected((piece[~np.isin(piece, samples[leaves])] for piece in part.pieces()), fields.num_samples)
        selection = Selection.of_runs(kept, fields.block_rows, fields.edges)
        separated.append(replace(selection, left_out=(*left_out, lost)))
    return separated


def _borders_of_parts(runs: Sequence[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
    """Return the samples on both sides of each change of owner, given first and last sample of runs of parts."""
    begin, last = (np.concatenate([of[side] for of in runs]) for side in (0, 1))
    owner = np.repeat(np.arange(len(runs)), [len(begins) for begins, _ in runs])
    ascending = np.argsort(begin, kind="stable")
    changes = np.flatnonzero(np.diff(owner[ascending]))
    return last[ascending[changes]], begin[ascending[changes + 1]]


@dataclass(frozen=True)
class _RowsNear:
    """The rows near some others, each with a place among them.

    Attributes
    ----------
    begin, end
        Of stretches of rows, which ascend and do not touch.
    before
        How many rows there are before each stretch, and in all of them.
    """

    begin: Int64
    end: Int64
    before: Int64

    @classmethod
    def of(cls, borders: tuple[Int64, Int64], distance: int, num_samples: int) -> _RowsNear:
        """Return the rows at most `distance` from either side of a border."""
        around = distinct(np.concatenate(borders))
        begin, end = np.maximum(around - distance, 0), np.minimum(around + distance + 1, num_samples)
        starts = np.append(True, begin[1:] > end[:-1])[: len(begin)]
        first, last = begin[starts], end[np.append(np.flatnonzero(starts)[1:] - 1, len(end) - 1)[: int(starts.sum())]]
        return cls(first, last, np.concatenate(([0], np.cumsum(last - first))))

    def __len__(self) -> int:
        return int(self.before[-1])

    def places(self, rows: Int64) -> Int64:
        """Return the places of rows that are among these."""
        stretch = np.searchsorted(self.begin, rows, side="right") - 1
        return self.before[stretch] + rows - self.begin[stretch]

    def at(self, places: Int64) -> Int64:
        """Return rows by their places."""
        stretch = np.searchsorted(self.before, places, side="right") - 1
        return self.begin[stretch] + places - self.before[stretch]

    def some_of(self, begin: Int64, last: Int64, step: int) -> Int64:
        """Return which samples of runs, `step` apart, are among these rows."""
        low, high = common_runs(begin, last + 1, self.begin, self.end)
        run = np.searchsorted(begin, low, side="right") - 1
        first = begin[run] - (begin[run] - low) // step * step  # the first one of the run from `low` on
        counts = np.maximum(0, -(-(high - first) // step))
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(np.repeat(first, counts) + step * within)


def _near_borders(samples: Int64, borders: tuple[Int64, Int64], distance: int) -> Int64:
    """Return the samples at most `distance` from either side of a border."""
    around = np.append(distinct(np.concatenate(borders)), np.iinfo(np.int64).max // 2)
    behind = np.searchsorted(around, samples)
    is_near = (around[behind] - samples <= distance) | (samples - around[behind - 1] <= distance) & (behind > 0)
    near: Int64 = samples[is_near]
    return near


def _row_finder(fields: FieldSet) -> Callable[[Int64, int], Int64]:
    """Return what finds the row at an offset from each sample: a row that is padded is the nearest of its segment."""
    pads = [window.pad for window in fields.windows if window is not None and window.pad is not None]

    def find_rows(samples: Int64, offset: int) -> Int64:
        if not pads:
            return samples + offset
        borders = pads[0].borders  # the same for all fields
        low, high = (0, fields.num_samples) if borders is None else borders.around(samples)
        clipped: Int64 = np.clip(samples + offset, low, np.asarray(high) - 1)
        return clipped

    return find_rows
