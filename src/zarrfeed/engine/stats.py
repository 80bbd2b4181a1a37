"""Counters of a running dataset as a person reads them, and the stage that limits the rate.

`find_limit` decides, in this order:

1. If the consumer hardly waits, the consumer is the limit: batches are ready before it asks. If it waits for a part of
   the time, and decode threads have nothing to do, it takes batches one by one, which counts as the same.
2. Else, if the consumer mostly waits for text fields, which are looked up meanwhile, or for rows of sparse matrices,
   which threads of their own decode, these are the limit.
3. Else the limit is the stage that takes most of the decode threads' time: decoding, waiting for bytes, or for memory.
4. If too little was read, or the threads had nothing to do for other reasons, the limit is not known yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from zarrfeed.base.page import Page, Row
from zarrfeed.base.units import format_bytes
from zarrfeed.engine.cache_stats import CacheStats

CONSUMER, STORAGE, DECODE, MEMORY = "consumer", "storage", "decode", "memory"
NOT_KNOWN: Final = "not known yet"

#: If a consumer waits for less than this part of the time, the loader waits for the consumer.
_HARDLY_WAITS = 0.1
#: One that waits less, while the threads are idle, waits for wake-ups and not for work.
_MOSTLY_WAITS = 0.75
#: Shorter runs tell the cost of starting, and not the limit of the rate.
_LEAST_BATCHES, _LEAST_S = 2, 0.05


_DECODE_FASTER = "raise num_threads if cores are idle, or store with a codec that decodes faster (lz4)"

#: Gauges: attributes with the value of this moment, which are not counted up.
_MEASURED_NOW = ("batch_memory_bytes", "scratch_bytes", "concurrency")


@dataclass(frozen=True)
class Limit:
    """The stage that limits the rate, and the remedy.

    Attributes
    ----------
    stage
        "storage", "decode", "memory", "consumer" or "not known yet".
    reason
        The figures that show it, in one line.
    advice
        The change that would help, in one line.
    """

    stage: str
    reason: str
    advice: str


@dataclass(frozen=True, repr=False)
class Stats(Page):
    """Counters of a dataset's reads, and of the time that each stage took, since the dataset was made.

    The difference of two `Stats` counts the reads in between. `str()`, `repr()` and notebooks show a page.

    Attributes
    ----------
    chunks_read
        Number of stored chunks that were decoded.
    chunks_missing
        Number of chunks that the store lacks, which read as the fill value.
    chunks_skipped
        Number of chunks that could not be read or decoded, and whose samples were replaced.
    retries
        Number of reads that were retried after an error that may pass.
    chunks_waited
        Number of chunks that were not in the page cache, so that a fetch thread read them.
    bytes_read, bytes_decoded, bytes_scattered
        Bytes that were read, as stored; bytes that were decoded; bytes that were written to batches. In a large Blosc
        chunk, only the Blosc blocks that samples need are read and decoded; in a chunk without codecs, only the bytes
        of the samples.
    stored_bytes, chunk_bytes
        Stored bytes and decoded bytes of the chunks that were read, counting each chunk whole.
    indices_read
        Number of shard indices that were read.
    requests
        Number of requests to stores that Python reads, including retries and hedges.
    hedges, hedges_won
        Number of second requests beside requests that were late, and how many of the second ones were answered first.
    concurrency
        Number of requests to far stores that may be under way at once now; it adapts to the store.
    batches, samples
        Numbers of batches and samples that were handed to the consumer.
    fetch_s, decode_s, scatter_s, order_s
        Seconds of the stages, summed over threads, and over the requests to stores that Python reads.
    python_decode_s
        Seconds of `fetch_s` that chunks spent with zarr-python's codecs, or waited for them.
    list_s
        Seconds of `consumer_wait_s` in which text and bytes of any length were looked up.
    sparse_s
        Seconds of `consumer_wait_s` in which rows of sparse matrices were waited for.
    images_decoded, image_s
        Images that `Data.decode` decoded, and the seconds that it took, summed over threads.
    idle_storage_s
        Seconds in which decode threads waited for stored bytes.
    idle_memory_s
        Seconds in which decode threads waited because the memory budget had no room for another batch.
    idle_other_s
        Seconds in which decode threads waited because enough batches were ready, or nothing was left to do.
    consumer_wait_s
        Seconds in which the consumer waited for a batch. The consumer of a `ZarrDataset` decodes in this time.
    consumer_busy_s
        Seconds between batches in which the consumer did something else.
    batch_memory_bytes
        Memory that is mapped for batches now.
    scratch_bytes
        Temporary memory of the threads when the last epoch ended; it only grows.
    cache
        Counters of the node cache: `hits`, `misses`, `hit_ratio`, their bytes, and `troubles`.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> dataset = zarrfeed.ZarrIterableDataset(zarr.array(np.arange(100.0), chunks=(10,)), batch_size=20)
    >>> batches = list(dataset)
    >>> dataset.stats().batches, dataset.stats().samples
    (5, 100)
    """

    chunks_read: int = 0
    chunks_missing: int = 0
    chunks_waited: int = 0
    chunks_skipped: int = 0
    retries: int = 0
    bytes_read: int = 0
    stored_bytes: int = 0
    chunk_bytes: int = 0
    bytes_decoded: int = 0
    bytes_scattered: int = 0
    indices_read: int = 0
    requests: int = 0
    hedges: int = 0
    hedges_won: int = 0
    concurrency: int = 0
    batches: int = 0
    samples: int = 0
    fetch_s: float = 0.0
    decode_s: float = 0.0
    scatter_s: float = 0.0
    order_s: float = 0.0
    python_decode_s: float = 0.0
    list_s: float = 0.0
    sparse_s: float = 0.0
    images_decoded: int = 0
    image_s: float = 0.0
    idle_storage_s: float = 0.0
    idle_memory_s: float = 0.0
    idle_other_s: float = 0.0
    consumer_wait_s: float = 0.0
    consumer_busy_s: float = 0.0
    batch_memory_bytes: int = 0
    scratch_bytes: int = 0
    cache: CacheStats = field(default_factory=CacheStats)

    @classmethod
    def from_core(cls, counters: dict[str, int]) -> Stats:
        """Convert the engine's counters: nanoseconds become seconds."""
        return cls(
            **{
                name[:-3] + "_s" if name.endswith("_ns") else name: value * 1e-9 if name.endswith("_ns") else value
                for name, value in counters.items()
                if not name.startswith("cache_")
            },  # type: ignore[arg-type]
            cache=CacheStats.from_core(counters),
        )

    def __add__(self, other: Stats) -> Stats:
        return Stats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def __sub__(self, earlier: Stats) -> Stats:
        past = {f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)}
        return Stats(**past | {name: getattr(self, name) for name in _MEASURED_NOW})

    @property
    def read_rate(self) -> float:
        """Stored bytes a second, from the first batch that the consumer asked for to the last one."""
        seconds = self.consumer_wait_s + self.consumer_busy_s
        return self.bytes_read / seconds if seconds > 0 else 0.0

    @property
    def thread_shares(self) -> dict[str, float]:
        """Shares of the time of the decode threads, which add up to 1, or all 0 where nothing was read.

        "decode", "scatter", "read" (from the page cache), "order", and what they waited for: "storage", "memory",
        "other".
        """
        fetched_elsewhere = self.chunks_waited > 0
        spent = {
            "decode": self.decode_s,
            "scatter": self.scatter_s,
            "read": 0.0 if fetched_elsewhere else self.fetch_s,
            "order": self.order_s,
            "storage": self.idle_storage_s,
            "memory": self.idle_memory_s,
            "other": self.idle_other_s,
        }
        total = sum(spent.values()) or 1.0
        return {name: seconds / total for name, seconds in spent.items()}

    @property
    def limit(self) -> Limit:
        """The stage that limits the rate, with the reason and the remedy."""
        return find_limit(self)

    @property
    def limiting_stage(self) -> str:
        """The stage that a faster machine would have to speed up.

        "storage", "decode", "memory" (the budget is small), "consumer" (your loop), or "not known yet" (few batches).
        """
        return self.limit.stage

    def rows(self) -> list[Row]:
        """Return the rows of the table that `str()` and notebooks show."""
        limit = self.limit
        stages = {"fetch": self.fetch_s, "decode": self.decode_s, "scatter": self.scatter_s, "order": self.order_s}
        return [
            ("delivered", f"{self.samples} samples in {self.batches} batches"),
            ("consumer", f"waited {self.consumer_wait_s:.3f} s for them, was busy for {self.consumer_busy_s:.3f} s"),
            ("read", f"{self.chunks_read} chunks: {format_bytes(self.bytes_read)} stored,"),
            (
                "",
                f"{format_bytes(self.bytes_decoded)} decoded, {format_bytes(self.bytes_scattered)} written to batches",
            ),
            ("missing", f"{self.chunks_missing} chunks (fill value)"),
            ("errors", f"{self.chunks_skipped} chunks skipped, {self.retries} reads retried"),
            ("not cached", f"{self.chunks_waited} chunks, {self.requests} requests"),
            *self._rows_of_far_stores(),
            ("indices", f"{self.indices_read} of shards read"),
            *self.cache.rows(),
            ("threads", ", ".join(f"{name} {seconds:.3f} s" for name, seconds in stages.items())),
            (
                "",
                f"idle {self.idle_storage_s:.3f} s for storage, {self.idle_memory_s:.3f} s for memory, "
                f"{self.idle_other_s:.3f} s else",
            ),
            ("memory", f"{format_bytes(self.batch_memory_bytes)} mapped for batches"),
            ("limit", f"{limit.stage}: {limit.reason}"),
            ("", limit.advice),
        ]

    def _rows_of_far_stores(self) -> list[Row]:
        if not self.concurrency:
            return []
        hedges = f"{self.hedges} late requests made twice, {self.hedges_won} of them answered first by the second"
        return [
            ("", f"up to {self.concurrency} requests at once now, {format_bytes(int(self.read_rate))}/s stored"),
            ("", hedges),
        ]


