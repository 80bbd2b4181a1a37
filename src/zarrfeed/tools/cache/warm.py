"""`warm`: all objects of a store copied into a node cache, in the very entries that datasets ask for.

Invariants: chunks are read as a dataset reads them, through the cache (`storage/chunks/cached_reads.py`). So an object
that is already there is checked and not fetched, processes that warm at once divide the work, and a run that was
interrupted goes on when it is called again.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import zarr
from zarr.storage import LocalStore

from zarrfeed.base.errors import CorruptChunkError, ZarrfeedError
from zarrfeed.base.native import core
from zarrfeed.base.page import Page, Row
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.sharding import DEFAULT_COALESCE, ShardReading
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.cache_options import ArrayCache
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.access.zarr_internals import sync
from zarrfeed.storage.chunks.chunk_reader import ChunkReader
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.node_cache import cache_of
from zarrfeed.storage.chunks.object_versions import object_keys
from zarrfeed.tools.verify import Progress

#: Objects that are copied at once, where memory allows; how many requests that is, the store's limiter decides.
_MOST_AT_ONCE = 64
#: Seconds that an interrupted run waits until requests are given up.
_TIMEOUT_S = 5.0


@dataclass
class WarmedArray:
    """The result of warming the cache for one array.

    Attributes
    ----------
    name
        The array's path below the store; "" for the store itself.
    objects, of
        Number of objects that were copied or were in the cache, and of all objects of the array.
    hit_bytes, added_bytes
        Stored bytes that were there already, and that were added.
    problem
        The reason why the cache lacks a part of the array; else empty.
    """

    name: str
    objects: int = 0
    of: int = 0
    hit_bytes: int = 0
    added_bytes: int = 0
    problem: str = ""

    def extend(self, other: WarmedArray) -> None:
        """Add the result of other objects of the array."""
        self.objects += other.objects
        self.hit_bytes += other.hit_bytes
        self.added_bytes += other.added_bytes
        self.problem = self.problem or other.problem


@dataclass(frozen=True)
class ArrayInStore:
    """An array whose objects can be cached: its description, its store, and its name in the cache."""

    spec: ArraySpec
    source: StoreSource
    cached: ArrayCache

    def keys(self) -> list[str]:
        """Return the keys of the objects that the store has."""
        assert self.cached.versions is not None
        return [key for key in object_keys(self.spec) if self.cached.versions.find(key) is not None]


@dataclass
class WarmReport(Page):
    """The result of warming the cache for a store. `str()` is a page."""

    store: str
    directory: str
    limit: int
    arrays: list[WarmedArray] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if all of the store is in the cache."""
        return not any(array.problem for array in self.arrays)

    def add_problems(self, problems: dict[str, str]) -> None:
        """Add arrays or groups that cannot be opened, with the reason."""
        self.arrays += [WarmedArray(name, problem=why) for name, why in problems.items()]

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        rows = [("store", self.store), ("cache", f"{self.directory}, limit {format_bytes(self.limit)}")]
        for array in self.arrays:
            what = (
                f"{array.objects} of {array.of} objects: {format_bytes(array.added_bytes)} added, "
                f"{format_bytes(array.hit_bytes)} were there"
            )
            rows.append((array.name or "the array", what if array.of or not array.problem else array.problem))
            if array.of and array.problem:
                rows.append(("", array.problem))
        whole = "all of it is in the cache" if self.ok else "not all of it is in the cache"
        return [*rows, ("result", whole)]


