"""`step=` of `Data.window`: the regular difference between neighbouring rows, in time, by the calendar, or a number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.date_strings import nanoseconds

#: Types of `step=` of `Data.window`.
StepLike: TypeAlias = "str | timedelta | np.timedelta64 | float"

_SECOND = 10**9
_WORDS = {
    604800 * _SECOND: ("w", "week", "weeks"),
    86400 * _SECOND: ("d", "day", "days"),
    3600 * _SECOND: ("h", "hr", "hour", "hours"),
    60 * _SECOND: ("min", "minute", "minutes"),
    _SECOND: ("s", "sec", "second", "seconds"),
    10**6: ("ms", "millisecond", "milliseconds"),
    10**3: ("us", "microsecond", "microseconds"),
    1: ("ns", "nanosecond", "nanoseconds"),
}
_UNIT_NS = {word: unit_ns for unit_ns, words in _WORDS.items() for word in words}
_CALENDAR: dict[str, Literal["month", "year"]] = {
    "month": "month",
    "months": "month",
    "year": "year",
    "years": "year",
    "M": "month",
    "Y": "year",
}
_TEXT = re.compile(r"\s*(?P<count>\d+(?:\.\d*)?)?\s*(?P<unit>[A-Za-z]+)\s*")


def duration_ns(text: str) -> int | None:
    """Return the nanoseconds of a length of time in words, which may be 0 or negative; None if it is none.

    Examples
    --------
    >>> duration_ns("6h"), duration_ns("-1.5 days"), duration_ns("month")
    (21600000000000, -129600000000000, None)
    """
    sign, bare = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text)
    found = GapStep.parse_text(bare)
    return None if found is None or found.unit != "ns" else sign * int(found.count)


@dataclass(frozen=True)
class GapStep:
    """A regular difference.

    Attributes
    ----------
    count
        The number of units; above 0.
    unit
        "ns": nanoseconds. "month", "year": of the calendar, whatever their lengths. "number": of a coordinate that is
        no time.
    """

    count: float
    unit: Literal["ns", "month", "year", "number"]

    def __str__(self) -> str:
        return repr(self.written)

    @property
    def written(self) -> str | float:
        """The step as a user could write it, in one way of several."""
        if self.unit == "number":
            return self.count
        if self.unit != "ns":
            return self.unit if self.count == 1 else f"{self.count} {self.unit}s"
        unit_ns = next(unit_ns for unit_ns in _WORDS if self.count % unit_ns == 0)
        return f"{int(self.count) // unit_ns}{_WORDS[unit_ns][0]}"

    @classmethod
    def parse(cls, step: StepLike | None) -> GapStep | None:
        """Parse the user's `step=`; None if there is none.

        Raises
        ------
        ConfigError
            If it is no length of time and no number, or not above 0.

        Examples
        --------
        >>> GapStep.parse("6h"), GapStep.parse("month"), GapStep.parse(0.25)
        (GapStep(count=21600000000000, unit='ns'), GapStep(count=1, unit='month'), GapStep(count=0.25, unit='number'))
        """
        if step is None:
            return None
        found = cls._parsed(step)
        if found is None or not 0 < found.count < float("inf"):
            raise ConfigError(
                f"step = {step!r}, must be a length of time above 0, such as '6h', '1 day', a timedelta or "
                "np.timedelta64; 'month' or 'year' by the calendar; or a number for a coordinate of numbers"
            )
        return found

    @classmethod
    def _parsed(cls, step: Any) -> GapStep | None:
        if hasattr(step, "to_timedelta64"):  # pandas's, which has nanoseconds
            step = step.to_timedelta64()
        if isinstance(step, np.timedelta64):
            unit, count = np.datetime_data(step.dtype)
            if np.isnat(step) or unit in ("generic", "ps", "fs", "as"):
                return None
            if unit in "YM":
                return cls(int(step.astype(np.int64)) * count, _CALENDAR[unit])
            return cls(nanoseconds(step), "ns")
        if isinstance(step, timedelta):
            return cls((step // timedelta(microseconds=1)) * 1000, "ns")
        if isinstance(step, str):
            return cls.parse_text(step)
        if isinstance(step, int | float | np.integer | np.floating) and not isinstance(step, bool):
            return cls(step.item() if isinstance(step, np.generic) else step, "number")
        return None

    @classmethod
    def parse_text(cls, step: str) -> GapStep | None:
        """Parse text, also of no length; None if it is no step."""
        found = _TEXT.fullmatch(step)
        if found is None:
            return None
        count, word = Fraction(found["count"] or 1), found["unit"]
        word = word.lower() if word in "DHSW" or len(word) > len("min") else word  # "MS" may be meant as months
        if word in _CALENDAR and len(word) > 1:
            return cls(int(count), _CALENDAR[word]) if count.denominator == 1 else None
        exact = count * _UNIT_NS.get(word, 0)
        return cls(int(exact), "ns") if exact.denominator == 1 else None
