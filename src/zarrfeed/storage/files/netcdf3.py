"""NetCDF files of the classic formats (CDF-1, CDF-2, CDF-5) as a `TableStore`.

The format: https://docs.unidata.ucar.edu/nug/current/file_format_specifications.html. A variable lies in one piece, in
C order and big-endian; or it has the record dimension, and each of its records is a piece. Invariant: a header that
lies is an error that names the file, and never a read outside of it.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from zarrfeed.base.errors import StoreReadError
from zarrfeed.base.json_attributes import json_attributes
from zarrfeed.storage.files.chunk_table import ChunkTable, chunk_grid, chunks_of_rows
from zarrfeed.storage.files.data_file import AnyFile, FarFile, file_of
from zarrfeed.storage.files.table_store import TableStore, array_document

_T = TypeVar("_T")
#: Version of the format -> bytes of a count, and of an offset.
_VERSIONS = {1: (4, 4), 2: (4, 8), 5: (8, 8)}
_DIMENSION, _VARIABLE, _ATTRIBUTE = 10, 11, 12
_DTYPES = {
    1: "i1", 2: "S1", 3: ">i2", 4: ">i4", 5: ">f4", 6: ">f8",
    7: "u1", 8: ">u2", 9: ">u4", 10: ">i8", 11: ">u8",
}  # fmt: skip
#: Bytes of a record that one variable has in it begin at a multiple of this, unless it is the only one.
_ALIGNMENT = 4


@dataclass(frozen=True)
class _Variable:
    """A variable as the header has it: its dimensions by number, and its first byte."""

    name: str
    dims: tuple[int, ...]
    attributes: dict[str, Any]
    dtype: np.dtype[Any]
    begin: int


@dataclass(frozen=True)
class _Header:
    """The header of a file: its dimensions, attributes and variables.

    Attributes
    ----------
    dims
        Names and sizes; the record dimension has the size 0.
    records
        Records of the file; None: as many as fit into it, as a program says that still writes.
    """

    dims: list[tuple[str, int]]
    attributes: dict[str, Any]
    variables: list[_Variable]
    records: int | None

    def is_record(self, variable: _Variable) -> bool:
        """Return whether a variable has the record dimension."""
        return bool(variable.dims) and self.dims[variable.dims[0]][1] == 0

    def row_bytes(self, variable: _Variable) -> int:
        """Return the bytes of one record of a variable, or of all of it if it has no records."""
        dims = variable.dims[1:] if self.is_record(variable) else variable.dims
        return variable.dtype.itemsize * math.prod(self.dims[dim][1] for dim in dims)

    @cached_property
    def record_bytes(self) -> int:
        """Bytes from the beginning of one record of the file to that of the next one."""
        sizes = [self.row_bytes(one) for one in self.variables if self.is_record(one)]
        return sizes[0] if len(sizes) == 1 else sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

    def shape(self, variable: _Variable, file: AnyFile) -> tuple[int, ...]:
        """Return the shape of a variable; StoreReadError if the file has less."""
        shape = tuple(self.dims[dim][1] for dim in variable.dims)
        stride, row = self.record_bytes, self.row_bytes(variable)
        if self.is_record(variable):
            fit = (file.size - variable.begin - row) // stride + 1 if stride else 0
            shape = (max(0, fit) if self.records is None else self.records, *shape[1:])
        end = variable.begin + (row + (shape[0] - 1) * stride if self.is_record(variable) else row)
        if 0 not in shape and end > file.size:
            raise _damaged(file, f"{variable.name!r} ends at byte {end}, and the file at byte {file.size}")
        return shape


class _Reader:
    """Reads the header of a file, whose numbers are big-endian."""

    def __init__(self, file: AnyFile, stream: IO[bytes]) -> None:
        self._file, self._stream = file, stream
        magic = self._bytes(4)
        if magic[:3] != b"CDF" or magic[3] not in _VERSIONS:
            raise _damaged(file, f"it begins with {magic!r}")
        self._count_bytes, self._offset_bytes = _VERSIONS[magic[3]]

    def header(self) -> _Header:
        streaming = (1 << 8 * self._count_bytes) - 1
        records = self._count()
        dims = self._list(_DIMENSION, lambda: (self._name(), self._count()))
        attributes = self._attributes()
        variables = self._list(_VARIABLE, lambda: self._variable(dims))
        names = [one.name for one in variables]
        if len(set(names)) < len(names) or any(set("/\\") & set(name) or not name.strip(".") for name in names):
            raise _damaged(self._file, f"its variables have the names {names}")
        return _Header(dims, attributes, variables, None if records == streaming else records)

    def _variable(self, dims: list[tuple[str, int]]) -> _Variable:
        name = self._name()
        numbers = tuple(self._count() for _ in range(self._count()))
        attributes, dtype = self._attributes(), self._dtype()
        self._count()  # its bytes, which files over 4 GiB do not say rightly
        begin = self._int(self._offset_bytes)
        if any(number >= len(dims) for number in numbers) or any(dims[number][1] == 0 for number in numbers[1:]):
            raise _damaged(self._file, f"{name!r} has dimensions {numbers}")
        if dtype.kind == "S" and numbers and dims[numbers[-1]][1]:  # characters along their last dimension are text
            numbers, dtype = numbers[:-1], np.dtype(f"S{dims[numbers[-1]][1]}")
        return _Variable(name, numbers, attributes, dtype, begin)

    def _attributes(self) -> dict[str, Any]:
        return dict(self._list(_ATTRIBUTE, lambda: (self._name(), self._values())))

    def _values(self) -> Any:
        dtype, count = self._dtype(), self._count()
        stored = self._padded(dtype.itemsize * count)
        if dtype.kind == "S":
            return stored.rstrip(b"\0")
        values = np.frombuffer(stored, dtype)
        return values[0] if count == 1 else values

    def _list(self, tag: int, read: Callable[[], _T]) -> list[_T]:
        found, count = self._int(4), self._count()
        if found not in (tag, 0) or (found == 0 and count):
            raise _damaged(self._file, f"a list has the tag {found} in place of {tag}")
        return [read() for _ in range(count)]

    def _dtype(self) -> np.dtype[Any]:
        number = self._int(4)
        if number not in _DTYPES:
            raise _damaged(self._file, f"there is no type {number}")
        return np.dtype(_DTYPES[number])

    def _name(self) -> str:
        name = self._padded(self._count())
        try:
            return name.decode()
        except UnicodeDecodeError as error:
            raise _damaged(self._file, f"{name!r} is no name") from error

    def _padded(self, length: int) -> bytes:
        return self._bytes(-(-length // _ALIGNMENT) * _ALIGNMENT)[:length]

    def _count(self) -> int:
        return self._int(self._count_bytes)

    def _int(self, length: int) -> int:
        return int.from_bytes(self._bytes(length), "big")

    def _bytes(self, length: int) -> bytes:
        if length > self._file.size - self._stream.tell():  # before there is memory for them
            raise _damaged(self._file, "its header reaches beyond its end")
        return self._stream.read(length)


def is_netcdf3(path: Path | FarFile) -> bool:
    """Return whether a file is a NetCDF file of a classic format, by its content.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    return magic[:3] == b"CDF" and magic[3:] in map(bytes, ([one] for one in _VERSIONS))


