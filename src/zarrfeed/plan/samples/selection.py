"""`Data.select` and `Data.blocks`: which samples of the array are read, block by block.

Invariant: a selection lists blocks in ascending order, each with at least one sample, and samples ascend inside of
each, and from block to block unless blocks are boxes of several dimensions. So chunks that hold no selected sample are
never named, hence never read. A selection of all samples is None, unless blocks have edges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.box_samples import BoxSamples
from zarrfeed.plan.samples.held_blocks import MANY_BLOCKS, HeldBlocks, ListedBlocks, digest_of, range_blocks
from zarrfeed.plan.samples.joined_ranges import joined_ranges
from zarrfeed.plan.samples.left_out import LeftOut
from zarrfeed.plan.samples.sample_set import AT_ONCE, Samples, SampleSet, as_samples, collected, flagged, rank_of
from zarrfeed.plan.samples.split_part import SplitPart
from zarrfeed.spec.samples.block_edges import Edges, GridEdges, StoreEdges

Int64: TypeAlias = npt.NDArray[np.int64]

#: A set of more samples than these that is no range is hashed by its form, and not sample by sample.
MANY_SAMPLES = 1 << 24
#: Number, rows and first sample of a block that is listed, here and for the engine.
_BYTES_OF_BLOCK = 48

#: A slice, distinct indices in any order, or a mask.
Select: TypeAlias = "slice | npt.ArrayLike"


@dataclass(frozen=True, eq=False)
class Selection:
    """The samples that are read.

    Attributes
    ----------
    held
        The blocks that hold any. The first sample of each is its number in `samples`; without these, it is the sample
        itself.
    step
        Without `samples`: the distance between the samples of a block.
    samples
        The samples. None: those of each block are evenly spaced.
    whole_blocks
        True if the selection was made of whole blocks.
    left_out
        Samples that are not selected because of the rows of their windows, one entry a reason.
    dealt
        The groups and classes that the part of a split has.
    """

    held: HeldBlocks
    step: int = 1
    samples: SampleSet | None = None
    whole_blocks: bool = False
    left_out: tuple[LeftOut, ...] = ()
    dealt: SplitPart | None = None

    @classmethod
    def of_range(cls, samples: range, block_rows: int, edges: Edges | None = None) -> Selection:
        """Select the samples of an ascending range, which has some."""
        if isinstance(edges, GridEdges):
            return cls._of_boxes(samples, edges)
        if len(samples) == 1:
            samples = range(samples[0], samples[0] + 1)  # of one sample the step says nothing
        return cls(range_blocks(samples, block_rows, edges), samples.step)

    @classmethod
    def of_samples(cls, samples: Int64 | Samples, block_rows: int, edges: Edges | None = None) -> Selection:
        """Select some samples, ascending and each once; there are some."""
        chosen = as_samples(samples) if isinstance(samples, np.ndarray) else samples
        if isinstance(edges, GridEdges):
            return cls._of_boxes(chosen, edges)
        if isinstance(chosen, range):
            return cls.of_range(chosen, block_rows, edges)
        return cls(_blocks_of(chosen, block_rows, edges), samples=chosen)

    @classmethod
    def _of_boxes(cls, samples: Samples, edges: GridEdges) -> Selection:
        """Select some samples, ascending and each once, in blocks that are boxes."""
        boxes = BoxSamples.of(samples, edges)
        if boxes.are_all:
            return cls(range_blocks(range(len(boxes)), edges.max_rows, edges.counted), samples=boxes)
        return cls(_blocks_of(boxes.rows, 0, edges.of_rows), samples=boxes)

    @classmethod
    def of_runs(cls, samples: Int64 | Samples, block_rows: int, edges: Edges | None = None) -> Selection:
        """Select samples as `of_samples` does, but keep none of them if each block has one run of samples."""
        chosen = cls.of_samples(samples, block_rows, edges)
        if chosen.samples is None or chosen.are_boxes:
            return chosen
        first = chosen.samples.at(chosen.first)
        last = chosen.samples.at(chosen.first + chosen.rows - 1)
        if (last - first != chosen.rows - 1).any():
            return chosen
        return cls(ListedBlocks(chosen.blocks, chosen.rows, first))

    @property
    def ascends(self) -> bool:
        """True if samples ascend; False: they have an order that the user gave."""
        return self.samples is None or self.samples.form != "given"

    @property
    def blocks(self) -> Int64:
        """The blocks that hold any sample, ascending, shape (blocks,)."""
        return self.held.blocks

    @property
    def rows(self) -> Int64:
        """Number of samples of each block, shape (blocks,)."""
        return self.held.rows

    @property
    def first(self) -> Int64:
        """Index in `samples` of each block's first sample, or, without these, that sample; shape (blocks,)."""
        return self.held.first

    def as_run(self) -> range | None:
        """Return the samples as a range, if they are neighbours and are not listed."""
        if self.samples is not None or self.step != 1:
            return None
        first, last = self.samples_at(np.array([0, self.length - 1])).tolist()
        return range(first, last + 1) if last - first == self.length - 1 else None

    @property
    def are_boxes(self) -> bool:
        """True if blocks are boxes of several dimensions, so that samples ascend inside of each block alone."""
        return isinstance(self.samples, BoxSamples)

    def in_order(self, num_samples: int) -> Samples:
        """Return the samples in ascending order, of an array with so many."""
        return self._sorted if self.are_boxes else self.as_run() or collected(self.pieces(), num_samples)

    @cached_property
    def _sorted(self) -> Samples:
        """The samples of boxes, in ascending order."""
        if isinstance(self.samples, BoxSamples) and self.samples.are_all and self.length == len(self.samples):
            return range(self.length)
        listed = self.listed()
        listed.sort()
        return as_samples(listed)

    def within(self, blocks: Int64) -> Selection:
        """Select the samples of this selection that lie in some blocks.

        Raises
        ------
        ConfigError
            If nothing does.
        """
        chosen = np.flatnonzero(np.isin(self.blocks, blocks))
        if not len(chosen):
            raise ConfigError("select and blocks have no sample in common, must have at least one")
        return self.at(chosen)

    def at(self, held_indices: Int64) -> Selection:
        """Select the samples that lie in the blocks with some held indices, which ascend."""
        blocks, first, rows = self.held.at(held_indices)
        return replace(self, held=ListedBlocks(blocks, rows, first))

    @property
    def length(self) -> int:
        """Number of selected samples."""
        return self.held.length

    @property
    def max_rows(self) -> int:
        """Number of samples of the largest block."""
        return self.held.max_rows

    @cached_property
    def digest(self) -> str:
        """The number of samples, and a hash that tells selections apart.

        If many blocks or samples follow a rule, the rule is hashed.
        """
        if self.samples is not None and not self.whole_blocks and MANY_SAMPLES < self.length == len(self.samples):
            return f"{self.length} ({self.samples.digest.hex()[:16]})"
        rule = self.held.rule()
        if rule is None or self.whole_blocks or self.samples is not None or len(self.held) <= MANY_BLOCKS:
            return self.listed_digest
        return f"{self.length} ({hashlib.sha256(rule).hexdigest()[:16]})"

    @cached_property
    def listed_digest(self) -> str:
        """Like `digest`, but with a hash of the blocks, or of listed samples, which states of earlier releases have."""
        parts: Iterable[Int64]
        if self.whole_blocks:
            count, parts = len(self.held), [self.blocks]
        elif self.samples is None:
            count, parts = self.length, [self.blocks, self.rows, self.first, np.array([self.step])]
        else:
            count, parts = self.length, self.pieces()
        return f"{count} ({digest_of(parts)})"

    @property
    def nbytes(self) -> int:
        """Bytes that the samples take, and the blocks that are listed for them."""
        blocks = 0 if self.held.rule() is not None else _BYTES_OF_BLOCK * len(self.held)
        return blocks + (0 if self.samples is None else self.samples.nbytes)

    def listed(self, held_indices: Int64 | None = None) -> Int64:
        """Return the samples of some blocks, given by their held indices, or of all: shape (samples,)."""
        rows, first = (
            (self.rows, self.first) if held_indices is None else (self.rows[held_indices], self.first[held_indices])
        )
        if self.samples is not None:
            # the samples of blocks that follow each other are listed together
            breaks = np.flatnonzero(first[1:] != first[:-1] + rows[:-1]) + 1
            begins, counts = first[np.append(0, breaks)], np.add.reduceat(rows, np.append(0, breaks))
            table = self.samples.table
            parts = [table.list(begin, count) for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        within = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
        listed: Int64 = np.repeat(first, rows) + self.step * within
        return listed

    def pieces(self) -> Iterator[Int64]:
        """Return all samples, some blocks at a time."""
        at_once = max(1, AT_ONCE // self.max_rows)
        for held_index in range(0, len(self.held), at_once):
            yield self.listed(np.arange(held_index, min(held_index + at_once, len(self.held))))

    def samples_at(self, positions: Int64) -> Int64:
        """Return samples by their positions among those that are selected, in ascending order of samples."""
        if self.are_boxes:
            found = self._sorted
            return found.start + found.step * positions if isinstance(found, range) else found.at(positions)
        held_index, within = self.held.positions_in(positions)
        _, first, _ = self.held.at(held_index)
        stands = first + (self.step if self.samples is None else 1) * within
        return stands if self.samples is None else self.samples.at(stands)

    def runs(self, apart: int = 1, held_indices: Int64 | None = None) -> tuple[Int64, Int64, Int64]:
        """Return runs of samples that are at most `apart` from each other: of all blocks, or of some by held index.

        Returns
        -------
        Held index of the block, first and last sample of each run, shape (runs,).
        """
        held_index = np.arange(len(self.held)) if held_indices is None else held_indices
        _, first, rows = self.held.at(held_index)
        if self.samples is None and self.step <= apart:
            return held_index, first, first + self.step * (rows - 1)
        if self.samples is not None and self.samples.form == "runs" and self.samples.step <= apart:
            return _merged(*self._cut_runs(held_index, first, rows), apart)
        found = []
        before = np.cumsum(rows) - rows
        for some in np.split(np.arange(len(held_index)), np.flatnonzero(np.diff(before // AT_ONCE)) + 1):
            listed, of_block = self.listed(held_index[some]), np.repeat(held_index[some], rows[some])
            if not self.ascends:
                listed = listed[np.lexsort((listed, of_block))]
            found.append(_merged(of_block, listed, listed, apart))
        of_runs, begin, last = (np.concatenate(column) for column in zip(*found, strict=True))
        return of_runs, begin, last

    def _cut_runs(self, held_index: Int64, first: Int64, rows: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the runs of `samples`, cut at the ends of blocks: held index, first and last sample."""
        assert self.samples is not None
        begin, count = self.samples.arrays
        before = np.cumsum(count) - count
        low = np.searchsorted(before, first, side="right") - 1
        counts = np.searchsorted(before, first + rows) - low
        # one entry for each block and run from here on
        of_block = np.repeat(np.arange(len(held_index)), counts)
        run = joined_ranges(low, counts)
        number = np.maximum(first[of_block], before[run])
        behind = np.minimum((first + rows)[of_block], before[run] + count[run])
        at = begin[run] + self.samples.step * (number - before[run])
        return held_index[of_block], at, at + self.samples.step * (behind - number - 1)


def _merged(held_index: Int64, begin: Int64, last: Int64, apart: int) -> tuple[Int64, Int64, Int64]:
    """Return runs of which those of a block that are at most `apart` from each other are one."""
    starts = np.append(True, (np.diff(held_index) != 0) | (begin[1:] - last[:-1] > apart))[: len(held_index)]
    ends = np.append(np.flatnonzero(starts)[1:] - 1, len(held_index) - 1)[: int(starts.sum())]
    return held_index[starts], begin[starts], last[ends]


def _blocks_of(samples: SampleSet, block_rows: int, edges: Edges | None) -> ListedBlocks:
    """Return the blocks that hold samples; the first one of each is named by its number among the samples."""
    num_blocks = samples[-1] // block_rows + 1 if edges is None else len(edges) - 1
    if num_blocks <= len(samples):  # count the samples of each block
        of_blocks = np.arange(num_blocks + 1) * block_rows if edges is None else np.asarray(edges)
        before = rank_of(samples, of_blocks)
        rows = np.diff(before)
        held = np.flatnonzero(rows)
        return ListedBlocks(held, rows[held], before[held])
    block = np.concatenate([block_of(piece, block_rows, edges) for piece in samples.pieces()])
    first = np.flatnonzero(np.diff(block, prepend=-1))
    return ListedBlocks(block[first], np.diff(first, append=len(samples)), first)


def block_of(samples: Int64, block_rows: int, edges: Edges | None = None) -> Int64:
    """Return the block of each sample, of blocks of so many rows, or of those that begin at `edges`."""
    if edges is None:
        return samples // block_rows
    if isinstance(edges, StoreEdges | GridEdges):
        return edges.block_of(samples)
    return np.searchsorted(edges, samples, side="right") - 1


def make_selection(
    select: Select | None,
    blocks: npt.ArrayLike | None,
    *,
    num_samples: int,
    block_rows: int,
) -> Selection | None:
    """Make the selection that a user asked for, of `num_samples` samples in blocks of `block_rows`; None for all.

    Parameters
    ----------
    select, blocks
        The arguments.
    num_samples, block_rows
        Number of samples of the array, and rows of a block.

    Raises
    ------
    ConfigError
        If they select nothing, or what is not there.
    """
    samples = range(num_samples) if select is None else select_samples(select, num_samples)
    in_blocks = None if blocks is None else select_blocks(blocks, -(-num_samples // block_rows))
    return selection_of(samples, in_blocks, num_samples=num_samples, block_rows=block_rows)


def selection_of(
    samples: Samples, blocks: Int64 | None, *, num_samples: int, block_rows: int, edges: Edges | None = None
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


def select_samples(select: Select, num_samples: int) -> Samples:
    """Return the samples that a user selected, ascending: as a range where they are one.

    Raises
    ------
    ConfigError
        If they are neither a slice, nor a mask of `num_samples` flags, nor distinct integers in
        [-num_samples, num_samples), of which negative ones count from the end; or if there are none.
    """
    named = _as_written(select, num_samples)
    if isinstance(named, range):
        return named if named.step > 0 else named[::-1]
    if isinstance(named, SampleSet):
        return named
    return as_samples(_distinct(named, num_samples))


def positions_in_order(select: Select, num_samples: int) -> Int64:
    """Return the samples that a user selected, in the order in which they are named, and as often.

    Raises
    ------
    ConfigError
        As in `select_samples`, but that samples may repeat.

    Examples
    --------
    >>> positions_in_order([5, -1, 5], 8).tolist(), positions_in_order(slice(None, None, -3), 8).tolist()
    ([5, 7, 5], [7, 4, 1])
    """
    named = _as_written(select, num_samples)
    if isinstance(named, range):
        return np.arange(named.start, named.stop, named.step, dtype=np.int64)
    if isinstance(named, SampleSet):
        return named.listed()
    _check_bounds(named, num_samples)
    return named.astype(np.int64) % num_samples


def _as_written(select: Select, num_samples: int) -> Samples | npt.NDArray[Any]:
    """Return a slice as a range, the samples of a mask, or indices, of which there are some, as they are listed."""
    if isinstance(select, slice):
        try:
            chosen = range(*select.indices(num_samples))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"select = {select!r}, must be a slice of integers with a step other than 0") from error
        _check_some(len(chosen), select)
        return chosen
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
        samples = flagged(named)
        _check_some(len(samples), select)
        return samples
    return named


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


def _distinct(named: npt.NDArray[Any], num_samples: int) -> npt.NDArray[Any]:
    """Return the samples that are named, ascending."""
    low = _check_bounds(named, num_samples)
    samples = named.copy() if low >= 0 else named.astype(np.int64)
    if low < 0:
        samples %= num_samples
    samples.sort()
    for first in range(0, len(samples), AT_ONCE):
        piece = samples[first : first + AT_ONCE + 1]
        again = np.flatnonzero(piece[1:] == piece[:-1])
        if len(again):
            raise ConfigError(
                f"select names sample {piece[again[0]]} more than once, must name each once; select(..., "
                "keep_order=True) reads samples in the order of a list, as often as it names them"
            )
    return samples


def _check_bounds(named: npt.NDArray[Any], num_samples: int) -> int:
    """Raise ConfigError if there are no samples with some indices; return the least index."""
    low, high = int(named.min()), int(named.max())
    if low < -num_samples or high >= num_samples:
        wrong = low if low < -num_samples else high
        raise ConfigError(f"select has the index {wrong}, must be in [{-num_samples}, {num_samples - 1}]")
    return low


def as_range(samples: Int64) -> range | Int64:
    """Return evenly spaced samples as a range, which needs no list; others stay as they are."""
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
