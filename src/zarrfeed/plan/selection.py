"""`Data.select` and `Data.blocks`: which samples of the array are read, block by block.

What holds: a selection lists blocks in ascending order, each with at least one sample, and samples ascend inside of
each; so chunks that hold no selected sample are never named, hence never read. A selection of all samples is None.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.held_blocks import MANY_BLOCKS, HeldBlocks, ListedBlocks, digest_of, range_blocks
from zarrfeed.plan.left_out import LeftOut
from zarrfeed.spec.block_edges import Edges, StoreEdges

Int64: TypeAlias = npt.NDArray[np.int64]

#: A slice, distinct indices in any order, or a mask.
Select: TypeAlias = "slice | npt.ArrayLike"


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples that are read.

    Attributes
    ----------
    held
        The blocks that hold any. The first sample of each is where it stands in `samples`; without these, it is the
        sample itself.
    step
        Without `samples`: the distance between the samples of a block.
    samples
        Samples, ascending. None: they are evenly spaced, and no list of them is kept.
    whole_blocks
        Whether it was made of whole blocks.
    left_out
        Samples that are not selected because of the rows of their windows, one entry a reason.
    """

    held: HeldBlocks
    step: int = 1
    samples: Int64 | None = None
    whole_blocks: bool = False
    left_out: tuple[LeftOut, ...] = ()

    @classmethod
    def of_range(cls, samples: range, block_rows: int, edges: Edges | None = None) -> Selection:
        """Select the samples of an ascending range, which has some."""
        if len(samples) == 1:
            samples = range(samples[0], samples[0] + 1)  # of one sample the step says nothing
        return cls(range_blocks(samples, block_rows, edges), samples.step)

    @classmethod
    def of_samples(cls, samples: Int64, block_rows: int, edges: Edges | None = None) -> Selection:
        """Select samples that are listed, ascending and each once; there are some."""
        regular = as_range(samples)
        if isinstance(regular, range):
            return cls.of_range(regular, block_rows, edges)
        block = block_of(samples, block_rows, edges)
        first = np.flatnonzero(np.diff(block, prepend=-1))
        return cls(ListedBlocks(block[first], np.diff(first, append=len(samples)), first), samples=samples)

    @classmethod
    def of_runs(cls, samples: Int64, block_rows: int, edges: Edges | None = None) -> Selection:
        """Select samples as `of_samples` does, but keep no list of them if each block has one run of samples."""
        listed = cls.of_samples(samples, block_rows, edges)
        if listed.samples is None:
            return listed
        first = samples[listed.first]
        last = samples[listed.first + listed.rows - 1]
        if (last - first != listed.rows - 1).any():
            return listed
        return cls(ListedBlocks(listed.blocks, listed.rows, first))

    @property
    def blocks(self) -> Int64:
        """The blocks that hold any sample, ascending, shape (blocks,)."""
        return self.held.blocks

    @property
    def rows(self) -> Int64:
        """How many samples each block holds, shape (blocks,)."""
        return self.held.rows

    @property
    def first(self) -> Int64:
        """Where the first sample of each block stands in `samples`, or, without these, the sample; shape (blocks,)."""
        return self.held.first

    def as_run(self) -> range | None:
        """Return the samples as a range, if they are neighbours and are not listed."""
        if self.samples is not None or self.step != 1:
            return None
        first, last = self.samples_at(np.array([0, self.length - 1])).tolist()
        return range(first, last + 1) if last - first == self.length - 1 else None

    def within(self, blocks: Int64) -> Selection:
        """Return what of it lies in some blocks.

        Raises
        ------
        ConfigError
            If nothing does.
        """
        kept = np.flatnonzero(np.isin(self.blocks, blocks))
        if not len(kept):
            raise ConfigError("select and blocks have no sample in common, must have at least one")
        return self.at(kept)

    def at(self, places: Int64) -> Selection:
        """Return what of it lies in the blocks at some places, which ascend."""
        blocks, first, rows = self.held.at(places)
        return replace(self, held=ListedBlocks(blocks, rows, first))

    @property
    def length(self) -> int:
        """How many samples there are."""
        return self.held.length

    @property
    def max_rows(self) -> int:
        """Of a block, at most."""
        return self.held.max_rows

    @cached_property
    def digest(self) -> str:
        """The number of samples, and a hash that tells selections apart.

        Of many blocks that follow a rule, the rule is hashed.
        """
        rule = self.held.rule()
        if rule is None or self.whole_blocks or self.samples is not None or len(self.held) <= MANY_BLOCKS:
            return self.listed_digest
        return f"{self.length} ({hashlib.sha256(rule).hexdigest()[:16]})"

    @cached_property
    def listed_digest(self) -> str:
        """The same with a hash of the blocks, which states of earlier releases have."""
        if self.whole_blocks:
            count, parts = len(self.held), [self.blocks]
        elif self.samples is None:
            count, parts = self.length, [self.blocks, self.rows, self.first, np.array([self.step])]
        else:
            count, parts = self.length, [self.listed()]
        return f"{count} ({digest_of(parts)})"

    def listed(self, places: Int64 | None = None) -> Int64:
        """Return the samples of some blocks, named by their places in `blocks`, or of all: shape (samples,)."""
        rows, first = (self.rows, self.first) if places is None else (self.rows[places], self.first[places])
        within = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
        if self.samples is None:
            listed: Int64 = np.repeat(first, rows) + self.step * within
        else:
            listed = self.samples[np.repeat(first, rows) + within]
        return listed

    def samples_at(self, positions: Int64) -> Int64:
        """Return samples by their positions among those that are selected, in ascending order of samples."""
        place, within = self.held.positions_in(positions)
        _, first, _ = self.held.at(place)
        stands = first + (self.step if self.samples is None else 1) * within
        found: Int64 = stands if self.samples is None else self.samples[stands]
        return found

    def runs(self) -> tuple[Int64, Int64, Int64]:
        """Return runs of samples without gaps: place of the block, first and last sample of each, shape (runs,)."""
        place = np.arange(len(self.held))
        if self.samples is None and self.step == 1:
            return place, self.first, self.first + self.rows - 1
        listed = self.listed()
        return np.repeat(place, self.rows), listed, listed


