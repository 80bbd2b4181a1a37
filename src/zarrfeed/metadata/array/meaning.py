"""The attributes that say what the stored numbers of an array mean, in a form in which two stores can be compared.

Invariant: numbers of two arrays may lie under the attributes of one of them only where `difference` returns None. Fill
values, scale and offset are compared as `decoding_of` reads them, so that a NaN that masks nothing, a scale of 1 and
`missing_value` in place of `_FillValue` are no differences. Units that are times since a date are left out, and so is
all that encodes these times, as the unit of datetime64: such arrays are compared by value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zarrfeed.metadata.array.cf import decoding_of
from zarrfeed.metadata.array.cf_times import NUMPY_CALENDARS, is_duration, is_duration_unit, is_time_unit
from zarrfeed.spec.values.missing import fills_in

#: Attributes that say which value an item stands for, beside those that `decoding_of` reads and `units`.
_OTHERS = ("flag_values", "flag_masks", "flag_meanings", "names", "positive")
_CALENDAR = "calendar"
#: In place of units that are times since a date.
_TIMES = "times"
#: In place of `_FillValue` and `missing_value`.
FILLS = "_FillValue or missing_value"


class Difference(NamedTuple):
    """An attribute that two arrays do not agree on, and what each says; None: nothing."""

    attribute: str
    ours: Any
    theirs: Any

    def told(self, value: Any) -> str:
        """Return one of the two sides as messages have it: "'units': 'K'", or "without 'units'"."""
        shown = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        return f"without {self.attribute!r}" if value is None else f"with {self.attribute!r}: {shown!r}"


def meaning_of(attributes: Mapping[str, Any], dtype: np.dtype[Any], *, decoded: bool = False) -> dict[str, Any]:
    """Return the meaning that attributes give to the stored numbers of an array; unknown entries are left out.

    With `decoded`, return what they say of the values that `decode_values` makes of the numbers.

    Raises
    ------
    ConfigError, UnsupportedError
        If the attributes cannot be decoded.

    Examples
    --------
    >>> meaning_of({"units": "degrees_C", "scale_factor": 1, "long_name": "Temperature"}, np.dtype("i2"))
    {'units': 'degC'}
    """
    units = attributes.get("units")
    if decoded and (dtype.kind == "m" or is_duration(attributes)):
        return {"dtype": "timedelta64"}
    if dtype.kind == "m":
        return {"dtype": dtype.name}
    if is_time_unit(units) or dtype.kind == "M":
        calendar = str(attributes.get(_CALENDAR) or "standard").lower()
        return {"units": _TIMES, _CALENDAR: NUMPY_CALENDARS[0] if calendar in NUMPY_CALENDARS else calendar}
    found: dict[str, Any] = {}
    decoding = decoding_of(attributes, dtype) if dtype.kind in "iuf" and not decoded else None
    if decoding is not None:
        if decoding.result == "bool":
            found["dtype"] = "bool"
        elif decoding.items != dtype.newbyteorder("=").name:
            found["_Unsigned"] = decoding.items
        if decoding.scale not in (None, 1.0):
            found["scale_factor"] = decoding.scale
        if decoding.offset not in (None, 0.0):
            found["add_offset"] = decoding.offset
        fills = decoding.fills
        if dtype.kind in "iu":  # what the dtype cannot hold masks nothing
            fills = tuple(fills_in(fills, np.dtype(decoding.items)).tolist())
        if fills:
            found[FILLS] = fills
    if units is not None:
        found["units"] = normal_units(str(units))
    for name in _OTHERS:
        if name in attributes:
            found[name] = _plain(attributes[name])
    return found


def has_nat(meaning: Mapping[str, Any]) -> bool:
    """Return whether values are times or time differences, whose least int64 stands for a missing value (NaT)."""
    units = meaning.get("units")
    is_timedelta = np.dtype(meaning.get("dtype", "bool")).kind in "mM"
    return is_timedelta or units == _TIMES or is_time_unit(units) or is_duration_unit(units)


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], *, unsaid: bool = True) -> Difference | None:
    """Return the first attribute that two meanings, as `meaning_of` returns them, do not agree on; None: they agree.

    Parameters
    ----------
    ours, theirs
        Meanings, as `meaning_of` returns them.
    unsaid
        If True, it is a difference that one of them lacks units, flags or names. The decoding of numbers always counts.
    """
    for name in (*ours, *(name for name in theirs if name not in ours)):
        one, other = ours.get(name), theirs.get(name)
        if one == other or (not unsaid and (name == "units" or name in _OTHERS) and None in (one, other)):
            continue
        if name == "units" and {one, other} == {None, normal_units("1")}:  # CF: without units, numbers have none
            continue
        return Difference(name, one, other)
    return None


def _plain(value: Any) -> Any:
    """Return a list or a text that is equal for attributes that mean the same: numbers as such, blanks once."""
    if isinstance(value, str):
        return " ".join(value.split())
    listed = np.asarray(value).tolist()
    if isinstance(listed, list):
        return tuple(listed) if len(listed) != 1 else listed[0]  # netCDF stores numbers as lists of one
    return listed


#: Names of units that mean the same: those that stores of weather and climate have, and their CF spelling.
_SYNONYMS = {
    "K": ("kelvin", "kelvins", "degK", "deg_K", "degree_K", "degrees_K", "degreeK", "degreesK"),
    "degC": (
        *("celsius", "degrees_C", "degree_C", "deg_C", "degreeC", "degreesC", "DegC", "°C", "℃", "C"),
        *("degree_Celsius", "degrees_Celsius", "deg C", "degree C", "degrees C", "degree Celsius", "degrees Celsius"),
    ),
    "degF": ("fahrenheit", "degree_F", "degrees_F", "degreeF", "°F"),
    "degrees_north": ("degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"),
    "degrees_east": ("degree_east", "degree_E", "degrees_E", "degreeE", "degreesE"),
    "degree": ("degrees", "deg", "°"),
    "radian": ("radians", "rad"),
    "m": ("meter", "meters", "metre", "metres"),
    "km": ("kilometer", "kilometers", "kilometre", "kilometres"),
    "um": ("µm", "μm", "micron", "microns", "micrometer", "micrometers", "micrometre", "micrometres"),
    "mm": ("millimeter", "millimeters", "millimetre", "millimetres"),
    "cm": ("centimeter", "centimeters", "centimetre", "centimetres"),
    "W": ("watt", "watts"),
    "J": ("joule", "joules"),
    "g": ("gram", "grams"),
    "psu": ("PSU",),
    "count": ("counts",),
    "Pa": ("pascal", "pascals"),
    "hPa": ("hectopascal", "hectopascals", "millibar", "millibars", "mbar", "mb"),
    "s": ("second", "seconds", "sec"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours", "hr", "hrs"),
    "d": ("day", "days"),
    "kg": ("kilogram", "kilograms"),
    "%": ("percent",),
    "1": ("", "-", "~", "none", "dimensionless", "unitless", "(0 - 1)", "0-1", "1.0"),
}
_NORMAL = {other: name for name, others in _SYNONYMS.items() for other in others}
_NORMAL_LOWER = {other.lower(): name for other, name in _NORMAL.items()}
#: Names that are longer are the same in small letters; of shorter ones, "Mbar" and "mbar" are not.
_LONGEST_SYMBOL = 4
#: A factor of a product of units: a name, and its power.
_FACTOR = re.compile(r"([^\d\s*^/.+-]+)(?:\^|\*\*)?\s?([+-]?\d+)?")
#: A point between two factors.
_POINT = re.compile(r"(?<=\w)\.(?=[^\W\d_])")
_SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹·⋅", "-0123456789  ")


def normal_units(text: str) -> str:
    """Return units in one spelling: "m s**-1", "m/s" and "m s^-1" are "m s-1", "kelvin" is "K".

    Examples
    --------
    >>> [normal_units(one) for one in ("m s**-1", "m/s", "s-1 kg m-2", "Kelvin", "Pa", "kg/kg")]
    ['m s-1', 'm s-1', 'kg m-2 s-1', 'K', 'Pa', '1']
    """
    text = " ".join(text.split())
    known = _name(text)
    if known is not None:
        return known
    plain = _POINT.sub(" ", re.sub(r"\^\{([^{}]*)\}", r"^\1", text.translate(_SUPERSCRIPTS)))
    top, *below = (part.strip() for part in plain.split("/"))
    factors = _factors(top, 1)
    for part in below:
        more = _factors(part, -1)
        factors = None if factors is None or more is None or len(more) > 1 else [*factors, *more]
    if factors is None:
        return text
    powers: dict[str, int] = {}
    for name, power in factors:
        powers[name] = powers.get(name, 0) + power
    ordered = sorted(powers.items(), key=lambda one: (one[1] < 0, one[0]))
    return " ".join(name if power == 1 else f"{name}{power}" for name, power in ordered if power) or "1"


def _name(text: str) -> str | None:
    """Return the normal name of one of the units that have synonyms; None for all others."""
    if text in _SYNONYMS:
        return text
    return _NORMAL.get(text, _NORMAL_LOWER.get(text.lower()) if len(text) > _LONGEST_SYMBOL else None)


def _factors(text: str, sign: int) -> list[tuple[str, int]] | None:
    """Return the factors of a product, with their powers; None if it is no plain product."""
    if text == "1":
        return []
    found = []
    for part in text.replace("**", "^").replace(" ^", "^").replace("*", " ").split():
        match = _FACTOR.fullmatch(part)
        if match is None:
            return None
        found.append((_name(match[1]) or match[1], sign * int(match[2] or 1)))
    return found or None
