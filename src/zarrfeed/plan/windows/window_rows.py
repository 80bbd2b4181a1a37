"""The rows that windows may read: those that are selected, and of a split those of the window's own part.

Invariants, unless the user asks for something else:

1. `Data.select`: no window reads a row that is not selected. A slice selects all rows between its bounds, whatever its
   step; a list or a mask selects the rows that it names.
2. `Data.split`: no row is read for two parts. A row that is a sample belongs to the part of that sample. Any other row,
   such as one at the end of an episode, belongs to the part of the nearest sample before it whose window has the row,
   else of the nearest sample behind it.

3. `Data.window`: no window spans a gap of the coordinate, such as a day that is missing (`gaps.py`): a gap ends a run
   of rows as the end of a segment does.

A sample whose window would break a rule is left out, and counted (`LeftOut`). Where that would leave less than half of
a list, a mask or a part, nobody can have meant it: it is refused. The offsets of all fields count, and a sample's own
row does in any case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.plan.samples.left_out import (
    OUTSIDE_ARRAY,
    OUTSIDE_SEGMENT,
    OUTSIDE_SELECTION,
    OUTSIDE_STORE,
    OUTSIDE_WINDOW_ROWS,
    LeftOut,
)
from zarrfeed.plan.samples.sample_set import Int64, Samples, distinct, intersected
from zarrfeed.plan.samples.selection import Select, select_samples
from zarrfeed.plan.windows.gap_windows import (
    all_over_gaps,
    over_gaps,
    padded_clause,
    refuse_gaps,
    spanned_gaps,
)
from zarrfeed.plan.windows.gaps import GapRule, Gaps
from zarrfeed.plan.windows.window_samples import count_between, reading_only, whole_windows
from zarrfeed.plan.windows.windows import check_segment_ends, offsets_of, reach, samples_with_windows, unpadded
from zarrfeed.spec.samples.window import Borders, Window

#: Types of `rows=` of `Data.window`.
WindowRows: TypeAlias = "Literal['selected', 'all'] | Select"


@dataclass(frozen=True)
class ChosenWindows:
    """Samples whose windows read only what they may.

    Attributes
    ----------
    samples
        Ascending samples that have windows.
    left_out
        Why others are left out.
    borders
        The borders of the segments at whose ends windows are padded. None: all samples are one segment, or nothing is
        padded.
    gaps
        The gaps among the rows that windows may read. None: none were looked for.
    ends
        The row behind each run of rows that no window crosses the end of. None: all rows are one.
    """

    samples: Samples
    left_out: tuple[LeftOut, ...]
    borders: Borders | None
    gaps: Gaps | None = None
    ends: Int64 | None = None


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
    gaps: GapRule | None = None,
) -> ChosenWindows:
    """Return the samples, of some named ones, whose windows have all of their rows and read no others.

    Parameters
    ----------
    named
        Ascending samples that the user named.
    windows
        The rows of a sample in each field; at least one is not None.
    num_samples
        Length of the sample axis.
    selected
        The rows that `window_rows` means by "selected", ascending.
    by_list
        True if the samples were named by a list or a mask, or dealt at random; False if by slices.
    segment_ends, window_rows
        The user's arguments.
    borders, are_stores
        The first sample of each of several stores, or segments, and the number of samples at the end; and which of both
        they are. None: there is one store, which names no segments.
    gaps
        The rule by which gaps of the coordinate are found. None: windows may span them.

    Raises
    ------
    ConfigError
        If no sample is left, or, unless `window_rows` is given, less than half of a list; if windows span a gap that is
        an error; or if an argument is wrong.
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
    samples, padded_at = _reading_rows(whole, windows, rows, ends, num_samples)
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
    chosen = ChosenWindows(samples, tuple(left_out), padded_at, ends=ends)
    if gaps is None:
        return chosen
    found = gaps.find(int(rows[0]), int(rows[-1]) + 1, ends)
    spanned = spanned_gaps(found, samples, windows, ends, num_samples)
    is_padded = unpadded(windows) != list(windows)
    if not len(found.rows):
        return replace(chosen, gaps=found)
    runs = distinct(np.concatenate([[num_samples] if ends is None else ends, found.rows]))
    if not (len(spanned) or is_padded):
        return replace(chosen, gaps=found, ends=runs)
    refuse_gaps(found, spanned, rows, gaps)
    complete = whole_windows(num_samples, runs, *reach(unpadded(windows)))
    remaining, padded_at = _reading_rows(
        intersected(whole, complete, num_samples), windows, rows, runs, num_samples, padded_clause(found)
    )
    lost = len(samples) - len(intersected(samples, remaining, num_samples))
    if not len(remaining):
        raise all_over_gaps(found, spanned, lost)
    if lost:
        left_out.append(over_gaps(found, spanned, lost, len(samples)))
    return ChosenWindows(remaining, tuple(left_out), padded_at, found, runs)


def _reading_rows(
    whole: Samples,
    windows: Sequence[Window | None],
    rows: Samples,
    ends: Int64 | None,
    num_samples: int,
    gaps: str = "",
) -> tuple[Samples, Borders | None]:
    """Return the samples whose windows read no rows but `rows`, and the borders at which windows are padded."""
    samples = reading_only(whole, offsets_of(unpadded(windows)), rows, num_samples)
    if unpadded(windows) == list(windows):
        return samples, None
    padded_at = _borders_of(ends, rows, num_samples, gaps)
    if isinstance(rows, range) and rows.step == 1:  # one segment, of which `padded_at` has the ends
        return intersected(samples, rows, num_samples), padded_at
    borders = padded_at or Borders(np.array([0, num_samples]))
    return reading_only(samples, offsets_of(windows), rows, num_samples, borders), padded_at


def _count_incomplete(named: Samples, whole: Samples, ends: Int64 | None, reason: str) -> LeftOut:
    """Count the samples that are named and lack rows of their windows."""
    lost = len(named) - len(whole)
    if ends is None or reason != OUTSIDE_SEGMENT:
        return LeftOut(lost, len(named), reason)
    begins = np.concatenate(([0], ends[:-1]))
    had = count_between(named, begins, ends) > 0
    has = count_between(whole, begins, ends) > 0
    return LeftOut(lost, len(named), reason, int((had & ~has).sum()), int(had.sum()))


def _borders_of(ends: Int64 | None, rows: Samples, num_samples: int, gaps: str) -> Borders | None:
    """Return the borders of the segments at whose ends windows are padded; None where all samples are one segment.

    Rows that are read without gaps are a segment of their own: those of a slice.
    """
    first = np.array([0, num_samples]) if ends is None else np.concatenate(([0], ends))
    if isinstance(rows, range) and rows.step == 1:
        first = np.append(first, [rows.start, rows.stop])
    first = distinct(first)
    return None if len(first) == 2 else Borders(first, gaps)


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
