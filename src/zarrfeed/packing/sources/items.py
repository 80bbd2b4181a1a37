"""Items of NumPy's and HDF5's dtypes as those of a field: a number, bytes or text; and attributes as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.source import Kind, Rows

#: NumPy's unit of time -> its name in the attribute `units` (CF conventions, section 4.4).
UNIT_NAMES = {
    "D": "days",
    "h": "hours",
    "m": "minutes",
    "s": "seconds",
    "ms": "milliseconds",
    "us": "microseconds",
    "ns": "nanoseconds",
}
_OBJECT = np.dtype(object)


class Item(NamedTuple):
    """The form of a dtype's items in a field: its dtype, its kind, and attributes that say what numbers mean."""

    dtype: np.dtype[Any]
    kind: Kind = "number"
    attributes: Mapping[str, Any] = {}


def item_of(dtype: np.dtype[Any], sample_shape: tuple[int, ...], what: str) -> Item:
    """Return the form that items of a dtype take in a field.

    Numbers keep their dtype, in this machine's byte order. Times become int64 with CF units, NaT among them the least
    int64. Text of a fixed length becomes text, and bytes become bytes, both without the zeros that fill them up.

    Raises
    ------
    ConfigError
        If there is nothing in Zarr for them; the message begins with `what`.
    """
    if dtype.kind in "SU":
        check_scalar(sample_shape, what)
        return Item(_OBJECT, "bytes" if dtype.kind == "S" else "text")
    if dtype.kind in "Mm":
        unit, _ = np.datetime_data(_regular(dtype, what))
        return Item(np.dtype(np.int64), "number", time_attributes(unit, since=dtype.kind == "M"))
    if dtype.kind in "biufc" and dtype.itemsize <= (16 if dtype.kind == "c" else 8):
        return Item(dtype.newbyteorder("="))
    raise ConfigError(
        f"{what} has the dtype {dtype}, which has no place in Zarr: leave it out with `variables`, or {_HOW}"
    )


_HOW = "convert it to numbers, bytes or text first"


def check_scalar(sample_shape: tuple[int, ...], what: str) -> None:
    """Raise ConfigError if a sample is an array of bytes or of text."""
    if sample_shape:
        raise ConfigError(
            f"{what} has {sample_shape} texts for each sample, must be one: leave it out with `variables`"
        )


def converted(rows: npt.NDArray[Any], item: Item) -> Rows:
    """Return rows as those of the field; a copy if they are no such."""
    if item.kind != "number":
        return rows.astype(object)
    if rows.dtype.kind in "Mm":
        return rows.astype(_regular(rows.dtype, "times")).view(np.int64)
    return rows.astype(item.dtype, copy=False)


def _regular(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """Return a dtype of times that has one of the units of `UNIT_NAMES`, once."""
    unit, _ = np.datetime_data(dtype)
    unit = "D" if unit in ("Y", "M", "W") and dtype.kind == "M" else unit
    if unit not in UNIT_NAMES:
        raise ConfigError(f"{what}: has the unit of time {unit!r}, must be one of {', '.join(UNIT_NAMES)}")
    return np.dtype(f"{dtype.kind}8[{unit}]")


def time_attributes(unit: str, *, since: bool) -> dict[str, Any]:
    """Return CF's attributes of int64 times or durations in one of NumPy's units."""
    if not since:
        return {"units": UNIT_NAMES[unit]}
    return {"units": f"{UNIT_NAMES[unit]} since 1970-01-01", "calendar": "proleptic_gregorian"}


def names_attributes(names: Sequence[str], values: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the attributes of codes that stand for names; `values` are the codes, None: 0, 1, 2, ..."""
    made: dict[str, Any] = {"names": list(names)}
    if values is not None and list(values) != list(range(len(names))):
        made["flag_values"] = [int(value) for value in values]  # as CF calls them, section 3.5
    return made
