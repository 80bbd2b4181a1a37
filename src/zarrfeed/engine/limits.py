"""Which stage bounds a running dataset, from its counters: what a faster machine would have to speed up.

Pure. What is told, in this order:

1. Where the consumer hardly waits, it is the limit: batches are ready before it asks. Where it waits for a part of the
   time, and decode threads have nothing to do, it is handing batches over one by one, which is told as the same.
2. Else the time that it waits is that of lists, which are looked up while it does,
3. or of the decode threads: those work, or wait for bytes, or for memory to work in; whatever takes most of their time.
4. Too little was read to say, or the threads had nothing to do for other reasons: not known yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from zarrfeed.engine.stats import Stats

CONSUMER, STORAGE, DECODE, MEMORY = "consumer", "storage", "decode", "memory"
NOT_KNOWN: Final = "not known yet"

#: A consumer that waits for less than this part of the time is what the loader waits for.
_HARDLY_WAITS = 0.1
#: One that waits less, while the threads are idle, waits for wake-ups and not for work.
_MOSTLY_WAITS = 0.75
#: Shorter runs tell what starting costs, and not what they will be bounded by.
_LEAST_BATCHES, _LEAST_S = 2, 0.05


@dataclass(frozen=True)
class Limit:
    """What bounds the rate.

    Attributes
    ----------
    stage
        "storage", "decode", "memory", "consumer" or "not known yet".
    reason
        The figures that say so, in one line.
    advice
        What to change, in one line.
    """

    stage: str
    reason: str
    advice: str


def find_limit(stats: Stats) -> Limit:
    """Name the stage that bounds what `stats` counted."""
    total_s = stats.consumer_wait_s + stats.consumer_busy_s
    if stats.batches < _LEAST_BATCHES or total_s < _LEAST_S:
        reason = f"{stats.batches} batch{'es' * (stats.batches != 1)} in {total_s:.3f} s are too few to tell"
        return Limit(NOT_KNOWN, reason, "ask again after some batches; what DataLoader workers do is counted there")
    waited = stats.consumer_wait_s / total_s
    waits = f"your loop waits {waited:.0%} of its time"
    if waited < _HARDLY_WAITS:
        return Limit(CONSUMER, f"{waits}: batches are ready before it asks", "the loader is not what to speed up")
    if stats.list_s > stats.consumer_wait_s / 2:
        return Limit(
            DECODE,
            f"{waits}, {min(1, stats.list_s / stats.consumer_wait_s):.0%} of that for text, which zarr-python decodes",
            "store text as numbers or as fixed-length bytes (S), or leave it out",
        )
    shares = stats.thread_shares
    working = {name: shares[name] for name in ("decode", "scatter", "read", "order")}
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
            'block="shard" if there are shards; a store that is nearer'
        )
    return "a faster disk, or enough memory for the page cache to hold the store; larger chunks"


def _decode_advice(stats: Stats) -> str:
    again = 2 * stats.bytes_scattered < stats.bytes_decoded
    wasted = "more is decoded than delivered: see the amplification in explain(); " * again
    return wasted + "raise num_threads if cores are idle, or store with a codec that decodes faster (lz4)"
