"""Inner chunks of shards in stores that only Python can read: indices are asked for once, neighbours together.

Invariant: everything here runs on zarr-python's event loop, and lives as long as one epoch. An index is one task;
whoever needs it awaits that task, so that a shard has at most one request for its index under way, and one in all as
long as the index is cached. A task of an index waits for the store alone, so nobody waits in a circle. An index that
could not be read is not cached.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest

from zarrfeed.base.errors import CorruptChunkError
from zarrfeed.base.native import core
from zarrfeed.spec.arrays.sharding import Piece, ShardReading, merge_pieces
from zarrfeed.storage.access.read_counts import ReadCounts

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: Begin and size of each inner chunk, int64 of shape (inner chunks, 2); begin -1: there is none. None: no such shard.
Index: TypeAlias = "npt.NDArray[np.int64] | None"
#: Reads a part of a stored object, named by its key below the array; None if there is no such object.
Get: TypeAlias = Callable[[str, ByteRequest], Coroutine[Any, Any, "Bytes | None"]]
#: Reads several byte ranges of one, as `ChunkReader.get_ranges` does.
GetRanges: TypeAlias = Callable[
    [str, "list[tuple[int, int | None]]"], Coroutine[Any, Any, "list[Bytes | CorruptChunkError | None]"]
]
#: Runs a coroutine as a task that ends with the epoch.
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]


class ShardReader:
    """Reads inner chunks of one array.

    Parameters
    ----------
    reading
        The form of the shards, and the rule by which inner chunks are read together.
    get, get_ranges, spawn
        Functions that read objects and parts of them, and that run tasks.
    counts
        Counters, which count the indices that are read.
    """

    def __init__(
        self, reading: ShardReading, get: Get, get_ranges: GetRanges, spawn: Spawn, counts: ReadCounts
    ) -> None:
        self._reading = reading
        self._get = get
        self._get_ranges = get_ranges
        self._spawn = spawn
        self._counts = counts
        self._capacity = max(1, reading.cache_bytes // reading.spec.cached_index_bytes)
        self._indices: OrderedDict[str, asyncio.Task[Index | BaseException]] = OrderedDict()

    async def index(self, key: str) -> Index:
        """Return the index of a shard.

        Raises
        ------
        CorruptChunkError
            If it is no index of such a shard. And whatever the store raises.
        """
        task = self._indices.get(key)
        if task is None:
            task = self._spawn(self._try_index(key))
            self._indices[key] = task
            while len(self._indices) > self._capacity:
                self._indices.popitem(last=False)  # those who await it hold it
        else:
            self._indices.move_to_end(key)
        found = await task
        if isinstance(found, BaseException):
            if self._indices.get(key) is task:
                del self._indices[key]
            raise found
        return found

    def plan(self, index: Index, wanted: list[tuple[int, int]]) -> tuple[list[int], list[list[Piece]]]:
        """Divide requests (id, position) for inner chunks of a shard: those that are missing, groups read together."""
        missing: list[int] = []
        pieces: list[Piece] = []
        for request_id, position in wanted:
            begin, size = (-1, 0) if index is None else (int(n) for n in index[position])
            if begin < 0:
                missing.append(request_id)
            else:
                pieces.append(Piece(begin, begin + size, request_id, position))
        return missing, merge_pieces(pieces, self._reading.coalesce)

    async def read(self, key: str, group: list[Piece]) -> Iterator[tuple[int, Bytes | None]]:
        """Read pieces of a shard at once; return (request id, bytes) of each. The bytes are views of what was read.

        Raises
        ------
        CorruptChunkError
            If the shard ends before them. And whatever the store raises.
        """
        parts = await self._get_ranges(key, [(piece.begin, piece.end) for piece in group])
        for piece, data in zip(group, parts, strict=True):
            if isinstance(data, CorruptChunkError):
                raise CorruptChunkError(f"{self.label(piece.position)}: {data}")
        return ((piece.request_id, cast("Bytes | None", data)) for piece, data in zip(group, parts, strict=True))

    def inner_name(self, position: int) -> str:
        """Return the index of an inner chunk in its shard, such as "3/0"."""
        return self._reading.spec.inner_chunk_name(position)

    def label(self, position: int) -> str:
        """Return the name of an inner chunk in messages, behind the key of its shard."""
        return f"inner chunk {self.inner_name(position)}"

    async def _try_index(self, key: str) -> Index | BaseException:
        """Return the index, or what was raised: an interrupt that leaves a task would end the loop."""
        try:
            return await self._read_index(key)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 (for those who wait, of whatever class)
            return error

    async def _read_index(self, key: str) -> Index:
        spec = self._reading.spec
        size = spec.stored_index_bytes
        stored = await self._get(key, RangeByteRequest(0, size) if spec.index_at_start else SuffixByteRequest(size))
        if stored is None:
            return None
        self._counts.indices_read += 1
        try:
            return core.parse_shard_index(spec.to_core(), stored)
        except CorruptChunkError as error:
            raise CorruptChunkError(f"shard index: {error}") from None
