"""Arrays of the lanes of all ranks over the first steps of an epoch: the blocks that are read at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarrfeed.plan.samples.selection import Int64
from zarrfeed.tools.plot.pieces import Pieces

#: Lanes that are drawn, at most, and groups of each.
MOST_LANES, MOST_GROUPS = 24, 8


@dataclass(frozen=True, eq=False)
class LaneRows:
    """The lanes that are drawn, one row each, and the pieces that they read first.

    Attributes
    ----------
    rank, lane
        The rank and the lane of each row, shape (rows,): sorted by rank, then lane. A lane that several ranks read has
        a row for each.
    num_rows
        Number of rows if all lanes were drawn.
    steps
        Number of steps that are drawn: [0, steps).
    of_steps
        Number of steps of the epoch.
    row
        The row of each piece, shape (n,).
    label
        The label of each piece: the number of its block, or of its column.
    first_step, in_group, group_size
        The first step of each piece's group, the number of the piece in it, and its number of pieces, as in `Pieces`.
    until
        The step at which the next group of the row begins; of the last one, the step after its last one.
    """

    rank: Int64
    lane: Int64
    num_rows: int
    steps: int
    of_steps: int
    row: Int64
    label: Int64
    first_step: Int64
    until: Int64
    in_group: Int64
    group_size: Int64

    @classmethod
    def of(cls, pieces: Pieces, label: Int64) -> LaneRows:
        """Return the first lanes of each rank, and of each the first groups, with a label for each piece."""
        of_steps = int(pieces.steps.max(initial=0))
        # pieces are sorted by rank, lane and time: one entry per row from here on
        begins = (np.diff(pieces.rank, prepend=-1) != 0) | (np.diff(pieces.lane, prepend=-1) != 0)
        rank, lane = pieces.rank[begins], pieces.lane[begins]
        of_rank = np.arange(len(rank)) - np.searchsorted(rank, rank)
        drawn = of_rank < max(1, MOST_LANES // len(pieces.steps))
        # one entry per piece from here on
        row, until = np.cumsum(begins) - 1, _until(pieces, begins)
        steps = of_steps
        if len(pieces):
            steps = min(steps, MOST_GROUPS * int(np.median(until - pieces.first_step)))
        shown = np.flatnonzero(drawn[row] & (pieces.first_step < steps))
        return cls(
            rank[drawn],
            lane[drawn],
            len(rank),
            steps,
            of_steps,
            (np.cumsum(drawn) - 1)[row[shown]],
            label[shown],
            pieces.first_step[shown],
            until[shown],
            pieces.in_group[shown],
            pieces.group_size[shown],
        )


def _until(pieces: Pieces, begins: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Int64:
    """Return when the next group of the lane begins, given which pieces are the first ones of their lanes."""
    group = np.flatnonzero(pieces.in_group == 0)
    following = np.append(group[1:], -1)
    next_first = np.where(begins[following] | (following < 0), 0, pieces.first_step[following])
    ends = np.maximum(next_first, pieces.last_step[group] + 1)
    until: Int64 = np.repeat(ends, pieces.group_size[group])
    return until
