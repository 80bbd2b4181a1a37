"""Gaps: rows that are neighbours in a store, and no neighbours along the coordinate of the samples, such as the time.

Invariant: rows `i - 1` and `i` are neighbours along a coordinate if their difference is regular. By default it is one
of at most 1.5 times the commonest difference; with a step it is the step, or that many calendar months or years. Every
other difference ends a run of rows, as the end of a segment does: no window reads rows of both of its sides, and one
that is padded is padded there. Differences are those between neighbours in one store and one segment, among the rows
from the first to the last one that windows may read. Values ascend or descend, as most of a store's do. A difference
that is 0, or goes back, is an error if a window would span it and may read the rows of both sides. A row without a
value, such as NaT, is no neighbour of any row. Text and flags have no differences, and so no gaps.

Cost: a few passes of NumPy over the values; and a sort, unless one difference makes up more than half of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.sample_set import Int64
from zarrfeed.plan.windows.gap_step import GapStep
from zarrfeed.spec.samples.coordinate import UNIT_NS, Coordinate
from zarrfeed.spec.values.missing import is_missing

#: "drop": leave out windows that span a gap; "error": raise; "ignore": read them.
GapMode: TypeAlias = Literal["drop", "error", "ignore"]
GAP_MODES: tuple[GapMode, ...] = ("drop", "error", "ignore")

#: A difference of more than so many of the commonest ones is a gap.
_LONGEST = 1.5
#: Differences that are further apart by this share are different ones; times that jitter, or were rounded, are not.
_ALIKE = 1.01
#: A difference may differ from the step by this share, which rounding costs.
_ROUNDED = 1e-3
#: So many gaps are named one by one.
_LISTED = 3


@dataclass(frozen=True, eq=False)
class StoreCoordinate:
    """The coordinate of the samples of one store: its `values`, of which the first one is that of sample `first`."""

    first: int
    coordinate: Coordinate


@dataclass(frozen=True, eq=False)
class _StoreGaps:
    """The gaps of one store; `before` and `behind` are the values at both sides of each."""

    name: str
    where: str
    rows: Int64
    sizes: npt.NDArray[np.float64]
    are_faults: npt.NDArray[np.bool_]
    before: npt.NDArray[Any]
    behind: npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Gaps:
    """The gaps between the rows of an array, ascending.

    Attributes
    ----------
    stores
        The gaps of each store that has some.
    """

    stores: tuple[_StoreGaps, ...] = ()

    @cached_property
    def rows(self) -> Int64:
        """The first row behind each gap, ascending, shape (gaps,)."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(one.rows for one in self.stores)])

    @cached_property
    def sizes(self) -> npt.NDArray[np.float64]:
        """Distance between the values of both sides, as nanoseconds or numbers; 0 where one is missing."""
        return np.concatenate([np.zeros(0), *(one.sizes for one in self.stores)])

    @cached_property
    def are_faults(self) -> npt.NDArray[np.bool_]:
        """True where the value behind the gap is the same as the one before, or goes back."""
        return np.concatenate([np.zeros(0, dtype=bool), *(one.are_faults for one in self.stores)])

    @property
    def name(self) -> str:
        """The name of the coordinate."""
        return self.stores[0].name

    @property
    def where(self) -> str:
        """The name of the coordinate in messages: the path of its array."""
        return self.stores[0].where

    def text(self, number: int) -> str:
        """Describe the place of a gap."""
        for one in self.stores:
            if number < len(one.rows):
                row = int(one.rows[number])
                return f"{_text(one.before[number])} to {_text(one.behind[number])} (samples {row - 1} and {row})"
            number -= len(one.rows)
        raise IndexError(number)

    def examples(self, numbers: Int64) -> str:
        """Describe where the first few gaps lie."""
        return "; ".join(map(self.text, numbers[:_LISTED].tolist()))

    def largest(self, numbers: Int64) -> tuple[float, str]:
        """Return the size of the largest gap, and where it lies."""
        number = int(numbers[np.argmax(self.sizes[numbers])])
        return float(self.sizes[number]), self.text(number)


