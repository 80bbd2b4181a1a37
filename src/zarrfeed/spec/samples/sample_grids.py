"""`SampleGrids`: the samples of several arrays, one array after another, each of which several dimensions number.

Invariant: sample i of grid g is sample first_sample[g] + i of all, and its row is behind the first row of that grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.spec.samples.sample_grid import Int64, SampleGrid

#: The rows of samples that several dimensions number: of one array, or of several, as those of many stores.
AnyGrid: TypeAlias = "SampleGrid | SampleGrids"


@dataclass(frozen=True)
class SampleGrids:
    """Several grids, one after another. It answers what `SampleGrid` does.

    Attributes
    ----------
    grids
        The grid of each array; all have as many dimensions.
    num_rows_of
        The rows of each array.

    Examples
    --------
    >>> grids = SampleGrids.of_boxes([SampleGrid.of((2, 4), (2, 3)), SampleGrid.of((1, 3), (1, 3))])
    >>> grids.rows_of(np.array([6, 8])).tolist(), grids.samples_of(np.array([5, 12])).tolist()
    ([5, 12], [6, 8])
    """

    grids: tuple[SampleGrid, ...]
    num_rows_of: tuple[int, ...]

    @classmethod
    def concat(cls, grids: Sequence[tuple[AnyGrid, int]]) -> SampleGrids:
        """Return grids, or several, one after another; of each with the rows that the array, or all arrays, have."""
        each = [one for grid, num_rows in grids for one in grid.with_rows(num_rows)]
        return cls(tuple(grid for grid, _ in each), tuple(num_rows for _, num_rows in each))

    @classmethod
    def of_boxes(cls, grids: Sequence[SampleGrid]) -> SampleGrids:
        """Return grids of arrays that have all dimensions."""
        return cls(tuple(grids), tuple(grid.num_rows for grid in grids))

    def __getstate__(self) -> dict[str, Any]:
        return {"grids": self.grids, "num_rows_of": self.num_rows_of}

    @cached_property
    def core(self) -> core.SampleGrid:
        """The grids in the form that the engine takes."""
        return core.SampleGrid.joined([grid.core for grid in self.grids], self.first_row[:-1].tolist())

    @cached_property
    def first_sample(self) -> Int64:
        """The first sample of each grid, and the number of samples, shape (grids + 1,)."""
        return np.cumsum([0, *(grid.num_samples for grid in self.grids)])

    @cached_property
    def first_row(self) -> Int64:
        """The first row of each grid, and the number of rows, shape (grids + 1,)."""
        return np.cumsum([0, *self.num_rows_of])

    def with_rows(self, num_rows: int) -> list[tuple[SampleGrid, int]]:  # noqa: ARG002 - as of SampleGrid
        """Return the grid of each array, and the rows of the array."""
        return list(zip(self.grids, self.num_rows_of, strict=True))

    @property
    def num_samples(self) -> int:
        """All samples."""
        return int(self.first_sample[-1])

    @property
    def num_rows(self) -> int:
        """Rows of all arrays."""
        return int(self.first_row[-1])

    @property
    def block_rows(self) -> int:
        """Samples of the largest full box."""
        return max(grid.block_rows for grid in self.grids)

    @property
    def rows_along(self) -> int:
        """Samples of the longest full box along the last dimension."""
        return max(grid.rows_along for grid in self.grids)

    @property
    def box(self) -> tuple[int, ...]:
        """Samples of the largest box along each dimension."""
        return tuple(map(max, zip(*(grid.box for grid in self.grids), strict=True)))

    @property
    def has_all_dimensions(self) -> bool:
        """True if no array lacks a dimension."""
        return all(grid.has_all_dimensions for grid in self.grids)

    @property
    def boxes_are_runs(self) -> bool:
        """True if the samples of each box follow each other."""
        return all(grid.boxes_are_runs for grid in self.grids)

    def rows_of(self, samples: Int64) -> Int64:
        """Return the row of each sample."""
        return self.core.rows_of(samples.ravel()).reshape(samples.shape)

    def samples_of(self, rows: Int64) -> Int64:
        """Return the sample that has each row, where the arrays have all dimensions."""
        return self.core.samples_of(rows)

    def chunks_beyond(self, box: Sequence[int], reach: Sequence[int]) -> int:
        """Return how many chunks a block shares with its neighbours at most; see `SampleGrid.chunks_beyond`."""
        return max(grid.chunks_beyond(box, reach) for grid in set(self.grids))

    def boxes(self, several: int = 1) -> SampleGrids:
        """Return the boxes as grids in C order, each of them as `several` chunks along the last dimension."""
        return SampleGrids.of_boxes([grid.boxes(several) for grid in self.grids])

    @property
    def row_edges(self) -> tuple[Int64, Int64]:
        """The first row of each grid, the number of rows, and the rows of a box: of arrays with all dimensions."""
        return self.first_row, np.array([grid.block_rows for grid in self.grids])

    def runs_of_boxes(self) -> tuple[Int64, Int64]:
        """Return runs of boxes with one length each, as `SampleGrid.runs_of_boxes` does."""
        begins, rows = zip(*(grid.runs_of_boxes() for grid in self.grids), strict=True)
        begin = [one[:-1] + first for one, first in zip(begins, self.first_sample, strict=False)]
        return np.concatenate([*begin, self.first_sample[-1:]]), np.concatenate(rows)

    def stored_runs(self) -> tuple[Int64, Int64]:
        """Return the runs of rows that samples have, as `SampleGrid.stored_runs` does."""
        begins, counts = zip(*(grid.stored_runs() for grid in self.grids), strict=True)
        begin = [one + first for one, first in zip(begins, self.first_row, strict=False)]
        return np.concatenate(begin), np.concatenate(counts)

    def describe(self) -> str:
        """Describe the samples, for people."""
        shapes = {grid.lengths for grid in self.grids}
        each = " x ".join(map(str, self.grids[0].lengths)) if len(shapes) == 1 else f"{len(shapes)} shapes"
        return f"those of {len(self.grids)} stores, {each}, in boxes of {self.box} at most"
