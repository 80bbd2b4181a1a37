"""Times that are stored as numbers, such as "hours since 1900-01-01", by the CF conventions (section 4.4), as NumPy's.

Invariant: the result has the coarsest of the units s, ms, us and ns that loses nothing. So two stores that write the
same time in different ways, as whole hours and as fractions of days, give equal values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.spec.samples.coordinate import UNIT_NS
from zarrfeed.spec.values.missing import NAT, Flags, is_missing, is_missing_number

_NAMES: dict[str, tuple[str, ...]] = {
    "d": ("day", "days", "d"),
    "h": ("hour", "hours", "hr", "hrs", "h"),
    "m": ("minute", "minutes", "min", "mins"),
    "s": ("second", "seconds", "sec", "secs", "s"),
    "ms": ("millisecond", "milliseconds", "millisec", "millisecs", "msec", "msecs", "ms"),
    "us": ("microsecond", "microseconds", "microsec", "microsecs", "us"),
    "ns": ("nanosecond", "nanoseconds", "nanosec", "nanosecs", "ns"),
}
_NANOSECONDS = {"d": 86400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, **UNIT_NS}
_UNIT_OF_NAME = {name: _NANOSECONDS[unit] for unit, names in _NAMES.items() for name in names}

_SINCE = re.compile(
    r"\s*(?P<unit>[a-z]+)\s+since\s+(?P<year>\d{1,4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?:[t\s]+(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})(?:\.(?P<fraction>\d*))?)?)?)?"
    r"\s*(?:z|utc|gmt|(?P<sign>[+-])(?P<zone_hour>\d{1,2})(?::?(?P<zone_minute>\d{2}))?)?\s*",
    re.IGNORECASE,
)
#: The calendar that CF means where it names none: Julian until 1582-10-04, Gregorian from the next day, 1582-10-15.
_MIXED = ("standard", "gregorian")
#: Calendars whose times NumPy has; of the mixed one, those since its reform.
NUMPY_CALENDARS = (*_MIXED, "proleptic_gregorian")
_GREGORIAN_SINCE = np.datetime64("1582-10-15")


def is_time_unit(units: object) -> bool:
    """Return whether the attribute `units` of an array says that its numbers are times since a date."""
    return isinstance(units, str) and " since " in units


def is_duration_unit(units: object) -> bool:
    """Return whether the attribute `units` says that numbers are lengths of time, such as "days"."""
    return isinstance(units, str) and units.strip().lower() in _UNIT_OF_NAME


def is_duration(attributes: Mapping[str, Any]) -> bool:
    """Return whether xarray wrote numbers for time differences: with a unit, and the dtype that they had.

    Examples
    --------
    >>> is_duration({"units": "hours", "dtype": "timedelta64[ns]"}), is_duration({"units": "hours"})
    (True, False)
    """
    return is_duration_unit(attributes.get("units")) and str(attributes.get("dtype")).startswith("timedelta64")


def decode_durations(values: npt.NDArray[Any], units: str, where: str, lacks: Flags) -> npt.NDArray[Any]:
    """Return time differences that are stored as numbers: timedelta64, as `decode_times` returns datetime64.

    Raises
    ------
    ConfigError
        If one is too long for timedelta64.
    """
    return _in_coarsest_unit("m", values, _UNIT_OF_NAME[units.strip().lower()], 0, where, lacks)


def decode_times(
    values: npt.NDArray[Any], units: str, calendar: str | None, where: str, lacks: Flags | None = None
) -> npt.NDArray[Any]:
    """Return times that are stored as numbers.

    Parameters
    ----------
    values
        Integers or floats, of any shape.
    units
        The unit and the reference, such as "hours since 1900-01-01 00:00:00".
    calendar
        The calendar, by its name in the CF conventions; None: the standard one.
    where
        The name of the array in messages.
    lacks
        True where a value is missing. None: NaN, and the least int64, which is NaT as an integer, are missing.

    Returns
    -------
    An array of datetime64 in the unit s, ms, us or ns, NaT where a value is missing. Of calendars that NumPy does not
    have, such as "noleap", objects of cftime, None where a value is missing.

    Raises
    ------
    ConfigError
        If the units are not understood, or a time is too far away for datetime64.
    UnsupportedError
        If the calendar needs cftime, which is not installed.
    """
    name = (calendar or "standard").lower()
    lacks = is_missing_number(values, is_time=True) if lacks is None else lacks
    if name not in NUMPY_CALENDARS:
        return _decode_by_cftime(values, units, name, where, lacks)
    unit_ns, reference_ns = parse_units(units, where, mixed=name in _MIXED)
    decoded = _in_coarsest_unit("M", values, unit_ns, reference_ns, where, lacks)
    # in seconds, since 1582 is out of the range of nanoseconds
    if name in _MIXED and (decoded.astype("M8[s]") < _GREGORIAN_SINCE).any():
        raise ConfigError(
            f"{where}: has times before {_GREGORIAN_SINCE} in the calendar {name!r}, which is the Julian one until "
            "then; give the times themselves as coords="
        )
    return decoded


def parse_units(units: str, where: str, *, mixed: bool) -> tuple[int, int]:
    """Return nanoseconds of a unit, and the reference in nanoseconds since 1970.

    Raises
    ------
    ConfigError
        If the units are not understood.
    """
    found = _SINCE.fullmatch(units)
    unit_ns = None if found is None else _UNIT_OF_NAME.get(found["unit"].lower())
    if found is None or unit_ns is None:
        raise ConfigError(
            f"{where}: has the units {units!r}, must have units such as 'hours since 1900-01-01', with days, hours, "
            "minutes, seconds, or parts of seconds; or give the times themselves as coords="
        )
    year, month, day = (int(found[part]) for part in ("year", "month", "day"))
    if mixed and (year, month, day) < (1582, 10, 15):
        days = _julian_day(year, month, day)
    else:
        try:
            days = int(np.datetime64(f"{year:04d}-{month:02d}-{day:02d}").astype(np.int64))
        except ValueError as error:
            raise ConfigError(f"{where}: the units {units!r} name a date that does not exist: {error}") from error
    hour, minute, second, zone_hour, zone_minute = (
        int(found[part] or 0) for part in ("hour", "minute", "second", "zone_hour", "zone_minute")
    )
    zone = (zone_hour * 60 + zone_minute) * (-1 if found["sign"] == "-" else 1)
    seconds = days * 86400 + hour * 3600 + (minute - zone) * 60 + second
    fraction = int((found["fraction"] or "0").ljust(9, "0")[:9])
    return unit_ns, seconds * 10**9 + fraction


def _julian_day(year: int, month: int, day: int) -> int:
    """Return the days from 1970-01-01 (Gregorian) to a date of the Julian calendar.

    Source: E. G. Richards, "Explanatory Supplement to the Astronomical Almanac", 3rd edition, section 15.11.
    """
    before = (14 - month) // 12  # a year begins with March
    years, months = year + 4800 - before, month + 12 * before - 3
    julian_day_number = day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083
    return julian_day_number - 2_440_588


def _in_coarsest_unit(
    kind: Literal["M", "m"], values: npt.NDArray[Any], unit_ns: int, reference_ns: int, where: str, lacks: Flags
) -> npt.NDArray[Any]:
    """Return reference + values x unit as times (M) or differences (m), in the coarsest unit that loses nothing."""
    given = values[~lacks]
    for unit, tick_ns in UNIT_NS.items():
        if reference_ns % tick_ns:
            continue
        ticks = _ticks(given, unit_ns, tick_ns, rounds=unit == "ns")
        if ticks is None:
            continue
        reference = reference_ns // tick_ns
        if len(ticks) and not all(-(2**63) < int(end) + reference < 2**63 for end in (ticks.min(), ticks.max())):
            break
        times = np.full(values.shape, NAT).view(f"{kind}8[{unit}]")
        times[~lacks] = (ticks + reference).view(times.dtype)
        return times
    told = "times that are too far away for datetime64" if kind == "M" else "differences that timedelta64 cannot hold"
    raise ConfigError(f"{where}: has {told}; give them as coords=")


def _ticks(values: npt.NDArray[Any], unit_ns: int, tick_ns: int, *, rounds: bool) -> npt.NDArray[np.int64] | None:
    """Return values in ticks; None if they are no whole ticks, or too many for an int64."""
    if values.dtype.kind in "iu":
        if unit_ns % tick_ns:
            if tick_ns % unit_ns or (values % (tick_ns // unit_ns)).any():
                return None
            return (values // (tick_ns // unit_ns)).astype(np.int64)
        each = unit_ns // tick_ns
        if len(values) and max(abs(int(values.min())), abs(int(values.max()))) * each >= 2**62:
            return None
        return values.astype(np.int64) * each
    with np.errstate(over="ignore"):  # infinity is too far away, too
        exact = values.astype(np.float64) * (unit_ns / tick_ns)
    whole = np.rint(exact)
    if len(values) and not np.abs(exact).max() < 2.0**62:
        return None
    # The stored number is a rounded one: what lies within its rounding of a whole tick was meant as that.
    rounding = np.spacing(np.abs(values)).astype(np.float64) * (unit_ns / tick_ns)
    if not rounds and (np.abs(exact - whole) > rounding).any():
        return None
    return whole.astype(np.int64)


def _decode_by_cftime(
    values: npt.NDArray[Any], units: str, calendar: str, where: str, lacks: Flags
) -> npt.NDArray[Any]:
    cftime = _cftime(calendar, where)
    decoded = np.full(values.shape, None, dtype=object)
    try:
        decoded[~lacks] = cftime.num2date(values[~lacks], units, calendar)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: {units!r} of the calendar {calendar!r} cannot be decoded: {error}") from error
    return decoded


def _cftime(calendar: str, where: str) -> Any:
    try:
        import cftime
    except ImportError as error:
        raise UnsupportedError(
            f"{where}: has times of the calendar {calendar!r}, which needs cftime: pip install cftime; or give other "
            "values as coords="
        ) from error
    return cftime


def encode_times(
    parts: Sequence[npt.NDArray[Any]], units: str, calendar: str | None, where: str
) -> tuple[npt.NDArray[np.int64], str, str]:
    """Return times of several arrays, one after the other, as numbers of one unit since one date; nothing is rounded.

    Parameters
    ----------
    parts
        Times as `decode_times` returns them, all of the same calendar.
    units, calendar
        The units that are kept if each time is a whole number of them, and the calendar.
    where
        The name of the times in messages.

    Returns
    -------
    The numbers, the least int64 where a time is missing; their units; and the calendar.

    Raises
    ------
    ConfigError
        If an int64 does not hold a time.

    Examples
    --------
    >>> parts = [np.array(["2020-01-01", "2020-01-02"], "M8[s]"), np.array(["2020-01-02T12"], "M8[ns]")]
    >>> encode_times(parts, "hours since 2020-01-01", None, "time")
    (array([ 0, 24, 36]), 'hours since 2020-01-01', 'standard')
    >>> encode_times(parts, "days since 2020-01-01", None, "time")
    (array([1577836800, 1577923200, 1577966400]), 'seconds since 1970-01-01', 'proleptic_gregorian')
    """
    name = (calendar or "standard").lower()
    if parts[0].dtype.kind == "O":
        return _encode_by_cftime(np.concatenate(parts), units, name, where)
    times = together(parts, where)
    unit, ticks = np.datetime_data(times.dtype)[0], times.view(np.int64)
    lacks, tick_ns = ticks == NAT, UNIT_NS[unit]
    unit_ns, reference_ns = parse_units(units, where, mixed=name in _MIXED)
    if reference_ns % tick_ns == 0 and unit_ns % tick_ns == 0:
        each, given = unit_ns // tick_ns, ticks[~lacks]
        reference = reference_ns // tick_ns
        far = len(given) > 0 and max(abs(int(given.min())), abs(int(given.max()))) + abs(reference) >= 2**63
        if not far and not ((given - reference) % each).any():
            numbers = np.full(ticks.shape, NAT)
            numbers[~lacks] = (given - reference) // each
            return numbers, units, name
    long_name = _NAMES[unit][1]
    return ticks, f"{long_name} since 1970-01-01", "proleptic_gregorian"


def together(parts: Sequence[npt.NDArray[Any]], where: str) -> npt.NDArray[Any]:
    """Return times or time differences of several arrays, one after the other, in the finest unit of them.

    Raises
    ------
    ConfigError
        If a value is too far away for that unit; the message begins with `where`.
    """
    if parts[0].dtype.kind == "O":
        return np.concatenate(parts)
    unit = min((np.datetime_data(one.dtype)[0] for one in parts), key=UNIT_NS.__getitem__)
    return np.concatenate([_in_unit(one, unit, where) for one in parts])


def in_known_unit(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return datetime64 in one of the units s, ms, us and ns; days and other steps of whole seconds are in s then."""
    unit, count = np.datetime_data(times.dtype)
    return times if unit in UNIT_NS and count == 1 else times.astype("M8[s]" if unit not in UNIT_NS else f"M8[{unit}]")


