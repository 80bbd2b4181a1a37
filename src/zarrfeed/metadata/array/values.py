"""The numbers of a small array that describes others: where rows begin, what codes stand for, where segments end.

Invariant: the fill value of such an array is never taken for its data where that contradicts what the array is for. A
chunk may be absent because it was lost, or because its writer left out a chunk that holds the fill value alone, as
zarr-python does. The callers know what contradicts: `find_absent` tells them which numbers are not in the store.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import StoreReadError, printable
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.access.zarr_internals import fill_of, with_fill
from zarrfeed.storage.chunks.codec_configs import as_meant


def read_values(array: zarr.Array[Any]) -> npt.NDArray[Any]:
    """Return the numbers of an array.

    Raises
    ------
    StoreReadError
        If it cannot be read.
    ConfigError
        If the configuration of a codec contradicts the dtype.
    """
    return _read(as_meant(array), slice(None))


def read_stored(array: zarr.Array[Any]) -> npt.NDArray[Any]:
    """Return the numbers of an array with one axis, all chunks of which have to be in the store.

    Raises
    ------
    StoreReadError
        If it cannot be read, or lacks a chunk.
    """
    values = read_values(array)
    absent = find_absent(array, values)
    if absent.any():
        raise absent_error(array, absent, "its fill value is no data there; give the numbers themselves")
    return values


def read_distinct(array: zarr.Array[Any]) -> npt.NDArray[Any]:
    """Return the values of an array with one axis, in which none occurs twice, such as names of categories.

    Raises
    ------
    StoreReadError
        If it cannot be read, or the fill value of a chunk that the store lacks occurs twice.
    """
    values = read_values(array)
    refuse_repeated_fill(array, values)
    return values


def refuse_repeated_fill(array: zarr.Array[Any], values: npt.NDArray[Any]) -> None:
    """Raise StoreReadError if chunks that the store lacks make distinct values repeat; `values` are as stored."""
    absent = find_absent(array, values)
    if absent.any() and np.count_nonzero(_is_fill(values, fill_of(array))) > 1:
        raise absent_error(array, absent, "its fill value would stand for several different ones")


def find_absent(array: zarr.Array[Any], values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return True for each number of an array that is in no stored chunk, and so is its fill value; shape (items,).

    Parameters
    ----------
    array
        An array with one axis.
    values
        The result of `read_values` for it. Nothing is read again unless a whole chunk holds the fill value alone.

    Raises
    ------
    StoreReadError
        If it cannot be read.
    """
    is_fill = _is_fill(values, fill_of(array))
    if array.ndim != 1 or not is_fill.any():
        return np.zeros(values.shape, np.bool_)
    begins = np.arange(0, len(values), array.chunks[0])
    if not np.logical_and.reduceat(is_fill, begins).any():
        return np.zeros(values.shape, np.bool_)
    again = _read(with_fill(as_meant(array), _other(fill_of(array), values.dtype)), slice(None))
    absent: npt.NDArray[np.bool_] = is_fill & ~_is_fill(again, fill_of(array))
    return absent


def absent_error(array: zarr.Array[Any], absent: npt.NDArray[np.bool_], why: str) -> StoreReadError:
    """Return the error for an array whose missing chunks are missed."""
    first = int(np.argmax(absent)) // int(array.chunks[0])
    name = node_name(array)
    return StoreReadError(errno.ENOENT, f"{name}: chunk {first} is missing from the store, and {why}")


def read_slice(array: zarr.Array[Any], begin: int, end: int) -> npt.NDArray[Any]:
    """Return some numbers of an array with one axis.

    Raises
    ------
    StoreReadError
        If they cannot be read.
    """
    return _read(as_meant(array), slice(begin, end))


def _read(array: zarr.Array[Any], some: slice) -> npt.NDArray[Any]:
    try:
        return np.asarray(array[some] if array.ndim else array[...])
    except Exception as error:  # what zarr-python's stores and codecs raise is of any class
        name = printable(array.store_path)
        raise StoreReadError(errno_of(error), f"{name}: cannot be read: {reason_of(error)}") from error


def _is_fill(values: npt.NDArray[Any], fill: Any) -> npt.NDArray[np.bool_]:
    with np.errstate(all="ignore"):
        is_fill = np.asarray(values == fill)
    if fill != fill:  # NaN, or not-a-time
        is_fill = np.asarray(values != values)
    return np.broadcast_to(is_fill, values.shape).astype(np.bool_)


def _other(fill: Any, dtype: np.dtype[Any]) -> Any:
    """Return a value of a dtype that is not the fill value."""
    if isinstance(fill, str | bytes):
        return fill[:0] if fill else b"x" if isinstance(fill, bytes) else "x"
    return np.array(fill == np.zeros((), dtype)).astype(np.int8).astype(dtype)[()]
