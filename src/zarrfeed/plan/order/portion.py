"""`Portion`: the positions of an epoch order that one consumer takes, in the form that orders of any kind plan."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from zarrfeed.plan.samples.selection import Int64


def _no_positions() -> Int64:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Strides:
    """The positions that a consumer takes by stride, at its steps begin ... begin + count - 1.

    They are first, first + stride, ...; with a `run`, so many of them, then as many from `period` positions behind the
    first of these on, and so on.
    """

    first: int
    stride: int
    begin: int
    count: int
    run: int = 0
    period: int = 0


@dataclass(frozen=True, eq=False)
class Portion:
    """The positions of an epoch order that one consumer takes, and in which sequence.

    Attributes
    ----------
    first, stride
        The consumer takes global positions first, first + stride, ...
    steps
        Number of these positions. None: all that there are.
    head, tail
        Positions that it takes before and after these, one by one. Position g >= n is g mod n, once more.
    run, period
        For mixtures alone: as in `Strides`. `steps` is a number then.
    most_steps
        For mixtures alone: a group that serves steps further apart is visited several times. None: it is not.
    """

    first: int = 0
    stride: int = 1
    steps: int | None = None
    head: Int64 = field(default_factory=_no_positions)
    tail: Int64 = field(default_factory=_no_positions)
    run: int = 0
    period: int = 0
    most_steps: int | None = None

    def settled(self, length: int) -> tuple[Strides, Int64, Int64]:
        """Return the positions that are taken by stride, in an order of so many, and all others one by one.

        Returns
        -------
        The strides; the other positions, ascending; and the step at which each of them is taken.
        """
        steps = self.steps
        if not self.run:
            available = max(0, -(-(length - self.first) // self.stride))
            steps = available if steps is None else min(steps, available)
        assert steps is not None
        begin = len(self.head)
        step = np.concatenate([np.arange(begin), begin + steps + np.arange(len(self.tail))])
        position = np.concatenate([self.head, self.tail])
        by_position = np.argsort(position, kind="stable")
        strides = Strides(self.first, self.stride, begin, steps, self.run, self.period)
        return strides, position[by_position], step[by_position]


#: All positions, in their order.
WHOLE = Portion()
