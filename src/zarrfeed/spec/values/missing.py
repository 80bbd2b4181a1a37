"""The conventions by which items say that they have no value: one table, for coordinates, fields and statistics.

| items | a missing one is | source of the convention |
|---|---|---|
| float16 to float64 | NaN | IEEE 754 |
| datetime64, timedelta64 | NaT | NumPy |
| int64 with units of time | the least int64, also without an attribute | NumPy's NaT as an integer; xarray writes it |
| numbers with `_FillValue` or `missing_value` | equal to one of them | CF conventions, section 2.5.1 |
| codes of categories | -1 | pandas and AnnData |
| values beside a mask | where the mask is true | AnnData's nullable columns |
| objects, such as times of cftime | None | NumPy |
| text, bool, other integers | never: an empty text is a text | |
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

#: NaT as an integer: the least int64.
NAT = int(np.iinfo(np.int64).min)
#: The code of a category that is missing.
NO_CATEGORY = -1

Flags = npt.NDArray[np.bool_]


def is_missing(values: npt.NDArray[Any]) -> Flags:
    """Return a mask of the decoded values that are missing, judged by their dtype alone.

    Examples
    --------
    >>> is_missing(np.array(["2020-01-01", "NaT"], "M8[s]"))
    array([False,  True])
    """
    kind = values.dtype.kind
    flags: Flags = np.zeros(values.shape, dtype=bool)
    if kind in "mM":
        flags = np.isnat(values)
    elif kind in "fc":
        flags = np.isnan(values)
    elif kind == "O":
        flags = np.frompyfunc(lambda one: one is None, 1, 1)(values).astype(bool)
    return flags


def is_missing_number(stored: npt.NDArray[Any], fills: Collection[float] = (), *, is_time: bool = False) -> Flags:
    """Return a mask of the stored numbers that are missing.

    Parameters
    ----------
    stored
        Integers or floats, before scale and offset.
    fills
        The values of `_FillValue` and `missing_value`.
    is_time
        True if the numbers are times or time differences, for which int64 has NaT.
    """
    flags = is_missing(stored)
    if fills:
        flags |= np.isin(stored, fills_in(fills, stored.dtype))
    if is_time and stored.dtype == np.int64:
        flags |= stored == NAT
    return flags


def fills_in(fills: Collection[float], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the fill values that a dtype holds, in that dtype: as float64, two large int64 could be equal."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.array(list(fills), dtype=np.float64).astype(dtype)
    held = np.iinfo(dtype)
    whole = [int(one) for one in fills if float(one).is_integer() and held.min <= one <= held.max]
    return np.array(whole, dtype=dtype)
