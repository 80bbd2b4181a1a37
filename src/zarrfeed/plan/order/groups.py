"""Groups: the sequence of all samples of an epoch, cut at the ends of blocks and of lanes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core
from zarrfeed.plan.samples.selection import Int64

_NONE: Int64 = np.zeros(0, dtype=np.int64)
_OF_GROUPS = ("lane", "offset", "rows", "number", "sequence_begin")
_OF_SEGMENTS = ("held_index", "first_row", "block_rows", "start", "length")
#: A step that no consumer comes to.
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Groups:
    """Groups of an epoch order: each is a run of positions of one lane, in pieces of blocks.

    Attributes
    ----------
    lane, offset, rows
        Each group's lane, the first of its positions in the lane, and their number.
    number
        The group's number in its lane.
    sequence_begin
        The position of each group's first row in the sequence that lanes are cut from. Ascending in an order.
    begin
        Group i has the segments begin[i]:begin[i + 1].
    held_index, first_row, block_rows
        Each segment's block: its held index, its first row, in the form that the engine takes, and its number of rows.
    start, length
        Each segment's first position inside the (permuted) block, and the number of its positions.
    """

    lane: Int64
    offset: Int64
    rows: Int64
    number: Int64
    sequence_begin: Int64
    begin: Int64
    held_index: Int64
    first_row: Int64
    block_rows: Int64
    start: Int64
    length: Int64

    @classmethod
    def cut(
        cls,
        held_indices: Int64,
        first_row: Int64,
        block_rows: Int64,
        lane: Int64,
        lane_begin: Int64,
        lane_end: Int64,
        mix: int,
    ) -> Groups:
        """Cut some lanes of a sequence of blocks, given with their rows, into groups of `mix` pieces."""
        block_begin = np.concatenate(([0], np.cumsum(block_rows)))
        first_piece = np.searchsorted(block_begin, lane_begin, side="right") - 1
        last_piece = np.searchsorted(block_begin, lane_end, side="left")
        pieces = np.where(lane_end > lane_begin, last_piece - first_piece, 0)
        # one entry per piece from here on
        in_lane = np.repeat(np.arange(len(lane)), pieces)
        number = np.arange(len(in_lane)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        piece = number + first_piece[in_lane]
        piece_begin = np.maximum(block_begin[piece], lane_begin[in_lane])
        piece_end = np.minimum(block_begin[piece + 1], lane_end[in_lane])
        starts = np.flatnonzero(number % mix == 0)
        rows = np.add.reduceat(piece_end - piece_begin, starts) if len(starts) else starts
        return cls(
            lane=lane[in_lane[starts]],
            offset=piece_begin[starts] - lane_begin[in_lane[starts]],
            rows=rows,
            number=number[starts] // mix,
            sequence_begin=piece_begin[starts],
            begin=np.append(starts, len(number)),
            held_index=held_indices[piece],
            first_row=first_row[piece],
            block_rows=block_rows[piece],
            start=piece_begin - block_begin[piece],
            length=piece_end - piece_begin,
        )

    def __len__(self) -> int:
        return len(self.lane)

    def holding(self, positions: Int64) -> Int64:
        """Return the groups that hold positions of the sequence, in lanes that were cut."""
        return np.searchsorted(self.sequence_begin, positions, side="right") - 1

    def take(self, groups: Int64) -> Groups:
        """Return some groups, in any order, each as often as it is named."""
        sizes = np.diff(self.begin)[groups]
        begin = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        segment = np.repeat(self.begin[groups] - begin[:-1], sizes) + np.arange(begin[-1])
        of_groups = {name: getattr(self, name)[groups] for name in _OF_GROUPS}
        of_segments = {name: getattr(self, name)[segment] for name in _OF_SEGMENTS}
        return Groups(**of_groups, begin=begin, **of_segments)

    @classmethod
    def concat(cls, parts: Sequence[Groups]) -> Groups:
        """Return the groups of several orders, one after another."""
        before = np.cumsum([0, *(len(part.held_index) for part in parts)])
        begins = [part.begin[:-1] + n for part, n in zip(parts, before, strict=False)]
        joined = {
            name: np.concatenate([_NONE, *(getattr(part, name) for part in parts)])
            for name in (*_OF_GROUPS, *_OF_SEGMENTS)
        }
        return cls(**joined, begin=np.concatenate([*begins, before[-1:]]))


@dataclass(frozen=True)
class SourceGroups:
    """The source of each group of a mixture, and the keys of the sources' orders.

    Attributes
    ----------
    mixture
        The step at which each position of a source is taken.
    begin
        The step of the mixture that is the first position of the epoch.
    source, which_pass
        Each group's source, and the number of the pass over it.
    seed, lanes, length
        Each source's key of its orders, its lanes, and the number of samples of a pass.
    """

    mixture: core.Mixture
    begin: int
    source: Int64
    which_pass: Int64
    seed: npt.NDArray[np.uint64]
    lanes: Int64
    length: Int64

    def take(self, groups: Int64) -> SourceGroups:
        """Take some groups, each as often as it is named."""
        return replace(self, source=self.source[groups], which_pass=self.which_pass[groups])

    def to_core(self) -> core.MixturePlan:
        """Convert the groups' sources to the form that the engine takes."""
        return core.MixturePlan(
            mixture=self.mixture,
            begin=self.begin,
            group_source=self.source,
            group_pass=self.which_pass,
            source_seed=self.seed,
            source_lanes=self.lanes,
            source_length=self.length,
        )


def steps_of(groups: Groups, lanes: int, first: int, stride: int, steps: int) -> tuple[Int64, Int64]:
    """Return the first and the last step that each group serves; first > last for none.

    Lane position j is global position lane + lanes * j; the consumer has it if that is first + stride * step.
    """
    lane, offset = groups.lane, groups.offset
    common = math.gcd(stride, lanes)
    period = stride // common
    # lanes * j = first - lane (mod stride)  <=>  j = residue (mod period), for lanes that have any
    inverse = pow(lanes // common, -1, period) if period > 1 else 0
    residue = ((first - lane) // common % period) * inverse % period
    low = np.maximum(offset, -(-(first - lane) // lanes))
    high = np.minimum(offset + groups.rows - 1, (first + stride * (steps - 1) - lane) // lanes)
    j_first = low + (residue - low) % period
    j_last = high - (high - residue) % period
    nothing = (j_first > j_last) | ((first - lane) % common != 0)
    first_step = (lane + lanes * j_first - first) // stride
    last_step = (lane + lanes * j_last - first) // stride
    return np.where(nothing, 1, first_step), np.where(nothing, 0, last_step)


def visits_of(group: Int64, step: Int64) -> tuple[Int64, Int64, Int64]:
    """Return groups, each once, and the first and the last of the steps at which they are needed."""
    found, inverse = np.unique(group, return_inverse=True)
    earliest, latest = np.full(len(found), NEVER), np.full(len(found), -1)
    np.minimum.at(earliest, inverse, step)
    np.maximum.at(latest, inverse, step)
    return found, earliest, latest
