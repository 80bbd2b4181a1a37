"""Index files: the metadata and the chunk tables of a file, kept so that nobody has to list its chunks again.

An index has a magic number, a header in JSON, and columns of integers that the header names with their CRC-32.
Invariants: an index is believed only if its source has the size and the time that it had when the index was made, and
each column only if its checksum is right. A beside index (`x.nc.index` beside `x.nc`) is believed only if this user,
root or the owner of the source wrote it. In any other case the source is read as if there were no index.
"""

from __future__ import annotations

import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.atomic_file import write_whole
from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, StaleMetadataWarning, ZarrfeedError, printable
from zarrfeed.base.own_files import open_side_file
from zarrfeed.storage.files.chunk_table import ChunkTable
from zarrfeed.storage.files.data_file import AnyFile, DataFile, FarFile
from zarrfeed.storage.files.hdf5 import read_stored_values
from zarrfeed.storage.files.references import names_of
from zarrfeed.storage.files.table_store import TableStore
from zarrfeed.storage.files.tiff import read_values

#: Opens a file of any format that is read in place, without an index.
OpenFile = Callable[[Path], TableStore]

SUFFIX = ".index"
_MAGIC = b"zarrfeed index 1"
#: Bytes of the header, and their CRC-32; the columns begin at the next multiple of 8.
_HEAD = struct.Struct("<16sQI")
_MOST_HEADER_BYTES = 1 << 30
_COLUMNS = {"numbers": "<i8", "offsets": "<i8", "lengths": "<i8", "file_indices": "<i4", "unfiltered": "<i8"}
_BYTES = "in_memory"
#: Format -> what decodes chunks by its library.
_READ_VALUES = {"HDF5": read_stored_values, "TIFF": read_values}


class _DamagedError(Exception):
    """An index that does not have what it says."""