@dataclass(frozen=True, eq=False)
class GapRule:
    """The rule by which gaps are found, and whether they are errors.

    Attributes
    ----------
    mode
        "drop": windows that span one are left out. "error": there must be none that a window spans.
    step
        The regular difference. None: the commonest one of each store, or of all stores for a store where none comes
        twice.
    coordinates
        The coordinates of the stores that have one, by the first samples of the stores.
    found
        The gaps, where these were found before for the same rows and segments.
    """

    mode: Literal["drop", "error"]
    step: GapStep | None
    coordinates: Sequence[StoreCoordinate]
    found: Gaps | None = None

    def find(self, begin: int, end: int, ends: Int64 | None) -> Gaps:
        """Return the gaps among the rows [begin, end), where segments have some ends.

        Raises
        ------
        ConfigError
            If the step is none of the coordinate.
        """
        if self.found is not None:
            return self.found
        made = (_differences(one, begin, end, ends, self.step) for one in self.coordinates)
        parts = [one for one in made if one is not None]
        commonest = [_commonest(one.forward) for one in parts]
        if len(parts) > 1 and any(count == 1 for _, count in commonest):  # too few rows to tell: as of all stores
            overall, _ = _commonest(np.concatenate([one.forward * float(one.tick) for one in parts]))
            commonest = [
                (overall / one.tick, count) if count == 1 else (usual, count)
                for one, (usual, count) in zip(parts, commonest, strict=True)
            ]
        found = (one.gaps(self.step, usual) for one, (usual, _) in zip(parts, commonest, strict=True))
        return Gaps(tuple(one for one in found if one is not None))


@dataclass(frozen=True, eq=False)
class _Differences:
    """The differences between neighbouring rows of one store.

    Attributes
    ----------
    name, where
        Name of the coordinate, and the path of its array.
    values
        The coordinate's values at the rows that windows may read.
    first
        The row of the first of these values.
    ticks
        Value `i + 1` less value `i`, with the sign that makes most of them positive; 0 where one of both is missing.
        Shape (values - 1,).
    tick
        Nanoseconds of a tick; 1 for numbers.
    known
        True for each difference between two rows that have a value.
    inside
        True for each difference between two rows of one segment.
    """

    name: str
    where: str
    values: npt.NDArray[Any]
    first: int
    ticks: npt.NDArray[Any]
    tick: int
    known: npt.NDArray[np.bool_]
    inside: npt.NDArray[np.bool_]

    @cached_property
    def forward(self) -> npt.NDArray[Any]:
        """The differences that go on, of which the commonest is the regular one."""
        return self.ticks[self.inside & (self.ticks > 0)]

    def gaps(self, step: GapStep | None, usual: float) -> _StoreGaps | None:
        """Return the irregular differences; None if there are none. `usual` is the commonest difference."""
        if step is None:
            regular = self.ticks <= _LONGEST * usual * (1 + 1e-9)
        elif step.unit in ("month", "year"):
            regular = np.abs(np.diff(_calendar_units(self.values, step.unit))) == step.count
        else:
            regular = np.abs(self.ticks * float(self.tick) - step.count) <= _ROUNDED * step.count
        irregular = np.flatnonzero(self.inside & ~(self.known & (self.ticks > 0) & regular))
        if not len(irregular):
            return None
        return _StoreGaps(
            self.name,
            self.where,
            irregular + (self.first + 1),
            np.abs(self.ticks[irregular] * float(self.tick)),
            (self.known & (self.ticks <= 0))[irregular],
            self.values[irregular],
            self.values[irregular + 1],
        )


