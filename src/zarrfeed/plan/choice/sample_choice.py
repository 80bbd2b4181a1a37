"""`SampleChoice`: which samples of an array a `Data` names, settled in index space, one method call after the other.

Invariant: samples ascend, and a sample keeps its index in the array whatever was selected before. No block size is
needed until somebody names blocks: samples that were named by slices and lists serve blocks of any size, and samples
that were named by blocks remember the blocks, so that a state recognises them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.choice.split import SplitRule, split_selection
from zarrfeed.plan.samples.field_rows import reads_gaps
from zarrfeed.plan.samples.given_samples import GivenSamples
from zarrfeed.plan.samples.left_out import IN_GAP, LeftOut, merged
from zarrfeed.plan.samples.sample_set import (
    SampleBuilder,
    Samples,
    collected,
    distinct,
    pieces_of,
    rank_of,
    runs_in,
    runs_of,
    stretches,
)
from zarrfeed.plan.samples.selection import (
    Int64,
    Select,
    Selection,
    positions_in_order,
    select_blocks,
    select_samples,
    selection_of,
)
from zarrfeed.plan.samples.split_part import SplitPart
from zarrfeed.plan.windows.gaps import GapRule
from zarrfeed.plan.windows.window_rows import ChosenWindows, WindowRows, bounds_of, choose_windows
from zarrfeed.plan.windows.window_samples import every
from zarrfeed.spec.fields.field import BlockKind, Field, FieldSet
from zarrfeed.spec.samples.block_edges import Edges
from zarrfeed.spec.samples.window import Window


@dataclass(frozen=True, eq=False)
class SampleChoice:
    """The samples that are chosen of an array.

    Attributes
    ----------
    num_samples
        Length of the sample axis of the array.
    samples
        The chosen samples; or a selection that was made block by block.
    block_rows
        Rows of a block of that selection; 0 without one.
    kind
        The kind of blocks that the user named or dealt. None: no blocks.
    aligned
        True if a block of the selection may be several chunks; blocks that the user named are one chunk each.
    bounds
        The rows between the bounds of the slices that were selected, which windows may read. None: the samples
        themselves, as they were listed, or dealt to parts.
    windowed
        True if the samples are windows, so that the rows which they read are settled.
    left_out
        Samples that were left out because of the rows of their windows.
    dealt
        The groups and classes that the part of a split has.
    borders
        The first sample of each store, or of each segment that a store names, and the number of samples at the end:
        windows do not leave these. None: windows may read all rows.
    has_segments
        True if the borders are those of segments that stores name, as well as those of stores.
    """

    num_samples: int
    samples: Samples | Selection
    block_rows: int = 0
    kind: BlockKind | None = None
    aligned: bool = True
    bounds: range | None = None
    windowed: bool = False
    left_out: tuple[LeftOut, ...] = ()
    dealt: SplitPart | None = None
    borders: Int64 | None = None
    has_segments: bool = False

    @classmethod
    def all_of(cls, num_samples: int) -> Self:
        """Choose every sample."""
        return cls(num_samples, range(num_samples), bounds=range(num_samples))

    def with_segments(self, borders: Int64) -> Self:
        """Choose the same samples, whose windows do not leave segments with these borders."""
        return replace(self, borders=distinct(borders), has_segments=True)

    @classmethod
    def concat(
        cls,
        choices: Sequence[SampleChoice],
        repeats: Sequence[Sequence[int]],
        borders: Int64,
        *,
        contiguous: bool = False,
    ) -> Self:
        """Choose what is chosen of several arrays, which are one after another.

        Parameters
        ----------
        choices
            The choice of each array.
        repeats
            For each choice, the lengths of the arrays that it is of: one; or several, if it is of all samples.
        borders
            The first sample of each array, and the number of samples at the end.
        contiguous
            If True, windows may reach from one array into the next one.
        """
        num_samples, windowed = int(borders[-1]), choices[0].windowed
        has_segments = any(choice.has_segments for choice in choices)
        base = np.cumsum([0, *(sum(lengths) for lengths in repeats)])
        inner = [
            first + (one.borders if one.has_segments else one.borders[1:-1])
            for first, one, lengths in zip(base, choices, repeats, strict=False)
            if one.borders is not None and len(lengths) == 1
        ]
        limits = None
        if inner or not contiguous:
            limits = distinct(np.concatenate([borders[[0, -1]] if contiguous else borders, *inner]))
        left_out = merged(reason for choice in choices for reason in choice.left_out)
        if all(choice.length == choice.num_samples for choice in choices):
            every = cls.all_of(num_samples)
            return replace(every, windowed=windowed, left_out=left_out, borders=limits, has_segments=has_segments)
        first, found = 0, SampleBuilder(num_samples)
        for choice, lengths in zip(choices, repeats, strict=True):
            total = sum(lengths)
            is_whole = choice.length == choice.num_samples
            chosen = range(total) if is_whole else choice.ascending()
            for low, high in stretches([chosen], total):
                begin, end = runs_in(chosen, low, high)
                found.add(begin + first, end + first)
            first += total
        samples = found.samples()
        return cls(
            num_samples, samples, windowed=windowed, left_out=left_out, borders=limits, has_segments=has_segments
        )

    @property
    def length(self) -> int:
        """Number of chosen samples."""
        return self.samples.length if isinstance(self.samples, Selection) else len(self.samples)

    def ascending(self) -> Samples:
        """Return the samples by their indices in the array."""
        if not isinstance(self.samples, Selection):
            return self.samples
        return self.samples.in_order(self.num_samples)

    def listed(self) -> range | Int64:
        """Return the chosen samples as a range, or as a list, for callers that have an entry for each sample anyway."""
        samples = self.ascending()
        return samples if isinstance(samples, range) else samples.listed()

    def selection(self, block_rows: int, edges: Edges | None = None) -> Selection | None:
        """Return the samples in blocks of so many rows, or in those that begin at `edges`.

        None where all samples are chosen, not by blocks, and blocks have one length.
        """
        if isinstance(self.samples, Selection) and self.block_rows == block_rows:
            return replace(self.samples, left_out=self.left_out, dealt=self.dealt)
        samples = self.ascending()
        if isinstance(samples, range) or len(samples) == self.num_samples:
            made = selection_of(samples, None, num_samples=self.num_samples, block_rows=block_rows, edges=edges)
        elif isinstance(self.samples, Selection):
            made = Selection.of_runs(samples, block_rows, edges)  # which keeps no list of what was dealt in runs
        else:
            made = Selection.of_samples(samples, block_rows, edges)
        if made is None and self.left_out and self.num_samples:  # of a join: what is left out is not on the axis
            made = Selection.of_range(range(self.num_samples), block_rows)
        return None if made is None else replace(made, left_out=self.left_out, dealt=self.dealt)

    def check_rows_are_open(self, method: str) -> None:
        """Raise ConfigError if windows were made of the samples, so that a method cannot choose among them any more."""
        if self.windowed:
            raise ConfigError(
                f"{method}() follows window(), must precede it: windows read selected rows alone; write "
                f"data.{method}(...).window(...)"
            )

    def without_windows(self) -> Self:
        """Return the same samples without windows: each is its own row, and some may be selected."""
        return replace(self, bounds=None, windowed=False, left_out=())

    def select(self, select: Select) -> Self:
        """Choose some of the samples by their positions among those that are chosen.

        Raises
        ------
        ConfigError
            If they are no positions, none, or twice the same; or after `window`.
        """
        self.check_rows_are_open("select")
        positions = select_samples(select, self.length)
        bounds = self._between(select) if isinstance(select, slice) and self.bounds is not None else None
        return replace(self, samples=self._at(positions), block_rows=0, bounds=bounds)

    def in_order(self, select: Select, given: GivenSamples | None = None) -> tuple[Self, GivenSamples]:
        """Choose samples by positions, in the order of these, among `given` ones, or among all that are chosen.

        Returns
        -------
        The samples that are chosen, each once, and the same in the order of the positions.

        Raises
        ------
        ConfigError
            If they are no positions, or none.
        """
        positions = positions_in_order(select, self.length if given is None else len(given))
        if given is not None:
            made = given.taken(positions)
        elif isinstance(self.samples, range):
            made = GivenSamples.of(self.samples.start + self.samples.step * positions)
        else:
            find = self.samples.samples_at if isinstance(self.samples, Selection) else self.samples.at
            made = GivenSamples.of(find(positions))
        return replace(self, samples=made.each_once, block_rows=0), made

    def keeping(self, positions: Int64, reason: str) -> Self:
        """Leave out all samples but those at some positions, of windows too; `reason` is that of `LeftOut`."""
        if len(positions) == self.length:
            return self
        left_out = (*self.left_out, LeftOut(self.length - len(positions), self.length, reason))
        samples = self._at(select_samples(positions, self.length))
        return replace(self, samples=samples, block_rows=0, bounds=None, left_out=left_out)

    def blocks(self, blocks: npt.ArrayLike, block_rows: int, kind: BlockKind, edges: Edges | None = None) -> Self:
        """Choose what of the samples lies in some blocks of so many rows, or of those that begin at `edges`.

        Raises
        ------
        ConfigError
            If there are no such blocks, or no chosen sample lies in them; or after `window`.
        """
        self.check_rows_are_open("blocks")
        num_blocks = -(-self.num_samples // block_rows) if edges is None else len(edges) - 1
        named = select_blocks(blocks, num_blocks)
        whole = self.selection(block_rows, edges)
        if whole is None:
            every = range(self.num_samples)
            whole = selection_of(every, named, num_samples=self.num_samples, block_rows=block_rows)
            assert whole is not None
        return replace(self, samples=whole.within(named), block_rows=block_rows, kind=kind, aligned=False, bounds=None)

    def window(
        self,
        windows: Sequence[Window | None],
        *,
        segment_ends: npt.ArrayLike | None = None,
        rows: WindowRows | None = None,
        gaps: GapRule | None = None,
        stride: int = 1,
    ) -> tuple[Self, ChosenWindows]:
        """Choose those of the samples whose windows have all of their rows; `Data.window` says which rows these are.

        Of those that follow one another without a border between them, every `stride`-th row is chosen.

        Returns
        -------
        The choice, and what was found of the windows: the borders at which they are padded, and the gaps.

        Raises
        ------
        ConfigError
            If no sample is left, or an argument is wrong; or after `window` or `blocks`.
        """
        if self.kind is not None and not self.aligned:
            raise ConfigError(
                "window() follows blocks(), which windows cannot be made of: choose samples with select()"
            )
        named = self.ascending()
        chosen = choose_windows(
            named,
            windows,
            self.num_samples,
            selected=named if self.bounds is None else self.bounds,
            by_list=self.bounds is None,
            segment_ends=segment_ends,
            window_rows=rows,
            borders=self.borders,
            are_stores=not self.has_segments,
            gaps=gaps,
        )
        left_out = (*self.left_out, *chosen.left_out)
        samples = chosen.samples if stride == 1 else every(chosen.samples, stride, chosen.ends, self.num_samples)
        made = replace(self, samples=samples, block_rows=0, windowed=True, left_out=left_out)
        return made, chosen

    def starting_before(self, borders: Int64, after: int) -> Self:
        """Choose those of the samples that have `after` rows behind them in their segment; of a shorter one, the first.

        Parameters
        ----------
        borders
            The first row of each segment, and the number of rows at the end.
        after
            Rows behind a sample.
        """
        samples = self.ascending()
        begin = rank_of(samples, borders[:-1])
        all_of = rank_of(samples, borders[1:])
        whole = rank_of(samples, np.maximum(borders[1:] - after, borders[:-1]))
        end = np.where(all_of > begin, np.maximum(whole, begin + 1), begin)
        some = end > begin
        return replace(self, samples=self._at(runs_of(begin[some], (end - begin)[some], 1)), block_rows=0)

    def without_gaps(self, fields: Sequence[Field]) -> Self:
        """Leave out samples that read a row which the row map of a field lacks.

        Raises
        ------
        ConfigError
            If no sample is left.
        """
        samples = self.ascending()
        remaining = collected(_without_gaps(fields, samples), self.num_samples)
        lost = len(samples) - len(remaining)
        if not lost:
            return self
        if lost == len(samples):
            raise ConfigError(f"no sample is left: of all {lost}, {IN_GAP}")
        left_out = (*self.left_out, LeftOut(lost, len(samples), IN_GAP))
        return replace(self, samples=remaining, block_rows=0, left_out=left_out)

    def split(self, fields: FieldSet, rule: SplitRule) -> tuple[Self, ...]:
        """Deal the samples to parts, as `Data.split` describes it; by blocks of the fields where it deals blocks.

        Raises
        ------
        ConfigError
            As `Data.split` does.
        """
        whole = self.selection(fields.block_rows, fields.edges)
        return tuple(
            replace(
                self,
                samples=part,
                block_rows=fields.block_rows,
                bounds=None,
                left_out=part.left_out,
                dealt=part.dealt or self.dealt,
            )
            for part in split_selection(fields, whole, rule, left_out=self.left_out)
        )

    def _at(self, positions: Samples) -> Samples:
        """Return samples by their positions, which ascend."""
        samples = self.samples
        if isinstance(samples, range):
            if isinstance(positions, range):
                return samples[positions.start : positions.stop : positions.step]
            if (samples.start, samples.step) == (0, 1):
                return positions
            start, step = samples.start, samples.step
            return collected((start + step * piece for piece in pieces_of(positions)), self.num_samples)
        find = samples.samples_at if isinstance(samples, Selection) else samples.at
        return collected(map(find, pieces_of(positions)), self.num_samples)

    def _between(self, select: slice) -> range:
        """Return the rows between the bounds of a slice of the samples."""
        assert not isinstance(self.samples, Selection)
        assert self.bounds is not None
        start, stop = bounds_of(select, len(self.samples))
        return range(
            self.bounds.start if start == 0 else int(self.samples[start]),
            self.bounds.stop if stop >= len(self.samples) else int(self.samples[stop]),
        )


def _without_gaps(fields: Sequence[Field], samples: Samples) -> Iterator[Int64]:
    """Return the samples that read no row that a row map lacks, some at a time."""
    for piece in pieces_of(samples):
        yield piece[~reads_gaps(fields, piece)]
