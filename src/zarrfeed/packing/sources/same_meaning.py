"""Arrays of several stores that become one array: a check that their numbers mean the same, and times as one axis.

Invariant: the numbers of all stores lie under the attributes of the packed array, so they are copied only where the
attributes of all stores say the same of them. Times are compared by value: where stores count them from dates of their
own, they are decoded, each by the attributes of its store, and counted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.metadata.array.cf_times import encode_times, in_known_unit, is_time_unit, together
from zarrfeed.metadata.array.coordinate_values import are_same_coordinates, decode_values
from zarrfeed.metadata.array.meaning import FILLS, difference, meaning_of
from zarrfeed.packing.sources.source import Constant, Rows

#: Attributes that a numeric array of times has anew.
_OF_TIMES = ("units", "calendar", "scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "dtype")
_OPEN_TOGETHER = (
    "pack each store by itself, and open the results together: zarrfeed.open([...]) decodes each by its own attributes"
)
_CONVERT = "convert one of them before, or pack each store by itself"
#: Attributes of a meaning, by `meaning_of`, in which stores may differ that are opened together.
_DECODED_BY_OPEN = ("scale_factor", "add_offset", "_Unsigned", FILLS)


#: A sentence for reports: these attributes are carried over from the first store.
OF_FIRST_STORE = "attributes of later stores that do not say what numbers mean, such as long_name and history"


@dataclass(frozen=True)
class Stored:
    """An array of one store: its name there, the dtype of its items, its attributes, and what reads it."""

    store: str
    name: str
    dtype: np.dtype[Any]
    attributes: Mapping[str, Any]
    read: Callable[[], Rows]

    @property
    def is_time(self) -> bool:
        """True if items are times: datetime64, or stored as numbers."""
        return self.dtype.kind == "M" or (self.dtype.kind in "iuf" and is_time_unit(self.attributes.get("units")))

    @property
    def where(self) -> str:
        """The array as messages have it."""
        return f"{self.store}: {self.name!r}" if self.name else self.store

    def decoded(self) -> npt.NDArray[Any]:
        """Return all values, decoded by the attributes of this store; times in a unit that `decode_values` uses."""
        values = decode_values(self.read(), self.attributes, self.where)
        return in_known_unit(values) if values.dtype.kind == "M" else values


class OneAxis(NamedTuple):
    """Times of several stores, counted alike.

    Attributes
    ----------
    values
        Numbers of all samples, int64.
    attributes
        Attributes that say what the numbers mean.
    """

    values: Rows
    attributes: dict[str, Any]


def as_one_axis(stores: Sequence[Stored]) -> OneAxis | None:
    """Return the times of an array of several stores, counted alike; None if the stored numbers can be copied.

    Raises
    ------
    ConfigError
        If the stores do not say the same of their numbers, and these are no times; the message names the first store
        that differs, the attribute, and what both say.
    """
    first = stores[0]
    for other in stores[1:]:
        check_same_meaning(other, first)
    if not first.is_time or all(_counted(one) == _counted(first) for one in stores[1:]):
        return None
    decoded = [one.decoded() for one in stores]
    said = {key: first.attributes[key] for key in ("units", "calendar") if key in first.attributes}
    if first.dtype.kind == "M":
        said = {"units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"}
    values, units, calendar = encode_times(decoded, str(said["units"]), said.get("calendar"), first.where)
    others = {key: value for key, value in first.attributes.items() if key not in _OF_TIMES}
    return OneAxis(values, {**others, "units": units, "calendar": calendar})


def decoded_together(stores: Sequence[Stored]) -> npt.NDArray[Any]:
    """Return the decoded times of all stores, read anew, one after the other."""
    return together([one.decoded() for one in stores], stores[0].where)


def comparable(stores: Sequence[Stored]) -> list[npt.NDArray[Any]]:
    """Return the values of all stores in a form in which they can be compared: decoded.

    If they cannot be decoded, as times of a calendar without cftime, they are as stored, if all are stored alike.

    Raises
    ------
    ConfigError, UnsupportedError
        If they can be compared in neither form.
    """
    try:
        return [one.decoded() for one in stores]
    except UnsupportedError:
        if any(_counted(one) != _counted(stores[0]) for one in stores[1:]):
            raise
        return [one.read() for one in stores]


def _counted(stored: Stored) -> tuple[object, ...]:
    return stored.dtype.newbyteorder("="), *(repr(stored.attributes.get(name)) for name in _OF_TIMES)


def check_same_meaning(other: Stored, first: Stored, *, decoded: bool = False) -> None:
    """Raise ConfigError, which names the store and the attribute, unless numbers of two stores mean the same.

    With `decoded`, the numbers are compared after `Stored.decoded`.
    """
    ours, theirs = (meaning_of(one.attributes, one.dtype, decoded=decoded) for one in (other, first))
    found = difference(ours, theirs)
    if found is None:
        return
    if found.attribute == "units":  # as they are written, and not as they are compared
        found = found._replace(ours=other.attributes.get("units"), theirs=first.attributes.get("units"))
    raise ConfigError(
        f"{other.where} is stored {found.told(found.ours)}, in {first.store} {found.told(found.theirs)}, so equal "
        f"numbers mean other values: {_OPEN_TOGETHER if found.attribute in _DECODED_BY_OPEN else _CONVERT}"
    )


def check_same_constants(
    where: object, constants: Sequence[Constant], first_where: object, first: Sequence[Constant]
) -> None:
    """Raise ConfigError, which names the store, unless its constants have the values of those of the first store."""
    if constants is first:
        return
    names, known = sorted(one.name for one in constants), {one.name: one for one in first}
    if names != sorted(known):
        raise ConfigError(f"{where}: has the arrays {names} without samples, {first_where} has {sorted(known)}")
    for one in constants:
        ours, theirs = (
            Stored(str(at), c.name, c.values.dtype, c.attributes, lambda c=c: c.values)  # type: ignore[misc]
            for at, c in ((where, one), (first_where, known[one.name]))
        )
        check_same_meaning(ours, theirs, decoded=True)
        values, known_values = comparable((ours, theirs))
        if one.dims == (one.name,) and are_same_coordinates(values, known_values):
            continue
        told = differing_values(values, known_values)
        if told:
            raise ConfigError(
                f"{ours.where}, which has no samples, has other values than in {first_where}: it {told}; if it says "
                "where the items of a sample are, they are elsewhere: pack such stores each by itself, or leave the "
                "array out with `variables`"
            )


def differing_values(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> str:
    """Name the first position where decoded values differ, in words; "" if they are equal."""
    if ours.shape != theirs.shape:
        return f"has the shape {ours.shape}, there {theirs.shape}"
    if (ours.dtype.kind in "mM") != (theirs.dtype.kind in "mM"):
        return f"is {ours.dtype}, there {theirs.dtype}"
    if ours.dtype.kind == theirs.dtype.kind == "f":  # 0.1 as float32 is 0.1 as float64
        least = min(ours.dtype, theirs.dtype, key=lambda dtype: dtype.itemsize)
        ours, theirs = ours.astype(least), theirs.astype(least)
    same = np.asarray(ours == theirs, dtype=bool)
    if all(one.dtype.kind in "fcmM" for one in (ours, theirs)):
        same |= (ours != ours) & (theirs != theirs)
    if same.all():
        return ""
    index = tuple(int(n) for n in np.unravel_index(int(np.argmin(same)), same.shape)) if same.ndim else ()
    at = f" at index {index[0] if len(index) == 1 else index}" if index else ""
    return f"is {ours[index]}{at}, there {theirs[index]}"