def block_of(samples: Int64, block_rows: int, edges: Edges | None = None) -> Int64:
    """Return the block of each sample, of blocks of so many rows, or of those that begin at `edges`."""
    if edges is None:
        return samples // block_rows
    if isinstance(edges, StoreEdges):
        return edges.block_of(samples)
    return np.searchsorted(edges, samples, side="right") - 1


def chunks_over_runs(
    place: Int64, begin: Int64, end: Int64, find_chunks: Callable[[Int64, int], Int64], offsets: Sequence[int]
) -> tuple[Int64, Int64]:
    """Return which chunks hold the rows at `offsets` from runs of samples.

    Parameters
    ----------
    place, begin, end
        Of each run: a number, its first and its last sample.
    find_chunks
        Returns the chunk of the row at an offset from each of some samples, -1 where there is none. A run needs all
        chunks between those of its ends.
    offsets
        Of the rows.

    Returns
    -------
    Places and indices of chunks, each pair once, shape (pairs,) both; sorted.
    """
    # one entry per run and offset from here on: the chunks from `low` to `high`
    low = np.stack([find_chunks(begin, offset) for offset in offsets], axis=1).ravel()
    high = np.stack([find_chunks(end, offset) for offset in offsets], axis=1).ravel()
    counts = np.where((low < 0) | (high < 0), 0, high - low + 1)
    chunk = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    num_chunks = int(high.max(initial=0)) + 1
    pairs = np.unique(np.repeat(np.repeat(place, len(offsets)), counts) * num_chunks + chunk)
    return np.divmod(pairs, num_chunks)


