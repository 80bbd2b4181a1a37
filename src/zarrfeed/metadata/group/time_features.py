"""The time of a sample as numbers that a model can use: sines and cosines of its phase in the day, the week, the year.

Source of the definitions: `numpy.datetime64`, whose calendar is the proleptic Gregorian one, without time zones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.validate import check_choice
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.metadata.group.batch_columns import Array
from zarrfeed.spec.samples.coordinate import Coordinate

#: Name of the field in a batch.
NAME = "time_features"

_Times = npt.NDArray[np.datetime64]
_Floats = npt.NDArray[np.float64]


def _share(part: Any, whole: Any) -> _Floats:
    share: _Floats = part / whole
    return share


def _hour(times: _Times) -> _Floats:
    return _share(times - times.astype("M8[D]"), np.timedelta64(24, "h"))


def _day_of_week(times: _Times) -> _Floats:
    days = times.astype("M8[D]") - np.datetime64("1970-01-05", "D")  # a Monday
    return _share(days % np.timedelta64(7, "D"), np.timedelta64(7, "D"))


def _month(times: _Times) -> _Floats:
    months = times.astype("M8[M]") - times.astype("M8[Y]").astype("M8[M]")
    return _share(months, np.timedelta64(12, "M"))


def _day_of_year(times: _Times) -> _Floats:
    return _share_of_year(times.astype("M8[D]"))


def _share_of_year(times: _Times) -> _Floats:
    year = times.astype("M8[Y]")
    first, last = year.astype("M8[D]"), (year + np.timedelta64(1, "Y")).astype("M8[D]")
    return _share(times - first, last - first)


#: Feature -> the phase in its cycle, in [0, 1).
_SHARES: dict[str, Callable[[_Times], _Floats]] = {
    "hour": _hour,
    "day_of_week": _day_of_week,
    "month": _month,
    "day_of_year": _day_of_year,
    "year_fraction": _share_of_year,
}


def _shares_of_calendar(time: Any) -> dict[str, float]:
    """Return the phases of a time of cftime, whose calendar NumPy lacks, and which has no weeks that go on."""
    if not hasattr(time, "calendar"):
        return dict.fromkeys(_SHARES, np.nan)
    year = time.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    length = year.replace(year=time.year + 1) - year
    hours = timedelta(hours=time.hour, minutes=time.minute, seconds=time.second, microseconds=time.microsecond)
    return {
        "hour": hours / timedelta(days=1),
        "month": (time.month - 1) / 12,
        "day_of_year": (time - year - hours) / length,
        "year_fraction": (time - year) / length,
    }


def check_features(features: Sequence[str]) -> None:
    """Raise ConfigError unless these are names of features, each named once."""
    if not features:
        raise ConfigError(f"time_features() needs at least one of {', '.join(map(repr, _SHARES))}")
    for feature in features:
        check_choice("time_features", feature, tuple(_SHARES))
        if features.count(feature) > 1:
            raise ConfigError(f"time_features: {feature!r} is named twice")


def calculate(coordinate: Coordinate, features: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return the features of the times of all samples.

    Returns
    -------
    Shape (samples, 2 * features): the sine and the cosine of each feature. NaN where there is no time.

    Raises
    ------
    ConfigError, UnsupportedError
        If the values are no times, or weeks are asked for of a calendar that has none.
    """
    times = coordinate.values
    if times.dtype.kind == "O" and "day_of_week" in features:
        raise UnsupportedError(f"{coordinate.where}: has a calendar that NumPy lacks, and no days of the week")
    if times.dtype.kind not in "MO":
        raise ConfigError(f"{coordinate.where}: has the dtype {times.dtype}, must have dates")
    of_calendar = list(map(_shares_of_calendar, times)) if times.dtype.kind == "O" else []
    columns = []
    for feature in features:
        shares = np.array([one[feature] for one in of_calendar]) if of_calendar else _SHARES[feature](times)
        angle = 2 * np.pi * shares
        columns += [np.sin(angle), np.cos(angle)]
    return np.stack(columns, axis=1).astype(np.float32)


def make_field(coordinate: Coordinate, features: Sequence[str]) -> Array:
    """Return the features as an array of the samples: it is a coordinate.

    Raises
    ------
    ConfigError, UnsupportedError
        As in `calculate`.
    """
    values = calculate(coordinate, features)
    items = Items("samples", NAME, values.dtype.name, values.shape, 0, is_coordinate=True)
    return Array(field_in_memory(items.name, values, 0), items)
