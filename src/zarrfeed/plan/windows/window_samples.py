"""The samples that have windows whose rows are all among some rows: arithmetic on runs, offsets and segments.

Invariant: nothing is made for each sample, or for each row of a window. A run of rows that windows may not read, a
*gap*, forbids the samples that read one of its rows. Those of neighbouring offsets are one run, unless the offsets are
further apart than the gap is long. So a gap forbids as many runs as there are such groups of offsets, and one where
offsets are side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.sample_set import (
    AT_ONCE,
    Int64,
    SampleBuilder,
    Samples,
    SampleSet,
    intersected,
    rank_of,
    runs_in,
    runs_of,
    stretches,
    without_runs,
)
from zarrfeed.spec.samples.window import Borders


def whole_windows(num_samples: int, ends: Int64 | None, before: int, after: int) -> Samples:
    """Return the samples that have `before` rows before them, and `after` behind them, in their segment.

    Parameters
    ----------
    num_samples
        Length of the sample axis.
    ends
        The sample behind the last one of each segment, ascending. None: all samples are one segment.

    Examples
    --------
    >>> list(whole_windows(10, np.array([4, 10]), 1, 1))
    [1, 2, 5, 6, 7, 8]
    """
    if ends is None:
        return range(before, max(before, num_samples - after))
    first = np.concatenate(([0], ends[:-1])) + before
    counts = ends - after - first
    some = counts > 0
    return runs_of(first[some], counts[some], 1)


def reading_only(
    samples: Samples, offsets: Sequence[int], rows: Samples, num_samples: int, borders: Borders | None = None
) -> Samples:
    """Return the samples all of whose rows, at some offsets, are among `rows`.

    Parameters
    ----------
    samples
        The samples to choose among.
    offsets
        Distances of rows from a sample, ascending.
    rows
        The rows that may be read.
    num_samples
        Length of the sample axis.
    borders
        If windows are padded at the borders of segments: a row outside of the sample's segment is the nearest one
        inside. None: rows below 0 or beyond the end are not among `rows`.

    Examples
    --------
    >>> list(reading_only(range(10), (0, 1), range(2, 6), 10))
    [2, 3, 4]
    """
    if borders is None and isinstance(rows, range):
        allowed = _reading_evenly(offsets, rows)
        return range(0) if not allowed else intersected(samples, allowed, num_samples)
    found = SampleBuilder(num_samples)
    before, after = max(0, -offsets[0]), max(0, offsets[-1])
    for low, high in stretches([samples, rows], num_samples):
        begin, end = runs_in(samples, low, high)
        if not len(begin):
            continue
        gap_begin, gap_end = _gaps(rows, max(0, low - before), min(num_samples, high + after), num_samples)
        if borders is not None:
            gap_begin, gap_end, least, most = _within_segments(gap_begin, gap_end, offsets, borders)
        else:
            least, most = np.full_like(gap_begin, low), np.full_like(gap_begin, high)
        for forbidden in _forbidden(gap_begin, gap_end, np.maximum(least, low), np.minimum(most, high), offsets):
            begin, end = without_runs(begin, end, *forbidden)
        found.add(begin, end)
    return found.samples()


def _reading_evenly(offsets: Sequence[int], rows: range) -> range:
    """Return the samples all of whose rows are among evenly spaced ones."""
    if any((offset - offsets[0]) % rows.step for offset in offsets):
        return range(0)
    return range(rows.start - offsets[0], max(rows.start - offsets[0], rows.stop - offsets[-1]), rows.step)


def _gaps(rows: Samples, low: int, high: int, num_samples: int) -> tuple[Int64, Int64]:
    """Return the runs of [low, high) that are not among `rows`, which have none beyond the ends of all samples."""
    begin, end = runs_in(rows, low, high)
    first, last = (-(2**62) if low == 0 else low), (2**62 if high == num_samples else high)
    gap_begin, gap_end = np.append(first, end), np.append(begin, last)
    is_gap = gap_begin < gap_end
    return gap_begin[is_gap], gap_end[is_gap]


def _within_segments(
    begin: Int64, end: Int64, offsets: Sequence[int], borders: Borders
) -> tuple[Int64, Int64, Int64, Int64]:
    """Cut gaps at the borders of segments; those at a border go on behind it, as the row there is padded with.

    Returns
    -------
    The gaps, and the samples [least, most) of the segment of each.
    """
    first = borders.first
    begin, end = np.maximum(begin, first[0]), np.minimum(end, first[-1])
    is_there = begin < end
    begin, end = begin[is_there], end[is_there]
    low = np.searchsorted(first, begin, side="right") - 1
    counts = np.searchsorted(first, end) - low
    # one entry for each gap and segment from here on
    segment = joined_ranges(low, counts)
    least, most = first[segment], first[segment + 1]
    begin, end = np.maximum(np.repeat(begin, counts), least), np.minimum(np.repeat(end, counts), most)
    far = 1 + max(0, -offsets[0], offsets[-1])
    return np.where(begin == least, begin - far, begin), np.where(end == most, end + far, end), least, most


def _forbidden(
    begin: Int64, end: Int64, least: Int64, most: Int64, offsets: Sequence[int]
) -> Iterator[tuple[Int64, Int64]]:
    """Return the runs of samples that read a row of a gap, of those in [least, most): some at a time, sorted."""
    offset = np.array(offsets, dtype=np.int64)
    apart = np.diff(offset)
    distances = np.unique(apart)
    # gaps that the same offsets are further apart for
    kind = np.searchsorted(distances, end - begin, side="right")
    for number in np.unique(kind).tolist():
        longest = int(distances[number - 1]) if number else 0
        breaks = np.flatnonzero(apart > longest)
        group_begin, group_end = offset[np.append(0, breaks + 1)], offset[np.append(breaks, len(offset) - 1)]
        of_kind = np.flatnonzero(kind == number)
        at_once = max(1, 4 * AT_ONCE // len(group_begin))
        for some in (of_kind[i : i + at_once] for i in range(0, len(of_kind), at_once)):
            first = np.maximum(begin[some, None] - group_end, least[some, None]).ravel()
            behind = np.minimum(end[some, None] - group_begin, most[some, None]).ravel()
            is_there = first < behind
            first, behind = first[is_there], behind[is_there]
            by_first = np.argsort(first, kind="stable")
            yield first[by_first], np.maximum.accumulate(behind[by_first]) if len(first) else behind


def every(samples: Samples, stride: int, ends: Int64 | None, num_samples: int) -> Samples:
    """Return those of some samples that lie a multiple of `stride` behind the first one of their segment.

    Parameters are those of `whole_windows`.

    Examples
    --------
    >>> list(every(range(1, 10), 3, np.array([4, 10]), 10))
    [1, 4, 7]
    """
    behind = np.array([num_samples]) if ends is None else ends
    low, high = rank_of(samples, np.append(0, behind[:-1])), rank_of(samples, behind)
    low, high = low[low < high], high[low < high]
    find = samples.at if isinstance(samples, SampleSet) else lambda ranks: samples.start + samples.step * ranks
    first, last = find(low), find(high - 1)
    return intersected(samples, runs_of(first, (last - first) // stride + 1, stride), num_samples)


def count_between(samples: Samples, begins: Int64, ends: Int64) -> Int64:
    """Count the samples that lie in each [begin, end)."""
    return rank_of(samples, ends) - rank_of(samples, begins)