def _in_unit(values: npt.NDArray[Any], unit: str, where: str) -> npt.NDArray[Any]:
    """Return times or time differences in a unit that is as fine as theirs, or finer."""
    factor = UNIT_NS[np.datetime_data(values.dtype)[0]] // UNIT_NS[unit]
    given = values[~np.isnat(values)].view(np.int64)
    if len(given) and max(abs(int(given.min())), abs(int(given.max()))) * factor >= 2**63:
        raise ConfigError(f"{where}: has times that do not fit into one unit of datetime64 with those of others")
    return values.astype(f"{values.dtype.kind}8[{unit}]")


def _encode_by_cftime(
    times: npt.NDArray[Any], units: str, calendar: str, where: str
) -> tuple[npt.NDArray[np.int64], str, str]:
    cftime = _cftime(calendar, where)
    lacks = is_missing(times)
    since = units.partition(" since ")[2]
    for tried in (units, f"seconds since {since}", f"microseconds since {since}"):
        numbers = np.full(times.shape, NAT)
        numbers[~lacks] = np.rint(cftime.date2num(times[~lacks], tried, calendar)).astype(np.int64)
        if np.array_equal(cftime.num2date(numbers[~lacks], tried, calendar), times[~lacks]):
            return numbers, tried, calendar
    raise ConfigError(f"{where}: has times of the calendar {calendar!r} that int64 does not hold in microseconds")
