"""FITS files as programs of astronomy write them, made by hand: astropy is no requirement of the tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_BLOCK_BYTES = 2880
_BITS = {"u1": 8, "i2": 16, "i4": 32, "i8": 64, "f4": -32, "f8": -64}
_FORMS = {"u1": "B", "i2": "I", "i4": "J", "i8": "K", "f4": "E", "f8": "D", "c8": "C", "c16": "M"}


def header(cards: dict[str, Any]) -> bytes:
    """Return a header with keywords and their values."""
    lines = [f"{keyword:<8}= {_value(value):>20} / of {keyword}" for keyword, value in cards.items()]
    text = "".join(f"{line:<80}" for line in [*lines, "COMMENT a card without a value", "END"])
    return _padded(text.encode(), b" ")


def image(values: npt.NDArray[Any], *, primary: bool = False, **cards: Any) -> bytes:
    """Return a unit with an image of integers or floats, as they are."""
    begin: dict[str, Any] = {"SIMPLE": True} if primary else {"XTENSION": "IMAGE"}
    sizes = {f"NAXIS{axis}": size for axis, size in enumerate(reversed(values.shape), 1)}
    dtype = values.dtype.newbyteorder(">")
    begin |= {"BITPIX": _BITS[values.dtype.str[1:]], "NAXIS": values.ndim, **sizes}
    begin |= {} if primary else {"PCOUNT": 0, "GCOUNT": 1}
    return header(begin | cards) + _padded(values.astype(dtype).tobytes(), b"\0")


def table(rows: npt.NDArray[Any], heap: bytes = b"", **cards: Any) -> bytes:
    """Return a unit with a binary table of records; `cards` replace those of the columns."""
    made: dict[str, Any] = {}
    members = []
    for number, name in enumerate(rows.dtype.names or (), 1):
        base, shape = rows.dtype[name].base, rows.dtype[name].shape
        count = int(np.prod(shape, dtype=int))
        form = f"{base.itemsize}A" if base.kind == "S" else f"{count}{_FORMS[base.str[1:]]}"
        made |= {f"TTYPE{number}": name, f"TFORM{number}": form}
        if len(shape) > 1:
            made[f"TDIM{number}"] = f"({','.join(map(str, reversed(shape)))})"
        members.append((name, base.newbyteorder(">"), shape))
    packed = rows.astype(members)
    begin = {"XTENSION": "BINTABLE", "BITPIX": 8, "NAXIS": 2, "NAXIS1": packed.itemsize, "NAXIS2": len(rows)}
    begin |= {"PCOUNT": len(heap), "GCOUNT": 1, "TFIELDS": len(members)}
    return header(begin | made | cards) + _padded(packed.tobytes() + heap, b"\0")


def no_image() -> bytes:
    """Return the primary unit of a file that has its data in extensions."""
    return header({"SIMPLE": True, "BITPIX": 8, "NAXIS": 0, "EXTEND": True})


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, str):
        quoted = value.replace("'", "''")
        return f"'{quoted:<8}'"
    return repr(value)


def _padded(content: bytes, by: bytes) -> bytes:
    return content + by * (-len(content) % _BLOCK_BYTES)