def make_selection(
    select: Select | None,
    blocks: npt.ArrayLike | None,
    *,
    num_samples: int,
    block_rows: int,
) -> Selection | None:
    """Return what a user selected of `num_samples` samples in blocks of `block_rows`; None for all.

    Parameters
    ----------
    select, blocks
        The arguments.
    num_samples, block_rows
        Of the array.

    Raises
    ------
    ConfigError
        If they select nothing, or what is not there.
    """
    samples = range(num_samples) if select is None else select_samples(select, num_samples)
    in_blocks = None if blocks is None else select_blocks(blocks, -(-num_samples // block_rows))
    return selection_of(samples, in_blocks, num_samples=num_samples, block_rows=block_rows)


def selection_of(
    samples: range | Int64, blocks: Int64 | None, *, num_samples: int, block_rows: int, edges: Edges | None = None
) -> Selection | None:
    """Return a selection of samples in some blocks, both ascending; None for all of them, in blocks of one length."""
    selects = len(samples) < num_samples
    if blocks is None and not selects and edges is None:
        return None
    if isinstance(samples, range):
        selection = Selection.of_range(samples, block_rows, edges)
    else:
        selection = Selection.of_samples(samples, block_rows, edges)
    if blocks is None:
        return selection
    within = selection.within(blocks)
    return within if selects else replace(within, whole_blocks=True)


def select_samples(select: Select, num_samples: int) -> range | Int64:
    """Return the samples that a user selected, ascending: as a range where they are one.

    Raises
    ------
    ConfigError
        If they are neither a slice, nor a mask of `num_samples` flags, nor distinct integers in
        [-num_samples, num_samples), of which negative ones count from the end; or if there are none.
    """
    if isinstance(select, slice):
        try:
            chosen = range(*select.indices(num_samples))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"select = {select!r}, must be a slice of integers with a step other than 0") from error
        _check_some(len(chosen), select)
        return chosen if chosen.step > 0 else chosen[::-1]
    named = np.asarray(select)
    if named.ndim == 1 and named.size == 0:
        _check_some(0, select)
    if named.ndim != 1 or named.dtype.kind not in "iub":
        raise ConfigError(
            f"select is an array of shape {named.shape} and dtype {named.dtype}, must be a slice, a 1-d array of "
            "sample indices (integers), or a 1-d mask (bool)"
        )
    if named.dtype.kind == "b":
        if len(named) != num_samples:
            raise ConfigError(f"select is a mask of {len(named)} flags, must have one a sample, {num_samples}")
        samples = np.flatnonzero(named).astype(np.int64, copy=False)
        _check_some(len(samples), select)
    else:
        samples = _distinct(named, num_samples)
    return as_range(samples)


def common_samples(samples: range | Int64, complete: range | Int64) -> range | Int64:
    """Return the samples that are in both, ascending; `complete` has no gaps if it is a range."""
    if isinstance(complete, range):
        if isinstance(samples, range):
            skipped = max(0, -(-(complete.start - samples.start) // samples.step))
            return range(samples.start + skipped * samples.step, min(samples.stop, complete.stop), samples.step)
        return as_range(samples[(samples >= complete.start) & (samples < complete.stop)])
    listed = np.asarray(samples, dtype=np.int64)
    return as_range(np.intersect1d(listed, complete, assume_unique=True))


def select_blocks(blocks: npt.ArrayLike, num_blocks: int) -> Int64:
    """Return the indices of blocks that a user named, ascending and each once, shape (selected,).

    Raises
    ------
    ConfigError
        If they are no integers, none, or out of [-num_blocks, num_blocks); negative ones count from the end.
    """
    named = np.atleast_1d(np.asarray(blocks))
    if named.ndim > 1 or (named.size and named.dtype.kind not in "iu"):
        raise ConfigError(f"blocks = {blocks!r}, must be indices of blocks (integers)")
    if named.size == 0:
        raise ConfigError("blocks is empty, must name at least one block")
    if named.min() < -num_blocks or named.max() >= num_blocks:
        raise ConfigError(f"blocks = {blocks!r}, must be in [{-num_blocks}, {num_blocks - 1}]")
    return np.unique(named.astype(np.int64) % num_blocks)


def _distinct(named: npt.NDArray[Any], num_samples: int) -> Int64:
    low, high = int(named.min()), int(named.max())
    if low < -num_samples or high >= num_samples:
        wrong = low if low < -num_samples else high
        raise ConfigError(f"select has the index {wrong}, must be in [{-num_samples}, {num_samples - 1}]")
    samples = np.sort(named.astype(np.int64) % num_samples)
    again = np.flatnonzero(samples[1:] == samples[:-1])
    if len(again):
        raise ConfigError(f"select names sample {samples[again[0]]} more than once, must name each once")
    return samples


def as_range(samples: Int64) -> range | Int64:
    """Return evenly spaced samples as what they are: it needs no list."""
    if not len(samples):
        return range(0)
    begin, end = int(samples[0]), int(samples[-1])
    step = max(1, int(samples[1]) - begin) if len(samples) > 1 else 1
    if end - begin != step * (len(samples) - 1) or not (np.diff(samples) == step).all():
        return samples
    return range(begin, end + 1, step)


def _check_some(count: int, select: Select) -> None:
    if not count:
        what = repr(select) if isinstance(select, slice) else "an array"
        raise ConfigError(f"select is {what} that selects nothing, must select at least one sample")
