"""The values of samples along a coordinate, such as their times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

#: The units of the times of coordinates -> nanoseconds, from the coarsest to the finest.
UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True, eq=False)
class Coordinate:
    """One value for each sample of an array.

    Attributes
    ----------
    name
        Name of the coordinate, such as "time".
    values
        Shape (samples,): datetime64 or timedelta64 in the unit s, ms, us or ns; integers (int64), floats, booleans or
        text; objects of cftime for calendars that NumPy does not have.
    where
        Name in messages: the path of the array that has the values.
    names
        The name of each code, if the values are codes that have names. None: they are not.
    units
        The unit of stored numbers, in a spelling that compares; None: it is not known, or `values` has it.
    """

    name: str
    values: npt.NDArray[Any]
    where: str
    names: Mapping[int, str] | None = None
    units: str | None = None

    @property
    def is_time(self) -> bool:
        """True if the values are dates and times that NumPy has."""
        return self.values.dtype.kind == "M"
