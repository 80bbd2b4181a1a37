"""The blocks that a selection has samples in: listed, or by a rule that needs no number for each of them.

Invariant: the held index of a block is its index among these blocks, which ascend. Both forms say the same of the same
blocks; the arrays of a rule are made when somebody asks for them, as code does that needs all blocks at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.spec.samples.block_edges import Edges, Int64, StoreEdges

#: If a rule has more blocks than these, the rule is hashed and not its blocks.
MANY_BLOCKS = 1 << 22


class HeldBlocks(Protocol):
    """Blocks with samples of a selection."""

    @property
    def blocks(self) -> Int64:
        """Their numbers in the array, ascending, shape (blocks,)."""

    @property
    def rows(self) -> Int64:
        """Number of samples of each block, shape (blocks,)."""

    @property
    def first(self) -> Int64:
        """The first sample of each, or where it stands in a list of samples, shape (blocks,)."""

    @property
    def length(self) -> int:
        """Number of samples of all blocks."""

    @property
    def max_rows(self) -> int:
        """Number of samples of the largest block."""

    def __len__(self) -> int: ...

    def table(self) -> core.BlockTable:
        """Return the held blocks as the table that the engine takes."""

    def at(self, held_indices: Int64) -> tuple[Int64, Int64, Int64]:
        """Return number, first sample and samples of the blocks with some held indices."""

    def indices_of(self, blocks: Int64) -> Int64:
        """Return the held indices of blocks by their numbers."""

    def positions_in(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return held index of the block and row in it, for samples by their numbers among those of all blocks."""

    def count_rows(self) -> tuple[Int64, Int64]:
        """Return the lengths of blocks, and how many blocks have each."""

    def rule(self) -> bytes | None:
        """Return bytes that identify the rule, or None if the blocks are listed."""


