"""Plans that are unfolded while they are read: neither the first batch nor the memory grows with the number of blocks.

Invariant: a plan that is unfolded has the groups of `Order.plan`, with the same numbers, in the same order. The engine
makes them from the blocks in the order of the epoch (`cpp/plan/unfolding.h`), some at a time. What needs all groups at
once, such as the chunks that windows of neighbouring blocks share, asks for `listed()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.order.order import ConsumerPlan, EpochPlan, Order
from zarrfeed.plan.order.portion import WHOLE, Portion
from zarrfeed.plan.samples.selection import Int64

#: Positions of no stride are looked up one by one, so a plan with more of them is listed.
_MOST_EXTRA = 1 << 16
_NONE: Int64 = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class UnfoldingPlan(ConsumerPlan):
    """The plan of one consumer's epoch, like `EpochPlan`, without the groups.

    Attributes
    ----------
    listed
        Returns the same plan with its groups.
    """

    listed: Callable[[], EpochPlan]

    def to_core(self) -> core.EpochPlan:
        """Return the plan in the form that the engine takes."""
        order, strides = self.order, self.strides
        return core.EpochPlan(
            **order.row_keys(self.epoch),
            first=strides.first,
            stride=strides.stride,
            begin=strides.begin,
            count=strides.count,
            steps=self.steps,
            extra_position=self.extra_position,
            extra_step=self.extra_step,
            group_begin=np.zeros(1, dtype=np.int64),
            group_lane=_NONE,
            group_offset=_NONE,
            group_number=_NONE,
            group_turn=_NONE,
            first_step=_NONE,
            last_step=_NONE,
            segment_block=_NONE,
            segment_first=_NONE,
            segment_rows=_NONE,
            segment_start=_NONE,
            segment_length=_NONE,
            block_order=order.ordered_blocks(self.epoch),
            mix=order.mix,
        )


#: The plans that the engine reads.
ReadPlan: TypeAlias = EpochPlan | UnfoldingPlan


def unfold(order: Order, epoch: int, portion: Portion = WHOLE) -> ReadPlan:
    """Like `order.plan`, but return a plan that is unfolded where the order is of a kind that unfolds."""
    listed = partial(order.plan, epoch, portion)
    if not order.unfolds:
        return listed()
    strides, position, step = portion.settled(order.length)
    last = strides.first + strides.stride * (strides.count - 1)
    strided = np.array([strides.first, last][: min(2, strides.count)], dtype=np.int64)
    head, tail = portion.head[portion.head < order.length], portion.tail[portion.tail < order.length]
    if not order.length or not _ascends(head, strided, tail):
        return listed()
    return UnfoldingPlan(order, epoch, strides, position, step, listed)


def _ascends(head: Int64, strided: Int64, tail: Int64) -> bool:
    """Return whether few positions are of no stride, and all are read in ascending order, strided ones each once."""
    if len(head) + len(tail) > _MOST_EXTRA:
        return False
    around = head[-1:], strided, tail[:1]
    is_apart = not len(strided) or (np.diff(np.concatenate(around)) > 0).all()
    return bool(is_apart and (np.diff(np.concatenate([head, tail])) >= 0).all())
