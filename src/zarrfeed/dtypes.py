"""Stored dtypes -> what batches hold: what torch has, numbers where nothing is lost, lists, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from zarr.dtype import FixedLengthUTF32, VariableLengthBytes, VariableLengthUTF8, ZDType

from zarrfeed.errors import UnsupportedError

#: The dtypes that tensors of stored items can have, as NumPy (and ml_dtypes) name them; torch has the same names.
TENSOR_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class Items:
    """How the items of an array become numbers.

    Attributes
    ----------
    dtype
        Of the numbers, in native byte order; one that torch has.
    shape
        Axes that an item has of its own, behind those of the array: empty, or its length in bytes.
    swap_bytes
        0 if stored in native byte order, else the width in bytes of the units to reverse.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    swap_bytes: int = 0


def item_bytes(name: str) -> int:
    """Return the bytes of one number of a dtype of `TENSOR_DTYPES`."""
    return 2 if name == "bfloat16" else np.dtype(name).itemsize


def list_item_type(dtype: ZDType[Any, Any]) -> str:
    """Return "str" or "bytes" if items are Python objects of that type, of which batches have lists; else ""."""
    if isinstance(dtype, VariableLengthUTF8 | FixedLengthUTF32):
        return "str"
    return "bytes" if isinstance(dtype, VariableLengthBytes) else ""


def read_items(dtype: np.dtype[Any], *, swapped: bool, name: str) -> Items:
    """Say how items of a stored dtype become numbers.

    Times and time differences become int64, in their own unit, and not-a-time the least int64. Fixed-length bytes
    become uint8 with a last axis over the bytes of an item, padding included.

    Parameters
    ----------
    dtype
        As zarr-python has it.
    swapped
        Whether items are stored in the byte order that is not this machine's.
    name
        What messages call the array.

    Raises
    ------
    UnsupportedError
        For items that are no numbers, such as structures; the message says what to do.
    """
    native = dtype if dtype.kind == "T" else dtype.newbyteorder("=")  # strings of any length have no byte order
    if native.kind in "Mm":
        native = np.dtype(np.int64)
    if native.name in TENSOR_DTYPES:
        unit = native.itemsize // 2 if native.kind == "c" else native.itemsize
        return Items(native, swap_bytes=unit if swapped and unit > 1 else 0)
    if native.kind in "SV" and native.names is None and native.subdtype is None and native.itemsize:
        return Items(np.dtype(np.uint8), (native.itemsize,))
    raise UnsupportedError(f"{name}: dtype {dtype} has no torch equivalent{_advice(native)}")


def read_fill(value: Any, dtype: np.dtype[Any], items: Items, name: str) -> bytes:
    """Return one number of the fill value, in native byte order.

    Raises
    ------
    UnsupportedError
        For fixed-length bytes that differ: a chunk that is missing is filled number by number.
    """
    native = dtype.newbyteorder("=")
    if value is None:  # v2's null: zarr-python reads times as not-a-time, all else as zero
        value = native.type("NaT") if native.kind in "Mm" else np.zeros((), native)
    fill = np.asarray(value).astype(native).tobytes()
    if not items.shape:
        return fill
    if len(set(fill)) > 1:
        raise UnsupportedError(f"{name}: fill value {value!r} of bytes, must be empty or one byte repeated")
    return fill[:1]


def _advice(dtype: np.dtype[Any]) -> str:
    if dtype.names is not None:
        fields = ", ".join(dtype.names)
        return f": it is a structure of the fields {fields}; store each as an array, and pass these as a mapping"
    if dtype.kind == "O":
        return ": it holds Python objects"
    return ""