def is_index(path: Path) -> bool:
    """Return whether a file is an index, by its content.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def write_index(store: TableStore, path: Path) -> int:
    """Write the index of a file, whole or not at all; return its number of chunks.

    Raises
    ------
    ConfigError, StoreReadError, UnsupportedError
        If the chunks of an array cannot be listed.
    OSError
        If the index cannot be written.
    """
    assert store.file is not None
    columns, tables, chunks = _Columns(), {}, 0
    for name in store.array_paths:
        if not store.is_by_library(name):
            table = store.table(name)
            tables[name] = _described(table, store.file, columns)
            chunks += len(table.offsets)
    header = json.dumps(
        {
            "source": _file_entry(store.file),
            "format": store.file_format,
            "is_zarr": store.is_zarr,
            "documents": {key: content.decode("utf-8", "surrogateescape") for key, content in store.documents.items()},
            "refused": store.refused,
            "by_library": [name for name in store.array_paths if store.is_by_library(name)],
            "tables": tables,
        }
    ).encode()
    begin = b"".join([_HEAD.pack(_MAGIC, len(header), zlib.crc32(header)), header])
    write_whole(path, b"".join([begin, bytes(-len(begin) % 8), *columns.parts]))
    return chunks


def open_index(path: Path, open_source: OpenFile) -> TableStore:
    """Return the file that an index is of as a store; opened without the index, with a warning, if it has changed.

    A far file is not asked for: whoever reaches its store compares the version.

    Raises
    ------
    ConfigError
        If the index is damaged; names it.
    ConfigError, StoreReadError, UnsupportedError
        If the source cannot be read.
    OSError
        If there is no source any more.
    """
    try:
        with path.open("rb") as file:
            index = _Index.read(file, path)
        source = index.source
        if isinstance(source, FarFile):
            return index.store(source, open_source)
        near = source.path if source.path.exists() else path.parent / source.path.name
        store = index.store_unless_older(near, open_source)
    except _DamagedError as error:
        raise ConfigError(f"{printable(path)}: the index is damaged ({error}); make it anew: zarrfeed index") from error
    return store or open_source(near)


def open_beside(source: Path, open_source: OpenFile) -> TableStore | None:
    """Return a file as a store by the index beside it; None if there is none that can be believed.

    Raises
    ------
    OSError
        If the source cannot be read.
    """
    path = beside(source)
    if not os.path.lexists(path):
        return None
    try:
        with open_side_file(path, source.stat().st_uid, may_write=False) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return None  # a file of another program
            index = _Index.read(file, path)
        return index.store_unless_older(source, open_source)
    except (_DamagedError, ConfigError, OSError) as error:
        _warn(f"{printable(path)}: the index is not used ({error})")
        return None


def beside(source: Path) -> Path:
    """Return the path of the index beside a file."""
    return source.with_name(source.name + SUFFIX)


@dataclass(frozen=True)
class IndexTables:
    """Finds the chunks of an array by an index, or else in the source; can be pickled.

    Attributes
    ----------
    index
        The index as it was when it was opened.
    begin
        First byte of the columns.
    tables
        Path of an array -> the description of its table.
    open_source
        Opens the source without the index.
    """

    index: DataFile
    begin: int
    tables: Mapping[str, Any]
    open_source: OpenFile

    def __call__(self, file: AnyFile, path: str) -> ChunkTable:
        """Return the table of the array at a path.

        Raises
        ------
        ConfigError
            If the index is damaged, or gone, and its file is far.
        StoreReadError
            As in `TableStore.table`.
        """
        try:
            with self.index.path.open("rb") as opened:
                self.index.check(os.fstat(opened.fileno()))
                return self._table(opened, self.tables[path], file)
        except (_DamagedError, ZarrfeedError, OSError, KeyError, TypeError, ValueError, OverflowError) as error:
            if isinstance(file, FarFile):
                raise ConfigError(f"{self.index}: the index cannot be used ({error}); open {file}") from error
            _warn(f"{self.index}: the index is not used for {printable(path)} ({error}); the chunks are listed anew")
        assert isinstance(file, DataFile)
        return self.open_source(file.path).table(path)

    def _table(self, opened: IO[bytes], entry: Mapping[str, Any], source: AnyFile) -> ChunkTable:
        files = tuple(source if one is None else _file_of(one) for one in entry["files"])
        for one in files:
            if isinstance(one, DataFile):
                one.check()
        columns = {name: self._column(opened, name, one) for name, one in entry["columns"].items()}
        grid, unfiltered = tuple(map(int, entry["grid"])), columns.pop("unfiltered", np.empty(0, np.int64))
        stored = columns["numbers"] if "numbers" in columns else np.arange(np.prod(grid, dtype=np.int64))
        if {len(stored)} != {len(one) for name, one in columns.items() if name != _BYTES}:
            raise _DamagedError("columns differ in length")
        in_memory = columns.pop(_BYTES, np.empty(0, np.uint8)).tobytes()
        table = ChunkTable(
            files,
            f"{source}{entry['name']}",
            grid,
            columns.get("numbers"),
            columns["offsets"],
            columns["lengths"],
            columns.get("file_indices"),
            int(entry["padded_bytes"]),
            in_memory,
            frozenset(unfiltered.tolist()),
        )
        return table.checked()

    def _column(self, opened: IO[bytes], name: str, entry: Any) -> npt.NDArray[Any]:
        offset, size, checksum = entry
        opened.seek(self.begin + offset)
        found = opened.read(size)
        if len(found) != size or zlib.crc32(found) != checksum:
            raise _DamagedError(f"the checksum of {name} is wrong")
        return np.frombuffer(found, _COLUMNS.get(name, "u1"))


@contextmanager
def _as_damaged() -> Iterator[None]:
    """Make _DamagedError of the errors of a header whose values are not those of an index."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _DamagedError(f"the header is not that of an index: {error!r}") from error


