"""Draws of voxels with the probability of their weights, in logarithmic time, from sums of the weights.

The weights lie on a grid whose cells are boxes of voxels, such as the voxels themselves. A voxel of cell k that patches
may have in their middle is drawn with the probability w_k / sum over all such voxels of their weights.

Invariants:

- **Sums.** The weights are kept in C order, with their sum for each run of `RUN` cells. A draw finds its run by a
  search in the sums, and its cell by the sums inside of this run alone.
- **The same everywhere.** Sums are added one after another, in float64, so all machines find the same cells.
- **Bounds.** Which voxels patches may have in their middle is, for each dimension, a list of ranges: one, or one for
  each volume along the sample axis. A cell counts as often as it has such voxels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.keyed_random import UInt64, below
from zarrfeed.plan.samples.selection import Int64

Float64 = npt.NDArray[np.float64]

#: Cells whose weights have one sum.
RUN = 256
#: Runs that are added up at once.
_RUNS_AT_ONCE = 1 << 12


@dataclass(frozen=True, eq=False)
class Ranges:
    """Voxels along a dimension that patches may have in their middle: ascending ranges, shape (ranges,) both."""

    begin: Int64
    end: Int64

    @cached_property
    def _before(self) -> Int64:
        """Voxels of the ranges before each one, and of all at the end."""
        return np.concatenate([[0], np.cumsum(self.end - self.begin)])

    def below(self, voxel: Int64) -> Int64:
        """Return the number of the ranges' voxels below a voxel."""
        number = np.searchsorted(self.begin, voxel, side="right") - 1
        inside = np.minimum(voxel, self.end[number]) - self.begin[number]
        found: Int64 = np.where(number < 0, 0, self._before[number] + inside)
        return found

    def voxel(self, number: Int64) -> Int64:
        """Return the voxels with some numbers, counted over the voxels of the ranges."""
        which = np.searchsorted(self._before, number, side="right") - 1
        found: Int64 = self.begin[which] + number - self._before[which]
        return found


@dataclass(frozen=True, eq=False)
class WeightTable:
    """Weights of voxels.

    Attributes
    ----------
    weights
        Weight of each cell, in C order, shape (cells,): bool, or numbers that are not negative.
    shape
        Cells along each dimension.
    cell
        Voxels of a cell along each dimension.
    bounds
        Voxels that patches may have in their middle, for each dimension.

    Raises
    ------
    ConfigError
        If no voxel within the bounds has a weight.
    """

    weights: npt.NDArray[np.generic]
    shape: tuple[int, ...]
    cell: tuple[int, ...]
    bounds: tuple[Ranges, ...]

    def __post_init__(self) -> None:
        if not self._sums[-1] > 0:
            raise ConfigError("weights are 0 at all voxels that patches may have in their middle, and must not be")
        if not np.isfinite(self._sums[-1]):
            raise ConfigError(f"weights have the sum {self._sums[-1]}, must be finite")

    @cached_property
    def digest(self) -> str:
        """A hash of weights and shape."""
        made = hashlib.sha256(f"{self.weights.dtype.str} {self.shape} {self.cell}".encode())
        made.update(np.ascontiguousarray(self.weights).tobytes())
        return made.hexdigest()[:16]

    def draw(self, words: Sequence[UInt64]) -> Int64:
        """Return voxels, shape (n, D), given random words for the cell and for each dimension, shape (n,) each."""
        # in [0, 1), exactly
        part = (words[0] >> np.uint64(11)).astype(np.float64) * 2.0**-53
        wanted = part * self._sums[-1]
        run = np.minimum(np.searchsorted(self._sums, wanted, side="right"), self._last_run)
        order = np.argsort(run, kind="stable")
        cell = np.empty(len(run), dtype=np.int64)
        for begin in range(0, len(run), _RUNS_AT_ONCE):
            here = order[begin : begin + _RUNS_AT_ONCE]
            runs, row = np.unique(run[here], return_inverse=True)
            sums = np.cumsum(self._of_runs(runs), axis=1)[row]
            before = np.where(run[here] > 0, self._sums[run[here] - 1], 0)
            # below the sum of the run, whatever was rounded
            left = np.minimum(wanted[here] - before, np.nextafter(sums[:, -1], 0))
            cell[here] = run[here] * RUN + (sums <= left[:, None]).sum(axis=1)
        found = np.empty((len(cell), len(self.shape)), dtype=np.int64)
        for d, index in enumerate(np.unravel_index(cell, self.shape)):
            first = self.bounds[d].below(index * self.cell[d])
            many = self.bounds[d].below((index + 1) * self.cell[d]) - first
            found[:, d] = self.bounds[d].voxel(first + below(words[1 + d], many))
        return found

    @cached_property
    def _sums(self) -> Float64:
        """The weights of each run and of all before it, shape (runs,)."""
        runs = -(-len(self.weights) // RUN)
        with np.errstate(over="ignore"):  # a sum that is too large is refused
            of_run = [
                np.cumsum(self._of_runs(np.arange(begin, min(begin + _RUNS_AT_ONCE, runs))), axis=1)[:, -1]
                for begin in range(0, runs, _RUNS_AT_ONCE)
            ]
            return np.cumsum(np.concatenate(of_run))

    @cached_property
    def _last_run(self) -> int:
        """The last run with a weight."""
        return int(np.searchsorted(self._sums, self._sums[-1]))

    @cached_property
    def _voxels(self) -> list[Int64]:
        """For each dimension, the voxels of each cell that are within the bounds."""
        return [
            np.diff(bounds.below(np.arange(cells + 1) * length))
            for bounds, cells, length in zip(self.bounds, self.shape, self.cell, strict=True)
        ]

    def _of_runs(self, runs: Int64) -> Float64:
        """Return the weights of the cells of runs, times the voxels that they have, shape (runs, RUN)."""
        cell = runs[:, None] * RUN + np.arange(RUN)
        inside = cell < len(self.weights)
        cell = np.where(inside, cell, 0)
        found = np.where(inside, self.weights[cell].astype(np.float64), 0)
        for voxels, index in zip(self._voxels, np.unravel_index(cell, self.shape), strict=True):
            found *= voxels[index]
        return found
