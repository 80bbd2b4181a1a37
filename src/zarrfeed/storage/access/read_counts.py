"""Counts of what stores that Python reads were asked, by an event loop and by threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class CacheCounts:
    """The counts of `CacheStats`, for chunks that Python decodes. For zarr-python's event loop alone."""

    hits: int = 0
    misses: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    unversioned: int = 0
    damaged: int = 0
    written_bytes: int = 0
    refused: int = 0


@dataclass
class ReadCounts:
    """Counts of requests to stores, of retries and of indices, and the time that zarr-python's decoders had chunks.

    Attributes
    ----------
    requests
        All of them: also further ones after errors, and second ones beside a slow one.
    retries
        Requests after errors that may pass.
    hedges, hedges_won
        Second requests beside slow ones, and how many of them were answered first.
    indices_read
        Number of shard indices that were read.
    cache
        The work of the node cache.
    decode_s
        Seconds that chunks spent with zarr-python's codecs, or waited for them.
    """

    requests: int = 0
    retries: int = 0
    hedges: int = 0
    hedges_won: int = 0
    indices_read: int = 0
    cache: CacheCounts = field(default_factory=CacheCounts)
    decode_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def on_request(self) -> None:
        """Count a request, of any thread."""
        with self._lock:
            self.requests += 1

    def on_retry(self) -> None:
        """Count a retry."""
        with self._lock:
            self.retries += 1
