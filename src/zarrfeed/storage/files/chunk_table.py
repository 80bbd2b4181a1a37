"""`ChunkTable`: where in a file each chunk of an array lies.

Invariant: every chunk lies inside of the file, as large as the file was when the table was made. A chunk without an
entry was never written. cpp/spec/chunk_table.h has the same table for the engine.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import FileIO
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.base.native import core
from zarrfeed.storage.files.data_file import DataFile

Int64: TypeAlias = npt.NDArray[np.int64]

#: An array that lies in a file in one piece is read in chunks of about so many bytes.
_CHUNK_BYTES = 1 << 20


def chunk_grid(shape: Sequence[int], chunks: Sequence[int]) -> tuple[int, ...]:
    """Return the chunks along each axis."""
    return tuple(-(-n // max(1, c)) for n, c in zip(shape, chunks, strict=True))


def chunks_of_rows(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Return the shape of the chunks in which an array is read that lies in a file in one piece: some rows each.

    Their number is a power of two, so that the chunks of arrays whose rows differ in size lie in each other.
    """
    if not shape:
        return ()
    rows = _CHUNK_BYTES // max(1, item_bytes * math.prod(shape[1:]))
    return min(_power_of_two(max(1, rows)), _power_of_two(2 * shape[0] - 1)), *shape[1:]


def _power_of_two(most: int) -> int:
    """Return the largest power of two that is at most a number.

    >>> [_power_of_two(n) for n in (1, 3, 4)]
    [1, 2, 4]
    """
    return 1 << (max(1, most).bit_length() - 1)


class Extent(NamedTuple):
    """A run of bytes in a file."""

    offset: int
    length: int


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """The chunks of one array in one file.

    Attributes
    ----------
    file
        The file as it was when the table was made.
    name
        The name of the array in messages.
    grid
        Chunks along each axis.
    numbers
        Numbers of the chunks that are stored, in C order of the grid, ascending. None: all chunks are stored.
    offsets, lengths
        First byte and bytes of each stored chunk in the file.
    padded_bytes
        Bytes that every chunk has for its readers: zeros follow where the file has fewer. 0: as many as in the file.
    inline
        The bytes of the only chunk, where HDF5 keeps them among its metadata; `offsets` counts in them then.
    unfiltered
        Offsets of the chunks that lie in the file without all of their filters.
    """

    file: DataFile
    name: str
    grid: tuple[int, ...]
    numbers: Int64 | None
    offsets: Int64
    lengths: Int64
    padded_bytes: int = 0
    inline: bytes | None = field(default=None, repr=False)
    unfiltered: frozenset[int] = frozenset()

    @classmethod
    def of_chunks(cls, file: DataFile, name: str, grid: tuple[int, ...], numbers: Int64, extents: Int64) -> ChunkTable:
        """Return the table of stored chunks in any order, as `numbers` and rows (offset, length)."""
        order = np.argsort(numbers, kind="stable")
        numbers, extents = numbers[order], extents[order]
        if np.any(np.diff(numbers) == 0) or (len(numbers) and not 0 <= numbers[0] <= numbers[-1] < math.prod(grid)):
            raise ConfigError(f"{name}: the file lists a chunk twice, or outside of the array")
        offsets, lengths = (np.ascontiguousarray(column) for column in extents.reshape(-1, 2).T)
        is_full = len(numbers) == math.prod(grid)
        return cls(file, name, grid, None if is_full else numbers, offsets, lengths).checked()

    @classmethod
    def without_chunks(cls, file: DataFile, name: str, grid: tuple[int, ...]) -> ChunkTable:
        """Return the table of an array of which nothing was ever written."""
        return cls(file, name, grid, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def of_rows(
        cls, file: DataFile, name: str, shape: Sequence[int], item_bytes: int, offset: int, inline: bytes | None = None
    ) -> ChunkTable:
        """Return the table of an array that lies in one piece, in C order, from `offset` on, in chunks of rows."""
        chunks = chunks_of_rows(shape, item_bytes)
        length, rows = (shape[0], chunks[0]) if shape else (1, 1)
        row_bytes, grid = item_bytes * math.prod(shape[1:]), chunk_grid(shape, chunks)
        if not row_bytes * length:
            return cls.without_chunks(file, name, grid)
        firsts = np.arange(0, length, rows, dtype=np.int64)
        lengths = (np.minimum(firsts + rows, length) - firsts) * row_bytes
        offsets = offset + firsts * row_bytes
        return cls(file, name, grid, None, offsets, lengths, rows * row_bytes, inline).checked()

    def checked(self) -> ChunkTable:
        """Return the table, unless a chunk lies outside of the file.

        Raises
        ------
        StoreReadError
            If so; names the file and the array.
        """
        size = self.file.size if self.inline is None else len(self.inline)
        outside = (self.offsets < 0) | (self.lengths < 0) | (self.offsets > size - self.lengths)
        if np.any(outside):
            one = int(np.argmax(outside))
            raise StoreReadError(
                errno.EINVAL,
                f"{self.name}: chunk {self._index(one)} is said to have {self.lengths[one]} bytes from byte "
                f"{self.offsets[one]} on, the file has {size} bytes: it is damaged or incomplete",
            )
        return self

    def _index(self, stored: int) -> tuple[int, ...]:
        number = stored if self.numbers is None else int(self.numbers[stored])
        return tuple(int(n) for n in np.unravel_index(number, self.grid)) if self.grid else ()

    @cached_property
    def core(self) -> core.ChunkTable:
        """The table in the form that the engine takes; all engines of a process share it."""
        return core.ChunkTable(
            path=os.fsencode(self.file.path),
            file_bytes=self.file.size,
            modified_ns=self.file.mtime_ns,
            grid=self.grid,
            numbers=np.empty(0, np.int64) if self.numbers is None else self.numbers,
            offsets=self.offsets,
            lengths=self.lengths,
            padded_bytes=self.padded_bytes,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "core"}

    def find(self, index: Sequence[int]) -> Extent | None:
        """Return where a chunk lies; None if it was never written, or there is no such chunk."""
        number = 0
        for one, count in zip(index, self.grid, strict=True):
            if one >= count:
                return None
            number = number * count + one
        if self.numbers is not None:
            at = int(np.searchsorted(self.numbers, number))
            if at == len(self.numbers) or self.numbers[at] != number:
                return None
            number = at
        return Extent(int(self.offsets[number]), int(self.lengths[number]))

    def read(self, extent: Extent) -> bytes:
        """Return the bytes of a chunk, padded.

        Raises
        ------
        OSError
            If the file is gone, or cannot be read; `StoreReadError` if it has changed since the table was made.
        """
        if self.inline is not None:
            self.file.check()
            found = self.inline[extent.offset : extent.offset + extent.length]
        else:
            with self.file.path.open("rb", buffering=0) as file:
                self.file.check(os.fstat(file.fileno()))
                found = self._read_all(file, extent)
        return found.ljust(self.padded_bytes, b"\0")

    def _read_all(self, file: FileIO, extent: Extent) -> bytes:
        found = bytearray(extent.length)
        room = memoryview(found)
        file.seek(extent.offset)
        while room:  # the system reads 2 GiB at once at most
            count = file.readinto(room)
            if not count:
                raise StoreReadError(errno.EINVAL, f"{self.name}: the file ended while it was read")
            room = room[count:]
        return bytes(found)
