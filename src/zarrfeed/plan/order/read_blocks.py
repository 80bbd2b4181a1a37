"""The blocks that an epoch order reads: where their samples are, and how many they have."""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.order.block_order import MOST_BLOCKS, MOST_UNFOLDED, regular_table
from zarrfeed.plan.samples.selection import Int64, Selection, block_of
from zarrfeed.spec.samples.block_edges import Edges


class ReadBlocks:
    """The blocks of an array that hold the samples that are read; its subclasses are frozen dataclasses.

    Attributes
    ----------
    num_samples
        Samples of the array.
    block_rows
        Samples of a full block; the last one of the array may be shorter.
    selection
        The samples that are read; the others have no position. None: all.
    edges
        The first sample of each block, and the number of samples at the end; there is a selection then. None: every
        block but the last one has `block_rows` samples.
    slabs
        The cut of the blocks for the order alone: `selection`, `block_rows` and `edges` are of whole chunks, by which
        samples are dealt. None: the order has these blocks.
    unfolds
        True for a kind of order whose groups the engine makes from the blocks in the order of an epoch, while it reads.
        A kind that does not say so has its groups listed by a plan, which is right for any order of blocks.
    """

    unfolds: ClassVar[bool] = False

    num_samples: int
    block_rows: int
    selection: Selection | None
    edges: Edges | None
    slabs: Slabs | None

    def __init_subclass__(cls, *, unfolds: bool = False) -> None:
        super().__init_subclass__()
        cls.unfolds = unfolds

    def check_blocks(self, *, listed: bool, count: int | None = None) -> None:
        """Raise ConfigError if there are more blocks than a plan may have whose groups are listed, or are not.

        `count` is their number where some are read several times, and so are no blocks of their own.
        """
        most = MOST_BLOCKS if listed else MOST_UNFOLDED
        count = self.num_blocks if count is None else count
        if count > most:
            raise ConfigError(
                f"{count} blocks of up to {self.full_rows} samples, must be at most {most}: this epoch is "
                "planned block by block, in memory; read a part (`Data.select`), or whole shards "
                '(mixing={"block": "shard"})'
            )

    @cached_property
    def reads(self) -> Selection | None:
        """The samples that are read, in the blocks of the order. None: all, in blocks of `block_rows` samples."""
        return self._cut()

    def _cut(self) -> Selection | None:
        return self.selection if self.slabs is None else self.slabs.cut(self.selection, self.num_samples)

    @property
    def uncut(self) -> Selection:
        """The samples of the selection, or all, in blocks that are whole also where the order has slabs."""
        return self.selection or Selection.of_range(range(self.num_samples), self.block_rows)

    @property
    def each_once(self) -> Selection:
        """The samples that may be read, each once, also where an epoch draws some of them, or some several times."""
        return self._cut() or Selection.of_range(range(self.num_samples), self.block_rows)

    @property
    def listed_reads(self) -> Selection:
        """The samples that are read, as a selection in any case."""
        return self.reads or Selection.of_range(range(self.num_samples), self.block_rows)

    @property
    def num_selected(self) -> int:
        """Samples that are read, each counted once."""
        return self.num_samples if self.selection is None else self.selection.length

    @property
    def selected_bytes(self) -> int:
        """Bytes that samples take which follow no rule, and the blocks that are listed for them."""
        selected = 0 if self.selection is None else self.selection.nbytes
        return selected if self.slabs is None else selected + self.slabs.nbytes + self.listed_reads.nbytes

    @cached_property
    def num_blocks(self) -> int:
        """Blocks that are read, a short one at the end included."""
        return -(-self.num_samples // self.block_rows) if self.reads is None else len(self.reads.held)

    @cached_property
    def length(self) -> int:
        """n, the number of positions of the epoch order: the samples that are read."""
        return self.num_selected

    @cached_property
    def max_rows(self) -> int:
        """Samples of a block that are read, at most."""
        return self.block_rows if self.reads is None else self.reads.max_rows

    @property
    def full_rows(self) -> int:
        """Samples of a full block of the order, if all of them are selected."""
        return self.block_rows if self.slabs is None else self.slabs.rows

    def blocks_at(self, held_indices: Int64) -> Int64:
        """Return blocks by their held indices."""
        return held_indices if self.reads is None else self.reads.held.at(held_indices)[0]

    def rows_at(self, held_indices: Int64) -> tuple[Int64, Int64]:
        """Return the first row of blocks, in the form that the engine takes, and how many rows they have."""
        reads = self.reads
        if reads is None:
            first = held_indices * self.block_rows
            return first, np.minimum(self.block_rows, self.num_samples - first)
        _, first, rows = reads.held.at(held_indices)
        return first, rows

    def count_rows(self) -> list[tuple[int, int]]:
        """Return the lengths of blocks, each with the number of blocks that have it."""
        reads = self.reads
        if reads is not None:
            lengths, counts = reads.held.count_rows()
            return list(zip(lengths.tolist(), counts.tolist(), strict=True))
        full, rest = divmod(self.num_samples, self.block_rows)
        return [(self.block_rows, full)] * bool(full) + [(rest, 1)] * bool(rest)

    def locate(self, samples: Int64) -> tuple[Int64, Int64]:
        """Return for samples that are read the held index of their block, and which row of it they are."""
        block = block_of(samples, self.block_rows, self.edges if self.slabs is None else self.slabs.edges)
        selection = self.reads
        if selection is None:
            return block, samples - block * self.block_rows
        held_index = selection.held.indices_of(block)
        _, first, _ = selection.held.at(held_index)
        if selection.samples is None:
            return held_index, (samples - first) // selection.step
        return held_index, selection.samples.rank(samples) - first

    def samples_in(self, held_indices: Int64, rows: Int64) -> Int64:
        """Return the samples that are some rows of blocks, given by held index: what `locate` takes apart."""
        selection = self.reads
        if selection is None:
            return held_indices * self.block_rows + rows
        _, first, _ = selection.held.at(held_indices)
        if selection.samples is None:
            return first + selection.step * rows
        return selection.samples.at(first + rows)

    def table(self) -> core.BlockTable:
        """Return the table of the blocks that are read, in the form that the engine takes."""
        reads = self.reads
        if reads is not None:
            return reads.held.table()
        return regular_table(self.num_samples, self.block_rows)
