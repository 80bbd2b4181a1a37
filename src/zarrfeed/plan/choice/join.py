"""`zarrfeed.join`: from the coordinates of several arrays to one axis of samples, and to the rows of the arrays.

Invariant: the coordinates are sorted and have each value once. The axis is sorted, too. The row of an array for a
sample is the one with the sample's value; where the array has no such row it is `NO_ROW`, or the nearest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.choice.labels import nearest_indices
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.samples.sample_set import Samples, flagged
from zarrfeed.plan.samples.selection import Int64, as_range
from zarrfeed.spec.samples.coordinate import UNIT_NS, Coordinate
from zarrfeed.spec.samples.row_map import NO_ROW
from zarrfeed.spec.values.missing import is_missing

How: TypeAlias = Literal["inner", "outer"]
HOWS: tuple[How, ...] = ("inner", "outer")
Missing: TypeAlias = Literal["drop", "nearest", "nan"]
MISSINGS: tuple[Missing, ...] = ("drop", "nearest", "nan")

#: So many values that were left out are named one by one.
_LISTED_VALUES = 3


@dataclass(frozen=True, eq=False)
class JoinInput:
    """One of the descriptions that are joined.

    Attributes
    ----------
    name
        The user's name for the input.
    coordinate
        Its values are those of the samples that it has.
    samples
        The index in the array of each of these, ascending.
    """

    name: str
    coordinate: Coordinate
    samples: range | Int64


@dataclass(frozen=True, eq=False)
class Joined:
    """The axis that inputs have in common.

    Attributes
    ----------
    values
        The coordinate's values at the samples, ascending, shape (samples,).
    rows
        For each input the row of its arrays for each sample: a range where these are evenly spaced, else shape
        (samples,), with `NO_ROW` for a row that it lacks.
    complete
        The samples for which no input lacks a row, ascending.
    left_out
        The samples that are not complete, or not on the axis, with the reasons.
    notes
        For each input what the samples have that it lacks, unless they are left out, in words; "" if it lacks none.
    """

    values: npt.NDArray[Any]
    rows: tuple[range | Int64, ...]
    complete: Samples
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]


def join_axes(inputs: Sequence[JoinInput], how: How, missing: Missing) -> Joined:
    """Join the samples of several inputs by their values along a coordinate.

    Parameters
    ----------
    inputs
        The inputs to join; at least one.
    how
        "inner": the axis has the values that all inputs have. "outer": those that any has.
    missing
        The choice for a sample whose row an input lacks, in an outer join. "nearest": the input has the row with the
        nearest value; of two that are as near, the later one. "drop" and "nan": it has no row.

    Raises
    ------
    ConfigError
        If a coordinate is not sorted, or has a value twice; if the coordinates are of different kinds; or if inputs
        have no value in common that all need.
    """
    for one in inputs:
        _check_sorted(one)
    keys, dtype = _comparable(inputs)
    axis = reduce(_common if how == "inner" else _merged, keys)
    if not len(axis):
        ranges = "; ".join(f"{one.name!r} has {_range_text(one)}" for one in inputs)
        raise ConfigError(f"join: no {inputs[0].coordinate.name} is in all of the arrays: {ranges}")
    indices = [_key_indices(one, axis, nearest=missing == "nearest") for one in keys]
    lacking = [index == NO_ROW for index in indices]
    rows = tuple(_rows(one.samples, index) for one, index in zip(inputs, indices, strict=True))
    complete = flagged(~np.logical_or.reduce(lacking))
    values = axis if dtype is None else axis.view(dtype)
    joined = Joined(values, rows, complete, (), ("",) * len(inputs))
    if how == "inner":
        return replace(joined, left_out=_off_axis(inputs, keys, axis))
    if missing == "drop":
        return replace(joined, left_out=_count_lacking(inputs, lacking, values))
    absent = lacking if missing == "nan" else [_key_indices(one, axis, nearest=False) == NO_ROW for one in keys]
    return replace(joined, notes=tuple(_note(values[one], missing) for one in absent))


def joined_borders(rows: Sequence[range | Int64], borders: Sequence[Int64 | None]) -> Int64 | None:
    """Find the segments of the joined axis: one begins wherever the rows of an input go on to its next segment.

    Parameters
    ----------
    rows
        For each input, the row of each sample, as in `Joined`.
    borders
        For each input, the first row of each of its segments, and the number of rows at the end. None: it has none.

    Returns
    -------
    The first sample of each segment, and the number of samples at the end; None if no input has segments. Samples that
    an input lacks belong to the segment before them.

    Examples
    --------
    >>> joined_borders([np.array([1, 2, -1, 3, 4]), range(5)], [np.array([0, 3, 6]), None])
    array([0, 3, 5])
    """
    if all(own is None for own in borders):
        return None
    begins = np.zeros(len(rows[0]), dtype=bool)
    for listed, own in zip(rows, borders, strict=True):
        if own is not None:
            row = np.asarray(listed, dtype=np.int64)
            samples = np.flatnonzero(row != NO_ROW)
            segment = np.searchsorted(own, row[samples], side="right")
            begins[samples[1:]] |= segment[1:] != segment[:-1]
    begins[0] = True
    return np.append(np.flatnonzero(begins), len(begins))


def _check_sorted(one: JoinInput) -> None:
    """Raise ConfigError unless values ascend; the message says where they do not."""
    values, where = one.coordinate.values, one.coordinate.where
    gaps = is_missing(values)
    if gaps.any():
        raise ConfigError(
            f"join: {one.name!r}: {where} has no value at index {one.samples[int(np.argmax(gaps))]}, one of "
            f"{int(gaps.sum())} samples without one; leave them out with sel() or select()"
        )
    fine = np.asarray(values[1:] > values[:-1], dtype=bool)
    if fine.all():
        return
    at = int(np.argmin(fine)) + 1
    first, second = (f"{values[i]} at index {one.samples[i]}" for i in (at - 1, at))
    if values[at] == values[at - 1]:
        raise ConfigError(
            f"join: {one.name!r}: {where} has a value twice: {first}, and {second}; leave one of them out with select()"
        )
    raise ConfigError(f"join: {one.name!r}: {where} is not sorted: it has {second} behind {first}")


def _comparable(inputs: Sequence[JoinInput]) -> tuple[list[npt.NDArray[Any]], np.dtype[Any] | None]:
    """Return the values of all inputs as keys of one dtype: times as integers, with the dtype that these stand for."""
    values = [one.coordinate.values for one in inputs]
    kinds = {"i" if array.dtype.kind == "f" else array.dtype.kind for array in values}
    if len(kinds) > 1:
        kinds_text = ", ".join(f"{one.name!r} has {one.coordinate.values.dtype}" for one in inputs)
        raise ConfigError(f"join: coordinates must be of one kind: {kinds_text}")
    if kinds == {"O"} and len({array[0].calendar for array in values}) > 1:
        calendars = ", ".join(f"{one.name!r} has {one.coordinate.values[0].calendar!r}" for one in inputs)
        raise ConfigError(f"join: times must be of one calendar: {calendars}")
    if not kinds & {"m", "M"}:
        return values, None
    units = [np.datetime_data(array.dtype)[0] for array in values]
    unit = min(units, key=UNIT_NS.__getitem__)
    return [_in_unit(one, unit) for one in inputs], np.dtype(f"{values[0].dtype.kind}8[{unit}]")


def _in_unit(one: JoinInput, unit: str) -> Int64:
    """Return times as integers in a unit that is as fine as theirs, or finer."""
    values = one.coordinate.values
    ticks: Int64 = values.view(np.int64)
    factor = UNIT_NS[np.datetime_data(values.dtype)[0]] // UNIT_NS[unit]
    if max(abs(int(ticks[0])), abs(int(ticks[-1]))) * factor >= 2**63:
        raise ConfigError(
            f"join: {one.name!r}: {one.coordinate.where} has times that do not fit into one unit of datetime64 with "
            "those of others"
        )
    return ticks * factor


def _common(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of both of two sorted arrays; NumPy's own functions hash, which takes ten times as long."""
    common: npt.NDArray[Any] = ours[_key_indices(theirs, ours, nearest=False) != NO_ROW]
    return common


