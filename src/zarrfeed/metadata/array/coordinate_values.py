"""Stored numbers of a coordinate -> its values, by the attributes that lie beside them.

Invariant: a value is missing where the table of `spec.missing` says so, and then it is NaN, NaT or, in calendars that
NumPy does not have, None. Integers of times stay integers, so that nanoseconds of today are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.metadata.array.cf import decoding_of
from zarrfeed.metadata.array.cf_times import (
    decode_durations,
    decode_times,
    is_duration,
    is_duration_unit,
    is_time_unit,
    together,
)
from zarrfeed.spec.samples.coordinate import UNIT_NS, Coordinate
from zarrfeed.spec.values.missing import is_missing_number

#: Coordinates along an axis that differ by less than this share of a step are equal but for rounding.
_ROUNDED = 1e-3
#: So many values are shown in a message.
_LISTED = 8


def decode_values(values: npt.NDArray[Any], attributes: Mapping[str, Any], where: str) -> npt.NDArray[Any]:
    """Return stored items as xarray decodes them, but with integers kept where nothing is missing.

    Parameters
    ----------
    values
        The items as stored, of any shape; items that are no numbers are returned as they are.
    attributes
        Attributes of the array: `units`, `calendar`, `_FillValue` and so on.
    where
        The name of the array in messages.

    Raises
    ------
    ConfigError, UnsupportedError
        If the attributes cannot be decoded, or a time is too far away for datetime64.

    Examples
    --------
    >>> decode_values(np.array([0, -9]), {"units": "days since 2020-01-01", "_FillValue": -9}, "time")
    array(['2020-01-01T00:00:00',                 'NaT'],
          dtype='datetime64[s]')
    """
    if values.dtype.kind not in "iuf":
        return values
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    decoding = decoding_of(attributes, values.dtype)
    units = attributes.get("units")
    is_time = is_time_unit(units)
    fills: tuple[float, ...] = ()
    scaled = False
    if decoding is not None and decoding.result != "bool":
        values, fills = values.view(decoding.items), decoding.fills
        scaled = decoding.scale is not None or decoding.offset is not None
    lacks = is_missing_number(values, fills, is_time=is_time or is_duration_unit(units))
    if scaled:
        assert decoding is not None
        scale, offset = 1.0 if decoding.scale is None else decoding.scale, decoding.offset or 0.0
        values = values.astype(np.float64) * scale + offset
    if is_time:
        calendar = attributes.get("calendar")
        told = None if calendar is None else str(calendar)
        return decode_times(values, str(units), told, where, lacks)
    if is_duration(attributes):
        return decode_durations(values, str(units), where, lacks)
    if scaled or lacks.any():
        values = values.astype(np.float64)
        values[lacks] = np.nan
    return values


def are_same_coordinates(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> bool:
    """Return whether decoded values along two axes are the same ones, but for rounding.

    Numbers are the same if they are less than a thousandth of the smallest step apart; anything else must be equal.

    Examples
    --------
    >>> are_same_coordinates(np.arange(4) * 0.1, np.array([0.0, 0.1, 0.2, 0.3]))
    True
    """
    if ours.shape != theirs.shape or not {ours.dtype.kind, theirs.dtype.kind} <= set("iuf") or ours.ndim != 1:
        return np.array_equal(ours, theirs)
    first, second = ours.astype(np.float64), theirs.astype(np.float64)
    apart = np.abs(first - second)
    step = np.abs(np.diff(second)).min(initial=np.inf)
    most = step * _ROUNDED if np.isfinite(step) else 0.0
    return bool((apart <= most).all())


def checked_values(values: npt.NDArray[Any], num_samples: int, where: str) -> npt.NDArray[Any]:
    """Return the values of a coordinate in the form that `Coordinate` has.

    Raises
    ------
    ConfigError
        If there is not one value a sample, or the dtype is none of a coordinate.
    """
    if values.shape != (num_samples,):
        raise ConfigError(f"{where}: has the shape {values.shape}, must have one value a sample, ({num_samples},)")
    kind = values.dtype.kind
    if kind in "mM":
        return _in_known_unit(values, where)
    if kind in "biuf":
        if kind == "u" and values.dtype.itemsize == 8 and len(values) and int(values.max()) >= 2**63:
            raise UnsupportedError(f"{where}: has integers of 2**63 and more, which cannot be compared with labels")
        return values.astype(np.int64 if kind in "iu" else values.dtype.newbyteorder("="), copy=False)
    if kind in "SUT" or (kind == "O" and all(isinstance(one, str | bytes) for one in values)):
        return np.array([_text(one) for one in values.tolist()], dtype=np.str_)
    if kind == "O":
        given = [one for one in values if one is not None]
        if given and all(hasattr(one, "calendar") for one in given):
            return values
    raise ConfigError(f"{where}: has the dtype {values.dtype}, must have times, numbers or text")


def concatenated(name: str, parts: Sequence[Coordinate]) -> Coordinate:
    """Return the values of several coordinates, one after the other; times in the finest unit of them.

    Raises
    ------
    ConfigError
        If they are of several kinds, units or calendars, or no unit holds all of the times.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for other in parts[1:]:
        if other.values.dtype.kind != first.values.dtype.kind and not {
            first.values.dtype.kind,
            other.values.dtype.kind,
        } <= set("if"):
            raise ConfigError(
                f"{other.where}: has values of {other.values.dtype}, {first.where} of {first.values.dtype}: they must "
                "be of one kind"
            )
        if None not in (other.units, first.units) and other.units != first.units:
            raise ConfigError(
                f"{other.where}: has the units {other.units!r}, {first.where} has {first.units!r}, so equal numbers "
                "mean several values: open the stores one by one, or give the values as coords="
            )
    calendars = {known: one for one in parts if (known := _calendar(one)) is not None}
    if len(calendars) > 1:
        told = ", ".join(f"{one.where} has {calendar!r}" for calendar, one in calendars.items())
        raise ConfigError(f"{name}: the calendars of stores differ: {told}: times of several calendars have no order")
    values, where = [one.values for one in parts], f"{first.where} and {len(parts) - 1} more"
    is_time = first.values.dtype.kind in "mM"
    names = first.names if all(one.names == first.names for one in parts) else None  # codes may mean something else
    made = together(values, where) if is_time else np.concatenate(values)
    return Coordinate(name, made, where, names, next((one.units for one in parts if one.units is not None), None))


def _calendar(coordinate: Coordinate) -> str | None:
    """Return the calendar of objects of cftime; None for values of any other kind."""
    values = coordinate.values
    found = next((one for one in values if one is not None), None) if values.dtype.kind == "O" else None
    return None if found is None else str(found.calendar)


def listed_values(values: Sequence[Any], text: Callable[[Any], str]) -> str:
    """Return the first values of a coordinate for a message, each by `text`, and how many more there are."""
    shown = ", ".join(map(text, values[:_LISTED]))
    return f"{shown} and {len(values) - _LISTED} more" if len(values) > _LISTED else shown


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _in_known_unit(values: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Return times or time differences in the unit s, ms, us or ns."""
    unit, count = np.datetime_data(values.dtype)
    kind = values.dtype.kind
    if count == 1 and unit in UNIT_NS:
        return values.astype(f"{kind}8[{unit}]", copy=False)
    if unit in ("generic", "ps", "fs", "as") or (kind == "m" and unit in ("Y", "M")):
        raise UnsupportedError(f"{where}: has the dtype {values.dtype}, must have a unit from weeks to nanoseconds")
    return values.astype(f"{kind}8[{unit if unit in UNIT_NS else 's'}]")
