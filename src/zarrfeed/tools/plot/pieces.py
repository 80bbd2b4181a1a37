"""Put the plans of all ranks side by side: the pieces that they read in an epoch, and the steps of each piece."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.portion import Portion
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState
from zarrfeed.plan.shares.partition import RankInfo


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of blocks that ranks without DataLoader workers read in an epoch, sorted by rank, lane and time.

    A group of pieces is decoded together: it serves the steps `first_step` to `last_step` of its rank.

    Attributes
    ----------
    order
        The order of the epoch.
    steps
        Samples that each rank delivers, shape (ranks,).
    rank, lane, block
        The rank, the lane and the block of each piece, shape (n,). A block is numbered among all blocks of the array,
        read or not.
    first_step, last_step
        The first and the last step of the group of each piece, shape (n,).
    in_group, group_size
        The number of each piece in its group, and the number of pieces of the group, shape (n,).
    first_samples
        For each rank, the samples that it delivers first, as many as were asked for, if there are so many.
    """

    order: Order
    steps: Int64
    rank: Int64
    lane: Int64
    block: Int64
    first_step: Int64
    last_step: Int64
    in_group: Int64
    group_size: Int64
    first_samples: tuple[Int64, ...]

    @classmethod
    def of(cls, schedule: Schedule, epoch: int, ranks: int, num_first: int) -> Pieces:
        """Return the pieces of an epoch that `ranks` ranks share, with the first `num_first` samples of each."""
        plans = [_plan_of_rank(schedule, epoch, RankInfo(rank, ranks, ranks)) for rank in range(ranks)]
        columns = [_pieces_of_rank(rank, plan) for rank, plan in enumerate(plans)]
        return cls(
            plans[0].order,
            np.array([plan.steps for plan in plans]),
            first_samples=tuple(_first_samples(plan, num_first) for plan in plans),
            **{name: np.concatenate([one[name] for one in columns]) for name in columns[0]},
        )

    def __len__(self) -> int:
        return len(self.block)


def _plan_of_rank(schedule: Schedule, epoch: int, rank: RankInfo) -> EpochPlan:
    consumer = rank.consumer()
    return schedule.plan(schedule.settle(EpochState(epoch), consumer), consumer)


def _pieces_of_rank(rank: int, plan: EpochPlan) -> dict[str, Int64]:
    """Return the columns of `Pieces` for a rank."""
    sizes = np.diff(plan.groups.begin)
    # one entry per piece from here on
    group = np.repeat(np.arange(len(sizes)), sizes)
    in_group = np.arange(len(group)) - plan.groups.begin[group]
    lane, first_step = plan.groups.lane[group], plan.first_step[group]
    by_lane = np.lexsort((in_group, first_step, lane))
    columns = {
        "rank": np.full_like(lane, rank),
        "lane": lane,
        "block": plan.segment_block,
        "first_step": first_step,
        "last_step": plan.last_step[group],
        "in_group": in_group,
        "group_size": sizes[group],
    }
    return {name: column[by_lane] for name, column in columns.items()}


def _first_samples(plan: EpochPlan, count: int) -> Int64:
    head = plan.order.plan(plan.epoch, Portion(plan.strides.first, plan.stride, min(plan.strides.count, count)))
    samples: Int64 = core.sample_order(head.to_core())
    return samples
