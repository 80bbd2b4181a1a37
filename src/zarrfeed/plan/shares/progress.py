"""The used positions of an epoch order, and the numbering of the positions that are left.

Invariant: batches are delivered in step on all ranks. So after any number of batches, a run has used up a prefix of the
epoch order and, if it stopped between the batches of two workers, a regular comb behind the prefix. A run that begins
there with other ranks or workers numbers the positions that are left from 0; it uses up a prefix and a comb of that
numbering. So progress is a short list of cuts, whatever runs came before, and no list of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zarrfeed.plan.order.order_state import whole_number

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cut:
    """The positions that one run used up, among those that it found.

    The positions [0, prefix), and of each of the `rounds` runs of `period` positions behind that the first `width`.
    """

    prefix: int
    width: int = 0
    period: int = 1
    rounds: int = 0

    @property
    def used(self) -> int:
        """Number of used positions."""
        return self.prefix + self.width * self.rounds

    @property
    def gaps(self) -> int:
        """Positions that are left inside of the comb: from there on, the positions that are left have no gap."""
        return (self.period - self.width) * self.rounds

    def position(self, left: Int64) -> Int64:
        """Return the position of each of the positions that are left, given their number."""
        gap = self.period - self.width
        inside = left // gap * self.period + self.width + left % gap if self.rounds else left
        return self.prefix + np.where(left < self.gaps, inside, left + self.width * self.rounds)


class OtherCut(Protocol):
    """The positions that a run used up, where they are no prefix and comb; `runs.RunCut` is one."""

    @property
    def used(self) -> int:
        """Number of used positions."""

    @property
    def gaps(self) -> int:
        """Positions that are left before the last used one."""

    @property
    def prefix(self) -> int | None:
        """Number of used positions, if they are the first ones."""

    def position(self, left: Int64) -> Int64:
        """Return the position of each of the positions that are left, given their number."""

    def to_json(self) -> dict[str, Any]:
        """Return the cut as a JSON object."""


@dataclass(frozen=True)
class Progress:
    """The cuts that the runs of an epoch made, the first run's first."""

    cuts: tuple[Cut | OtherCut, ...] = ()

    @property
    def used(self) -> int:
        """Number of positions of the epoch order that are used up."""
        return sum([cut.used for cut in self.cuts]) if self.cuts else 0

    def then(self, cut: Cut | OtherCut) -> Progress:
        """Return the progress after a further run, in as few cuts as can say it."""
        if cut.used == 0:
            return self
        if not isinstance(cut, Cut):
            if cut.prefix is None:
                return Progress((*self.cuts, cut))
            cut = Cut(cut.prefix)
        if not self.cuts:
            return Progress((cut,))
        last = self.cuts[-1]
        if cut.prefix >= last.gaps:  # the new prefix takes all that the last comb left: both are one prefix
            joined = Cut(last.used + cut.prefix, cut.width, cut.period, cut.rounds)
            return Progress(self.cuts[:-1]).then(joined)
        return Progress((*self.cuts, cut))

    def position(self, left: Int64) -> Int64:
        """Return the positions in the epoch order, given their numbers among those that are left."""
        for cut in reversed(self.cuts):
            left = cut.position(left)
        return left

    def regular_from(self) -> tuple[int, int]:
        """Return (number, shift): from `number` on, position(left) = left + shift."""
        number, shift = 0, 0
        for cut in self.cuts:
            number = max(cut.gaps, number - cut.used)
            shift += cut.used
        return number, shift

    def to_lists(self) -> list[list[int] | dict[str, Any]]:
        """Return the cuts as lists of four numbers, others as objects, for JSON."""
        return [
            [cut.prefix, cut.width, cut.period, cut.rounds] if isinstance(cut, Cut) else cut.to_json()
            for cut in self.cuts
        ]

    @classmethod
    def from_lists(
        cls,
        cuts: Sequence[Sequence[int] | Mapping[str, Any]],
        length: int,
        read_other: Callable[[Mapping[str, Any], int], OtherCut] | None = None,
    ) -> Progress:
        """Return the progress that `to_lists` described, in an epoch order of `length` positions.

        `read_other(json, found)` reads a cut that is no prefix and comb, made in `found` positions.

        Raises
        ------
        ValueError
            If it cannot be one.
        """
        made: list[Cut | OtherCut] = []
        left = length
        for described in cuts:
            cut: Cut | OtherCut
            if isinstance(described, Mapping) and read_other is not None:
                cut = read_other(described, left)
            else:
                cut = _cut_of(described, left)
            made.append(cut)
            left -= cut.used
        if any(isinstance(second, Cut) and second.prefix >= first.gaps for first, second in pairwise(made)):
            raise ValueError("two cuts could be one")
        return cls(tuple(made))


def _cut_of(numbers: object, left: int) -> Cut:
    if not isinstance(numbers, list | tuple) or len(numbers) != 4:
        raise ValueError(f"{numbers!r}: a cut has four numbers")
    cut = Cut(*(whole_number(value) for value in numbers))
    if cut.width >= cut.period:
        raise ValueError(f"{cut} is no cut")
    if cut.prefix + cut.period * cut.rounds > left:
        raise ValueError(f"{cut} is longer than the {left} positions that it is made in")
    return cut