def _merged(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values of either of two sorted arrays, sorted."""
    both = np.sort(np.concatenate([ours, theirs]), kind="stable")
    new = np.ones(len(both), dtype=bool)
    new[1:] = both[1:] != both[:-1]
    return both[new]


def _key_indices(keys: npt.NDArray[Any], axis: npt.NDArray[Any], *, nearest: bool) -> Int64:
    """Return the index of each value of the axis in the sorted keys of an input; `NO_ROW` where the input lacks it."""
    index = np.searchsorted(keys, axis)
    if nearest:
        return nearest_indices(keys, axis, index)
    found = np.asarray(keys[np.minimum(index, len(keys) - 1)] == axis, dtype=bool)
    return np.where(found, index, NO_ROW)


def _rows(samples: range | Int64, indices: Int64) -> range | Int64:
    """Return the rows of samples by their indices; evenly spaced ones need no list."""
    plain = isinstance(samples, range) and (samples.start, samples.step) == (0, 1)
    rows = indices if plain else np.asarray(samples, dtype=np.int64)[indices]
    rows = np.where(indices == NO_ROW, NO_ROW, rows)
    if (rows == NO_ROW).any() or (len(rows) > 1 and rows[1] <= rows[0]):
        return rows
    return as_range(rows)


def _off_axis(
    inputs: Sequence[JoinInput], keys: Sequence[npt.NDArray[Any]], axis: npt.NDArray[Any]
) -> tuple[LeftOut, ...]:
    """Count each input's samples that are not on the axis of an inner join, and name the inputs that lack them."""
    left_out = []
    for number, one in enumerate(inputs):
        if len(one.samples) == len(axis):
            continue
        is_off = _key_indices(axis, keys[number], nearest=False) == NO_ROW
        left, lackers = is_off.copy(), {}
        for other, other_keys in zip(inputs, keys, strict=True):
            lost = left & (_key_indices(other_keys, keys[number], nearest=False) == NO_ROW)
            if lost.any():
                lackers[other.name] = int(lost.sum())
            left &= ~lost
        of_many = [f"{name!r} ({count})" for name, count in lackers.items()]
        who = " or ".join(of_many if len(of_many) > 1 else map(repr, lackers))
        values = one.coordinate.values[is_off]
        reason = f"those of {one.name!r} whose {one.coordinate.name} {who} lacks ({_in_short(values)})"
        left_out.append(LeftOut(len(values), len(one.samples), reason))
    return tuple(left_out)


def _count_lacking(
    inputs: Sequence[JoinInput], lacking: Sequence[npt.NDArray[np.bool_]], values: npt.NDArray[Any]
) -> tuple[LeftOut, ...]:
    left_out = []
    left = np.ones(len(lacking[0]), dtype=bool)
    for one, lacks in zip(inputs, lacking, strict=True):
        lost = left & lacks
        if lost.any():
            reason = f"{one.name!r} lacks their {one.coordinate.name} ({_in_short(values[lost])})"
            left_out.append(LeftOut(int(lost.sum()), int(left.sum()), reason))
        left &= ~lacks
    if not left.any():
        ranges = "; ".join(f"{one.name!r} has {_range_text(one)}" for one in inputs)
        raise ConfigError(f"join: no {inputs[0].coordinate.name} is in all of the arrays: {ranges}")
    return tuple(left_out)


def _note(values: npt.NDArray[Any], missing: Missing) -> str:
    """Describe the samples whose row an input lacks."""
    if not len(values):
        return ""
    what = "NaN" if missing == "nan" else "the nearest row"
    return f"{len(values)} samples have {what} ({_in_short(values)})"


def _in_short(values: npt.NDArray[Any]) -> str:
    """Return values of a coordinate, which ascend, in words: a few one by one, of others the first and the last."""
    shown = values if len(values) <= _LISTED_VALUES else values[[0, -1]]
    is_time = values.dtype.kind == "M"
    texts = [str(np.datetime_as_string(one, unit="auto")) if is_time else str(one) for one in shown]
    return ", ".join(texts) if len(values) <= _LISTED_VALUES else f"{texts[0]} to {texts[1]}"


def _range_text(one: JoinInput) -> str:
    values = one.coordinate.values
    return f"{len(values)} from {values[0]} to {values[-1]}"
