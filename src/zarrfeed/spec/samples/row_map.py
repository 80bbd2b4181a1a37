"""`RowMap`: the row of a field's array for each sample, where that is not the row with the sample's index.

`OneRow`: the same row for all samples. `SegmentRows`: the same row for all samples of a segment, such as an episode.
`CodeRows`: the number of each sample's value. `GridRows`: the rows of samples that several dimensions number.
`SampleRuns` (spec/samples/sample_runs.py): rows that go on elsewhere behind each of many runs of samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.spec.samples.sample_grid import SampleGrid
from zarrfeed.spec.samples.sample_grids import AnyGrid, SampleGrids

Int64: TypeAlias = npt.NDArray[np.int64]

#: The row of a sample for which the array has none.
NO_ROW = -1


@dataclass(frozen=True, eq=False)
class RowMap:
    """The rows of samples.

    Attributes
    ----------
    rows
        The row of each sample, int64, shape (samples,); `NO_ROW` where the array has none. Contiguous, and not written
        to: the engine reads it at its address. A range: the rows are evenly spaced, and no list of them is kept.
    note
        Text for people about samples for which the array has no row of their own: the values that they have. "" if
        there are no such samples, or they are left out.
    """

    rows: Int64 | range
    note: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.rows, range):
            object.__setattr__(self, "rows", np.ascontiguousarray(self.rows, dtype=np.int64))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowMap) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lacks_some(self) -> bool:
        """True if some sample has no row."""
        return not isinstance(self.rows, range) and bool((self.rows == NO_ROW).any())

    @property
    def follows_rule(self) -> bool:
        """True if the rows of samples side by side lie side by side, or evenly spaced."""
        return isinstance(self.rows, range)

    @property
    def listed(self) -> Int64 | None:
        """The list of rows that the engine reads; None where a rule says them."""
        return None if isinstance(self.rows, range) else self.rows

    @property
    def block_begins(self) -> Int64:
        """The samples that a block may begin with: any."""
        return np.arange(len(self))

    @property
    def in_states(self) -> str:
        """The rows as text for states; "" where the samples tell maps apart."""
        return ""

    @cached_property
    def digest(self) -> str:
        """A hash that tells row maps apart."""
        if isinstance(self.rows, range):
            return repr(self.rows)
        return hashlib.sha256(self.rows.astype("<i8").tobytes()).hexdigest()

    def rows_of(self, samples: Int64) -> Int64:
        """Return the row of each sample."""
        if isinstance(self.rows, range):
            return self.rows.start + self.rows.step * samples
        return self.rows[samples]

    def describe(self, num_rows: int) -> str:
        """Describe a map to `num_rows` rows in one line, for people: the samples and rows that found each other."""
        rows = self.rows if isinstance(self.rows, range) else self.rows[self.rows != NO_ROW]
        used = len(rows) if isinstance(rows, range) or not len(rows) else 1 + np.count_nonzero(np.diff(np.sort(rows)))
        line = f"joined: {len(rows)} of {len(self.rows)} samples have one of its {num_rows} rows"
        unused = "" if used == num_rows else f"{num_rows - used} rows have no sample"
        return "; ".join(filter(None, (line, unused, self.note)))

    def to_core(self) -> tuple[int, int, int, int] | tuple[tuple[int, int, int, int], int] | core.SampleGrid:
        """Return the map in the form that the engine takes; `rows` must outlive the engine."""
        if isinstance(self.rows, range):
            return 0, len(self.rows), self.rows.start, self.rows.step
        return self.rows.ctypes.data, len(self.rows), 0, 1


class _RuleRows(RowMap):
    """A map by a rule: each sample has a row, and no list says which."""

    @property
    def lacks_some(self) -> bool:
        """True if some sample has no row: never."""
        return False

    @property
    def listed(self) -> None:
        """None: a rule says the rows."""
        return None


class OneRow(_RuleRows):
    """All samples have the only row that there is: the array has no sample axis.

    Parameters
    ----------
    num_samples
        Number of samples; the map takes no memory for them.
    """

    def __init__(self, num_samples: int) -> None:
        object.__setattr__(self, "rows", np.broadcast_to(np.int64(0), num_samples))

    def __reduce__(self) -> tuple[type[OneRow], tuple[int]]:
        return OneRow, (len(self),)

    @property
    def digest(self) -> str:
        """A text that tells row maps apart."""
        return f"one row for {len(self)} samples"

    def to_core(self) -> tuple[int, int, int, int] | core.SampleGrid:
        """Return the map in the form that the engine takes: row 0, and a step of 0."""
        return 0, len(self), 0, 0


class SegmentRows(RowMap):
    """All samples of a segment have its row: row k is that of segment k.

    Parameters
    ----------
    ends
        The sample after the last one of each segment, ascending, shape (segments,). Another process gets these alone.
    """

    ends: Int64

    def __init__(self, ends: Int64) -> None:
        object.__setattr__(self, "ends", ends)
        super().__init__(np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0)))

    def __reduce__(self) -> tuple[type[SegmentRows], tuple[Int64]]:
        return SegmentRows, (self.ends,)

    @property
    def lacks_some(self) -> bool:
        """True if some sample has no row: never."""
        return False

    def describe(self, num_rows: int) -> str:
        """Describe the map in one line, for people."""
        return f"one row for each of {num_rows} segments"


class CodeRows(RowMap):
    """The number of the value that each sample has, of a few different values."""

    def describe(self, num_rows: int) -> str:
        """Describe the map in one line, for people."""
        return f"each sample has one of {num_rows} values"


class GridRows(_RuleRows):
    """The rows of samples that several dimensions number, by rule.

    Parameters
    ----------
    grid
        The dimensions, and the rows along each; of several stores, those of each.
    shards
        The same with the samples of a shard as a box; those of a chunk where there are no shards.
    """

    grid: AnyGrid
    shards: AnyGrid

    def __init__(self, grid: AnyGrid, shards: AnyGrid) -> None:
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "shards", shards)
        object.__setattr__(self, "note", "")

    @classmethod
    def concat(cls, parts: Sequence[tuple[GridRows, int]]) -> GridRows:
        """Return the rows of the samples of several stores, each with the rows that its array has."""
        shards = [(part.shards, part.shards.num_rows) for part, _ in parts]
        return cls(SampleGrids.concat([(part.grid, num_rows) for part, num_rows in parts]), SampleGrids.concat(shards))

    def __reduce__(self) -> tuple[type[GridRows], tuple[AnyGrid, AnyGrid]]:
        return GridRows, (self.grid, self.shards)

    def __len__(self) -> int:
        return self.grid.num_samples

    @cached_property
    def rows(self) -> Int64:
        """The rows as a list, for what asks for one."""
        return self.grid.rows_of(np.arange(len(self)))

    @cached_property
    def digest(self) -> str:
        """A text that tells row maps apart."""
        told = repr(self.grid)
        return told if isinstance(self.grid, SampleGrid) else hashlib.sha256(told.encode()).hexdigest()

    def rows_of(self, samples: Int64) -> Int64:
        """Return the row of each sample."""
        return self.grid.rows_of(samples)

    def describe(self, num_rows: int) -> str:
        """Describe the samples in one line, for people."""
        del num_rows
        return f"samples are {self.grid.describe()}"

    def to_core(self) -> core.SampleGrid:
        """Return the map in the form that the engine takes."""
        return self.grid.core
