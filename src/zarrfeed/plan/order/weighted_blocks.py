"""The blocks of an epoch of weighted samples: how often each row comes, and in how many visits a block is read.

Invariants, for expected counts c:

1. Sample i comes floor(c_i) or ceil(c_i) times in an epoch, c_i times on average, and all of them as often as the epoch
   has samples (`cpp/plan/weighted_counts.h`).
2. A block with 64 rows or more comes floor or ceil of the sum of its rows' expected counts.
3. A block has its rows in one visit if none of them may come more than `repeats` times. Otherwise it has several, in
   which a row comes `repeats` times at most. Each visit is a block of the order, and so in a place of its own.
4. No epoch has a visit with more than `max_rows` samples, so what memory has room for does not change with the epoch.

The rows of an epoch are a selection in which samples repeat: what deals, reads, carries and resumes an order of a
selection does so with this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.held_blocks import ListedBlocks
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.sample_set import AT_ONCE, SampleSet
from zarrfeed.plan.samples.selection import Int64, Selection

#: Rows of a block that is drawn by itself (cpp/plan/weighted_counts.cc).
_LEAST_ROWS = 64
#: A row that comes no more often than this in an epoch does so in one visit.
_LEAST_REPEATS = 2
#: Visits for each block, on average, at most.
MOST_VISITS = 2
_BYTES_OF_VISIT = 64
_OFFSETS = np.iinfo(np.uint16)


@dataclass(frozen=True, eq=False)
class WeightedBlocks:
    """Samples in blocks, and how often each is to come.

    Attributes
    ----------
    samples
        The samples that have a weight above 0, each once.
    expected
        Expected counts of the samples.
    seed
        Key of the counts.
    repeats
        Largest number of times that a row comes in one visit.
    """

    samples: Selection
    expected: ExpectedCounts
    seed: int
    repeats: int

    @classmethod
    def visiting(cls, samples: Selection, expected: ExpectedCounts, seed: int, most_visits: float) -> WeightedBlocks:
        """Return the blocks with so few `repeats` that there are `most_visits` visits a block, on average and at most.

        With `most_visits` 1, each block has one visit.
        """
        most = _most_of_row(samples, expected)
        low = _LEAST_REPEATS
        high = max(low, int(most.max()))
        while low < high:
            middle = (low + high) // 2
            fits = int((-(-most // middle)).sum()) <= most_visits * len(most)
            low, high = (low, middle) if fits else (middle + 1, high)
        return cls(samples, expected, seed, low)

    def draw(self, epoch: int) -> Selection:
        """Return the samples of an epoch, each as often as it comes, in the blocks and visits that have any."""
        counts, begin = self.counts(epoch), self._begin
        rows = np.add.reduceat(counts, begin)
        visits = -(-np.maximum.reduceat(counts, begin) // self.repeats)
        number, first, _ = self.samples.held.at(np.arange(len(rows)))
        base = first if self.samples.samples is None else self.samples.samples.at(first)
        offset = np.repeat(self._offsets(base), counts)
        again, first_entry = np.flatnonzero(visits > 1), np.cumsum(rows) - rows
        for some in np.split(again, np.flatnonzero(np.diff(first_entry[again] // AT_ONCE)) + 1):
            _deal_to_visits(offset, first_entry[some], rows[some], visits[some])
        # one entry for each visit from here on
        of = np.repeat(np.arange(len(rows)), visits)
        visit = joined_ranges(0, visits)
        of_visit = rows[of] // visits[of] + (visit < rows[of] % visits[of])
        before = np.concatenate(([0], np.cumsum(of_visit))).astype(np.int64)
        if offset.dtype == np.uint16:
            listed = SampleSet("repeats", (offset, before, base[of]))
        else:
            listed = SampleSet("list", (offset + np.repeat(base[of], of_visit),))
        return Selection(ListedBlocks(number[of], of_visit, before[:-1]), samples=listed)

    def counts(self, epoch: int) -> Int64:
        """Draw the number of times that each sample comes in an epoch, shape (samples,)."""
        return self.expected.draw(self.samples.rows, self.seed, epoch)

    @cached_property
    def max_rows(self) -> int:
        """Samples of a visit in any epoch, at most."""
        least = np.maximum.reduceat(self.expected.shares >> self.expected.bits, self._begin)
        fewest_visits = np.maximum(1, -(-least // self.repeats))
        # of rows that are drawn with those of other blocks, all may come often in one epoch
        alone = self.samples.rows >= _LEAST_ROWS
        shares = np.add.reduceat(self.expected.shares, self._begin)
        each = np.add.reduceat(self.expected.ceilings, self._begin)
        rows = np.where(alone, self.expected.rounded_up(shares), each)
        return int((-(-rows // fewest_visits)).max())

    @cached_property
    def nbytes(self) -> int:
        """Bytes that the expected counts take, and the samples of any epoch, at most."""
        visits = int((-(-_most_of_row(self.samples, self.expected) // self.repeats)).sum())
        of_sample = 2 if self._have_short_offsets else 8
        return self.expected.shares.nbytes + of_sample * self.expected.total + _BYTES_OF_VISIT * visits

    @cached_property
    def _begin(self) -> Int64:
        """The number of each block's first sample."""
        rows = self.samples.rows
        return np.cumsum(rows) - rows

    @cached_property
    def _longest(self) -> int:
        """The largest distance of a sample from the first one of its block."""
        _, first, rows = self.samples.held.at(np.arange(len(self.samples.held)))
        if self.samples.samples is None:
            return int((self.samples.step * (rows - 1)).max())
        return int((self.samples.samples.at(first + rows - 1) - self.samples.samples.at(first)).max())

    @property
    def _have_short_offsets(self) -> bool:
        """True if 16 bits hold these distances; boxes of several dimensions have no ranges of their own for pages."""
        return self._longest <= _OFFSETS.max and not self.samples.are_boxes

    def _offsets(self, base: Int64) -> npt.NDArray[np.integer]:
        """Return the distance of each sample from the first one of its block."""
        rows, dtype = self.samples.rows, np.uint16 if self._have_short_offsets else np.int64
        if self.samples.samples is None:
            return (self.samples.step * joined_ranges(0, rows)).astype(dtype)
        return (self.samples.listed() - np.repeat(base, rows)).astype(dtype)


def _most_of_row(samples: Selection, expected: ExpectedCounts) -> Int64:
    """Return the largest number of times that a row of each block comes."""
    rows = samples.rows
    return expected.rounded_up(np.maximum.reduceat(expected.shares, np.cumsum(rows) - rows))


def in_blocks(expected: ExpectedCounts, samples: Selection) -> ExpectedCounts:
    """Return the expected counts of ascending samples in the order of their blocks, such as boxes."""
    return expected.taken(np.argsort(np.argsort(samples.listed()))) if samples.are_boxes else expected


def _deal_to_visits(entries: npt.NDArray[np.integer], begin: Int64, rows: Int64, visits: Int64) -> None:
    """Deal the entries of blocks to their visits in turn, in place; so a row comes about as often in each of them.

    Parameters
    ----------
    entries
        The entries of all blocks; entries of a block that repeat are neighbours.
    begin, rows, visits
        The begin of the entries of some blocks, the number of their entries, and the number of their visits.
    """
    at, number = joined_ranges(begin, rows), joined_ranges(0, rows)
    of_entry = np.repeat(np.arange(len(rows)), rows)
    rows, visits = rows[of_entry], visits[of_entry]
    turn, visit = np.divmod(number, visits)
    entries[at - number + visit * (rows // visits) + np.minimum(visit, rows % visits) + turn] = entries[at]