class Warming:
    """Copies arrays into a cache.

    Parameters
    ----------
    access
        The access to the store, with the cache.
    memory_budget
        Bytes for the objects that are being copied.
    on_progress
        Called after each object.
    """

    def __init__(self, access: StoreAccess, *, memory_budget: int, on_progress: Callable[[Progress], None]) -> None:
        self._access = access
        self._memory_budget = memory_budget
        self._on_progress = on_progress
        self._tasks: list[asyncio.Task[None]] = []

    def run(self, array: zarr.Array[Any], name: str) -> WarmedArray:
        """Copy one array.

        Raises
        ------
        StoreReadError
            If the store cannot be read.
        KeyboardInterrupt
            After requests that are under way were given up.
        """
        found, keys, warmed = self.begin(array, name)
        if found is not None:
            self.copy(found, keys, warmed)
        return warmed

    def begin(self, array: zarr.Array[Any], name: str) -> tuple[ArrayInStore | None, list[str], WarmedArray]:
        """Return an array, None if none of its objects is to be copied, the keys of its objects, and the result so far.

        Raises
        ------
        StoreReadError
            If the store cannot be read.
        """
        found = self.find(array)
        if not isinstance(found, ArrayInStore):
            return None, [], WarmedArray(name, problem=found or "")
        keys = found.keys()
        return found, keys, WarmedArray(name, of=len(keys), problem=found.cached.why_off)

    def find(self, array: zarr.Array[Any]) -> ArrayInStore | str | None:
        """Return an array as it can be cached, or why it cannot; None if no dataset reads it.

        Raises
        ------
        StoreReadError
            If the store cannot be read.
        """
        if not array.shape or math.prod(array.shape) == 0:
            return None  # no samples: no dataset reads it
        try:
            spec = read_layout(array, access=self._access)
        except ZarrfeedError as error:
            return str(error)
        cached = cache_of(spec)
        if cached is None:
            return "is not cached"
        if cached.versions is None:
            return cached.why_off
        if not cached.options.directory().is_writable():
            return cached.trouble()
        source = spec.source
        if not isinstance(source, StoreSource):  # the engine reads its files by itself
            source = StoreSource(LocalStore(spec.root, read_only=True), "", spec.metadata_key, cached=cached)
        return ArrayInStore(spec, source, cached)

    def copy(self, array: ArrayInStore, keys: list[str], warmed: WarmedArray) -> bool:
        """Copy some objects of an array, and count them; return whether others need not be tried, as nothing fits.

        Raises
        ------
        StoreReadError
            If the store cannot be read.
        KeyboardInterrupt
            After requests that are under way were given up.
        """
        try:
            return sync(self._copy(array.spec, array.source, array.cached, keys, warmed))
        except KeyboardInterrupt:
            sync(self._give_up(), timeout=_TIMEOUT_S)
            raise

    async def _copy(
        self, spec: ArraySpec, source: StoreSource, cached: ArrayCache, keys: list[str], warmed: WarmedArray
    ) -> bool:
        await source.open()
        counts = ReadCounts()
        sharding = None if spec.shard is None else ShardReading(spec.shard)
        reader = ChunkReader(source, self._access.policy, counts, sharding=sharding, caches_all=True)
        waiting, called = iter(keys), cached.to_core()
        assert called is not None
        self._tasks = [
            asyncio.create_task(self._copy_some(reader, spec, called, waiting, counts, warmed))
            for _ in range(self._at_once(spec, cached))
        ]
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            warmed.hit_bytes, warmed.added_bytes = counts.cache.hit_bytes, counts.cache.written_bytes
        if counts.cache.refused:
            trouble = cached.options.directory().trouble()
            warmed.problem = trouble or f"the limit of {format_bytes(cached.options.limit)} is reached"
        return bool(counts.cache.refused)

    async def _copy_some(
        self,
        reader: ChunkReader,
        spec: ArraySpec,
        called: core.CachedArray,
        waiting: Iterator[str],
        counts: ReadCounts,
        warmed: WarmedArray,
    ) -> None:
        for key in waiting:
            try:
                await _copy_one(reader, spec, key)
            except CorruptChunkError as error:
                warmed.problem = warmed.problem or f"{key}: {error}"
                continue
            if counts.cache.refused:  # perhaps not of this object
                warmed.objects += spec.shard is None and called.contains(key)
                return
            warmed.objects += 1
            stored_bytes = counts.cache.hit_bytes + counts.cache.written_bytes
            self._on_progress(Progress(warmed.name, warmed.objects, warmed.of, 0, 0, stored_bytes))

    async def _give_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _at_once(self, spec: ArraySpec, cached: ArrayCache) -> int:
        """Return the number of objects that are copied at once."""
        if spec.shard is not None:
            each = DEFAULT_COALESCE.limit + 2 * spec.shard.cached_index_bytes + spec.decoded_bytes
        elif cached.objects is not None and cached.objects.count:
            each = 2 * cached.objects.stored_bytes // cached.objects.count
        else:
            each = spec.decoded_bytes
        return max(1, min(_MOST_AT_ONCE, self._memory_budget // max(1, each)))


async def _copy_one(reader: ChunkReader, spec: ArraySpec, key: str) -> None:
    """Read an object through the cache: a chunk, or the index of a shard and all of its inner chunks."""
    if spec.shard is None:
        await reader.get(key)
        return
    assert reader.shards is not None
    index = await reader.shards.index(key)
    _, groups = reader.shards.plan(index, [(i, i) for i in range(spec.shard.chunks_per_shard)])
    for group in groups:
        await reader.shards.read(key, group)
