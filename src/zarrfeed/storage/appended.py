"""How a store says that an `Appender` writes it: by an attribute of each array, which readers trust.

What holds: the length of an array with the mark covers complete samples only.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zarr

#: Attribute of arrays, {"appender": 1, "store": str, "disposable": bool}.
ATTRIBUTE = "zarrfeed"


@dataclass(frozen=True)
class Marks:
    """What a store says of itself: which one it is, and whether its oldest samples may be deleted."""

    store: str
    disposable: bool


def new_marks(*, disposable: bool) -> dict[str, dict[str, Any]]:
    """Return the attributes of a store that an `Appender` begins to write."""
    return {ATTRIBUTE: {"appender": 1, "store": secrets.token_hex(8), "disposable": disposable}}


def marks_of(array: zarr.Array[Any]) -> Marks | None:
    """Return what an array that an `Appender` writes says; None for any other array."""
    marks = array.attrs.asdict().get(ATTRIBUTE)
    if not isinstance(marks, Mapping) or marks.get("appender") != 1:
        return None
    return Marks(str(marks.get("store")), disposable=marks.get("disposable") is True)
