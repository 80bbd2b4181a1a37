"""Arrays in NumPy's files: their positions in an .npy or an .npz, and reading some of their samples.

Samples are read with `pread`: a file that is cut short meanwhile is an error, where mapped memory would end the
process. Only arrays whose samples lie scattered over the file are mapped. Members of a compressed .npz are decompressed
whole, and stay in memory.
"""

from __future__ import annotations

import errno
import math
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.base.units import format_bytes
from zarrfeed.storage.files.data_file import AnyFile, DataFile

_LOCAL_HEADER_BYTES = 30  # of a member of a ZIP archive, before its name
_MOST_AT_ONCE = 1 << 30  # Linux reads less than 2 GiB in one call


@dataclass(frozen=True)
class NpyArray:
    """An array in a file.

    Attributes
    ----------
    file, member
        The file, and the name of the member of an .npz; "" for an .npy.
    shape, dtype, fortran
        Shape, dtype and order of the items, from the header.
    offset
        Offset of the items in the file, in bytes.
    decompressed
        The array itself, if it had to be decompressed.
    """

    file: AnyFile
    member: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    decompressed: npt.NDArray[Any] | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.member!r}" if self.member else str(self.file)

    @property
    def num_bytes(self) -> int:
        """Bytes of its items."""
        return math.prod(self.shape) * self.dtype.itemsize

    def run_bytes(self, axis: int) -> int | None:
        """Return the bytes of a sample that lie together; None: all of them."""
        shape, axis = self._in_c_order(axis)
        if self.decompressed is not None or math.prod(shape[:axis]) == 1:
            return None
        return math.prod(shape[axis + 1 :]) * self.dtype.itemsize

    def rows(self, axis: int, begin: int, end: int) -> npt.NDArray[Any]:
        """Return the samples [begin, end), which are not written to."""
        if self.decompressed is not None:
            return np.moveaxis(self.decompressed, axis, 0)[begin:end]
        shape, c_axis = self._in_c_order(axis)
        if self.run_bytes(axis) is None:
            rows = np.empty((end - begin, *shape[:c_axis], *shape[c_axis + 1 :]), self.dtype)
            self._read_into(rows, self.offset + begin * (rows[:1].nbytes if end > begin else 0))
        else:
            mapped: npt.NDArray[Any] = np.memmap(self._local.path, self.dtype, "r", self.offset, shape)
            rows = np.array(np.moveaxis(mapped, c_axis, 0)[begin:end])
        return rows.transpose(0, *range(rows.ndim - 1, 0, -1)) if self.fortran else rows

    def whole(self) -> npt.NDArray[Any]:
        """Return all of the array, which is not written to."""
        if self.decompressed is not None:
            return self.decompressed
        items = np.empty(self.shape[::-1] if self.fortran else self.shape, self.dtype)
        self._read_into(items, self.offset)
        return items.T if self.fortran else items

    def _in_c_order(self, axis: int) -> tuple[tuple[int, ...], int]:
        """Return the shape, and the axis of samples of the array in C order whose items lie at the same offsets."""
        return (self.shape[::-1], len(self.shape) - 1 - axis) if self.fortran else (self.shape, axis)

    @property
    def _local(self) -> DataFile:
        assert isinstance(self.file, DataFile)  # the items of far files are read as chunks
        return self.file

    def _read_into(self, rows: npt.NDArray[Any], offset: int) -> None:
        left = rows.reshape(-1).view(np.uint8).data if rows.size else memoryview(b"")
        descriptor = os.open(self._local.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while len(left):
                count = os.preadv(descriptor, [left[:_MOST_AT_ONCE]], offset)
                if not count:
                    raise StoreReadError(errno.EIO, f"{self}: the file ends at byte {offset}, its array does not")
                left, offset = left[count:], offset + count
        finally:
            os.close(descriptor)


@contextmanager
def errors_of(file: AnyFile) -> Iterator[None]:
    """Make ConfigError of the errors of NumPy and zipfile, which are of any class on damaged files."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{file}: is no file of NumPy's, or a damaged one: {error}") from error


def arrays_in(file: AnyFile, wanted: tuple[str, ...] | None, max_decompressed_bytes: int) -> list[NpyArray]:
    """Return the array of an .npy, or the arrays of an .npz in the order of their names.

    Parameters
    ----------
    file
        A file of NumPy.
    wanted
        Members that are opened; None: all.
    max_decompressed_bytes
        Bytes that compressed members may have.

    Raises
    ------
    ConfigError
        If it is none of NumPy's files, is cut short, or has objects; or if decompressed members are too large.
    """
    with errors_of(file), file.open() as stream:
        if stream.read(2) == b"PK":
            return _members(file, wanted, max_decompressed_bytes)
        stream.seek(0)
        return [_array(file, "", stream, 0, file.size)]


def _array(file: AnyFile, member: str, stream: IO[bytes], begin: int, size: int) -> NpyArray:
    """Return the array whose .npy lies in `size` bytes from `begin` on; the stream stands there."""
    version = npy_format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ConfigError(f"{file}: {member} has the version {version} of the format: save it without names of items")
    read_header = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    array = NpyArray(file, member, shape, dtype, fortran and len(shape) > 1, stream.tell())
    if dtype.hasobject:
        raise ConfigError(f"{array}: holds Python objects, which only unpickling could read: save numbers or text")
    if array.offset + array.num_bytes > begin + size:
        raise ConfigError(f"{array}: ends before its {array.num_bytes} bytes of items do: copy the file again")
    return array


def _members(file: AnyFile, wanted: tuple[str, ...] | None, max_decompressed_bytes: int) -> list[NpyArray]:
    arrays = []
    with file.open() as stream, zipfile.ZipFile(stream) as archive:
        for member in sorted(archive.infolist(), key=lambda one: one.filename):
            name = member.filename.removesuffix(".npy")
            if name == member.filename or (wanted is not None and name not in wanted):
                continue
            if member.compress_type == zipfile.ZIP_STORED:
                stream.seek(member.header_offset)
                header = stream.read(_LOCAL_HEADER_BYTES)
                lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
                begin = stream.seek(member.header_offset + _LOCAL_HEADER_BYTES + lengths)
                arrays.append(_array(file, name, stream, begin, member.file_size))
                continue
            max_decompressed_bytes -= member.file_size
            if max_decompressed_bytes < 0:
                raise ConfigError(
                    f"{file}: {name!r} is compressed and would need {format_bytes(member.file_size)} of memory, more "
                    "than compressed members may have: save them with numpy.savez, or as .npy files"
                )
            with archive.open(member) as packed:
                items = npy_format.read_array(packed, allow_pickle=False)
            items.flags.writeable = False
            arrays.append(NpyArray(file, name, items.shape, items.dtype, False, 0, items))
    return arrays