@dataclass(frozen=True)
class _Index:
    """The header of an index."""

    file: DataFile
    begin: int
    header: Mapping[str, Any]

    @classmethod
    def read(cls, file: IO[bytes], path: Path) -> _Index:
        """Read a header. Raises _DamagedError."""
        file.seek(0)
        head = file.read(_HEAD.size)
        status = os.fstat(file.fileno())
        if len(head) < _HEAD.size:
            raise _DamagedError("it is too short")
        _, size, checksum = _HEAD.unpack(head)
        content = file.read(min(size, _MOST_HEADER_BYTES))
        if len(content) != size or zlib.crc32(content) != checksum:
            raise _DamagedError("the checksum of the header is wrong")
        try:
            header = parse_json(content)
        except ValueError as error:
            raise _DamagedError(f"the header is no JSON: {error}") from error
        begin = _HEAD.size + size
        return cls(DataFile.as_in(path.absolute(), status), begin + -begin % 8, header)

    @property
    @_as_damaged()
    def source(self) -> AnyFile:
        """The file when the index was made."""
        return _file_of(self.header["source"])

    @_as_damaged()
    def store_unless_older(self, source: Path, open_source: OpenFile) -> TableStore | None:
        """Return the file at a path as a store; None, with a warning, if it is not the file that the index is of."""
        file = DataFile.of(source.absolute())
        if [file.size, file.mtime_ns] != self.header["source"][1:]:
            warn_of_age(self.file, file)
            return None
        return self.store(file, open_source)

    @_as_damaged()
    def store(self, file: AnyFile, open_source: OpenFile) -> TableStore:
        """Return a file as a store by this index, which is of it."""
        header = self.header
        tables = IndexTables(self.file, self.begin, header["tables"], open_source)
        values = _READ_VALUES.get(header["format"])
        store = TableStore(file, header["format"], tables, is_zarr=header["is_zarr"], read_values=values)
        documents = {key: text.encode("utf-8", "surrogateescape") for key, text in header["documents"].items()}
        names = names_of(documents)
        for key, content in documents.items():
            path = key.rpartition("/")[0]
            store.add_document(key, content, names.get(path), by_library=path in header["by_library"])
        store.refused.update(header["refused"])
        return store


class _Columns:
    """The columns of an index, one after the other."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._end = 0

    def add(self, content: bytes) -> tuple[int, int, int]:
        """Add a column; return its offset, its bytes and its CRC-32."""
        begin, padded = self._end, content + bytes(-len(content) % 8)
        self.parts.append(padded)
        self._end += len(padded)
        return begin, len(content), zlib.crc32(content)


def _described(table: ChunkTable, source: AnyFile, columns: _Columns) -> dict[str, Any]:
    return {
        "name": table.name.removeprefix(str(source)),
        "grid": table.grid,
        "files": [None if one == source else _file_entry(one) for one in table.files],
        "padded_bytes": table.padded_bytes,
        "columns": {name: columns.add(content) for name, content in _columns_of(table)},
    }


def _columns_of(table: ChunkTable) -> Iterator[tuple[str, bytes]]:
    unfiltered = np.array(sorted(table.unfiltered), np.int64) if table.unfiltered else None
    for name, kind in _COLUMNS.items():
        values = unfiltered if name == "unfiltered" else getattr(table, name)
        if values is not None:
            yield name, np.asarray(values, kind).tobytes()
    if table.in_memory:
        yield _BYTES, table.in_memory


def _file_entry(file: AnyFile) -> list[Any]:
    if isinstance(file, FarFile):
        return [file.url, file.size, file.tag]
    return [str(file.path), file.size, file.mtime_ns]


def _file_of(entry: list[Any]) -> AnyFile:
    name, size, version = entry
    return FarFile(name, size, version) if isinstance(version, str) else DataFile(Path(name), size, version)


def warn_of_age(index: object, file: AnyFile) -> None:
    """Warn that a file has changed since its index was made."""
    _warn(f"{index}: the index is older than {file}: chunks are listed anew; run zarrfeed index again")


def _warn(text: str) -> None:
    warnings.warn(text, StaleMetadataWarning, stacklevel=2)
