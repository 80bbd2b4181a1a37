"""Plans that are unfolded while they are read: neither the first batch nor the memory grows with the number of blocks.

What holds: a plan that is unfolded has the groups of `Order.plan`, with the same numbers, in the same order. The engine
makes them from the blocks in the order of the epoch (`cpp/plan/unfolding.h`), some at a time. What needs all groups at
once, such as the chunks that windows of neighbouring blocks share, asks for `listed()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.order.groups import Strides, extra_steps
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.samples.selection import Int64

#: Positions of no stride are looked up one by one, so a plan with more of them is listed.
_MOST_EXTRA = 1 << 16
_NONE: Int64 = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class UnfoldingPlan:
    """What one consumer reads in one epoch, as `EpochPlan` says it, without the groups.

    Attributes
    ----------
    order, epoch
        The epoch order.
    strides
        The positions that the consumer takes by stride, and the steps at which it takes them.
    extra_position, extra_step
        The positions that it takes one by one, ascending, and its steps for them.
    listed
        Returns the same plan with its groups.
    """

    order: Order
    epoch: int
    strides: Strides
    extra_position: Int64
    extra_step: Int64
    listed: Callable[[], EpochPlan]

    @property
    def stride(self) -> int:
        """How far apart in the epoch order the positions of the consumer are."""
        return self.strides.stride

    @property
    def steps(self) -> int:
        """How many samples the consumer delivers."""
        return self.strides.count + len(self.extra_position)

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


#: What the engine reads.
ReadPlan: TypeAlias = EpochPlan | UnfoldingPlan


def unfold(
    order: Order,
    epoch: int,
    *,
    first: int = 0,
    stride: int = 1,
    steps: int | None = None,
    head: Int64 | None = None,
    tail: Int64 | None = None,
) -> ReadPlan:
    """Return what `order.plan` does, as a plan that is unfolded; orders of mixtures and patches have listed groups."""

    def listed() -> EpochPlan:
        return order.plan(epoch, first=first, stride=stride, steps=steps, head=head, tail=tail)

    available = max(0, -(-(order.length - first) // stride))
    count = available if steps is None else min(steps, available)
    begin = 0 if head is None else len(head)
    position, step = extra_steps(head, tail, begin + count)
    strided = np.array([first, first + stride * (count - 1)][: min(2, count)], dtype=np.int64)
    once = (of[of < order.length] for of in (position[:begin], position[begin:]))
    if type(order) is not Order or not order.length or not _ascends(next(once), strided, next(once)):
        return listed()
    by_position = np.argsort(position, kind="stable")
    strides = Strides(first, stride, begin, count)
    return UnfoldingPlan(order, epoch, strides, position[by_position], step[by_position], listed)


def _ascends(head: Int64, strided: Int64, tail: Int64) -> bool:
    """Return whether few positions are of no stride, and all are read in ascending order, strided ones each once."""
    if len(head) + len(tail) > _MOST_EXTRA:
        return False
    around = head[-1:], strided, tail[:1]
    is_apart = not len(strided) or (np.diff(np.concatenate(around)) > 0).all()
    return bool(is_apart and (np.diff(np.concatenate([head, tail])) >= 0).all())
