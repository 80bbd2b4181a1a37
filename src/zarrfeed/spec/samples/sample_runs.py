"""`SampleRuns`: a row map of runs of samples, whose rows lie side by side or are the same."""

from __future__ import annotations

import hashlib
from functools import cached_property

import numpy as np

from zarrfeed.spec.samples.row_map import NO_ROW, Int64, RowMap


class SampleRuns(RowMap):
    """The rows of runs of samples.

    Parameters
    ----------
    begins
        The first sample of each run, ascending from 0, shape (runs,).
    first
        The row of that sample; `NO_ROW` where the samples of a run have none.
    num_samples
        Number of samples.
    step
        Rows from one sample of a run to the next: 1, or 0 if all have the same row.
    block_begins
        The samples that blocks may begin with, ascending from 0. None: those of `begins`.
    note
        Text for people, about all samples.
    """

    def __init__(
        self,
        begins: Int64,
        first: Int64,
        num_samples: int,
        *,
        step: int = 1,
        block_begins: Int64 | None = None,
        note: str = "",
    ) -> None:
        set_attribute = object.__setattr__  # of a frozen dataclass
        set_attribute(self, "table", np.stack([begins, first]).astype(np.int64))  # the engine reads it at its address
        set_attribute(self, "num_samples", num_samples)
        set_attribute(self, "step", step)
        set_attribute(self, "_block_begins", begins if block_begins is None else block_begins)
        set_attribute(self, "note", note)

    table: Int64
    num_samples: int
    step: int
    _block_begins: Int64

    def __len__(self) -> int:
        return self.num_samples

    @cached_property
    def rows(self) -> Int64:
        """The row of each sample as a list, for callers that ask for one."""
        return self.rows_of(np.arange(len(self)))

    @property
    def follows_rule(self) -> bool:
        """Always False: rows go on elsewhere behind each run."""
        return False

    @cached_property
    def lacks_some(self) -> bool:
        """True if some sample has no row."""
        return bool((self.table[1] < 0).any())

    @property
    def listed(self) -> Int64:
        """The runs, which the engine reads."""
        return self.table

    @property
    def block_begins(self) -> Int64:
        """The samples that a block may begin with."""
        return self._block_begins

    @cached_property
    def digest(self) -> str:
        """A hash that tells row maps apart."""
        return hashlib.sha256(self.table.astype("<i8").tobytes()).hexdigest()

    @property
    def in_states(self) -> str:
        """The rows as text for states."""
        return f"rows {self.digest[:16]}"

    def rows_of(self, samples: Int64) -> Int64:
        """Return the row of each sample."""
        run = np.searchsorted(self.table[0], samples, side="right") - 1
        first: Int64 = self.table[1][run]
        return np.where(first < 0, NO_ROW, first + self.step * (samples - self.table[0][run]))

    def runs_between(self, low: Int64, high: Int64) -> tuple[Int64, Int64]:
        """Return the first run that each range of samples [low, high] meets, and the number of runs that it meets."""
        run, last = (np.searchsorted(self.table[0], one, side="right") - 1 for one in (low, high))
        return run, last - run + 1

    def describe(self, num_rows: int) -> str:
        """Describe the map in one line, for people."""
        del num_rows
        return self.note

    def to_core(self) -> tuple[tuple[int, int, int, int], int]:
        """Return the map in the form that the engine takes; `table` must outlive the engine."""
        return (self.table.ctypes.data, self.num_samples, 0, self.step), self.table.shape[1]