def _differences(
    one: StoreCoordinate, begin: int, end: int, ends: Int64 | None, step: GapStep | None
) -> _Differences | None:
    """Return the differences of a store among the rows [begin, end); None if no two rows have a distance.

    Raises
    ------
    ConfigError
        If the step is none of the coordinate.
    """
    _check_step(step, one.coordinate)
    first = max(begin, one.first)
    values = one.coordinate.values[first - one.first : max(0, end - one.first)]
    if len(values) < 2 or values.dtype.kind not in "mMifO":
        return None
    present = ~is_missing(values)
    known = present[1:] & present[:-1]
    ticks, tick = _ticks(values, known)
    inside = np.ones(len(ticks), dtype=bool)
    if ends is not None:
        at = ends - (first + 1)
        inside[at[(at >= 0) & (at < len(inside))]] = False
    counted = ticks[known & inside]
    if not len(counted):
        return None
    if np.count_nonzero(counted < 0) > np.count_nonzero(counted > 0):
        ticks = -ticks
    return _Differences(one.coordinate.name, one.coordinate.where, values, first, ticks, tick, known, inside)


def _check_step(step: GapStep | None, coordinate: Coordinate) -> None:
    """Raise ConfigError for a step that no difference of the coordinate can be."""
    kind = coordinate.values.dtype.kind
    if step is None or len(coordinate.values) == 0:
        return
    allowed = {"M": "ns month year", "O": "ns month year", "m": "ns", "i": "number", "f": "number"}.get(kind, "")
    if step.unit not in allowed.split():
        said = {
            "M": "times: give a length of time, such as '6h'",
            "O": "times: give a length of time, such as '6h'",
            "m": "time differences: give a length of time, such as '6h'",
            "i": "numbers: give a number",
            "f": "numbers: give a number",
        }
        has = said.get(kind, "values that have no differences: leave step out")
        raise ConfigError(f"step = {step}, and {coordinate.where} has {has}")


def _ticks(values: npt.NDArray[Any], known: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], int]:
    """Return the differences between neighbouring values, 0 where they are not known; and nanoseconds of a tick."""
    if values.dtype.kind == "O":  # times of cftime
        ticks = np.zeros(len(known), dtype=np.int64)
        at = np.flatnonzero(known)
        ticks[at] = (values[at + 1] - values[at]).astype("m8[us]").view(np.int64)
        return ticks, UNIT_NS["us"]
    is_time = values.dtype.kind in "mM"
    with np.errstate(invalid="ignore"):  # infinity less infinity
        ticks = np.diff(values.view(np.int64) if is_time else values)
    ticks = np.where(known, ticks, 0)
    if ticks.dtype.kind == "f":
        ticks = np.nan_to_num(ticks, nan=0.0)
    return ticks, UNIT_NS[np.datetime_data(values.dtype)[0]] if is_time else 1


def _calendar_units(times: npt.NDArray[Any], unit: str) -> Int64:
    """Return the number of the month, or the year, that each time lies in; anything for a missing one."""
    if times.dtype.kind == "M":
        return times.astype("M8[M]" if unit == "month" else "M8[Y]").view(np.int64)
    months = [0 if one is None else 12 * one.year + one.month if unit == "month" else one.year for one in times]
    return np.array(months, dtype=np.int64)


def _commonest(differences: npt.NDArray[Any]) -> tuple[float, int]:
    """Return the commonest difference above 0, the smallest one of several such, and how often it comes.

    Differences that are nearly alike are counted together, since times that jitter have no difference twice.

    Examples
    --------
    >>> _commonest(np.array([6, 6, 12, 3]))
    (6.0, 2)
    """
    count = len(differences)
    if not count:
        return 0.0, 0
    middle = np.partition(differences, count // 2)[count // 2]
    same = int(np.count_nonzero(differences == middle))
    if 2 * same > count:
        return float(middle), same
    ordered = np.sort(differences)
    alike = np.searchsorted(ordered, ordered * _ALIKE, side="right") - np.arange(count)
    first = int(alike.argmax())
    group = ordered[first : first + alike[first]]
    values, counts = np.unique(group, return_counts=True)
    best = values[counts.argmax()] if counts.max() > 1 else group[len(group) // 2]
    return float(best), len(group)


def _text(value: Any) -> str:
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto")) if not np.isnat(value) else "NaT"
    return str(value)