@dataclass(frozen=True, eq=False)
class ListedBlocks:
    """Blocks that are listed; `HeldBlocks` has the attributes."""

    blocks: Int64
    rows: Int64
    first: Int64

    def __len__(self) -> int:
        return len(self.blocks)

    @cached_property
    def length(self) -> int:
        """Number of samples of all blocks."""
        return int(self.rows.sum())

    @cached_property
    def max_rows(self) -> int:
        """Number of samples of the largest block."""
        return int(self.rows.max())

    def table(self) -> core.BlockTable:
        """Return the held blocks as the table that the engine takes."""
        return core.BlockTable.of_list(block=self.blocks, first=self.first, rows=self.rows)

    def at(self, held_indices: Int64) -> tuple[Int64, Int64, Int64]:
        """Return number, first sample and samples of the blocks with some held indices."""
        return self.blocks[held_indices], self.first[held_indices], self.rows[held_indices]

    def indices_of(self, blocks: Int64) -> Int64:
        """Return the held indices of blocks by their numbers."""
        return np.searchsorted(self.blocks, blocks)

    def positions_in(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return held index of the block and row in it, for samples by their numbers among those of all blocks."""
        held_index = np.searchsorted(self._ends, positions, side="right")
        return held_index, positions - (self._ends[held_index] - self.rows[held_index])

    def count_rows(self) -> tuple[Int64, Int64]:
        """Return the lengths of blocks, and how many blocks have each."""
        lengths, counts = np.unique(self.rows, return_counts=True)
        return lengths, counts.astype(np.int64)

    def rule(self) -> bytes | None:
        """Return None: the blocks are listed."""
        return None

    @cached_property
    def _ends(self) -> Int64:
        """Number of samples up to the end of each block, shape (blocks,)."""
        return np.cumsum(self.rows)


class _RuledBlocks:
    """Base of the blocks that follow a rule: they are looked up in the table of the engine."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_table", "_listed")}

    def _make_table(self) -> core.BlockTable:
        raise NotImplementedError

    @cached_property
    def _table(self) -> core.BlockTable:
        return self._make_table()

    @cached_property
    def _listed(self) -> tuple[Int64, Int64, Int64]:
        return self._table.at(np.arange(len(self)))

    def __len__(self) -> int:
        return self._table.num_blocks

    @property
    def blocks(self) -> Int64:
        """Their numbers in the array, ascending, shape (blocks,)."""
        return self._listed[0]

    @property
    def first(self) -> Int64:
        """The first sample of each, shape (blocks,)."""
        return self._listed[1]

    @property
    def rows(self) -> Int64:
        """Number of samples of each block, shape (blocks,)."""
        return self._listed[2]

    @property
    def length(self) -> int:
        """Number of samples of all blocks."""
        return self._table.length

    @cached_property
    def max_rows(self) -> int:
        """Number of samples of the largest block."""
        return int(self.count_rows()[0].max())

    def table(self) -> core.BlockTable:
        """Return the held blocks as the table that the engine takes."""
        return self._table

    def at(self, held_indices: Int64) -> tuple[Int64, Int64, Int64]:
        """Return number, first sample and samples of the blocks with some held indices."""
        return self._table.at(held_indices)

    def positions_in(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return held index of the block and row in it, for samples by their numbers among those of all blocks."""
        held_index = self._table.indices_of(positions)
        return held_index, positions - self._table.rows_before(held_index)

    def count_rows(self) -> tuple[Int64, Int64]:
        """Return the lengths of blocks, and how many blocks have each."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class RunBlocks(_RuledBlocks):
    """Blocks in runs of one length each, such as those of a slice of stores.

    Attributes
    ----------
    held_index, block, first_of
        Held index, number in the array, and first sample of the first block of each run, shape (runs,).
    rows_of
        Samples of a block of each run, shape (runs,).
    num_blocks
        Blocks of all runs.
    """

    held_index: Int64
    block: Int64
    first_of: Int64
    rows_of: Int64
    num_blocks: int

    @classmethod
    def between(cls, start: int, stop: int, edges: StoreEdges) -> RunBlocks:
        """Return the blocks of the samples from `start` up to `stop`, of which there are some."""
        stores = slice(
            int(np.searchsorted(edges.begin, start, side="right")) - 1, int(np.searchsorted(edges.begin, stop))
        )
        begin, rows, number = edges.begin[stores], edges.rows[stores], edges.first_block[stores]
        low, high = np.maximum(begin, start), np.minimum(edges.begin[1:][stores], stop)
        # of each store: the end of a block that is cut at its beginning, whole blocks, the beginning of another block
        whole, end = -(-(low - begin) // rows), (high - begin) // rows
        head = np.minimum(begin + whole * rows, high) - low
        tail = np.where(end >= whole, high - begin - end * rows, 0)
        # shape (stores, 3) from here on
        block = number[:, None] + np.stack([whole - 1, whole, end], axis=1)
        first = np.stack([low, begin + whole * rows, begin + end * rows], axis=1)
        length = np.stack([head, rows, tail], axis=1)
        count = np.stack([head > 0, np.maximum(end - whole, 0), tail > 0], axis=1).astype(np.int64)
        there = count > 0
        ends = np.cumsum(count[there])
        return cls(ends - count[there], block[there], first[there], length[there], int(ends[-1]))

    def _make_table(self) -> core.BlockTable:
        return core.BlockTable.of_runs(
            held_index=self.held_index,
            block=self.block,
            first=self.first_of,
            stride=self.rows_of,
            rows=self.rows_of,
            num_blocks=self.num_blocks,
        )

    def indices_of(self, blocks: Int64) -> Int64:
        """Return the held indices of blocks by their numbers."""
        run = np.searchsorted(self.block, blocks, side="right") - 1
        return self.held_index[run] + blocks - self.block[run]

    def count_rows(self) -> tuple[Int64, Int64]:
        """Return the lengths of blocks, and how many blocks have each."""
        lengths, of_run = np.unique(self.rows_of, return_inverse=True)
        counts = np.zeros(len(lengths), dtype=np.int64)
        np.add.at(counts, of_run, np.diff(self.held_index, append=self.num_blocks))
        return lengths, counts

    def rule(self) -> bytes:
        """Return bytes that identify the rule."""
        return b"".join(
            part.astype("<i8").tobytes() for part in (self.held_index, self.block, self.first_of, self.rows_of)
        )


@dataclass(frozen=True, eq=False)
class StepBlocks(_RuledBlocks):
    """Blocks of evenly spaced samples, in an array with blocks of one length.

    Attributes
    ----------
    samples
        An ascending range.
    block_rows
        Rows of a block of the array.
    """

    samples: range
    block_rows: int

    def _make_table(self) -> core.BlockTable:
        samples = self.samples
        return core.BlockTable.of_steps(
            start=samples.start, step=samples.step, count=len(samples), block_rows=self.block_rows
        )

    def indices_of(self, blocks: Int64) -> Int64:
        """Return the held indices of blocks by their numbers."""
        if self.samples.step < self.block_rows:
            return blocks - self.samples.start // self.block_rows
        return -(-(blocks * self.block_rows - self.samples.start) // self.samples.step).clip(max=0)

    def count_rows(self) -> tuple[Int64, Int64]:
        """Return the lengths of blocks, and how many blocks have each."""
        end = len(self)
        period = self.samples.step // np.gcd(self.samples.step, self.block_rows)
        periods, rest = divmod(max(0, end - 2), int(period))
        if self.samples.step >= self.block_rows or not periods:  # lengths do not repeat, or are 1
            one = self.samples.step >= self.block_rows
            parts = [(np.ones(1, dtype=np.int64), end)] if one else [(self._rows(0, end), 1)]
        else:
            parts = [(self._rows(0, 1), 1), (self._rows(end - 1, end), 1)]
            parts += [(self._rows(1, 1 + period), periods), (self._rows(1, 1 + rest), 1)]
        length = np.concatenate([rows for rows, _ in parts])
        times = np.concatenate([np.full(len(rows), times) for rows, times in parts])
        lengths, of_part = np.unique(length, return_inverse=True)
        counts = np.zeros(len(lengths), dtype=np.int64)
        np.add.at(counts, of_part, times)
        return lengths, counts

    def _rows(self, begin: int, end: int) -> Int64:
        return np.diff(self._table.rows_before(np.arange(begin, end + 1)))

    def rule(self) -> bytes:
        """Return bytes that identify the rule."""
        return repr((self.samples.start, self.samples.step, len(self.samples), self.block_rows)).encode()


def range_blocks(samples: range, block_rows: int, edges: Edges | None) -> HeldBlocks:
    """Return the blocks that hold the samples of an ascending range, which has some.

    Examples
    --------
    >>> held = range_blocks(range(3, 10), 4, None)
    >>> held.blocks.tolist(), held.first.tolist(), held.rows.tolist()
    ([0, 1, 2], [3, 4, 8], [1, 4, 2])
    """
    if edges is None and samples.step > 1:
        return StepBlocks(samples, block_rows)
    if edges is None:
        edges = StoreEdges(np.array([0, samples.stop]), np.array([block_rows]))
    if isinstance(edges, StoreEdges) and samples.step == 1:
        return RunBlocks.between(samples.start, samples.stop, edges)
    listed = np.asarray(edges)
    low, high = np.searchsorted(listed, [samples[0], samples[-1]], side="right") - 1
    block = np.arange(low, high + 1)
    # how many samples of the range stand before each block, and before the end of the last one
    begins = listed[np.append(block, high + 1)]
    before = np.clip(-(-(begins - samples.start) // samples.step), 0, len(samples))
    rows = np.diff(before)
    held = np.flatnonzero(rows)
    return ListedBlocks(block[held], rows[held], samples.start + samples.step * before[held])


def digest_of(parts: Iterable[Int64]) -> str:
    """Return a hash of arrays of numbers, taken piece by piece."""
    hashed = hashlib.sha256()
    for part in parts:
        for begin in range(0, len(part), MANY_BLOCKS):
            hashed.update(part[begin : begin + MANY_BLOCKS].astype("<i8").tobytes())
    return hashed.hexdigest()[:16]
