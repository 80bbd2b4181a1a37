"""`open_file`: a file of another format than Zarr as a store, by its content."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary
from zipfile import is_zipfile

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.storage.files.data_file import DataFile, FarFile
from zarrfeed.storage.files.file_index import beside, is_index, open_beside, open_index
from zarrfeed.storage.files.fits import is_fits, open_fits
from zarrfeed.storage.files.hdf5 import is_hdf5, open_hdf5
from zarrfeed.storage.files.netcdf3 import is_netcdf3, open_netcdf3
from zarrfeed.storage.files.npy import is_npy, open_npy
from zarrfeed.storage.files.reference_folder import is_reference_folder, open_reference_folder
from zarrfeed.storage.files.references import is_references, open_references
from zarrfeed.storage.files.table_store import TableStore
from zarrfeed.storage.files.tiff import is_tiff, open_tiff

#: The formats that are read in place: whether a file is of one, and what opens it.
_FORMATS: tuple[tuple[Callable[[Path | FarFile], bool], Callable[[Path | FarFile], TableStore]], ...] = (
    (is_npy, open_npy),
    (is_netcdf3, open_netcdf3),
    (is_hdf5, open_hdf5),
    (is_tiff, open_tiff),
    (is_fits, open_fits),
    (is_references, open_references),
)

#: Files that something reads, as they were opened: a list of many groups of a file lists the file once.
_IN_USE: WeakValueDictionary[tuple[DataFile, DataFile | None], TableStore] = WeakValueDictionary()
#: A file that was written to within this time may be written to again, and have the same time of change.
_SETTLED_NS = 2 * 10**9


def is_read_in_place(path: Path) -> bool:
    """Return whether a file is of a format that `open_file` reads.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    return is_index(path) or any(is_one(path) for is_one, _ in _FORMATS)


def are_references(path: Path) -> bool:
    """Return whether a file or a folder has references to parts of other files.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    return is_reference_folder(path) if path.is_dir() else is_references(path)


def open_file(path: Path) -> TableStore | None:
    """Return a file, or a folder of references, as a store; None if it is of no format that is read in place.

    A file is opened by the index beside it, if there is one; and an index stands for its file.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        If it is damaged, or what reads it is not installed.
    OSError
        If it cannot be read.
    """
    if path.is_dir():
        return open_reference_folder(path) if is_reference_folder(path) else None
    if is_index(path):
        return open_index(path, open_without_index)
    state = _state_of(path)
    store = _IN_USE.get(state)
    if store is None:
        store = open_beside(path, open_without_index) or open_by_format(path)
        if store is not None and not store.is_zarr and time.time_ns() - state[0].mtime_ns > _SETTLED_NS:
            _IN_USE[state] = store
    return store


def _state_of(path: Path) -> tuple[DataFile, DataFile | None]:
    """Return a file, and the index beside it, as they are now."""
    file = DataFile.of(path.absolute())
    try:
        return file, DataFile.of(beside(file.path))
    except OSError:
        return file, None


def open_without_index(path: Path) -> TableStore:
    """Return a file as a store, whatever index there is. Raises as `open_file`, and ConfigError for other formats."""
    store = open_by_format(path)
    if store is None:
        what = "is no file of a format that is read in place"
        if is_zipfile(path):
            what = "is a zip archive, which needs no index: it lists its members itself"
        raise ConfigError(f"{printable(path)}: {what}")
    return store


def open_by_format(source: Path | FarFile) -> TableStore | None:
    """Return a file, also one behind a URL, as a store, whatever index there is; None for other formats.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        As in `open_file`.
    """
    return next((open_one(source) for is_one, open_one in _FORMATS if is_one(source)), None)
