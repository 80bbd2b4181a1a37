"""Files of NumPy arrays as a `TableStore`: an .npy is an array, an .npz a group of its members.

Invariant: the items of an array lie in one piece, in C order, as the header of its .npy says. Other arrays, and
members of an .npz that are compressed, are refused by name.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from numpy.lib.format import MAGIC_PREFIX

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.storage.files.chunk_table import ChunkTable, chunks_of_rows
from zarrfeed.storage.files.data_file import AnyFile, FarFile, file_of
from zarrfeed.storage.files.npy_arrays import NpyArray, arrays_in, errors_of
from zarrfeed.storage.files.table_store import PACK, TableStore, array_document, plain_dtype


def is_npy(path: Path | FarFile) -> bool:
    """Return whether a file is an .npy, by its content, or an .npz, by its name and content.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    return _is_one_array(path) or (str(path).lower().endswith(".npz") and _is_archive(path))


def open_npy(path: Path | FarFile) -> TableStore:
    """Return an .npy or an .npz as a store.

    Raises
    ------
    ConfigError
        If it is damaged, or cut short.
    UnsupportedError
        If the array of an .npy cannot be read in place; says why.
    """
    file = file_of(path)
    store = TableStore(file, "NumPy", read_table)
    if _is_one_array(path):
        (array,) = arrays_in(file, None, 0)
        _add(store, "", array)
        store.check_readable("")
        return store
    store.add_group("", {})
    with errors_of(file), path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
    stored = [_name(one) for one in members if one.compress_type == zipfile.ZIP_STORED]
    for name in (_name(one) for one in members if _name(one) not in stored):
        store.refused[name] = f"is compressed; numpy.savez writes members that are read in place{PACK}"
    for array in arrays_in(file, tuple(stored), 0):
        store.add_groups_above(array.member)
        _add(store, array.member, array)
    return store


def read_table(file: AnyFile, path: str) -> ChunkTable:
    """Return where the rows of an array lie: of an .npy, or of the member of an .npz at a path."""
    (array,) = arrays_in(file, (path,), 0)
    name = f"{file}/{path}" if path else str(file)
    return ChunkTable.of_rows(file, name, array.shape, array.dtype.itemsize, array.offset)


def _is_one_array(path: Path | FarFile) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX


def _is_archive(path: Path | FarFile) -> bool:
    with path.open("rb") as file:
        return zipfile.is_zipfile(file)


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _add(store: TableStore, path: str, array: NpyArray) -> None:
    try:
        if plain_dtype(array.dtype).itemsize != array.dtype.itemsize:
            raise UnsupportedError(f"its items have gaps between their members: {array.dtype}{PACK}")
        if array.fortran:
            raise UnsupportedError(f"lies in Fortran order, so that its rows lie in no piece{PACK}")
    except UnsupportedError as error:
        store.refused[path] = str(error)
        return
    chunks = chunks_of_rows(array.shape, array.dtype.itemsize)
    store.add_array(path, array_document(array.shape, chunks, array.dtype), {})
