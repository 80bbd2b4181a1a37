"""The node cache for stored bytes that Python decodes: `cpp/storage/cache/node_cache.h` is it for the engine.

The entries are the same: an object, a range of one, the index of a shard. Invariants, on zarr-python's event loop:

- Of all tasks and processes that miss an entry, the one that claims it asks the store. The others look again at
  intervals, and ask the store themselves if the entry is not there in time.
- A task waits for an entry only while it holds no claim, so that nobody waits in a circle.
- The directory is read and written in threads, so that a slow disk does not hold up the event loop.
- An error of the directory is a miss. Errors of reads are those of the store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from zarr.storage import LocalStore

from zarrfeed.base.errors import CorruptChunkError
from zarrfeed.base.native import core
from zarrfeed.spec.arrays.sharding import DEFAULT_COALESCE
from zarrfeed.storage.access.read_counts import CacheCounts
from zarrfeed.storage.chunks.location import StoreSource

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: First byte and end of bytes of an object, as in a slice; (0, None) is the whole object, (-n, None) its last n bytes.
ByteRange: TypeAlias = tuple[int, int | None]
#: Result for a range: its bytes; None: no such object; or why there is nothing.
Found: TypeAlias = Bytes | CorruptChunkError | None
#: Asks the store for byte ranges of one object.
Fetch: TypeAlias = Callable[[list[ByteRange]], Awaitable[Sequence[Found]]]

#: Timeout of a task that waits for another one to write an entry, and the pauses between its looks.
_TIMEOUT_S = 20.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.016
_CHANGED = "the file changed after the data were opened, so its index may be of an older one; open the data again"
#: The store's own answers are not limited either.
_MOST_BYTES = 1 << 62


@dataclass
class _Looked:
    """Result of a look at the cache: the hits, and the misses to fetch, with their claims.

    A claim of None is that of an entry that will not be cached. Entries that somebody else fetches are in neither.
    """

    hits: dict[int, Bytes] = field(default_factory=dict)
    claims: dict[int, core.CacheClaim | None] = field(default_factory=dict)
    damaged: int = 0


@dataclass(frozen=True)
class CachedReads:
    """Reads of one array through the node cache.

    Attributes
    ----------
    directory, called
        The cache, and what the array is called there.
    versions
        The versions of its objects.
    counts
        Counts hits and misses.
    folder
        Directory of the array, if its files are staged; else empty.
    """

    directory: core.CacheDirectory
    called: core.CachedArray
    versions: core.ObjectVersions
    counts: CacheCounts
    folder: str = ""

    @classmethod
    def of(cls, source: StoreSource, counts: CacheCounts, *, all_chunks: bool = False) -> CachedReads | None:
        """Make the reader of an array whose chunks Python decodes; None without a cache.

        None also for chunks that the engine decodes, or transcodes, unless it is for `all_chunks`.
        """
        cached = source.cached
        if not all_chunks and (source.decoder is None or (cached is not None and cached.form)):
            return None
        if cached is None or cached.versions is None:
            return None
        called = cached.to_core()
        store = source.store
        folder = f"{store.root}/{source.prefix}" if isinstance(store, LocalStore) else ""
        return None if called is None else cls(cached.options.directory(), called, cached.versions, counts, folder)

    async def get(self, key: str, ranges: Sequence[ByteRange], fetch: Fetch) -> list[Found]:
        """Return byte ranges of an object: from the cache, and by `fetch` those that it lacks.

        Raises
        ------
        Exception
            Whatever `fetch` raises.
        """
        if self.versions.find(key) is None:
            self.counts.unversioned += len(ranges)
            return list(await fetch(list(ranges)))
        found: dict[int, Found] = {}
        left = list(range(len(ranges)))
        give_up, pause = time.monotonic() + _TIMEOUT_S, _FIRST_PAUSE_S
        while True:
            looked = await asyncio.to_thread(self._look, key, ranges, left, time.monotonic() < give_up)
            found.update(looked.hits)
            self.counts.hits += len(looked.hits)
            self.counts.hit_bytes += sum(map(len, looked.hits.values()))
            self.counts.damaged += looked.damaged
            try:
                for run in _runs(ranges, list(looked.claims)):
                    await self._fetch(key, ranges, run, fetch, looked, found)
            finally:
                for claim in looked.claims.values():
                    if claim is not None:
                        claim.release()
            left = [i for i in left if i not in found]
            if not left:
                return [found[i] for i in range(len(ranges))]
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _fetch(
        self,
        key: str,
        ranges: Sequence[ByteRange],
        run: list[int],
        fetch: Fetch,
        looked: _Looked,
        found: dict[int, Found],
    ) -> None:
        """Fetch ranges that the store is asked for together, and keep them."""
        self.counts.misses += len(run)
        fetched = await fetch([ranges[i] for i in run])
        is_listed = not self.folder or await asyncio.to_thread(self._is_listed, key)
        for i, data in zip(run, fetched, strict=True):
            found[i] = data
            if not is_listed:  # its bytes are of another version, and an entry may have said where they are
                found[i] = data if data is None or ranges[i][1] is None else CorruptChunkError(_CHANGED)
                continue
            if not isinstance(data, np.ndarray):
                continue
            self.counts.miss_bytes += len(data)
            claim = looked.claims[i]
            if claim is None:
                self.counts.refused += 1
            elif len(data) == _size_of(ranges[i], len(data)):
                admitted = await asyncio.to_thread(self.called.admit, key, *ranges[i], data)
                self.counts.refused += admitted != "admitted"
                self.counts.written_bytes += len(data) * (admitted == "admitted")
                claim.release()

    def _is_listed(self, key: str) -> bool:
        """Return whether a staged file is of the version that it had when the data were opened."""
        try:
            status = (Path(self.folder) / key).stat()
        except OSError:
            return False
        return self.versions.agrees(key, inode=status.st_ino, time_ns=status.st_mtime_ns, size=status.st_size)

    def _look(self, key: str, ranges: Sequence[ByteRange], left: list[int], waits: bool) -> _Looked:
        looked = _Looked()
        for i in left:
            data, claim = self._read(key, ranges[i], looked), None
            if data is None and waits and self.directory.admits():
                claim = self.called.try_claim(key, *ranges[i])
                if claim is None:
                    continue
                # Whoever had the claim before may have written the entry since.
                data = self._read(key, ranges[i], looked)
            if data is None:
                looked.claims[i] = claim
            else:
                looked.hits[i] = np.frombuffer(data, np.uint8)
        return looked

    def _read(self, key: str, byte_range: ByteRange, looked: _Looked) -> bytes | None:
        data = self.called.read(key, *byte_range, max_bytes=_MOST_BYTES)
        if isinstance(data, bytes):
            return data
        looked.damaged += data is False
        return None


def _runs(ranges: Sequence[ByteRange], numbers: list[int]) -> list[list[int]]:
    """Divide byte ranges of one object into those that the store is asked for together."""
    spans = [(begin, end) for begin, end in (ranges[i] for i in numbers) if end is not None]
    if len(spans) < len(numbers):
        return [[i] for i in numbers]
    ends = core.runs_together(spans, gap=DEFAULT_COALESCE.gap, limit=DEFAULT_COALESCE.limit)
    return [numbers[begin:end] for begin, end in pairwise([0, *ends])]


def _size_of(byte_range: ByteRange, otherwise: int) -> int:
    """Return the number of bytes of a range, where it says so."""
    begin, end = byte_range
    return otherwise if end is None and begin == 0 else -begin if end is None else end - begin
