"""The progress of a consumer in a pass over an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.state import EpochState, SavedRun, WorkerShare
from zarrfeed.plan.shares.partition import Consumer, Division, RankInfo
from zarrfeed.plan.shares.progress import Cut, Progress
from zarrfeed.plan.shares.runs import RunDivision


@dataclass
class Cursor:
    """The progress of a rank, or of one of its workers, in a pass.

    Attributes
    ----------
    begin
        The settled state in which the pass began.
    division
        The division of the positions that earlier runs had left. A saved run in `begin` has the same division: the pass
        goes on with it.
    consumer
        The consumer whose batches are counted: a DataLoader worker with its own share, else the rank.
    delivered
        Batches of the division (samples, where there is no batch size) that were handed out, by the saved run too. In
        a worker: those that it handed out itself.
    ended
        True if the consumer asked for more than there is.
    closed
        True if the pass was closed or dropped, so that it hands out no more.
    in_worker
        True if this process is a DataLoader worker, whose state is that of its own share.
    rank_info
        The rank that began the pass.
    """

    begin: EpochState
    division: Division | RunDivision
    consumer: Consumer
    delivered: int = 0
    ended: bool = False
    in_worker: bool = False
    closed: bool = False
    rank_info: RankInfo = field(default_factory=RankInfo)

    @classmethod
    def at(
        cls,
        schedule: Schedule,
        state: EpochState,
        consumer: Consumer,
        *,
        in_worker: bool,
        rank_info: RankInfo = RankInfo(),  # noqa: B008 - it is frozen
    ) -> Cursor:
        """Return the cursor of a pass that begins in a state.

        Raises
        ------
        ConfigError
            If the state is of one worker's share, and this is another.
        """
        begin = schedule.settle(state, consumer)
        division = schedule.division(begin, consumer)
        if begin.worker is None:
            delivered = 0 if in_worker else begin.batches
        elif begin.worker == WorkerShare(consumer, division.batch_size, begin.worker.batches):
            delivered = begin.worker.batches
        else:
            raise ConfigError(
                f"the state is of {begin.worker}, this is {consumer}: a worker can load only its own state"
            )
        return cls(begin, division, consumer, delivered, in_worker=in_worker, rank_info=rank_info)

    def stand(self, *, at_end: bool) -> EpochState:
        """Return the state of the pass; in a worker that of its share, which at the end is an end and no new epoch.

        With `at_end`, an end is one elsewhere, too.
        """
        if self.in_worker:
            return replace(self.begin, worker=WorkerShare(self.consumer, self.division.batch_size, self.delivered))
        if at_end and self.at_end:
            length = self.begin.progress.used + self.division.length
            return replace(self.begin, progress=Progress((Cut(length),)), run=None)
        return self.state()

    @property
    def at_end(self) -> bool:
        """True if all ranks have all of their batches; without evening out, rank 0 has the most batches."""
        return self.ended or self.delivered >= self.division.batches(0)

    @property
    def under_way(self) -> bool:
        """True if the pass may hand out more batches."""
        return not (self.closed or self.at_end)

    @property
    def handed_out(self) -> int:
        """Batches that the consumer got from this pass itself, and not from the run that it resumes."""
        return self.delivered - self.begin.batches

    def state(self) -> EpochState:
        """Return the state in which a pass begins that delivers the rest: the next epoch's beginning at the end."""
        if self.at_end:
            return self.begin.following()
        return replace(self.begin, run=SavedRun(self.division, self.delivered) if self.delivered else None)
