"""`PartedSource`: the chunks of an array whose rows lie in several stores that Python reads.

Invariant: a key is the number of a part, a slash, and the key of the chunk below the array of that part. A store is
made ready when the first of its chunks is asked for, so that an epoch does not begin with thousands of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from zarr.abc.store import ByteRequest

from zarrfeed.base.native import core
from zarrfeed.spec.arrays.array import StoreLocation
from zarrfeed.storage.access.cache_options import joined_cache
from zarrfeed.storage.access.read_counts import CacheCounts
from zarrfeed.storage.access.request_limiter import RequestLimiter
from zarrfeed.storage.chunks.cached_reads import ByteRange, CachedReads, Fetch, Found
from zarrfeed.storage.chunks.location import StoreSource


@dataclass(frozen=True)
class PartedSource(StoreSource):
    """The location of the chunks of several arrays, which are one along the sample axis.

    The attributes of a `StoreSource` are those of the first part.

    Attributes
    ----------
    sources
        The sources of all parts.
    """

    sources: tuple[StoreSource, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def of(cls, sources: Sequence[StoreSource]) -> PartedSource:
        """Return the source of an array that has these parts."""
        first = sources[0]
        in_files = all(source.chunk_tables for source in sources)
        cached = joined_cache([source.cached for source in sources], in_files=in_files)
        named = (first.store, first.prefix, first.metadata_key, first.decoder, cached, first.owner)
        return cls(*named, sources=tuple(sources))

    @staticmethod
    def find(key: str) -> tuple[int, str]:
        """Return the number of the part that a key is of, and the key there."""
        number, _, below = key.partition("/")
        return int(number), below

    def reads_as(self, other: StoreLocation) -> bool:
        """Return whether this surely reads the same chunks, in the same way, as another source."""
        return (
            isinstance(other, PartedSource)
            and len(self.sources) == len(other.sources)
            and all(one.reads_as(another) for one, another in zip(self.sources, other.sources, strict=True))
        )

    def engine_cache(self) -> core.CachedArray | None:
        """Return the engine's name of transcoded chunks in files. Else None: Python reads each part under its own."""
        return super().engine_cache() if self.cached is not None and self.cached.form else None

    @property
    def cache_trouble(self) -> str:
        """Why the node cache does not do all that it could for these arrays."""
        return next((trouble for source in self.sources if (trouble := source.cache_trouble)), "")

    @property
    def chunk_tables(self) -> tuple[core.ChunkTable, ...]:
        """The table of the chunks of each part, for the engine; empty where Python reads some of them."""
        tables = [source.chunk_tables for source in self.sources]
        return tuple(one[0] for one in tables) if all(tables) else ()

    @property
    def range_tables(self) -> tuple[core.ChunkTable, ...]:
        """The tables of the chunks of all parts, where Python reads byte ranges of files; else empty."""
        tables = [source.range_tables for source in self.sources]
        return tuple(one[0] for one in tables) if all(tables) else ()

    @property
    def ranges_bytes(self) -> int:
        """Return the bytes of all chunks of `range_tables`."""
        return sum(source.ranges_bytes for source in self.sources) if self.range_tables else 0

    @property
    def max_stored_bytes(self) -> int:
        """Return the most bytes of a stored chunk of any part."""
        return max(source.max_stored_bytes for source in self.sources)

    @cached_property
    def limiter(self) -> RequestLimiter | None:
        """The limiter at which requests wait for their turn: stores of one server share it."""
        return next((source.limiter for source in self.sources if source.limiter is not None), None)

    def reopened(self) -> PartedSource:
        """Open all parts anew for a forked process."""
        made = super().reopened()
        assert isinstance(made, PartedSource)
        return replace(made, sources=tuple(source.reopened() for source in self.sources))

    async def open(self) -> None:
        """Make the first store ready; in a forked process, see whether it lives."""
        self._opened.clear()
        await self._open(0)

    async def _get(self, key: str, byte_range: ByteRequest | None) -> npt.NDArray[np.uint8] | None:
        number, below = self.find(key)
        await self._open(number)
        return await self.sources[number].get(below, byte_range, at_once=True)

    async def _open(self, number: int) -> None:
        """Make a store ready; several tasks may do so at once, since that does nothing to a store that is ready."""
        if number not in self._opened:
            await self.sources[number].open()
            self._opened.add(number)

    @cached_property
    def _opened(self) -> set[int]:
        return set()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_opened"}


class CachedParts:
    """Reads the arrays of several stores through the node cache, which holds each store under a name of its own.

    Parameters
    ----------
    source
        The location of the arrays.
    counts
        Counts hits and misses.
    """

    def __init__(self, source: PartedSource, counts: CacheCounts) -> None:
        self._source = source
        self._counts = counts
        self._reads: dict[int, CachedReads | None] = {}

    async def get(self, key: str, ranges: Sequence[ByteRange], fetch: Fetch) -> list[Found]:
        """Return byte ranges of an object: from the cache, else by `fetch`. As in `CachedReads.get`."""
        number, below = self._source.find(key)
        if number not in self._reads:
            self._reads[number] = CachedReads.of(self._source.sources[number], self._counts, all_chunks=True)
        reads = self._reads[number]
        return list(await fetch(list(ranges))) if reads is None else await reads.get(below, ranges, fetch)


def cached_reads(source: StoreSource, counts: CacheCounts, *, all_chunks: bool) -> CachedReads | CachedParts | None:
    """Return the way to the chunks of a source through the node cache; None where Python does not read through it."""
    if isinstance(source, PartedSource):
        return CachedParts(source, counts) if any(one.cached is not None for one in source.sources) else None
    return CachedReads.of(source, counts, all_chunks=all_chunks)
