"""Counts of what stores that Python reads were asked, by an event loop and by threads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class ReadCounts:
    """How often stores were asked, and again; for how many indices; how long zarr-python's decoders had chunks.

    Attributes
    ----------
    requests
        All of them: also further ones after errors, and second ones beside a slow one.
    retries
        Requests after errors that may pass.
    hedges, hedges_won
        Second requests beside slow ones, and how many of them were answered first.
    indices_read
        Indices of shards.
    decode_s
        Seconds that chunks spent with zarr-python's codecs, or waited for them.
    """

    requests: int = 0
    retries: int = 0
    hedges: int = 0
    hedges_won: int = 0
    indices_read: int = 0
    decode_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def on_request(self) -> None:
        """Count a request, of any thread."""
        with self._lock:
            self.requests += 1

    def on_retry(self) -> None:
        """Count another try."""
        with self._lock:
            self.retries += 1
