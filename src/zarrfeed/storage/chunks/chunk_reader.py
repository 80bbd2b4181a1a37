"""`ChunkReader`: the chunks of one array in a store that Python reads.

Every reader of such a store goes through it: the bridge to the engine, variable-length data, and `verify`. It alone
knows how chunk indices become keys, that a read is tried again, how long a read may take, how shards are indexed, and
what an error of a store says. Everything here runs on zarr-python's event loop.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest

from zarrfeed.base.errors import CorruptChunkError, DecodeError, StoreReadError
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.sharding import ShardReading
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.access.retry import FailedAttempt, reading, retrying
from zarrfeed.storage.access.store_errors import errno_of, reason_of, says_no_permission
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.parted_source import cached_reads
from zarrfeed.storage.chunks.shard_reader import ShardReader, Spawn

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: First byte and end of bytes of an object, as in a slice.
ByteRange: TypeAlias = tuple[int, int | None]

_FORBIDDEN = (
    "; if the server answers so for chunks that were never written, storage_options={'forbidden_is_missing': True} "
    "reads them as the fill value"
)


class ChunkReader:
    """Reads the chunks of one array.

    Parameters
    ----------
    source
        The location of the chunks.
    policy
        The number of retries, and the timeout of a read.
    counts
        Counts requests, retries and indices.
    sharding
        The reading of shards; None: each chunk is an object of its own.
    spawn
        Runs a coroutine as a task that ends with the reader. None: a task of the event loop.
    is_watched
        True if somebody else ends the wait for a read that takes longer than the timeout, as the engine does.
    caches_all
        True if chunks that the engine decodes go through the node cache here, too. The engine itself reads them through
        its own.
    """

    def __init__(
        self,
        source: StoreSource,
        policy: Faults,
        counts: ReadCounts,
        *,
        sharding: ShardReading | None = None,
        spawn: Spawn | None = None,
        is_watched: bool = False,
        caches_all: bool = False,
    ) -> None:
        self.source = source
        self._policy = policy
        self._counts = counts
        self._is_watched = is_watched
        self._cached = cached_reads(source, counts.cache, all_chunks=caches_all)
        self.shards = None
        if sharding is not None:
            self.shards = ShardReader(sharding, self.get, self.get_ranges, spawn or asyncio.create_task, counts)

    async def get(
        self, key: str, byte_range: ByteRequest | None = None, failed: FailedAttempt | None = None
    ) -> Bytes | None:
        """Return a stored object below the array, or a byte range of it; None if the array lacks the object.

        `failed` is the first attempt, if it was made elsewhere.

        Raises
        ------
        StoreReadError
            If the last attempt failed, or the timeout is over. And whatever the store raises.
        """
        if self._cached is None:
            return await self._fetch(key, byte_range, failed)

        async def fetch(_: list[ByteRange]) -> list[Bytes | None]:
            return [await self._fetch(key, byte_range, failed)]

        (data,) = await self._cached.get(key, [_range_of(byte_range)], fetch)
        assert not isinstance(data, CorruptChunkError)
        return data

    async def _fetch(
        self, key: str, byte_range: ByteRequest | None, failed: FailedAttempt | None = None
    ) -> Bytes | None:
        """Like `get`, from the store alone."""

        def read() -> Awaitable[Bytes | None]:
            self._counts.on_request()
            return self.source.get(key, byte_range, at_once=has_turn)

        # If nobody else watches, the timeout begins with the turn: a read that waits behind others is not late.
        limiter = None if self._is_watched else self.source.limiter
        has_turn = limiter is not None
        attempts = retrying if self._is_watched else reading
        tried = partial(attempts, self._policy, read, self._counts.on_retry, is_far=self.source.is_far, failed=failed)
        return await (tried() if limiter is None else limiter.run(tried))

    async def get_ranges(
        self, key: str, ranges: Sequence[ByteRange], failed: FailedAttempt | None = None
    ) -> list[Bytes | CorruptChunkError | None]:
        """Return byte ranges of a stored object, read by one request for all of them.

        Parameters
        ----------
        key
            The object's key below the array.
        ranges
            First byte and end of each, as in a slice; their first bytes ascend. (0, None), which comes alone, is the
            whole object.
        failed
            As in `get`.

        Returns
        -------
        The bytes of each, which are views of what was read; None for all if there is no such object; an error in place
        of a range before which the object ends.

        Raises
        ------
        StoreReadError
            If the store returned more than it was asked for. And as in `get`.
        """
        if self._cached is None:
            return await self._fetch_ranges(key, ranges, failed)
        return await self._cached.get(key, ranges, lambda wanted: self._fetch_ranges(key, wanted, failed))

    async def _fetch_ranges(
        self, key: str, ranges: Sequence[ByteRange], failed: FailedAttempt | None = None
    ) -> list[Bytes | CorruptChunkError | None]:
        """Like `get_ranges`, from the store alone."""
        begin, end = span_of(ranges)
        if end is None:
            return [await self._fetch(key, None, failed)]
        # Stores disagree about what a request for zero bytes returns, so none is made.
        data = await self._fetch(key, RangeByteRequest(begin, end), failed) if end > begin else np.empty(0, np.uint8)
        return split_ranges(ranges, data)

    async def read(self, key: str, position: int | None) -> Bytes | None:
        """Return a chunk, or with a position the inner chunk there of a shard; None if there is none."""
        if self.shards is None or position is None:
            return await self.get(key)
        missing, groups = self.shards.plan(await self.shards.index(key), [(0, position)])
        if missing:
            return None
        ((_, stored),) = await self.shards.read(key, groups[0])
        return stored

    def inner_label(self, position: int | None) -> str:
        """Return the name of the inner chunk at a position in messages, behind the key of its shard; "" for none."""
        return "" if position is None or self.shards is None else self.shards.label(position)


def _range_of(byte_range: ByteRequest | None) -> ByteRange:
    """Return first byte and end, as in a slice."""
    if isinstance(byte_range, RangeByteRequest):
        return byte_range.start, byte_range.end
    if isinstance(byte_range, SuffixByteRequest):
        return -byte_range.suffix, None
    assert byte_range is None
    return 0, None


def span_of(ranges: Sequence[ByteRange]) -> tuple[int, int | None]:
    """Return first byte and end of what one request reads for byte ranges of an object; end None: the whole of it."""
    return ranges[0][0], max((end for _, end in ranges if end is not None), default=None)


def split_ranges(ranges: Sequence[ByteRange], data: Bytes | None) -> list[Bytes | CorruptChunkError | None]:
    """Return the bytes of each range, of what one request for all of them read. As in `ChunkReader.get_ranges`."""
    begin, end = span_of(ranges)
    if end is None or data is None:  # deleted since its index was read
        return [data] * len(ranges)
    if len(data) > end - begin:
        raise StoreReadError(errno.EIO, f"asked for bytes [{begin}, {end}), the store returned {len(data)} bytes")
    return [
        data[first - begin : last - begin]
        if last is not None and last - begin <= len(data)
        else CorruptChunkError(
            f"is at bytes [{first}, {last}) by the index, but the store has only {begin + len(data)}"
        )
        for first, last in ranges
    ]


def locate_chunk(spec: ArraySpec, chunk: Sequence[int]) -> tuple[str, int | None]:
    """Return the key of a read chunk below its array, or the key of its shard and its position there.

    Parameters
    ----------
    spec
        The array.
    chunk
        Index of the read chunk along each axis that the array has in the store.
    """
    along = (1,) * len(chunk) if spec.shard is None else spec.shard.chunks
    names = [str(i // n) for i, n in zip(chunk, along, strict=True)]
    key = spec.key_separator.join([spec.key_prefix, *names] if spec.key_prefix else names)
    if spec.shard is None:
        return key, None
    return key, int(np.ravel_multi_index([i % n for i, n in zip(chunk, along, strict=True)], along))


@dataclass(frozen=True)
class ReadFailure:
    """The meaning of an error of a store, or of a decoder, for a chunk.

    Attributes
    ----------
    is_corrupt
        True if the bytes are there, and cannot be decoded.
    text
        One sentence, without the name of the array or the key.
    errno_value
        The errno that stands for an error of the store.
    cause
        The store's or the codec's own exception.
    """

    is_corrupt: bool
    text: str
    errno_value: int
    cause: BaseException

    @classmethod
    def of(cls, error: BaseException) -> ReadFailure:
        """Describe an exception of whatever class: a store is anybody's code."""
        corrupt = isinstance(error, CorruptChunkError | DecodeError)
        known = error.strerror if isinstance(error, StoreReadError) else str(error) if corrupt else None
        text = known or f"the store cannot read it: {reason_of(error)}{_FORBIDDEN * says_no_permission(error)}"
        return cls(corrupt, text, 0 if corrupt else errno_of(error), (known and error.__cause__) or error)

    def named(self, where: str) -> CorruptChunkError | StoreReadError:
        """Return the error that a user gets; `where` says which chunk it is."""
        text = f"{where}{self.text}"
        made = CorruptChunkError(text) if self.is_corrupt else StoreReadError(self.errno_value, text)
        made.__cause__ = self.cause
        return made
