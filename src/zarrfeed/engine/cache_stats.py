"""Counters of the node cache for a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from zarrfeed.base.page import Row
from zarrfeed.base.units import format_bytes
from zarrfeed.storage.access.read_counts import CacheCounts


@dataclass(frozen=True)
class CacheStats:
    """Counters of the node cache: reads of chunks, of inner chunks and of the indices of shards.

    Attributes
    ----------
    hits, misses
        Reads that the cache answered, and reads that went to the store; both of objects that may be cached.
    hit_bytes, miss_bytes
        Stored bytes of the hits, and of the misses.
    unversioned
        Reads of objects that are not cached, since the store does not tell their version.
    damaged
        Entries that were damaged, or that others could have changed, and were fetched again; they are misses, too.
    written_bytes
        Bytes that were added to the cache.
    refused
        Misses that were not added: the cache is full, or cannot be written.
    transcoded, transcoded_bytes, transcoded_hits
        Chunks that were added as Blosc-lz4, with `transcode`; their decoded bytes; hits of such chunks.
    troubles
        Reasons why the cache does not do all that it could; empty if it does.

    Examples
    --------
    >>> import numpy as np, zarrfeed
    >>> stats = zarrfeed.ZarrIterableDataset(zarrfeed.open(np.zeros((4, 2))), batch_size=1).stats()
    >>> stats.cache.hit_ratio, stats.cache.troubles
    (0.0, ())
    """

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    unversioned: int = 0
    damaged: int = 0
    written_bytes: int = 0
    refused: int = 0
    transcoded: int = 0
    transcoded_bytes: int = 0
    transcoded_hits: int = 0
    troubles: tuple[str, ...] = ()

    @classmethod
    def from_core(cls, counters: Mapping[str, int], troubles: tuple[str, ...] = ()) -> CacheStats:
        """Return the engine's counters whose names begin with "cache_"."""
        counts = {f.name: counters.get(f"cache_{f.name}", 0) for f in fields(cls) if f.name != "troubles"}
        return cls(**counts, troubles=troubles)

    @classmethod
    def of_python(cls, counts: CacheCounts) -> CacheStats:
        """Return the counters of chunks that Python decodes."""
        return cls(**vars(counts))

    def __add__(self, other: CacheStats) -> CacheStats:
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return CacheStats(**counts, troubles=tuple(dict.fromkeys(self.troubles + other.troubles)))

    def __sub__(self, earlier: CacheStats) -> CacheStats:
        counts = {name: getattr(self, name) - getattr(earlier, name) for name in _COUNTS}
        return CacheStats(**counts, troubles=self.troubles)

    @property
    def hit_ratio(self) -> float:
        """Share of the reads that the cache answered, of those it could have; 0 without any."""
        return self.hits / ((self.hits + self.misses) or 1)

    def rows(self) -> list[Row]:
        """Return the rows of a page; none if there is no cache."""
        if not any(getattr(self, name) for name in _COUNTS) and not self.troubles:
            return []
        more = [
            f"{self.transcoded_hits} chunks read as lz4, {self.transcoded} more transcoded: "
            f"{format_bytes(self.transcoded_bytes)}" * (self.transcoded_hits + self.transcoded > 0),
            f"{self.unversioned} reads of objects without a known version" * (self.unversioned > 0),
            f"{self.damaged} damaged entries" * (self.damaged > 0),
            f"{self.refused} chunks not kept" * (self.refused > 0),
        ]
        return [
            (
                "node cache",
                f"{self.hit_ratio:.1%} hits: {self.hits} of {self.hits + self.misses} reads, "
                f"{format_bytes(self.hit_bytes)}; {format_bytes(self.written_bytes)} added",
            ),
            *[("", text) for text in more if text],
            *[("", trouble) for trouble in self.troubles],
        ]


_COUNTS = tuple(f.name for f in fields(CacheStats) if f.name != "troubles")
