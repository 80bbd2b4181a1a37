"""`PackedSequences`: whole sequences side by side in samples of one length, such as documents for language models.

Invariants:

- **Exactly once.** Each row of a sequence is in one sample, unless `LONGER` says that rows of long ones are left out.
  Sequences that are cut because they are long are several sequences from then on.
- **Local.** Sequences are packed pool by pool (`cpp/plan/sequence_packing.h`): a pool has sequences that follow one
  another in the array, with about as many rows as `pool` samples. So a sample reads rows of one stretch of the array,
  and blocks consist of whole pools.
- **Settled.** Samples are the same in all epochs. They follow from the lengths alone.

The samples lie on an axis of their own, on which sample i is the window of `length` rows that begins with i * length.
Three row maps say what is there: the row of the array, the number of the sequence in its sample, and the position
in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.sample_set import Samples, runs_of
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.samples.row_map import NO_ROW
from zarrfeed.spec.samples.sample_runs import SampleRuns

Longer = Literal["split", "truncate", "drop"]
#: Rules for sequences that are longer than a sample: several sequences; its first rows alone; none.
LONGER: tuple[Longer, ...] = ("split", "truncate", "drop")


@dataclass(frozen=True, eq=False)
class PackedSequences:
    """Sequences in samples, in the order of the samples, and in each in the order of the array.

    Attributes
    ----------
    length
        Rows of a sample.
    begins, lengths
        The first row of each sequence, and its rows.
    sample_of
        The sample of each sequence, ascending.
    pool_of
        The pool of each sample, ascending.
    """

    length: int
    begins: Int64
    lengths: Int64
    sample_of: Int64
    pool_of: Int64

    @classmethod
    def of(cls, begins: Int64, lengths: Int64, *, length: int, pool: int, longer: Longer) -> Self:
        """Pack sequences into samples.

        Parameters
        ----------
        begins, lengths
            The first row of each sequence, ascending, and its rows, at least 1.
        length
            Rows of a sample.
        pool
            Samples whose rows a pool has, about.
        longer
            The rule for sequences of more than `length` rows.

        Examples
        --------
        >>> packed = PackedSequences.of(np.array([0, 3, 8]), np.array([3, 5, 4]), length=7, pool=4, longer="split")
        >>> packed.sample_of.tolist(), packed.rows.rows.tolist()
        ([0, 0, 1], [0, 1, 2, 8, 9, 10, 11, 3, 4, 5, 6, 7, -1, -1])
        >>> packed.segment_ids.rows.tolist(), packed.positions.rows.tolist()
        ([1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0], [0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1])
        """
        if longer == "drop":
            begins, lengths = begins[lengths <= length], lengths[lengths <= length]
        elif longer == "truncate":
            lengths = np.minimum(lengths, length)
        else:
            counts = -(-lengths // length)
            number = joined_ranges(np.zeros_like(counts), counts)
            begins, ends = np.repeat(begins, counts) + number * length, np.repeat(begins + lengths, counts)
            lengths = np.minimum(ends - begins, length)
        pool_of = (np.cumsum(lengths) - lengths) // (pool * length)
        sample_of = core.pack_sequences(
            lengths=lengths, pool_begin=np.flatnonzero(np.diff(pool_of, prepend=-1)), room=length
        )
        # Samples in the order of their first rows, which lets those of one pool stay together.
        in_order = np.lexsort((begins, sample_of))
        first = np.flatnonzero(np.diff(sample_of[in_order], prepend=-1))
        by_row = np.argsort(begins[in_order[first]])
        rank = np.empty_like(by_row)
        rank[by_row] = np.arange(len(by_row))
        sample_of = rank[sample_of]
        in_order = np.lexsort((begins, sample_of))
        first = np.flatnonzero(np.diff(sample_of[in_order], prepend=-1))
        return cls(length, begins[in_order], lengths[in_order], sample_of[in_order], pool_of[in_order[first]])

    @classmethod
    def joined(cls, parts: Sequence[PackedSequences], first_rows: Int64) -> Self:
        """Return the samples of several packings, one after another; `first_rows` is the first row of each array.

        Examples
        --------
        >>> begins, lengths = np.array([0, 3]), np.array([3, 2])
        >>> part = PackedSequences.of(begins, lengths, length=4, pool=1, longer="split")
        >>> PackedSequences.joined([part, part], np.array([0, 5])).rows.rows.tolist()
        [0, 1, 2, -1, 3, 4, -1, -1, 5, 6, 7, -1, 8, 9, -1, -1]
        """
        first_sample = np.cumsum([0, *(one.num_samples for one in parts)])
        first_pool = np.cumsum([0, *(int(one.pool_of[-1]) + 1 for one in parts)])
        return cls(
            parts[0].length,
            np.concatenate([one.begins + first for one, first in zip(parts, first_rows, strict=True)]),
            np.concatenate([one.lengths for one in parts]),
            np.concatenate([one.sample_of + first for one, first in zip(parts, first_sample, strict=False)]),
            np.concatenate([one.pool_of + first for one, first in zip(parts, first_pool, strict=False)]),
        )

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.pool_of)

    @property
    def axis_length(self) -> int:
        """Rows of all samples."""
        return self.num_samples * self.length

    @cached_property
    def padding(self) -> float:
        """The share of the rows of all samples that is padding."""
        return 1 - int(self.lengths.sum()) / max(1, self.axis_length)

    def filled(self, samples: Int64) -> Samples:
        """Return the rows of some samples that are no padding; samples are those of the axis, ascending."""
        return runs_of(samples, self._used[samples // self.length], 1)

    @cached_property
    def rows(self) -> SampleRuns:
        """The row of the array that is in each row of the samples."""
        note = (
            f"packed: {len(self.lengths)} sequences in {self.num_samples} samples of {self.length} rows, "
            f"{self.padding:.1%} of which is padding"
        )
        pools = np.flatnonzero(np.diff(self.pool_of, prepend=-1)) * self.length
        return self._runs(self.begins, NO_ROW, block_begins=pools, note=note)

    @cached_property
    def segment_ids(self) -> SampleRuns:
        """The number of the sequence in its sample, from 1 on; 0 for padding."""
        return self._runs(self._numbers + 1, 0, step=0)

    @cached_property
    def positions(self) -> SampleRuns:
        """The position in the sequence, from 0 on; padding counts as one more sequence."""
        return self._runs(np.zeros_like(self.begins), 0)

    @cached_property
    def _numbers(self) -> Int64:
        """The number of each sequence in its sample, from 0 on."""
        first = np.searchsorted(self.sample_of, np.arange(self.num_samples))
        return np.arange(len(self.sample_of)) - first[self.sample_of]

    @cached_property
    def _used(self) -> Int64:
        """Rows of each sample that are no padding."""
        return np.add.reduceat(self.lengths, np.searchsorted(self.sample_of, np.arange(self.num_samples)))

    def _runs(
        self, first: Int64, of_padding: int, *, step: int = 1, block_begins: Int64 | None = None, note: str = ""
    ) -> SampleRuns:
        """Return a row map in which sequences begin with some rows, and padding with another one."""
        used = self._used
        before = np.cumsum(self.lengths) - self.lengths - (np.cumsum(used) - used)[self.sample_of]
        begins = self.sample_of * self.length + before
        short = np.flatnonzero(used < self.length)
        padded = short * self.length + used[short]
        all_begins = np.concatenate([begins, padded])
        all_first = np.concatenate([first, np.full(len(padded), of_padding)])
        order = np.argsort(all_begins, kind="stable")
        return SampleRuns(
            all_begins[order], all_first[order], self.axis_length, step=step, block_begins=block_begins, note=note
        )
