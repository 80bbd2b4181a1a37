"""Objects of other libraries: files of h5py and netCDF4 as paths, and arrays that NumPy maps as stores.

Invariant: nothing is read through the objects of the other libraries. Their files are opened anew.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.storage.files.chunk_table import ChunkTable, chunks_of_rows
from zarrfeed.storage.files.data_file import DataFile
from zarrfeed.storage.files.table_store import TableStore, array_document, plain_dtype


def path_of_opened(source: Any) -> str | None:
    """Return the path of a file, a group or an array of h5py or netCDF4, such as "x.h5/data/x"; None of anything else.

    Raises
    ------
    ConfigError
        If the file was closed.
    """
    library = type(source).__module__.partition(".")[0]
    if library == "h5py" and hasattr(source, "name"):
        if not source:
            raise ConfigError(f"got {source!r}: give the path of the file, or close it later")
        return f"{source.file.filename}{source.name}".rstrip("/")
    if library == "netCDF4":
        group, name = (source, "") if hasattr(source, "filepath") else (source.group(), source.name)
        return f"{group.filepath()}{group.path.rstrip('/')}/{name}".rstrip("/")
    return None


def remedy_for(source: Any) -> str:
    """Return how to name the content of an object that is not read, to end a message; "" if nothing is known.

    >>> remedy_for(iter(["a.nc"])), remedy_for(b"a.nc")
    ('; give several stores as a list: list(...)', "; give the path as text, 'a.nc'")
    """
    if isinstance(source, bytes):
        return f"; give the path as text, {os.fsdecode(source)!r}"
    of_tiff = getattr(source, "filehandle", None)  # of tifffile
    path = next(_paths_of(source if of_tiff is None else of_tiff), None)
    if path is not None:
        return f"; give the path of the file, {str(path)!r}"
    if type(source).__module__.partition(".")[0] == "anndata":
        return "; write it once, adata.write_zarr('cells.zarr'), and open that: variables=['X', 'obs/cell_type']"
    if isinstance(source, io.IOBase):
        return "; write the bytes to a file, and give its path"
    return "; give several stores as a list: list(...)" if isinstance(source, Iterator | Set) else ""


def _paths_of(source: Any) -> Iterator[str | Path]:
    """Yield the path of an open file, as objects of Python, fsspec, tifffile and AnnData have it."""
    for name in ("path", "filename", "name"):
        found = getattr(source, name, None)
        if isinstance(found, str | Path) and Path(found).is_file():
            yield found


def open_mapped(source: Any) -> TableStore | None:
    """Return an array that NumPy maps from a file as a store; None if it is none, or may be written to.

    A part of such an array is one, too, as long as it lies in one piece.
    """
    if type(source) is not np.memmap or source.mode != "r" or source.filename is None or not source.size:
        return None
    try:
        is_plain = plain_dtype(source.dtype).itemsize == source.dtype.itemsize
    except UnsupportedError:
        return None
    if not (is_plain and source.flags.c_contiguous and source.ndim):
        return None
    mapped = np.frombuffer(source._mmap, np.uint8)  # type: ignore[attr-defined]  # noqa: SLF001 - NumPy has no other way
    begin = source.offset - source.offset % mmap.ALLOCATIONGRANULARITY
    offset = begin + source.ctypes.data - mapped.ctypes.data
    table = partial(_rows, shape=source.shape, item_bytes=source.dtype.itemsize, offset=offset)
    store = TableStore(DataFile.of(Path(source.filename).absolute()), "NumPy", table)
    chunks = chunks_of_rows(source.shape, source.dtype.itemsize)
    store.add_array("", array_document(source.shape, chunks, source.dtype), {})
    return store


def _rows(file: DataFile, path: str, *, shape: Sequence[int], item_bytes: int, offset: int) -> ChunkTable:  # noqa: ARG001
    return ChunkTable.of_rows(file, str(file), shape, item_bytes, offset)
