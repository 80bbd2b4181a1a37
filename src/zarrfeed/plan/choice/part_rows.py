"""The parts of a split kept apart: no row is read for two of them, as rule 2 of `window_rows` says.

Invariant: nothing is made for each sample, row or offset where samples lie in runs: rows belong to parts in runs, and
the samples that read a row of another part follow from runs, offsets and segments (`window_samples.py`). Samples that
are several rows apart are listed near the borders of parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.left_out import OTHER_PART, WITHIN_GAP, LeftOut
from zarrfeed.plan.samples.sample_set import (
    Int64,
    Samples,
    collected,
    common_runs,
    distinct,
    neighbours,
    runs_in,
    runs_of,
    without_runs,
)
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.plan.windows.window_samples import reading_only
from zarrfeed.plan.windows.windows import offsets_of
from zarrfeed.spec.fields.field import FieldSet
from zarrfeed.spec.samples.window import Borders

_NO_PART = -1


@dataclass(frozen=True)
class Runs:
    """Runs of rows or samples: the first of each, and the one behind it. They are disjoint, and ascend."""

    begin: Int64
    end: Int64

    @classmethod
    def around(cls, borders: Int64, distance: int, num_samples: int) -> Runs:
        """Return the rows at most `distance` from a border."""
        begin, end = np.maximum(borders - distance, 0), np.minimum(borders + distance + 1, num_samples)
        starts = np.append(True, begin[1:] > end[:-1])[: len(begin)]
        return cls(begin[starts], end[np.append(starts[1:], True)[: len(end)]])

    def __len__(self) -> int:
        return len(self.begin)

    def common(self, others: Runs) -> Runs:
        """Return the intersection of these runs with others, cut where either begins or ends."""
        return Runs(*common_runs(self.begin, self.end, others.begin, others.end))

    def without(self, others: Runs) -> Runs:
        """Return these runs less others, which ascend and may overlap."""
        return Runs(*without_runs(self.begin, self.end, others.begin, others.end))

    def samples(self) -> Samples:
        """Return the rows as a set of samples."""
        some = self.begin < self.end
        return runs_of(self.begin[some], (self.end - self.begin)[some], 1)

    def listed(self) -> Int64:
        """Return all rows, shape (rows,)."""
        return joined_ranges(self.begin, self.end - self.begin)


@dataclass(frozen=True, eq=False)
class RowGap:
    """The rows that nobody reads before the rows of another part.

    Attributes
    ----------
    rows
        Number of these rows, at most.
    begin
        The first of them by the row that follows them, shape (rows of the arrays,). None: there are always `rows`.
    written
        The gap as messages show it.
    """

    rows: int = 0
    begin: Int64 | None = None
    written: str = "0"

    @classmethod
    def in_time(cls, ascending: Int64, gap: int, written: str) -> Self:
        """Return the gap where rows of two parts differ by `gap` at least in a coordinate that ascends."""
        begin = np.searchsorted(ascending, ascending - gap, side="right").astype(np.int64)
        return cls(int((np.arange(len(ascending)) - begin).max(initial=0)), begin, written)

    def before(self, first: Int64) -> Runs:
        """Return the rows of the gap before each row at which another part begins."""
        return Runs(first - self.rows if self.begin is None else self.begin[first], first)


@dataclass(frozen=True)
class _OwnedRuns:
    """Runs of rows, each of which belongs to one part; they are disjoint, and ascend.

    Attributes
    ----------
    runs
        Runs of the rows.
    part
        The number of the part of each run.
    """

    runs: Runs
    part: Int64

    @classmethod
    def of(cls, parts: Sequence[tuple[Int64, Int64, Int64]]) -> _OwnedRuns:
        """Return runs of several origins, given as begins, ends and parts, in ascending order."""
        begin, end, part = (np.concatenate(column) for column in zip(*parts, strict=True))
        ascending = np.argsort(begin, kind="stable")
        return cls(Runs(begin[ascending], end[ascending]), part[ascending])

    def of_part(self, number: int) -> Runs:
        """Return the rows of one part."""
        ours = self.part == number
        return Runs(self.runs.begin[ours], self.runs.end[ours])

    def first_rows(self) -> Int64:
        """Return the first row of each part that begins behind rows of another one."""
        first: Int64 = self.runs.begin[1:][np.diff(self.part) != 0]
        return first


def separate_parts(
    parts: Sequence[Selection], fields: FieldSet, *, gap: RowGap, exactly: bool, left_out: tuple[LeftOut, ...]
) -> list[Selection]:
    """Leave out what makes two parts of a split read one row, or rows with less than `gap` between them.

    Parameters
    ----------
    parts
        Disjoint selections.
    fields
        The fields of the dataset that is split.
    gap
        The rows that no part reads behind what a part reads, before the rows of another part.
    exactly
        If True, refuse a part that loses a sample; if False, one that loses more than half of them.
    left_out
        Samples that were left out before the split.

    Raises
    ------
    ConfigError
        If a part is refused.
    """
    offsets, num_samples = offsets_of(fields.windows), fields.num_samples
    if gap.rows == 0 and offsets == (0,):
        return [replace(part, left_out=left_out) for part in parts]
    distance = offsets[-1] - offsets[0] + gap.rows
    steps = [1 if exactly or part.samples is not None else part.step for part in parts]
    ends_of = [part.runs(step)[1:] for part, step in zip(parts, steps, strict=True)]
    borders = _borders_of_parts(ends_of)
    # Only rows near a change of owner can be read for two parts.
    rows = Runs.around(borders, distance + max(map(abs, offsets)), num_samples)
    sampled = [_samples_in(rows, *ends, step) for ends, step in zip(ends_of, steps, strict=True)]
    close = Runs.around(borders, distance, num_samples)
    near = [runs.common(close) for runs in sampled]
    segments = _segments_of(fields)
    owned = _owned_rows(rows, sampled, near, offsets, segments)
    first = owned.first_rows()
    before_others = gap.before(first)

    separated = []
    for number, (part, step) in enumerate(zip(parts, steps, strict=True)):
        allowed = owned.of_part(number).without(before_others).samples()
        remaining = reading_only(near[number].samples(), offsets, allowed, num_samples, segments)
        lost = near[number].without(Runs(*runs_in(remaining, 0, num_samples)))
        if not len(lost):
            separated.append(replace(part, left_out=left_out))
            continue
        left = LeftOut(int((lost.end - lost.begin).sum()), part.length, WITHIN_GAP if gap.rows else OTHER_PART)
        if exactly or 2 * left.samples > left.of:
            before, after = -offsets[0], offsets[-1]
            raise ConfigError(
                f"part {number} of the split: {left}. Windows reach {before} rows back and {after} ahead, gap = "
                f'{gap.written}. Use by="contiguous" or longer parts, or let windows read rows of other parts with '
                "gap=None"
            )
        if step == 1:
            begin, last = ends_of[number]
            rest = Runs(begin, last + 1).without(lost).samples()
        else:
            leaves = lost.listed()
            rest = collected((piece[~np.isin(piece, leaves)] for piece in part.pieces()), num_samples)
        selection = Selection.of_runs(rest, fields.block_rows, fields.edges)
        separated.append(replace(selection, left_out=(*left_out, left)))
    return separated


def _borders_of_parts(runs: Sequence[tuple[Int64, Int64]]) -> Int64:
    """Return the samples on both sides of each change of owner, given first and last sample of runs of parts."""
    begin, last = (np.concatenate([of[side] for of in runs]) for side in (0, 1))
    owner = np.repeat(np.arange(len(runs)), [len(begins) for begins, _ in runs])
    ascending = np.argsort(begin, kind="stable")
    changes = np.flatnonzero(np.diff(owner[ascending]))
    return distinct(np.concatenate([last[ascending[changes]], begin[ascending[changes + 1]]]))


def _samples_in(rows: Runs, begin: Int64, last: Int64, step: int) -> Runs:
    """Return the samples of runs, `step` apart and given by their first and last ones, that are among some rows."""
    common = Runs(begin, last + 1).common(rows)
    if step == 1:
        return common
    run = np.searchsorted(begin, common.begin, side="right") - 1
    first = begin[run] - (begin[run] - common.begin) // step * step  # the first one of the run from there on
    counts = np.maximum(0, -(-(common.end - first) // step))
    within = joined_ranges(0, counts)
    return Runs(*neighbours(np.sort(np.repeat(first, counts) + step * within)))


def _segments_of(fields: FieldSet) -> Borders | None:
    """Return the segments at whose ends windows are padded; None if none is."""
    pads = [window.pad for window in fields.windows if window is not None and window.pad is not None]
    if not pads:
        return None
    return pads[0].borders or Borders(np.array([0, fields.num_samples]))  # the same for all fields


def _owned_rows(
    rows: Runs, sampled: Sequence[Runs], near: Sequence[Runs], offsets: Sequence[int], segments: Borders | None
) -> _OwnedRuns:
    """Return the parts of rows, by rule 2 of `window_rows`: those of samples, and those that their windows read.

    Parameters
    ----------
    rows
        The rows that are looked at.
    sampled
        The samples among these, by parts.
    near
        The samples of these whose windows may read rows of other parts.
    offsets
        Distances of rows from a sample, ascending.
    segments
        The borders at which windows are padded. None: they are not padded.
    """
    owned = [(of.begin, of.end, np.full(len(of), number)) for number, of in enumerate(sampled)]
    samples = _OwnedRuns.of(owned).runs
    free = rows.without(samples)
    if not len(free):
        return _OwnedRuns.of(owned)
    if segments is not None:
        return _OwnedRuns.of([*owned, *_padded_claims(free, near, offsets, segments)])
    claimants = _OwnedRuns.of([(of.begin, of.end, np.full(len(of), number)) for number, of in enumerate(near)])
    for begin, end in _claims(claimants.runs, offsets):
        some = np.flatnonzero(begin < end)
        claimed = free.common(Runs(begin[some], end[some]))
        owner = claimants.part[some[np.searchsorted(begin[some], claimed.begin, side="right") - 1]]
        owned.append((claimed.begin, claimed.end, owner))
        free = free.without(claimed)
        if not len(free):
            break
    return _OwnedRuns.of(owned)


def _claims(samples: Runs, offsets: Sequence[int]) -> Iterator[tuple[Int64, Int64]]:
    """Yield the rows that each run of samples reads, and no run that is nearer: for neighbouring offsets at a time.

    Rows behind their sample come first, and of each side the offsets that are least, so that a row belongs to the run
    that is yielded first for it. For some offsets the rows of different runs are disjoint, and ascend.
    """
    begin, end = samples.begin, samples.end
    ahead = np.array([offset for offset in offsets if offset >= 0], dtype=np.int64)
    for low, behind in zip(*neighbours(ahead), strict=True):
        yield begin + low, np.minimum(end + behind - 1, np.append(begin[1:] + low, np.iinfo(np.int64).max))
    back = -np.array([offset for offset in offsets[::-1] if offset < 0], dtype=np.int64)
    for low, behind in zip(*neighbours(back), strict=True):
        yield np.maximum(begin - behind + 1, np.append(np.iinfo(np.int64).min, end[:-1] - low)), end - low


def _padded_claims(
    free: Runs, near: Sequence[Runs], offsets: Sequence[int], segments: Borders
) -> list[tuple[Int64, Int64, Int64]]:
    """Return the rows that padded windows read, with their parts: those of windows that reach rows of no sample.

    A row at the end of a segment stands for all rows beyond it, so it is read at several offsets, and by all samples
    near it: these samples are listed.
    """
    reach = Runs.around(distinct(np.concatenate([free.begin, free.end - 1])), 1 + max(map(abs, offsets)), 1 << 62)
    listed = [runs.common(reach).listed() for runs in near]
    around = [segments.around(samples) for samples in listed]
    row = free.listed()
    owner = np.full(len(row), _NO_PART)
    for offset in sorted(offsets, key=lambda offset: (offset < 0, abs(offset))):
        for number, (samples, (low, high)) in enumerate(zip(listed, around, strict=True)):
            read = distinct(np.clip(samples + offset, low, high - 1))
            index = np.searchsorted(row, read)
            index = index[(index < len(row)) & (row[np.minimum(index, len(row) - 1)] == read)]
            owner[index[owner[index] == _NO_PART]] = number
    there = owner != _NO_PART
    return [(row[there], row[there] + 1, owner[there])]
