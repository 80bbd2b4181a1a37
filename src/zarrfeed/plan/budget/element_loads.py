"""The loads of element blocks of sparse matrices, for the rows of an epoch: pure numpy, no I/O.

Invariant: every block that a batch needs is in memory when the batch is made. A block is loaded for the first batch
that needs it, and stays until the last one. If more than `keep` batches in a row do not need it, it is loaded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.selection import Int64, Selection
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.spec.fields.sparse import Elements

#: Rows whose blocks are looked up at once, which takes about 100 bytes each.
_PAGE_ROWS = 1 << 20


@dataclass(frozen=True)
class BlockLoads:
    """The blocks that are loaded, in the order of the first batch that needs them.

    Attributes
    ----------
    block
        The blocks that are loaded, shape (loads,).
    first_batch, last_batch
        The batches that they are loaded for: the number of the first and of the last one, shape (loads,) both.
    """

    block: Int64
    first_batch: Int64
    last_batch: Int64

    @property
    def most_at_once(self) -> int:
        """Largest number of blocks in memory at once."""
        if not len(self.block):
            return 0
        change = np.zeros(int(self.last_batch.max()) + 2, dtype=np.int64)
        np.add.at(change, self.first_batch, 1)
        np.add.at(change, self.last_batch + 1, -1)
        return int(np.cumsum(change).max())


def keep_batches(plan: ReadPlan, batch_size: int) -> int:
    """Return for how many unused batches in a row a block stays: as many as two groups are spread over."""
    return 2 * plan.order.open_batches(batch_size, plan.stride)


def plan_loads(elements: Elements, indptr: Int64, rows: Int64, batch_size: int, keep: int) -> BlockLoads:
    """Return the loads of the blocks that the batches of some rows need.

    Parameters
    ----------
    elements
        The array that the blocks are of.
    indptr
        The number of each row's first element, shape (all rows + 1,).
    rows
        The rows in the order in which they are delivered.
    batch_size
        Rows of a batch.
    keep
        Number of batches in a row after which a block that they do not need is loaded again.
    """
    num_blocks = elements.num_blocks
    pairs = []  # block * batches + batch
    num_batches = -(-len(rows) // batch_size)
    for first in range(0, len(rows), _PAGE_ROWS):
        page = rows[first : first + _PAGE_ROWS]
        number, block, _, _ = split_rows(elements, indptr[page], indptr[page + 1])
        pairs.append(np.unique(block * num_batches + (first + number) // batch_size))
    block, batch = np.divmod(np.unique(np.concatenate(pairs)), num_batches)
    assert not len(block) or block[-1] < num_blocks
    begins = np.ones(len(block), dtype=bool)
    begins[1:] = (np.diff(block) != 0) | (np.diff(batch) > keep)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(block)) - 1
    block, first_batch, last_batch = block[starts], batch[starts], batch[np.maximum(ends, 0)[: len(starts)]]
    by_time = np.lexsort((block, first_batch))
    return BlockLoads(block[by_time], first_batch[by_time], last_batch[by_time])


def split_rows(elements: Elements, begin: Int64, end: Int64) -> tuple[Int64, Int64, Int64, Int64]:
    """Cut rows, each a run of elements, at the ends of blocks.

    Returns
    -------
    For each piece, in the order of the rows and their elements: the number of the row, the block, the offset in
    the block, and how many elements. A row without elements has no piece.
    """
    number = np.flatnonzero(end > begin)
    begin, end = begin[number], end[number]
    first, offset = elements.find(begin)
    last, _ = elements.find(end - 1)
    if not np.any(last > first):
        return number, first, offset, end - begin
    counts = last - first + 1
    block = joined_ranges(first, counts)
    low, high = elements.range_of(block)
    start = np.maximum(np.repeat(begin, counts), low)
    stop = np.minimum(np.repeat(end, counts), high)
    return np.repeat(number, counts), block, start - low, stop - start


def element_fields(side: Sequence[Elements], layout: int) -> list[StoredField]:
    """Return fields for an engine whose samples are element blocks: one field for each array, in one layout."""
    return [
        StoredField(f"elements {n}", one.spec, conversion=one.conversion, parts=one.parts)
        for n, one in enumerate(elements.layouts[layout] for elements in side)
    ]


def plan_chunks(chunks: Int64, num_chunks: int) -> EpochPlan:
    """Return the plan of an engine whose samples are whole chunks: these, in this order, as often as they are named."""
    distinct, number = np.unique(chunks, return_inverse=True)
    by_number = np.argsort(number, kind="stable")
    begins = np.searchsorted(number[by_number], np.arange(len(distinct)))
    turn = np.empty(len(chunks), dtype=np.int64)
    turn[by_number] = np.arange(len(chunks)) - begins[number[by_number]]
    order = Order(
        num_chunks, 1, shuffle=False, seed=0, lanes=1, selection=Selection.of_samples(distinct.astype(np.int64), 1)
    )
    return order.plan(0, Portion(steps=0, head=number + turn * len(distinct)))
