"""Count of the decodes that are saved where memory caches chunks that several chains of groups need, as in the engine.

A chain is a sequence of groups of a lane that hand a chunk on. The engine caches a chunk from its first chain on, until
its last chain has taken it or its memory is needed for a chunk that a chain takes sooner
(cpp/engine/chunks/planned_cache.h). Here memory is free again when the group after the last one of a chain is begun;
the engine frees it when the tasks are done.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zarrfeed.plan.samples.selection import Int64


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of an epoch that need chunks of an array.

    Attributes
    ----------
    cell
        The chunk that each needs, shape (chains,).
    first, last
        Its first and its last group, in the order in which groups are begun.
    """

    cell: Int64
    first: Int64
    last: Int64

    def __len__(self) -> int:
        return len(self.cell)


@dataclass
class _CachedChunk:
    """Memory of a chunk: how much, and who holds it."""

    size: int
    holders: int = 1  # this table is one


def saved_decodes(arrays: Sequence[Chains], chunk_bytes: Sequence[int], keep_bytes: int) -> list[int]:
    """Return how many chains of each array find their chunk cached, in so much memory for all arrays together."""
    saved = [0] * len(arrays)
    takes = sorted(
        (first, number, cell, last) for number, chains in enumerate(arrays) for cell, first, last in _shared(chains)
    )
    to_come: dict[tuple[int, int], list[int]] = {}
    for first, number, cell, _ in reversed(takes):
        to_come.setdefault((number, cell), []).append(first)
    cached: dict[tuple[int, int], _CachedChunk] = {}
    farthest: list[tuple[int, int, int]] = []  # heap of -(next group), -(array), -(cell) of cached chunks, and old ones
    held: list[tuple[int, int, _CachedChunk]] = []  # heap by the last group that holds memory
    used = 0
    for count, (group, number, cell, last) in enumerate(takes):
        while held and held[0][0] < group:
            freed = heapq.heappop(held)[2]
            freed.holders -= 1
            used -= 0 if freed.holders else freed.size
        key = (number, cell)
        later = to_come[key]
        later.pop()
        memory = cached.get(key)
        saved[number] += memory is not None
        if memory is None and later:
            size = chunk_bytes[number]
            while used + size > keep_bytes:
                while farthest and not _is_next(farthest[0], cached, to_come):
                    heapq.heappop(farthest)
                entry = (-later[-1], -number, -cell)
                if not farthest or farthest[0] >= entry:
                    break
                _, other_number, other_cell = heapq.heappop(farthest)
                other = cached.pop((-other_number, -other_cell))
                other.holders -= 1
                used -= 0 if other.holders else other.size
            else:
                memory = cached[key] = _CachedChunk(size)
                used += size
        if memory is None:
            continue
        memory.holders += 1
        heapq.heappush(held, (last, count, memory))
        if later:
            heapq.heappush(farthest, (-later[-1], -number, -cell))
        else:
            del cached[key]
            memory.holders -= 1
    return saved


def _is_next(
    entry: tuple[int, int, int], cached: dict[tuple[int, int], _CachedChunk], to_come: dict[tuple[int, int], list[int]]
) -> bool:
    """Return whether a chunk is cached, and this is where it is taken next."""
    key = (-entry[1], -entry[2])
    return key in cached and bool(to_come[key]) and to_come[key][-1] == -entry[0]


def _shared(chains: Chains) -> list[tuple[int, int, int]]:
    """Return cell, first and last group of the chains of chunks that several chains need."""
    _, which, count = np.unique(chains.cell, return_inverse=True, return_counts=True)
    several = count[which] > 1
    found: list[tuple[int, int, int]] = np.column_stack([chains.cell, chains.first, chains.last])[several].tolist()
    return found
