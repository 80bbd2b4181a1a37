"""Date strings such as "2015", "2015-03" or "2015-03-04 06:00": the period that one names, without pandas."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.spec.samples.coordinate import UNIT_NS

_DATE = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d\d)(?:-(?P<day>\d\d)"
    r"(?:[T ](?P<hour>\d\d)(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?)?)?)?)?)?"
)
_PARTS = ("year", "month", "day", "hour", "minute", "second")
#: The part of a date that a string names last -> how long the period is, where that is always the same.
_LENGTHS = {
    "day": timedelta(days=1),
    "hour": timedelta(hours=1),
    "minute": timedelta(minutes=1),
    "second": timedelta(seconds=1),
}


def nanoseconds(time: np.datetime64 | np.timedelta64) -> int:
    """Return nanoseconds since 1970, or of a difference, exactly.

    >>> nanoseconds(np.datetime64("1970-01-02T00:00:01")), nanoseconds(np.datetime64("9999"))
    (86401000000000, 253370764800000000000)
    """
    kind = time.dtype.kind
    unit, _ = np.datetime_data(time.dtype)
    unit = unit if unit in UNIT_NS else "s"
    return int(time.astype(f"{kind}8[{unit}]").astype(np.int64)) * UNIT_NS[unit]


def period(text: str) -> tuple[int, int]:
    """Return the nanoseconds since 1970 of the first instant of a period, and of the first one behind it.

    Raises
    ------
    ConfigError
        If the text is no date, or one that does not exist.

    Examples
    --------
    >>> period("1970-01-01T01")
    (3600000000000, 7200000000000)
    """
    _parse(text)
    try:
        first = np.datetime64(text.replace(" ", "T"))
    except ValueError as error:
        raise ConfigError(f"the date {text!r} does not exist: {error}") from error
    return nanoseconds(first), nanoseconds(first + 1)


def period_like(text: str, example: Any) -> tuple[Any, Any]:
    """Return the first and the last instant of a period in the calendar of an object of cftime.

    Raises
    ------
    ConfigError
        If the text is no date, or one that does not exist in that calendar.
    """
    found = _parse(text)
    named = [part for part in _PARTS if found[part] is not None]
    values = {part: int(found[part]) for part in named}
    blank = {"month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0}
    microsecond = int((found["fraction"] or "0").ljust(6, "0")[:6])
    try:
        first = example.replace(**{**blank, **values, "microsecond": microsecond})
    except ValueError as error:
        raise ConfigError(f"the date {text!r} does not exist in the calendar {example.calendar!r}: {error}") from error
    if found["fraction"] is not None:
        return first, first
    last = named[-1]
    if last == "year":
        behind = first.replace(year=values["year"] + 1)
    elif last == "month":
        at_end = values["month"] == 12
        behind = first.replace(year=values["year"] + at_end, month=1 if at_end else values["month"] + 1)
    else:
        behind = first + _LENGTHS[last]
    return first, behind - timedelta(microseconds=1)


def _parse(text: str) -> re.Match[str]:
    found = _DATE.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is no date, must be a date such as '2015', '2015-03', '2015-03-04' or '2015-03-04T06:00:00', "
            "without a time zone"
        )
    return found
