"""Samples that are read box by box, where several dimensions number them: the order of blocks that are no runs.

Invariant: samples ascend inside of each box, and boxes follow each other in C order. The samples are kept as the rows
that they have in the boxes, which ascend, so they take as many bytes as other sets of samples do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.samples.sample_set import Samples, SampleSet, as_samples, pieces_of, runs_of
from zarrfeed.spec.samples.block_edges import GridEdges
from zarrfeed.spec.samples.sample_grids import AnyGrid


@dataclass(frozen=True, eq=False)
class BoxSamples(SampleSet):
    """Some samples of a grid, box by box.

    They are listed, looked up by their numbers, and told their numbers; nothing of `SampleSet` that needs ascending
    samples is for them.

    Attributes
    ----------
    grid
        Its chunks are the boxes.
    rows
        The rows of the samples in the boxes, ascending.
    """

    form: str = "boxes"
    arrays: tuple[Any, ...] = ()
    grid: AnyGrid = field(kw_only=True)
    rows: SampleSet = field(kw_only=True)

    @classmethod
    def of(cls, samples: Samples, edges: GridEdges) -> BoxSamples:
        """Return ascending samples, each given once, in the order of the boxes."""
        if len(samples) == edges.grid.num_samples:
            return cls(grid=edges.grid, rows=_as_set(runs_of(*edges.grid.stored_runs(), 1)))
        rows = np.concatenate([edges.grid.rows_of(piece) for piece in pieces_of(samples)])
        rows.sort()
        return cls(grid=edges.grid, rows=_as_set(as_samples(rows)))

    @cached_property
    def table(self) -> core.SampleTable:
        """The samples in the form that the engine takes."""
        return core.SampleTable.of_grid(grid=self.grid.core, rows=self.rows.table)

    @property
    def nbytes(self) -> int:
        """Bytes that the samples take."""
        return self.rows.nbytes

    @property
    def digest(self) -> bytes:
        """A hash that tells sets apart."""
        return hashlib.sha256(repr(self.grid).encode() + self.rows.digest).digest()

    @property
    def are_all(self) -> bool:
        """True if these are all samples of the grid."""
        return len(self) == self.grid.num_samples


def _as_set(samples: Samples) -> SampleSet:
    """Return samples as a `SampleSet`, also those that came as a range."""
    if isinstance(samples, SampleSet):
        return samples
    return SampleSet("runs", (np.array([samples.start]), np.array([len(samples)])), samples.step)
