"""The kind of order that weighted samples have: each epoch draws how often each sample comes (`weighted_blocks.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.order.drawn_order import DrawnOrder
from zarrfeed.plan.order.keyed_random import key_of
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.weighted_blocks import WeightedBlocks, in_blocks
from zarrfeed.plan.samples.expected_counts import ExpectedCounts
from zarrfeed.plan.samples.selection import Selection

#: Purpose of the key of the counts.
_COUNTS = 0x636F756E7473


@dataclass(frozen=True, kw_only=True)
class WeightedOrder(DrawnOrder, unfolds=True):
    """The epoch order of weighted samples, in one epoch.

    Attributes
    ----------
    expected
        The expected count of each sample of the selection.
    """

    expected: ExpectedCounts = field(compare=False, repr=False)

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

    def make_blocks(self) -> WeightedBlocks:
        """Return the blocks that samples are drawn from, which are made once for all epochs."""
        seed = key_of(_COUNTS, self.seed)
        return WeightedBlocks(self.each_once, self.expected, seed, visits_again=self.shuffle)

    @property
    def blocks(self) -> WeightedBlocks:
        """The blocks that samples are drawn from."""
        made = super().blocks
        assert isinstance(made, WeightedBlocks)
        return made

    def check_dealt(self) -> None:
        """Raise ConfigError: weighted samples are not dealt to nodes."""
        raise ConfigError("affinity = 'node' is not for weighted samples: all nodes share one draw of them")

    def describe(self) -> dict[str, Any]:
        """Describe all that the epoch order depends on, except for epoch and lanes, as JSON."""
        return {**super().describe(), "weights": self.expected.digest}