def open_netcdf3(path: Path | FarFile) -> TableStore:
    """Return a NetCDF file of a classic format as a store.

    Raises
    ------
    StoreReadError
        If it is damaged, or incomplete.
    """
    file = file_of(path)
    header = _read_header(file)
    store = TableStore(file, "NetCDF", read_table)
    store.add_group("", json_attributes(header.attributes))
    for one in header.variables:
        shape = header.shape(one, file)
        chunks = chunks_of_rows(shape, one.dtype.itemsize) if _is_one_piece(header, one) else (1, *shape[1:])
        names = [header.dims[dim][0] for dim in one.dims]
        document = array_document(shape, chunks, one.dtype)
        store.add_array(one.name, document, {**json_attributes(one.attributes), "_ARRAY_DIMENSIONS": names})
    return store


def read_table(file: AnyFile, path: str) -> ChunkTable:
    """Return where the rows or the records of a variable lie in a file.

    Raises
    ------
    StoreReadError
        If the file is damaged.
    """
    header = _read_header(file)
    one = next(variable for variable in header.variables if variable.name == path)
    shape, name = header.shape(one, file), f"{file}/{path}"
    if _is_one_piece(header, one):
        return ChunkTable.of_rows(file, name, shape, one.dtype.itemsize, one.begin)
    numbers = np.arange(shape[0] if 0 not in shape else 0, dtype=np.int64)
    extents = np.stack([one.begin + numbers * header.record_bytes, np.full_like(numbers, header.row_bytes(one))], 1)
    return ChunkTable.of_chunks(file, name, chunk_grid(shape, (1, *shape[1:])), numbers, extents)


def _is_one_piece(header: _Header, variable: _Variable) -> bool:
    return not header.is_record(variable) or header.record_bytes == header.row_bytes(variable)


def _read_header(file: AnyFile) -> _Header:
    with file.open() as stream:
        return _Reader(file, stream).header()


def _damaged(file: AnyFile, what: str) -> StoreReadError:
    return StoreReadError(errno.EINVAL, f"{file}: is no NetCDF file, or a damaged or incomplete one: {what}")
