"""Stored dtypes -> dtypes of batches: one of torch's, numbers where nothing is lost, lists, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import UnsupportedError

#: The dtypes that tensors of stored items can have, as NumPy (and ml_dtypes) name them; torch has the same names.
TENSOR_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class Items:
    """The form in which an array's items become numbers.

    Attributes
    ----------
    dtype
        Dtype of the numbers, in native byte order; torch has it.
    shape
        Axes that an item has of its own, behind those of the array: empty, or its length in bytes.
    swap_bytes
        0 if stored in native byte order, else the width in bytes of the units to reverse.
    record
        The structured dtype of records, whose bytes `dtype` and `shape` describe; else None.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    swap_bytes: int = 0
    record: np.dtype[Any] | None = None


def item_bytes(name: str) -> int:
    """Return the bytes of one number of a dtype of `TENSOR_DTYPES`."""
    return 2 if name == "bfloat16" else np.dtype(name).itemsize


def encode_item(name: str, value: float) -> bytes:
    """Return the bytes of one number of a dtype of `TENSOR_DTYPES`.

    Raises
    ------
    ValueError
        If the dtype cannot hold the value.
    """
    if name == "bfloat16":
        return encode_bfloat16(np.array(value, np.float32)).tobytes()
    dtype = np.dtype(name)
    if dtype.kind in "iub" and (value != value or int(value) != value or dtype.type(int(value)) != value):
        raise ValueError(f"{value} is no {name}")
    return np.array(int(value) if dtype.kind in "iub" else value, dtype).tobytes()


def encode_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bits of numbers in bfloat16: the upper half of a float32, rounded to nearest, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def decode_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the numbers that bits of bfloat16 stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def dlpack_dtype(name: str, item_bytes: int) -> tuple[int, int]:
    """Return DLPack's description of a dtype: the code of its kind, and the bits of a number.

    Codes: https://dmlc.github.io/dlpack/latest/c_api.html, DLDataTypeCode.
    """
    codes = {"bool": 6, "complex": 5, "bfloat": 4, "float": 2, "int": 0}
    return codes.get(name.rstrip("0123456789"), 1), 8 * item_bytes


def read_items(dtype: np.dtype[Any], *, swapped: bool, name: str) -> Items:
    """Say how items of a stored dtype become numbers.

    Times and time differences become int64, in their own unit, and not-a-time the least int64. Fixed-length bytes
    become uint8 with a last axis over the bytes of an item, padding included; so do records, whose members may have
    any dtype that an array may have, and a shape.

    Parameters
    ----------
    dtype
        Dtype of the bytes that are delivered. Its byte order matters for records alone.
    swapped
        True if items are stored in the byte order that is not this machine's.
    name
        Name of the array in messages.

    Raises
    ------
    UnsupportedError
        For items that are no numbers; the message says what to do.
    """
    native = dtype if dtype.kind == "T" else dtype.newbyteorder("=")  # strings of any length have no byte order
    if native.kind in "Mm":
        native = np.dtype(np.int64)
    if native.name in TENSOR_DTYPES:
        unit = native.itemsize // 2 if native.kind == "c" else native.itemsize
        return Items(native, swap_bytes=unit if swapped and unit > 1 else 0)
    if native.kind in "SV" and native.subdtype is None and native.itemsize:
        if dtype.names is not None:
            _check_members(dtype, swapped=swapped, name=name)
        return Items(np.dtype(np.uint8), (native.itemsize,), record=dtype if dtype.names is not None else None)
    raise UnsupportedError(
        f"{name}: dtype {dtype} has no torch equivalent{': it holds Python objects' * dtype.hasobject}"
    )


def read_fill(value: Any, dtype: np.dtype[Any], items: Items) -> bytes:
    """Return one item of the fill value, in native byte order; a record as its bytes are delivered.

    A fill value whose bytes are all equal is returned as one byte.
    """
    native = dtype.newbyteorder("=") if items.record is None else items.record
    if value is None:  # v2's null: zarr-python reads times as not-a-time, all else as zero
        value = np.array("NaT", native) if native.kind in "Mm" else np.zeros((), native)
    fill = np.asarray(value).astype(native).tobytes()
    return fill[:1] if items.shape and len(set(fill)) == 1 else fill


def _check_members(record: np.dtype[Any], *, swapped: bool, name: str) -> None:
    """Raise UnsupportedError for records whose members cannot be told apart, or have no dtype of torch."""
    if swapped:  # zarr-python wrote such records in little-endian order at first
        raise UnsupportedError(f"{name}: records with the byte order big in the codec `bytes` are not supported")
    assert record.fields is not None
    for member, (dtype, *_) in record.fields.items():
        base = dtype.base
        if base.names is not None:
            raise UnsupportedError(
                f"{name}: the member {member!r} of its records is a record itself, which is not supported; "
                "store it as an array of its own, and pass the arrays as a mapping"
            )
        read_items(base, swapped=False, name=f"{name}: the member {member!r} of its records")