def find_limit(stats: Stats) -> Limit:
    """Name the stage that limits the rate, by the counters of `stats`."""
    total_s = stats.consumer_wait_s + stats.consumer_busy_s
    if stats.batches < _LEAST_BATCHES or total_s < _LEAST_S:
        reason = f"{stats.batches} batch{'es' * (stats.batches != 1)} in {total_s:.3f} s are too few to tell"
        return Limit(NOT_KNOWN, reason, "ask again after some batches; what DataLoader workers do is counted there")
    waited = stats.consumer_wait_s / total_s
    waits = f"your loop waits {waited:.0%} of its time"
    if waited < _HARDLY_WAITS:
        return Limit(CONSUMER, f"{waits}: batches are ready before it asks", "the loader is not what to speed up")
    if stats.list_s > stats.consumer_wait_s / 2 and stats.images_decoded:
        return Limit(
            DECODE,
            f"{waits}, {min(1, stats.list_s / stats.consumer_wait_s):.0%} of that for images, which threads decode",
            "raise num_threads if cores are idle, or store smaller images",
        )
    if stats.list_s > stats.consumer_wait_s / 2:
        return Limit(
            DECODE,
            f"{waits}, {min(1, stats.list_s / stats.consumer_wait_s):.0%} of that for text, which zarr-python decodes",
            "store text as numbers or as fixed-length bytes (S), or leave it out",
        )
    shares = stats.thread_shares
    working = {name: shares[name] for name in ("decode", "scatter", "read", "order")}
    if stats.sparse_s > stats.consumer_wait_s / 2:
        reason = f"{waits}, {min(1, stats.sparse_s / stats.consumer_wait_s):.0%} of that for rows of sparse matrices"
        if shares["storage"] > sum(working.values()):
            return Limit(STORAGE, f"{reason}; decode threads mostly wait for bytes", _storage_advice(stats))
        return Limit(DECODE, reason, _DECODE_FASTER)
    threads = {DECODE: sum(working.values()), STORAGE: shares["storage"], MEMORY: shares["memory"]}
    stage = max(threads, key=lambda name: threads[name])
    share = threads[stage]
    if share == 0:
        return Limit(NOT_KNOWN, f"{waits}, and no decode thread had anything to do", "ask again after some batches")
    if shares["other"] > 1 / 2 and waited < _MOSTLY_WAITS:
        return Limit(
            CONSUMER,
            f"{waits}, and decode threads have nothing to do for {shares['other']:.0%} of theirs",
            "raise batch_size: batches are so small that handing them over takes longest",
        )
    if stage == MEMORY:
        return Limit(
            MEMORY,
            f"{waits}; decode threads wait {share:.0%} of theirs for room for another batch",
            "raise memory_budget, or lower batch_size, lanes or mix",
        )
    if stage == STORAGE and stats.python_decode_s > stats.fetch_s / 2:
        return Limit(
            DECODE,
            f"{waits}; decode threads wait {share:.0%} of theirs for zarr-python, which decodes in their place",
            "use a codec that explain() calls native, or raise num_threads",
        )
    if stage == STORAGE:
        return Limit(STORAGE, f"{waits}; decode threads wait {share:.0%} of theirs for bytes", _storage_advice(stats))
    parts = ", ".join(f"{name} {part:.0%}" for name, part in working.items() if part >= 0.01)
    return Limit(DECODE, f"{waits}; decode threads work {share:.0%} of theirs ({parts})", _decode_advice(stats))


def _storage_advice(stats: Stats) -> str:
    if stats.requests:
        return (
            "raise memory_budget if explain() says that memory bounds what is asked for at once; larger chunks, or "
            'mixing={"block": "shard"} if there are shards; a store that is nearer'
        )
    return "a faster disk, or enough memory for the page cache to hold the store; larger chunks"


def _decode_advice(stats: Stats) -> str:
    again = 2 * stats.bytes_scattered < stats.bytes_decoded
    wasted = "more is decoded than delivered: see the amplification in explain(); " * again
    return wasted + _DECODE_FASTER
