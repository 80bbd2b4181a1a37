"""Count of the decodes that are saved where memory caches chunks that several chains of groups need, as in the engine.

A chain is a sequence of groups of a lane that hand a chunk on. The engine caches a chunk from its first chain on, until
its last chain has taken it or its memory is needed for a chunk that a chain takes sooner
(cpp/engine/chunks/planned_cache.h). Here memory is free again when the group after the last one of a chain is begun;
the engine frees it when the tasks are done. So threads that are late, or ahead, hold it for longer, and some chunks are
decoded more often than is counted here. `SharingMemory` says when that cannot be: memory suffices for all that can be
held at once, since a group is begun only when its batches may be open, and all batches before these were handed out.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.samples.selection import Int64

#: The engine caches no chunk for more takes of a chunk by a chain than this (cpp/engine/chunks/planned_cache.h).
_MOST_TAKES = 1 << 21


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

    @classmethod
    def of(cls, num_cells: int, pairs: Int64, goes_on: npt.NDArray[np.bool_], begun: Int64) -> Self:
        """Return the chains of groups that need chunks.

        Parameters
        ----------
        num_cells
            More than any number of a chunk.
        pairs
            Group x `num_cells` + chunk, each once, ascending; groups are numbered lane by lane.
        goes_on
            True for each group that follows the one before it in a lane, and takes over its chunks.
        begun
            The number of each group in the order in which groups are begun.
        """
        if not len(pairs):
            return cls(pairs, pairs, pairs)
        group, cell = np.divmod(pairs, num_cells)
        # of a pair that a lane goes on with: whether the group before has the chunk, too
        before = np.searchsorted(pairs, pairs - num_cells)
        is_handed = goes_on[group] & (pairs[before] == pairs - num_cells)
        by_cell = np.lexsort((group, cell))
        begins = np.flatnonzero(~is_handed[by_cell])
        ends = np.append(begins[1:], len(by_cell)) - 1
        order = begun[group[by_cell]]
        return cls(cell[by_cell][begins], order[begins], order[ends])

    def taken(self, chosen: npt.NDArray[np.bool_]) -> Self:
        """Return some of the chains."""
        return type(self)(self.cell[chosen], self.first[chosen], self.last[chosen])

    def num_alike(self) -> Int64:
        """Return for each chain how many chains need its chunk."""
        _, which, count = np.unique(self.cell, return_inverse=True, return_counts=True)
        alike: Int64 = count[which]
        return alike

    def of_shared_chunks(self) -> Self:
        """Return the chains of those chunks that several of them need."""
        return self.taken(self.num_alike() > 1)


@dataclass(frozen=True)
class SharingMemory:
    """Memory for chunks that groups share, and how far apart groups may be that are at work at once.

    Attributes
    ----------
    carry_bytes
        For chunks that the groups of a chain hand on. 0: they hand none on.
    keep_bytes
        For chunks that several chains need.
    num_threads
        Threads, each of which may hold a chunk of a batch that was handed out just now.
    batch_size, max_open_batches
        Samples of a batch, and how many batches may be open at once.
    """

    carry_bytes: int
    keep_bytes: int
    num_threads: int
    batch_size: int
    max_open_batches: int

    def ends(self, last_step: Int64) -> Int64:
        """Return for each group of a plan the first group that is begun when it has surely ended."""
        last_batch = last_step // self.batch_size
        handed_out = np.maximum.accumulate(last_batch) - self.max_open_batches + 1
        return np.searchsorted(handed_out, last_batch, side="right")

    def carries_all(self, chains: Sequence[Chains], ends: Int64, chunk_bytes: Sequence[int]) -> bool:
        """Return whether there is memory for the chunks of all these chains, whenever threads let go of it."""
        held = [(one.first, ends[one.last], size) for one, size in zip(chains, chunk_bytes, strict=True)]
        return self._has_room(self.carry_bytes, held)

    def keeps_all(self, chains: Sequence[Chains], ends: Int64, chunk_bytes: Sequence[int]) -> bool:
        """Return whether each chunk that several chains of an array need stays from the first to the last of them."""
        shared, held = [one.of_shared_chunks() for one in chains], []
        for one, size in zip(shared, chunk_bytes, strict=True):
            cells, which = np.unique(one.cell, return_inverse=True)
            first, end = np.full(len(cells), len(ends)), np.zeros(len(cells), dtype=np.int64)
            np.minimum.at(first, which, one.first)
            np.maximum.at(end, which, ends[one.last])
            held.append((first, end, size))
        return sum(map(len, shared)) <= _MOST_TAKES and self._has_room(self.keep_bytes, held)

    def _has_room(self, room: int, held: Sequence[tuple[Int64, Int64, int]]) -> bool:
        """Return whether chunks fit that are held from a first group to an end; given with the bytes of each chunk."""
        groups = max((int(end.max(initial=0)) for _, end, _ in held), default=0)
        change = np.zeros(groups + 1, dtype=np.int64)
        for first, end, size in held:
            np.add.at(change, first, size)
            np.add.at(change, end, -size)
        late = self.num_threads * max((size for first, _, size in held if len(first)), default=0)
        return int(np.cumsum(change).max()) + late <= room


@dataclass
class _CachedChunk:
    """Memory of a chunk: how much, and who holds it."""

    size: int
    holders: int = 1  # this table is one


def saved_decodes(arrays: Sequence[Chains], chunk_bytes: Sequence[int], keep_bytes: int) -> list[int]:
    """Count each array's chains that find their chunk cached, in `keep_bytes` of memory for all arrays."""
    saved = [0] * len(arrays)
    if not keep_bytes:
        return saved
    takes = sorted(
        (first, number, cell, last)
        for number, shared in enumerate(chains.of_shared_chunks() for chains in arrays)
        for cell, first, last in zip(shared.cell.tolist(), shared.first.tolist(), shared.last.tolist(), strict=True)
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
