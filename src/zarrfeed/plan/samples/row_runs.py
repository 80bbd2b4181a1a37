"""`RowRuns`: the runs of rows that chunks are cut into, so that lanes hand on rows and not the chunk around them.

Invariant: the runs of a chunk partition its rows. Each has the same number of rows, but for the last one of a chunk.
A run is known by one number, that of its chunk times the runs of a chunk, plus its number in the chunk. So the runs of
neighbouring rows of a store have neighbouring numbers. cpp/engine/chunks/row_runs.h has the same arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarrfeed.spec.arrays.array_parts import Int64
from zarrfeed.spec.arrays.layout import Layout


@dataclass(frozen=True)
class RowRuns:
    """The runs of an array.

    Attributes
    ----------
    layout
        The layout of the array.
    cut
        Rows of a run. 0, or no fewer than a chunk has: a run is a whole chunk.
    """

    layout: Layout
    cut: int = 0

    @property
    def are_chunks(self) -> bool:
        """True if a run is a whole chunk."""
        return not 0 < self.cut < self.layout.spec.rows_per_chunk

    @property
    def rows(self) -> int:
        """Rows of a run, at most."""
        return self.layout.spec.rows_per_chunk if self.are_chunks else self.cut

    @property
    def fewest_rows(self) -> int:
        """Rows of the shortest run of a full chunk."""
        return self.layout.spec.rows_per_chunk % self.rows or self.rows

    @property
    def nbytes(self) -> int:
        """Decoded bytes of a run in one cell, at most."""
        spec = self.layout.spec
        return spec.decoded_bytes // spec.rows_per_chunk * self.rows

    @property
    def of_chunk(self) -> int:
        """Number of runs of a chunk."""
        return -(-self.layout.spec.rows_per_chunk // self.rows)

    def of(self, rows: Int64) -> Int64:
        """Return the run that holds each row; -1 for rows that are in another layout."""
        chunk = self.layout.chunk_of(rows)
        if self.are_chunks:
            return chunk
        return np.where(chunk >= 0, chunk * self.of_chunk + self.in_chunk(rows) // self.rows, -1)

    def in_chunk(self, rows: Int64) -> Int64:
        """Return the number of each row in its chunk."""
        parts = self.layout.parts
        begin = 0 if parts is None else parts.begin[parts.part_of(rows)]
        return (rows - begin) % self.layout.spec.rows_per_chunk

    def rows_in_chunk(self, runs: Int64) -> tuple[Int64, Int64]:
        """Return the first and the last row of runs, counted from the first row of their chunk."""
        first = runs % self.of_chunk * self.rows
        return first, np.minimum(first + self.rows, self.layout.spec.rows_per_chunk) - 1
