"""Counters of a running dataset, as a person reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


def format_bytes(n: float, *, round_up: bool = False) -> str:
    """Return a size as text with a binary unit and one decimal, rounded to the nearest or up."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024 or unit == "TiB":
            break
        n /= 1024
    digits = 0 if unit == "B" else 1
    return f"{math.ceil(n * 10**digits) / 10**digits if round_up else n:.{digits}f} {unit}"


@dataclass(frozen=True)
class Stats:
    """What was read and where time went, since the dataset was made. Times of stages are summed over threads.

    Attributes
    ----------
    chunks_read, chunks_missing
        Stored chunks that were decoded; chunks that do not exist, hence are fill value.
    chunks_waited
        Chunks that were not in the page cache and were read by a fetch thread.
    bytes_read, bytes_decoded, bytes_scattered
        As stored; of whole decoded chunks; written to batches.
    indices_read
        Indices of shards that were read.
    requests
        To stores that Python reads.
    batches, samples
        Handed to the consumer.
    fetch_s, decode_s, scatter_s, order_s
        Seconds of the stages, summed over threads.
    worker_idle_s
        Seconds that decode threads had nothing to do: memory was full, or bytes were awaited.
    consumer_wait_s
        Seconds that the consumer waited for a batch.
    batch_memory_bytes
        Memory mapped for batches now.
    """

    chunks_read: int = 0
    chunks_missing: int = 0
    chunks_waited: int = 0
    bytes_read: int = 0
    bytes_decoded: int = 0
    bytes_scattered: int = 0
    indices_read: int = 0
    requests: int = 0
    batches: int = 0
    samples: int = 0
    fetch_s: float = 0.0
    decode_s: float = 0.0
    scatter_s: float = 0.0
    order_s: float = 0.0
    worker_idle_s: float = 0.0
    consumer_wait_s: float = 0.0
    batch_memory_bytes: int = 0

    @classmethod
    def from_core(cls, counters: dict[str, int]) -> Stats:
        """Convert the engine's counters: nanoseconds become seconds."""
        return cls(
            **{
                name[:-3] + "_s" if name.endswith("_ns") else name: value * 1e-9 if name.endswith("_ns") else value
                for name, value in counters.items()
            }  # type: ignore[arg-type]
        )

    def __add__(self, other: Stats) -> Stats:
        return Stats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __str__(self) -> str:
        stages = {"fetch": self.fetch_s, "decode": self.decode_s, "scatter": self.scatter_s, "order": self.order_s}
        rows = [
            ("delivered", f"{self.samples} samples in {self.batches} batches"),
            ("consumer", f"waited {self.consumer_wait_s:.3f} s for them"),
            ("read", f"{self.chunks_read} chunks: {format_bytes(self.bytes_read)} stored,"),
            (
                "",
                f"{format_bytes(self.bytes_decoded)} decoded, {format_bytes(self.bytes_scattered)} written to batches",
            ),
            ("missing", f"{self.chunks_missing} chunks (fill value)"),
            ("not cached", f"{self.chunks_waited} chunks, {self.requests} requests"),
            ("indices", f"{self.indices_read} of shards read"),
            ("threads", ", ".join(f"{name} {seconds:.3f} s" for name, seconds in stages.items())),
            ("", f"idle {self.worker_idle_s:.3f} s"),
            ("memory", f"{format_bytes(self.batch_memory_bytes)} mapped for batches"),
        ]
        return "\n".join(f"{name:<12}{text}" for name, text in rows)
