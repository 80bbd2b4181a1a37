"""`ChunkTable`: where in files each chunk of an array lies.

Invariant: every chunk lies inside of its file, as large as the file was when the table was made. A chunk without an
entry was never written. cpp/spec/chunk_table.h has the same table for the engine.
"""

from __future__ import annotations

import errno
import hashlib
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
from zarrfeed.storage.files.data_file import UNKNOWN_BYTES, AnyFile, DataFile, FarFile

Int64: TypeAlias = npt.NDArray[np.int64]

#: In place of the number of a file: the chunk lies in memory.
IN_MEMORY = -1
#: In place of a length: the chunk is all of an object that is far.
WHOLE = -1

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
    """A run of bytes in a file, by the number of the file in the table."""

    offset: int
    length: int
    file_index: int


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """The chunks of one array in files.

    Attributes
    ----------
    files
        The files as they were when the table was made.
    name
        The name of the array in messages.
    grid
        Chunks along each axis.
    numbers
        Numbers of the chunks that are stored, in C order of the grid, ascending. None: all chunks are stored.
    offsets, lengths
        First byte and bytes of each stored chunk in its file.
    file_indices
        Number of the file of each stored chunk, or `IN_MEMORY`. None: the first file has all of them.
    padded_bytes
        Bytes that every chunk has for its readers: zeros follow where the file has fewer. 0: as many as in the file.
    unfiltered
        Offsets of the chunks that lie in the file without all of their filters.
    in_memory
        The bytes of the chunks that lie in memory, such as those that HDF5 keeps among its metadata.
    """

    files: tuple[AnyFile, ...]
    name: str
    grid: tuple[int, ...]
    numbers: Int64 | None
    offsets: Int64
    lengths: Int64
    file_indices: npt.NDArray[np.int32] | None = None
    padded_bytes: int = 0
    in_memory: bytes = field(default=b"", repr=False)
    unfiltered: frozenset[int] = frozenset()

    @classmethod
    def of_chunks(cls, file: AnyFile, name: str, grid: tuple[int, ...], numbers: Int64, extents: Int64) -> ChunkTable:
        """Return the table of stored chunks in any order, as `numbers` and rows (offset, length)."""
        return cls.of_files((file,), name, grid, numbers, extents)

    @classmethod
    def of_files(
        cls,
        files: Sequence[AnyFile],
        name: str,
        grid: tuple[int, ...],
        numbers: Int64,
        extents: Int64,
        file_indices: npt.NDArray[np.int32] | None = None,
        in_memory: bytes = b"",
        padded_bytes: int = 0,
    ) -> ChunkTable:
        """Return a table of chunks in several files and in memory; `file_indices` has the file of each chunk."""
        order = np.argsort(numbers, kind="stable")
        numbers, extents = numbers[order], extents[order]
        if np.any(np.diff(numbers) == 0) or (len(numbers) and not 0 <= numbers[0] <= numbers[-1] < math.prod(grid)):
            raise ConfigError(f"{name}: the file lists a chunk twice, or outside of the array")
        offsets, lengths = (np.ascontiguousarray(column) for column in extents.reshape(-1, 2).T)
        found = None if len(numbers) == math.prod(grid) else numbers
        found_files = None if file_indices is None or not np.any(file_indices) else file_indices[order]
        table = cls(tuple(files), name, grid, found, offsets, lengths, found_files, padded_bytes, in_memory)
        return table.checked()

    @classmethod
    def without_chunks(cls, file: AnyFile, name: str, grid: tuple[int, ...]) -> ChunkTable:
        """Return the table of an array of which nothing was ever written."""
        nothing = np.empty(0, np.int64)
        return cls((file,), name, grid, nothing, nothing, nothing)

    @classmethod
    def of_rows(
        cls, file: AnyFile, name: str, shape: Sequence[int], item_bytes: int, offset: int, inline: bytes | None = None
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
        file_indices = None if inline is None else np.full(len(offsets), IN_MEMORY, np.int32)
        return cls((file,), name, grid, None, offsets, lengths, file_indices, rows * row_bytes, inline or b"").checked()

    def checked(self) -> ChunkTable:
        """Return the table, unless a chunk lies outside of the file.

        Raises
        ------
        StoreReadError
            If so; names the file and the array.
        """
        limits = [(WHOLE if one.size == UNKNOWN_BYTES else 0, one.size) for one in self.files]
        least, sizes = np.array([*limits, (0, len(self.in_memory))], np.int64).T  # IN_MEMORY is the last one
        at = 0 if self.file_indices is None else self.file_indices
        outside = (self.offsets < 0) | (self.lengths < least[at]) | (self.offsets > sizes[at] - self.lengths)
        if np.any(outside):
            one = int(np.argmax(outside))
            file_index = 0 if self.file_indices is None else int(self.file_indices[one])
            file = (
                ""
                if file_index == IN_MEMORY or self.name.startswith(str(self.files[file_index]))
                else f" {self.files[file_index]}"
            )
            raise StoreReadError(
                errno.EINVAL,
                f"{self.name}: chunk {self._index(one)} is said to have {self.lengths[one]} bytes from byte "
                f"{self.offsets[one]} on, the file{file} has {sizes[file_index]} bytes: it is damaged or incomplete",
            )
        return self

    def _index(self, stored: int) -> tuple[int, ...]:
        number = stored if self.numbers is None else int(self.numbers[stored])
        return tuple(int(n) for n in np.unravel_index(number, self.grid)) if self.grid else ()

    @cached_property
    def core(self) -> core.ChunkTable:
        """The table in the form that the engine takes; all engines of a process share it."""
        return core.ChunkTable(
            files=[one.to_core() for one in self.files],
            in_memory=self.in_memory,
            grid=self.grid,
            numbers=np.empty(0, np.int64) if self.numbers is None else self.numbers,
            offsets=self.offsets,
            lengths=self.lengths,
            file_indices=() if self.file_indices is None else self.file_indices.tolist(),
            padded_bytes=self.padded_bytes,
        )

    @cached_property
    def digest(self) -> str:
        """The identity of the table: of all that it says, the sizes and the times of its files included."""
        columns = [self.numbers, self.offsets, self.lengths, self.file_indices]
        said = [
            repr((self.files, self.grid, self.padded_bytes, sorted(self.unfiltered))).encode(),
            *(b"" if column is None else column.tobytes() for column in columns),
            self.in_memory,
        ]
        digests = [hashlib.blake2b(one, digest_size=16).digest() for one in said]
        return hashlib.blake2b(b"".join(digests), digest_size=16).hexdigest()

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
        file_index = 0 if self.file_indices is None else int(self.file_indices[number])
        return Extent(int(self.offsets[number]), int(self.lengths[number]), file_index)

    @property
    def far_files(self) -> list[FarFile]:
        """The objects in object stores that chunks lie in."""
        return [file for file in self.files if isinstance(file, FarFile)]

    def far_file_of(self, extent: Extent) -> FarFile | None:
        """Return the object that a chunk lies in; None if it lies in a local file, or in memory."""
        file = None if extent.file_index == IN_MEMORY else self.files[extent.file_index]
        return file if isinstance(file, FarFile) else None

    @property
    def stored_bytes(self) -> int:
        """Bytes of all chunks that are stored, without those of objects that are one chunk."""
        return int(np.maximum(self.lengths, 0).sum())

    def read(self, extent: Extent) -> bytes:
        """Return bytes that are not far.

        Raises
        ------
        OSError
            If the file is gone, or cannot be read; `StoreReadError` if it has changed since the table was made.
        """
        if extent.file_index == IN_MEMORY:
            return self.in_memory[extent.offset : extent.offset + extent.length]
        near = self.files[extent.file_index]
        assert isinstance(near, DataFile)
        with near.path.open("rb", buffering=0) as file:
            near.check(os.fstat(file.fileno()))
            return self._read_all(file, extent)

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
