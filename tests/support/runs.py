"""Runs over epochs on any number of ranks and workers, listed by plans: nothing is read, no process is started.

A run is told apart by its ranks W and by its workers K; 0 workers read as 1 does. Its batches are those that a
`DataLoader` takes: batch i of a rank comes from worker i mod K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support.mixtures import dataset_of, interleaved
from zarrfeed import Data
from zarrfeed.base.native import core
from zarrfeed.plan.order.order import EpochPlan
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState, SavedRun
from zarrfeed.plan.shares.partition import Consumer, Division, RankInfo

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """Some ranks, with some workers each, that read what is left of an epoch in a state."""

    schedule: Schedule
    ranks: int
    workers: int
    state: EpochState

    @classmethod
    def of(cls, data: Data, **options: Any) -> Run:
        """Return the run of one rank over the first epoch; `options` are those of `dataset_of`."""
        with dataset_of(data, **options) as dataset:
            return cls(dataset.session.schedule, 1, 0, EpochState(0))

    def on(self, ranks: int, workers: int = 0, epoch: int = 0, **changes: Any) -> Run:
        """Return a run over a whole epoch of the same dataset; `changes` are options of its `Schedule`."""
        return Run(self.schedule.with_options(**changes), ranks, workers, EpochState(epoch))

    def consumer(self, rank: int, worker: int = 0) -> Consumer:
        """Return a worker of a rank."""
        return RankInfo(rank, self.ranks, self.ranks).consumer(worker, max(1, self.workers))

    def plan(self, rank: int, worker: int = 0) -> EpochPlan:
        """Return what a worker of a rank reads."""
        consumer = self.consumer(rank, worker)
        return self.schedule.plan(self.schedule.settle(self.state, consumer), consumer)

    def batches(self, rank: int) -> list[Int64]:
        """Return the batches of a rank, in the order in which a loader takes them."""
        size, count = self.schedule.options.batch_size or 1, max(1, self.workers)
        of_worker = []
        for worker in range(count):
            plan = self.plan(rank, worker)
            epoch_order = core.sample_order(plan.to_core())
            of_worker.append([epoch_order[begin : begin + size] for begin in range(0, len(epoch_order), size)])
        taken = sum(map(len, of_worker))
        return [of_worker[i % count][i // count] for i in range(taken)]

    def all_batches(self) -> list[list[Int64]]:
        """Return the batches of each rank."""
        return [self.batches(rank) for rank in range(self.ranks)]

    def sample_order(self, most_batches: int | None = None) -> Int64:
        """Return the samples of some batches of each rank, or of all: step by step, if workers take no strides."""
        taken = [batches[:most_batches] for batches in self.all_batches()]
        return interleaved([np.concatenate([np.zeros(0, np.int64), *batches]) for batches in taken])

    @property
    def begin(self) -> EpochState:
        """The settled state in which the run begins."""
        return self.schedule.settle(self.state, self.consumer(0))

    @property
    def division(self) -> Division:
        """The division of the epoch."""
        made = self.schedule.division(self.begin, self.consumer(0))
        assert isinstance(made, Division)
        return made

    @property
    def batches_left(self) -> int:
        """Batches of rank 0, which has most."""
        return self.division.batches(0) - self.begin.batches

    def after(self, batches: int, ranks: int, workers: int = 0) -> Run:
        """Return the run of other ranks and workers that resumes this one after so many batches of each rank."""
        begin, division = self.begin, self.division
        batches += begin.batches
        state = replace(begin, run=SavedRun(division, batches) if batches else None)
        if batches >= division.batches(0):
            state = begin.following()
        return Run(self.schedule, ranks, workers, EpochState.from_json(state.to_json(), self.schedule.part))

    def following(self, ranks: int, workers: int = 0) -> Run:
        """Return the run of the next epoch."""
        return Run(self.schedule, ranks, workers, self.begin.following())

    @property
    def length(self) -> int:
        """The steps of an epoch."""
        return self.schedule.length(self.begin, self.consumer(0))
