"""`SampleGrid`: several dimensions of an array that number samples together, such as member and time.

Invariant: samples are numbered in C order, so the last dimension runs fastest. A chunk holds a box of samples, and
there the rows of samples lie side by side: row numbers are those of an array whose only sample axis goes through the
chunks in C order, and through the box of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleGrid:
    """The rows of samples that several dimensions number.

    Attributes
    ----------
    lengths
        Length of each dimension, the outermost first.
    chunks
        Length of a chunk along each; that of the dimension where the array lacks it.
    chunk_steps, row_steps
        Rows from a chunk to the next one, and from an index to the next one in a chunk, along each dimension; 0 where
        the array lacks it.

    Examples
    --------
    >>> grid = SampleGrid.of((2, 4), (2, 3))
    >>> grid.rows_of(np.arange(8)).tolist()
    [0, 1, 2, 6, 3, 4, 5, 9]
    >>> grid.samples_of(np.array([6, 3])).tolist()
    [3, 4]
    """

    lengths: tuple[int, ...]
    chunks: tuple[int, ...]
    chunk_steps: tuple[int, ...]
    row_steps: tuple[int, ...]

    @classmethod
    def of(
        cls, lengths: Sequence[int], chunks: Sequence[int | None], inside: Sequence[int] | None = None
    ) -> SampleGrid:
        """Return the grid of an array.

        Parameters
        ----------
        lengths
            Length of each dimension.
        chunks
            Length of a chunk along each; None where the array lacks the dimension.
        inside
            The numbers of the dimensions in the order in which a chunk stores them, outermost first. None: as they are.
        """
        along = [1 if chunk is None else chunk for chunk in chunks]
        counts = [1 if chunk is None else -(-n // chunk) for n, chunk in zip(lengths, chunks, strict=True)]
        chunk_steps, row_steps = [0] * len(along), [0] * len(along)
        step = 1
        for number in reversed(range(len(along)) if inside is None else inside):
            row_steps[number] = 0 if chunks[number] is None else step
            step *= along[number]
        for number in reversed(range(len(along))):
            chunk_steps[number] = 0 if chunks[number] is None else step
            step *= counts[number]
        whole = tuple(n if chunk is None else chunk for n, chunk in zip(lengths, chunks, strict=True))
        return cls(tuple(lengths), whole, tuple(chunk_steps), tuple(row_steps))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "core"}

    @cached_property
    def core(self) -> core.SampleGrid:
        """The grid in the form that the engine takes."""
        return core.SampleGrid(list(zip(self.lengths, self.chunks, self.chunk_steps, self.row_steps, strict=True)))

    @property
    def num_samples(self) -> int:
        """All combinations of indices."""
        return math.prod(self.lengths)

    @property
    def block_rows(self) -> int:
        """Samples of a full box."""
        return math.prod(self.chunks)

    @property
    def rows_along(self) -> int:
        """Samples of a full box along the last dimension."""
        return self.chunks[-1]

    @property
    def num_rows(self) -> int:
        """Rows of an array that has all dimensions, with those that pad chunks at its edges."""
        return self.block_rows * math.prod(-(-n // chunk) for n, chunk in zip(self.lengths, self.chunks, strict=True))

    def with_rows(self, num_rows: int) -> list[tuple[SampleGrid, int]]:
        """Return the grid of each array, which is this one, and the rows of the array."""
        return [(self, num_rows)]

    def boxes(self, several: int = 1) -> SampleGrid:
        """Return the boxes as a grid in C order, each of them as `several` chunks along the last dimension."""
        return SampleGrid.of(self.lengths, (*self.chunks[:-1], self.chunks[-1] * several))

    @property
    def box(self) -> tuple[int, ...]:
        """Samples of the largest box along each dimension."""
        return tuple(map(min, self.chunks, self.lengths))

    def rows_of(self, samples: Int64) -> Int64:
        """Return the row of each sample."""
        return self.core.rows_of(samples.ravel()).reshape(samples.shape)

    def samples_of(self, rows: Int64) -> Int64:
        """Return the sample that has each row, where the array has all dimensions."""
        return self.core.samples_of(rows)

    def index_along(self, dimension: int, samples: Int64) -> Int64:
        """Return the index of samples along a dimension."""
        return samples // math.prod(self.lengths[dimension + 1 :]) % self.lengths[dimension]

    @property
    def has_all_dimensions(self) -> bool:
        """True if the array lacks none of the dimensions."""
        return 0 not in self.chunk_steps

    def chunks_beyond(self, box: Sequence[int], reach: Sequence[int]) -> int:
        """Return how many chunks a block shares with its neighbours at most, if it is a box, or several side by side.

        Parameters
        ----------
        box
            Samples of the box along each dimension.
        reach
            Rows that windows reach before, and after, a sample's own, along the last dimension.
        """
        own = self.box
        along = sum(-(-rows // own[-1]) for rows in reach) + (box[-1] % own[-1] != 0)
        beside = (-(-n // chunk) + (n % chunk != 0) for n, chunk in zip(box[:-1], own[:-1], strict=True))
        return along * math.prod(beside)

    @property
    def boxes_are_runs(self) -> bool:
        """True if the samples of each box follow each other."""
        several = [number for number, chunk in enumerate(self.chunks) if min(chunk, self.lengths[number]) > 1]
        whole = [number for number, chunk in enumerate(self.chunks) if chunk < self.lengths[number]]
        return not several or not whole or max(whole) <= min(several)

    @property
    def row_edges(self) -> tuple[Int64, Int64]:
        """The first row, the number of rows, and the rows of a box: of an array that has all dimensions."""
        return np.array([0, self.num_rows]), np.array([self.block_rows])

    def describe(self) -> str:
        """Describe the samples, for people."""
        return f"{' x '.join(map(str, self.lengths))}, in boxes of {self.box}"

    def runs_of_boxes(self) -> tuple[Int64, Int64]:
        """Return runs of boxes with one length each, but for the last box of a run, in C order of the boxes.

        Returns
        -------
        The samples before each run and in all of them, shape (runs + 1,), and the samples of a box of each run.
        """
        outer = np.ones(1, dtype=np.int64)
        for length, chunk in zip(self.lengths[:-1], self.chunks[:-1], strict=True):
            outer = np.multiply.outer(outer, _extents(length, chunk)).ravel()
        begin = np.concatenate(([0], np.cumsum(outer * self.lengths[-1])))
        return begin, outer * self.chunks[-1]

    def stored_runs(self) -> tuple[Int64, Int64]:
        """Return the runs of rows that samples have, ascending: the first row of each, and how many it has.

        The rows that pad chunks at the edges of the array are left out. For a grid with steps in C order.
        """
        found = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))]
        along = [_chunk_kinds(n, chunk) for n, chunk in zip(self.lengths, self.chunks, strict=True)]
        for kinds in product(*along):
            extents = [extent for _, extent in kinds]
            cut = max((d for d, extent in enumerate(extents) if extent < self.chunks[d]), default=0)
            length = extents[cut] * math.prod(self.chunks[cut + 1 :])
            begin = np.zeros(1, dtype=np.int64)
            for (chunks, _), step in zip(kinds, self.chunk_steps, strict=True):
                begin = np.add.outer(begin, chunks * step).ravel()
            for extent, step in zip(extents[:cut], self.row_steps, strict=False):
                begin = np.add.outer(begin, np.arange(extent) * step).ravel()
            found.append((begin, np.full(len(begin), length)))
        begin, count = (np.concatenate(column) for column in zip(*found, strict=True))
        ascending = np.argsort(begin)
        return begin[ascending], count[ascending]


def _extents(length: int, chunk: int) -> Int64:
    """Return how many indices each chunk along a dimension has."""
    return np.diff(np.append(np.arange(0, length, chunk), length))


def _chunk_kinds(length: int, chunk: int) -> list[tuple[Int64, int]]:
    """Return the chunks along a dimension with as many indices, and that number: full ones, and a short one."""
    full, rest = divmod(length, chunk)
    kinds = [(np.arange(full), chunk)] if full else []
    return kinds + ([(np.array([full]), rest)] if rest else [])
