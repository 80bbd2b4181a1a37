"""Sizes in bytes: from what users write, and as text for people."""

from __future__ import annotations

import math
import re

from zarrfeed.base.errors import ConfigError

#: Nobody has more, and two of it fit a signed number of 64 bits.
_MOST_BYTES = (1 << 62) - 1
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_bytes(value: int | str, name: str = "memory_budget", *, least: int = 1) -> int:
    """Return a number of bytes from an int, or from text such as "2GiB", "512 MB" or "1e9"; at most 4 EiB.

    Raises
    ------
    ConfigError
        If `value` is no size, or below `least`; `name` is the name of the size in the message.
    """
    text = str(value).strip()
    match = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)\s*([KMGT]?)(i?)B?", text, flags=re.IGNORECASE)
    try:
        if match is None:
            raise ValueError(text)
        unit = match[2].upper()
        size = int(float(match[1]) * (_UNITS[unit] if match[3] else _DECIMAL_UNITS[unit]))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f'{name} = {value!r}, must be bytes or text such as "2GiB"') from error
    if size < least:
        raise ConfigError(f"{name} = {value!r}, must be at least {least} byte{'s' * (least != 1)}")
    return min(size, _MOST_BYTES)


def format_bytes(n: float, *, round_up: bool = False) -> str:
    """Return a size as text with a binary unit and one decimal, rounded to the nearest or up."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            break
        n /= 1024
    digits = 0 if unit == "B" else 1
    return f"{math.ceil(n * 10**digits) / 10**digits if round_up else n:.{digits}f} {unit}"
