"""The names that attributes of an array give to its integers: categories of what was packed, CF's flags, classes.

Sources: the CF conventions, section 3.5 (`flag_values`, `flag_meanings`); `zarrfeed.pack` writes `names` for
dictionaries of Parquet, and `classes` for folders of images, since flag_meanings have no blanks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def code_names(attributes: Mapping[str, Any]) -> dict[int, str] | None:
    """Return the name of each integer code that an array holds; None if its attributes have no names, or contradict.

    >>> code_names({"flag_values": [1, 4], "flag_meanings": "water ice"})
    {1: 'water', 4: 'ice'}
    """
    meanings = attributes.get("flag_meanings")
    words = meanings.split() if isinstance(meanings, str) else None
    names = attributes.get("classes", attributes.get("names", words))
    if not isinstance(names, list | tuple) or not names or not all(isinstance(one, str) for one in names):
        return None
    codes = attributes.get("flag_values", None if names is words else range(len(names)))
    if not isinstance(codes, list | tuple | range) or len(codes) != len(names):
        return None
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in codes):
        return None
    found = dict(zip(map(int, codes), names, strict=True))
    return found if len(found) == len(names) == len({*names}) else None
