"""Arrays of a source that say where the values of others belong: the columns of sparse rows, where rows begin.

Invariant: chunks of such an array that a store lacks are never packed as data, unless its writer may have left them
out. HDF5 allots every chunk that is written, so it leaves none out; zarr-python leaves out chunks that hold the fill
value alone.
"""

from __future__ import annotations

import errno
import math
from typing import Any, TypeGuard

import numpy as np
import zarr

from zarrfeed.base.errors import StoreReadError
from zarrfeed.packing.sources.source import Int64, Rows
from zarrfeed.spec.fields.sparse import absent_marker, marked_fill
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.zarr_internals import fill_of, with_fill
from zarrfeed.storage.chunks.codec_configs import as_meant


def is_zarr(node: object) -> TypeGuard[zarr.Array[Any]]:
    """Return whether this is an array of Zarr, and not one of HDF5."""
    return isinstance(node, zarr.Array)


def check_whole(dataset: Any, where: str) -> None:
    """Raise StoreReadError if an HDF5 dataset lacks chunks, in whose place h5py returns the fill value."""
    if not dataset.size or dataset.is_virtual or dataset.external:  # which are in other files
        return
    if dataset.chunks is None:
        is_whole = dataset.id.get_storage_size() > 0
    else:
        count = math.prod(-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
        is_whole = dataset.id.get_num_chunks() == count
    if not is_whole:
        raise StoreReadError(errno.ENOENT, f"{where} was not written to its end: the file lacks some of it")


def read_columns(indices: Any, begins: Int64, num_columns: int) -> Rows:
    """Return the columns of the elements of some rows.

    Parameters
    ----------
    indices
        The array of columns, in Zarr or HDF5.
    begins
        The first element of each row, and the end of the last one.
    num_columns
        Columns of the matrix.

    Raises
    ------
    StoreReadError
        If the store lacks several columns of one row, which would all be the fill value.
    """
    elements = slice(int(begins[0]), int(begins[-1]))
    if not is_zarr(indices):
        return np.asarray(indices[elements])
    dtype = np.dtype(indices.dtype)
    marker = absent_marker(int(fill_of(indices)), dtype, num_columns)
    columns = np.asarray(with_fill(as_meant(indices), marker)[elements])
    absent = columns == marker
    if 0 <= marker < num_columns or not absent.any():  # all numbers of the dtype are columns, or nothing is absent
        return columns
    of_row = np.diff(np.concatenate(([0], np.cumsum(absent)))[begins - begins[0]])
    if of_row.max() > 1:
        name = node_name(indices)
        chunk = (elements.start + int(np.argmax(absent))) // int(indices.chunks[0])
        raise StoreReadError(
            errno.ENOENT, f"{name}: chunk {chunk} is missing from the store, and says which columns values have"
        )
    columns[absent] = marked_fill(marker, dtype, num_columns)
    return columns
