"""Advise changes of a dataset or its store, from its `explain()` and from measured passes. Pure."""

from __future__ import annotations

from zarrfeed.base.system import usable_cores
from zarrfeed.base.units import format_bytes
from zarrfeed.engine.stats import CONSUMER, DECODE, MEMORY, STORAGE, Stats
from zarrfeed.report.explain import Explanation

#: Share of the ceiling from which on the loader is not worth speeding up.
_AT_CEILING = 0.85
#: A first pass so much slower than later ones was bounded by storage.
_COLD = 1.5
#: A batch is mixed badly if it draws from fewer blocks than this share of a perfect shuffle's blocks.
_MIXED = 0.25
#: Requests for less than this cost more than they bring.
_SMALL_REQUEST = 256 << 10
#: For each smaller batch, Python takes as long as the engine.
_SMALL_BATCH = 256 << 10


def advise(
    whole: Explanation, measured: Explanation, stats: Stats, *, cold_ratio: float = 1.0, of_ceiling: float | None = None
) -> list[str]:
    """Return the changes that would help, the most useful first; a line each.

    Parameters
    ----------
    whole, measured
        The explanations of the whole dataset, and of the part of it that was measured.
    stats
        Counters of the passes over the part, after the first one.
    cold_ratio
        Rate of these passes over that of the first, if the first found chunks outside of the page cache.
    of_ceiling
        The measured rate over that of bare loops; None: not measured.
    """
    stage = stats.limiting_stage
    tips = []
    if stage == DECODE:
        tips += _of_decoding(measured, stats, of_ceiling)
    if stage == STORAGE:
        tips += _of_storage(measured, stats)
    if stage == MEMORY:
        budget = format_bytes(measured.memory.budget)
        tips.append(f"memory: raise memory_budget ({budget} now): only {measured.max_open_batches} batches can be open")
    if stage == CONSUMER:
        tips.append("loop: batches are ready before an empty loop asks; what is left is Python's time for each batch")
    batch_bytes = whole.memory.batch_bytes
    if batch_bytes < _SMALL_BATCH and whole.steps > whole.batch_size:
        tips.append(f"batch size: batches of {format_bytes(batch_bytes)} cost Python as long as decoding; raise it")
    for f in whole.fields:
        if f.is_amplified and not f.item_type:
            # blocks are cut where lanes meet; other chunks lie over several blocks, too
            better = "" if f.name == whole.primary else ", or chunks that nest along the sample axis"
            remedy = "raise memory_budget, for longer slabs" if f.reads_slabs else f"fewer lanes{better}"
            tips.append(f"chunks: those of {f.name} are decoded {f.repeats:.1f} times each ({f.choice}): {remedy}")
    if cold_ratio > _COLD:
        tips.append(
            f"cache: later passes were {cold_ratio:.1f} times as fast as the first, since the page cache had the "
            "store; a faster disk if memory cannot hold all of it"
        )
    if whole.shuffle_rows and whole.chunks_per_batch < _MIXED * whole.ideal_chunks_per_batch:
        tips.append(
            f"mixing: a batch draws from {whole.chunks_per_batch:.1f} blocks, a perfect shuffle from "
            f"{whole.ideal_chunks_per_batch:.1f}: raise lanes or mix of mixing=, and memory_budget with them"
        )
    return tips


def _of_decoding(explanation: Explanation, stats: Stats, of_ceiling: float | None) -> list[str]:
    tips = [
        f"codec: {f.name} is decoded by zarr-python ({f.slow_because}): store it "
        + ("as numbers or fixed-length bytes" if f.item_type else "with Blosc, zstd, gzip or lz4")
        for f in explanation.fields
        if f.slow_because
    ]
    if explanation.num_threads < usable_cores():
        tips.append(f"threads: {explanation.num_threads} decode, {usable_cores()} cores can be used: raise num_threads")
    if of_ceiling is not None and of_ceiling >= _AT_CEILING:
        light = all("lz4" in f.description for f in explanation.fields if f.chunk_reads)
        lighter = "" if light else ", or a lighter codec (Blosc lz4)"
        tips.append(
            f"codec: {min(of_ceiling, 1):.0%} of what bare loops on {explanation.num_threads} threads decode; "
            f"what helps is more cores{lighter}"
        )
    elif not tips:
        tips.append(f"decoding: {stats.limit.advice}")
    return tips


def _of_storage(explanation: Explanation, stats: Stats) -> list[str]:
    memory = explanation.memory
    tips = []
    if stats.requests and memory.requests_bounded_by == "memory":
        tips.append(
            f"memory: only {memory.max_requests} chunks are asked for at once, since memory is short: raise "
            f"memory_budget ({format_bytes(memory.budget)} now)"
        )
    if stats.requests and explanation.block == "chunk" and any(f.shards for f in explanation.fields):
        tips.append('requests: the store is sharded: mixing={"block": "shard"} reads more in a request, and mixes less')
    if stats.requests and stats.bytes_read < _SMALL_REQUEST * stats.requests:
        each = format_bytes(stats.bytes_read / stats.requests)
        tips.append(f"chunks: a request brings {each} on average: larger chunks, or shards, need fewer of them")
    where = "a store that is nearer, or a local copy" if stats.requests else "a faster disk, or memory to cache it"
    return [*tips, f"store: {where}, if more than a few epochs are read"]
