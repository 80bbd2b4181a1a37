"""The kind of order that weighted samples have: each epoch draws how often each sample comes (`weighted_blocks.py`).

Invariant: the repetitions of a sample are spread over the order. A visit of a block has them among the rows of all
blocks that are open with it, `lanes` x `mix`. If memory has room for many open blocks, that is spread enough, and
nearly every block has one visit. Otherwise a block has up to `MOST_VISITS` visits, on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.drawn_order import DrawnOrder
from zarrfeed.plan.order.keyed_random import key_of
from zarrfeed.plan.order.order import Order, Room
from zarrfeed.plan.order.order_state import OrderState, OwnState, Readers, S, whole_number
from zarrfeed.plan.order.weighted_blocks import MOST_VISITS, WeightedBlocks, in_blocks
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.selection import Selection

#: Purpose of the key of the counts.
_COUNTS = 0x636F756E7473
#: Visits for each block, on average and at most, where the repetitions of a visit are spread enough.
_FEW_VISITS = 1.1
#: Open blocks that spread the repetitions of a visit enough, and well. In an array of few blocks, half of them do, but
#: no fewer than `_LEAST_OPEN`: one rank of eight has an eighth of them.
_ENOUGH_OPEN = 256
_WELL_OPEN = 512
_LEAST_OPEN = 128


@dataclass(frozen=True)
class Visits:
    """The visits of blocks in the state of an epoch.

    Attributes
    ----------
    repeats
        Largest number of times that a sample comes in one visit.
    """

    lasts: ClassVar[bool] = False

    repeats: int

    def to_json(self) -> dict[str, Any]:
        """Return the entries of the JSON object of a state."""
        return {"repeats": self.repeats}


@dataclass(frozen=True, kw_only=True)
class WeightedOrder(DrawnOrder, unfolds=True):
    """The epoch order of weighted samples, in one epoch.

    Attributes
    ----------
    expected
        The expected count of each sample of the selection.
    repeats
        Largest number of times that a sample comes in one visit of its block. None: so few times that blocks have
        `MOST_VISITS` visits.
    """

    expected: ExpectedCounts = field(compare=False, repr=False)
    repeats: int | None = None

    @classmethod
    def of(cls, order: Order, expected: ExpectedCounts) -> WeightedOrder:
        """Return the order of the samples of another order, weighted; those without a weight never come."""
        if order.selection is not None:
            expected = in_blocks(expected, order.selection)
        some = expected.shares > 0
        if some.all():
            return cls.drawing(order, expected)
        whole = order.selection or Selection.of_range(range(order.num_samples), order.block_rows, order.edges)
        chosen = Selection.of_samples(np.sort(whole.listed()[some]), order.block_rows, order.edges)
        chosen = replace(chosen, left_out=whole.left_out, dealt=whole.dealt)
        return cls.drawing(order, expected.taken(some.nonzero()[0]), selection=chosen)

    @property
    def drawn_by(self) -> tuple[Any, ...]:
        """All that the samples of an epoch depend on, beside `expected`, the selection and the epoch."""
        return *super().drawn_by, self.repeats

    def make_blocks(self) -> WeightedBlocks:
        """Return the blocks that samples are drawn from, which are made once for all epochs."""
        if self.repeats is None:
            return self._visiting(MOST_VISITS)
        return WeightedBlocks(self.each_once, self.expected, self._counts_seed, self.repeats)

    def _visiting(self, most_visits: float) -> WeightedBlocks:
        """Return the blocks with so many visits a block, on average and at most; in order, a block has one."""
        visits = most_visits if self.shuffle else 1
        return WeightedBlocks.visiting(self.each_once, self.expected, self._counts_seed, visits)

    @property
    def _counts_seed(self) -> int:
        return key_of(_COUNTS, self.seed)

    @property
    def blocks(self) -> WeightedBlocks:
        """The blocks that samples are drawn from."""
        made = super().blocks
        assert isinstance(made, WeightedBlocks)
        return made

    # Visits

    def suit(self, room: Room, lanes: int | None, mix: int | None) -> Order:
        """Return the order with the lanes and the mix that are named, or with those that suit layout and memory.

        Blocks have few visits if so many of them are open at once that the repetitions of a visit are spread.
        """
        plain = replace(self, repeats=None)
        few = self._visiting(_FEW_VISITS)
        if few.repeats > plain.blocks.repeats:
            made = super(WeightedOrder, replace(self, repeats=few.repeats)).suit(room, lanes, mix)
            if made.lanes * made.mix >= self._open(_ENOUGH_OPEN):
                return made
        return super(WeightedOrder, plain).suit(room, lanes, mix)

    def unmixed(self) -> Self:
        """Return the order whose lanes, mix and visits are chosen anew."""
        return replace(super().unmixed(), repeats=None)

    @property
    def wanted_open(self) -> int:
        """Blocks that are to be open at once, where memory has room for them."""
        return 0 if self.repeats is None else self._open(_WELL_OPEN)

    def _open(self, blocks: int) -> int:
        """Return a number of open blocks, or half of all blocks if that is less."""
        return max(_LEAST_OPEN, min(blocks, -(-len(self.each_once.held) // 2)))

    def settle(self, state: S, readers: Readers) -> S:
        """Return a state in which nothing is left to be decided, by the blocks of its epoch."""
        if state.lanes is None and self.repeats is not None:
            state = replace(state, own=Visits(self.repeats))
        return super().settle(state, readers)

    def as_in(self, state: OrderState) -> Self:
        """Return the order with the visits of a state."""
        if state.lanes is None:
            return self
        repeats = state.own.repeats if isinstance(state.own, Visits) else None
        return self if repeats == self.repeats else replace(self, repeats=repeats)

    def own_in(self, json: Mapping[str, Any]) -> OwnState | None:
        """Return the visits that a state in its JSON form names."""
        return Visits(whole_number(json["repeats"], least=1)) if "repeats" in json else None

    def check_dealt(self) -> None:
        """Raise ConfigError: weighted samples are not dealt to nodes."""
        raise ConfigError("affinity = 'node' is not for weighted samples: all nodes share one draw of them")

    def describe(self) -> dict[str, Any]:
        """Describe all that the epoch order depends on, except for epoch and lanes, as JSON."""
        return {**super().describe(), "weights": self.expected.digest}
