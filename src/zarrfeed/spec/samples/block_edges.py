"""The first samples of blocks whose lengths follow a rule, as those of many stores, without a number for each block.

Invariant of stores: the blocks of a store have one length, but for its last one; stores follow each other, and each has
a block. Blocks of samples that several dimensions number are boxes (`GridEdges`), which are runs of samples or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.spec.samples.sample_grids import AnyGrid

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class StoreEdges:
    """The first sample of each block of many stores, and the number of samples at the end.

    It stands for an array of these numbers, which `np.asarray` makes of it.

    Attributes
    ----------
    begin
        The first sample of each store, and the number of samples at the end, shape (stores + 1,).
    rows
        Samples of a full block of each store, shape (stores,).

    Examples
    --------
    >>> edges = StoreEdges(np.array([0, 10, 13]), np.array([4, 4]))
    >>> np.asarray(edges).tolist(), len(edges)
    ([0, 4, 8, 10, 13], 5)
    >>> edges.block_of(np.array([9, 10])).tolist()
    [2, 3]
    >>> [numbers.tolist() for numbers in edges.samples_of(np.array([2, 4]))]
    [[8, 12], [10, 13]]
    """

    begin: Int64
    rows: Int64

    def __len__(self) -> int:
        return int(self.first_block[-1]) + 1

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        counts = np.diff(self.first_block)
        within = np.arange(len(self) - 1) - np.repeat(self.first_block[:-1], counts)
        edges = np.append(np.repeat(self.begin[:-1], counts) + np.repeat(self.rows, counts) * within, self.begin[-1])
        return edges if dtype is None else edges.astype(dtype)

    @cached_property
    def first_block(self) -> Int64:
        """The number of the first block of each store, and of all blocks, shape (stores + 1,)."""
        return np.concatenate(([0], np.cumsum(-(-np.diff(self.begin) // self.rows))))

    @property
    def max_rows(self) -> int:
        """Number of samples of the longest block."""
        return int(np.minimum(self.rows, np.diff(self.begin)).max())

    def block_of(self, samples: Int64) -> Int64:
        """Return the block of each sample."""
        store = np.searchsorted(self.begin, samples, side="right") - 1
        return self.first_block[store] + (samples - self.begin[store]) // self.rows[store]

    def samples_of(self, blocks: Int64) -> tuple[Int64, Int64]:
        """Return the first sample of each block, and the end of its samples."""
        store = np.searchsorted(self.first_block, blocks, side="right") - 1
        first = self.begin[store] + (blocks - self.first_block[store]) * self.rows[store]
        return first, np.minimum(first + self.rows[store], self.begin[store + 1])


@dataclass(frozen=True, eq=False)
class GridEdges:
    """Blocks that are boxes of samples, which several dimensions number.

    Samples ascend inside of a box, and those of a box need not follow each other. `np.asarray` makes the number of
    samples before each box, and of all.

    Attributes
    ----------
    grid
        Its chunks are the boxes, with the samples of each in C order.
    """

    grid: AnyGrid

    def __len__(self) -> int:
        return len(self.counted)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.counted.__array__(dtype, copy)

    @cached_property
    def counted(self) -> StoreEdges:
        """The edges of the boxes if all samples are counted box by box."""
        return StoreEdges(*self.grid.runs_of_boxes())

    @cached_property
    def of_rows(self) -> StoreEdges:
        """The first row of each box, and the number of rows at the end."""
        return StoreEdges(*self.grid.row_edges)

    @property
    def max_rows(self) -> int:
        """Samples of the largest box."""
        return self.counted.max_rows

    def block_of(self, samples: Int64) -> Int64:
        """Return the box of each sample."""
        return self.of_rows.block_of(self.grid.rows_of(samples))


def edges_of_grid(grid: AnyGrid) -> StoreEdges | GridEdges:
    """Return the edges of blocks that are the boxes of a grid, whose steps are in C order."""
    return StoreEdges(*grid.runs_of_boxes()) if grid.boxes_are_runs else GridEdges(grid)


#: The first sample of each block, and the number of samples at the end; or boxes of samples.
Edges: TypeAlias = Int64 | StoreEdges | GridEdges
