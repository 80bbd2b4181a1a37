"""One pass over a dataset: an iterator of batches that knows how much of the epoch its consumer has received.

A pass is settled at its first `next()`: only then does it take an epoch, look up its rank, and start threads. So making
an iterator and throwing it away, as frameworks do, costs no epoch. In a DataLoader worker it is settled at once. What
goes wrong at the start of a pass is raised by `next()`, where every loop and every worker can report it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zarrfeed.base.errors import ConfigError, ZarrfeedError
from zarrfeed.engine.reader import Reader
from zarrfeed.plan.partition import Consumer, Division
from zarrfeed.plan.progress import Cut, Progress
from zarrfeed.plan.runs import RunDivision
from zarrfeed.plan.state import EpochState, SavedRun, WorkerShare
from zarrfeed.spec.field import Batch, FieldSet, Values
from zarrfeed.torch.callers import check_resumed_epoch
from zarrfeed.torch.distributed import in_worker, worker_and_count
from zarrfeed.torch.interrupts import Token, interrupt_after

if TYPE_CHECKING:
    from zarrfeed.engine.reader_pool import ReaderPool
    from zarrfeed.plan.epoch_plan import Schedule
    from zarrfeed.torch.iterable_dataset import ZarrIterableDataset


@dataclass
class Cursor:
    """How far a rank, or one of its workers, has come in a pass.

    Attributes
    ----------
    begin
        The settled state in which the pass began.
    division
        How what earlier runs had left is shared out. A saved run in `begin` has the same division: the pass goes on
        with it.
    consumer
        Whose batches are counted: for a DataLoader worker those of its own share, else the rank's.
    delivered
        Batches of the division (samples, where there is no batch size) that were handed out, by the saved run too. In
        a worker: those that it handed out itself.
    ended
        Whether the consumer asked for more than there is.
    """

    begin: EpochState
    division: Division | RunDivision
    consumer: Consumer
    delivered: int = 0
    ended: bool = False

    @classmethod
    def at(cls, schedule: Schedule, state: EpochState, consumer: Consumer) -> Cursor:
        """Return the cursor of a pass that begins in a state.

        Raises
        ------
        ConfigError
            If the state is of one worker's share, and this is another.
        """
        begin = schedule.settle(state, consumer)
        division = schedule.division(begin, consumer)
        if begin.worker is None:
            return cls(begin, division, consumer, 0 if in_worker() else begin.batches)
        if begin.worker != WorkerShare(consumer, division.batch_size, begin.worker.batches):
            raise ConfigError(f"the state is of {begin.worker}, this is {consumer}: a worker resumes only itself")
        return cls(begin, division, consumer, begin.worker.batches)

    def stand(self, *, at_end: bool) -> EpochState:
        """Return the state of the pass; in a worker that of its share, which at the end is an end and no new epoch.

        With `at_end`, an end is one elsewhere, too.
        """
        if in_worker():
            return replace(self.begin, worker=WorkerShare(self.consumer, self.division.batch_size, self.delivered))
        if at_end and self.at_end:
            length = self.begin.progress.used + self.division.length
            return replace(self.begin, progress=Progress((Cut(length),)), run=None)
        return self.state()

    @property
    def at_end(self) -> bool:
        """Whether all ranks have all of their batches: where nothing is evened out, rank 0 has most."""
        return self.ended or self.delivered >= self.division.batches(0)

    def state(self) -> EpochState:
        """Return the state in which a pass begins that delivers the rest: the next epoch's beginning at the end."""
        if self.at_end:
            return EpochState(self.begin.epoch + 1)
        return replace(self.begin, run=SavedRun(self.division, self.delivered) if self.delivered else None)


class Pass(Iterator[Batch]):
    """Batches of one pass; gives its reader back when it ends for whatever reason."""

    # Of the class, as construction may be interrupted before anything is set.
    reader: Reader | None = None
    cursor: Cursor | None = None

    def __init__(self, dataset: ZarrIterableDataset, name: str | None) -> None:
        self._dataset = dataset
        self._assemble = dataset._schedule.fields.assembler()
        self._readers: ReaderPool | None = None  # of the process that began the pass
        self._name = name
        self._resumed: EpochState | None = None
        self._failure: ZarrfeedError | None = None
        self._begun = False

    def __next__(self) -> Batch:
        batch = self._assemble(self._next_batch())
        if self._dataset._transform is not None:
            batch = self._transformed(batch)
        assert self.cursor is not None
        self.cursor.delivered += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return where this pass stands, as the dataset's `state_dict()` does; at its end, too."""
        dataset = self._dataset
        if self.cursor is None:
            return dataset._make_state_dict(self._resumed or dataset._upcoming())
        return dataset._make_state_dict(self.cursor.stand(at_end=True))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin where the state says. Only before the first batch.

        Raises
        ------
        ConfigError
            If the state is of another dataset, or the pass was begun.
        """
        if self._begun:
            raise ConfigError("this pass was begun: a state must be loaded before its first batch")
        self._resumed = self._dataset._read_state_dict(state)
        if self.cursor is not None:
            self.settle()

    def settle(self) -> None:
        """Take an epoch, before the first batch; an error in that is kept for `next()`."""
        try:
            self.cursor = _settle(self._dataset, self._name, self._resumed)
        except ZarrfeedError as error:
            self._failure = error

    def close(self) -> None:
        """Stop reading; the reader and its memory serve the next pass."""
        self._begun = True
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.stop()
            assert self._readers is not None
            self._readers.take_back(self, reader)

    def __del__(self) -> None:
        reader = self.reader
        try:
            self.close()
        except KeyboardInterrupt:  # a loop was left with `break`, and then came Ctrl-C
            token = Token()
            self.reader, reader = reader, None
            self.close()  # whatever Python code runs when this object is gone would swallow the interrupt, too
            interrupt_after(token)

    @property
    def _fields(self) -> FieldSet:
        return self._dataset._schedule.fields

    def _transformed(self, batch: Batch) -> Batch:
        """Return what the user's `transform` makes of a batch or sample; what it raises ends the pass."""
        transform = self._dataset._transform
        if transform is None:
            return batch
        try:
            return transform(batch)
        except StopIteration as error:  # would end the loop as if all were read
            self.close()
            raise RuntimeError("transform raised StopIteration") from error
        except BaseException:
            self.close()
            raise

    def _next_batch(self) -> tuple[Values, ...]:
        if not self._begun:
            self._begin()
        if self.reader is None:
            self._dataset._check_open()
            raise StopIteration
        try:
            batch = self.reader.next()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self.close()
            assert self.cursor is not None
            self.cursor.ended = True
            raise StopIteration
        return batch

    def _begin(self) -> None:
        dataset = self._dataset
        dataset._check_open()
        self._begun = True
        if self.cursor is None and self._failure is None:
            self.settle()
        if self._failure is not None:
            raise self._failure
        assert self.cursor is not None
        place = dataset._place()
        if not place.idle:
            self._readers = dataset._readers
            self._readers.start(self, dataset._schedule, place, pinned=dataset._pins())


def _settle(dataset: ZarrIterableDataset, name: str | None, loaded: EpochState | None) -> Cursor:
    """Settle in which state a pass begins, and let the dataset remember it as the one under way.

    Parameters
    ----------
    dataset
        What is read.
    name
        In a DataLoader worker, what all workers of the pass call it.
    loaded
        The state that was loaded for this pass; None: the dataset's next.
    """
    worker, num_workers = worker_and_count()
    consumer = dataset._place().consumer(worker, num_workers)
    begin, dataset._resumed = loaded or dataset._resumed, None
    if begin is not None:
        dataset._epochs.name_next(EpochState(begin.epoch + 1).to_json())
    else:
        json = dataset._epochs.begin() if name is None else dataset._epochs.join(name, worker)
        begin = EpochState.from_json(json, dataset._schedule.order.length)
    check_resumed_epoch(begin.epoch)
    dataset._cursor = Cursor.at(dataset._schedule, begin, consumer)
    return dataset._cursor


def settle_for_workers(dataset: ZarrIterableDataset, name: str, num_workers: int) -> Cursor:
    """Settle a pass of DataLoader workers in their training process; they will find it under `name`."""
    dataset._check_open()
    schedule, consumer = dataset._schedule, dataset._place().consumer(num_workers=num_workers)
    state = EpochState.from_json(dataset._epochs.begin(name), schedule.order.length)
    return Cursor.at(schedule, state, consumer)


class SamplePass(Pass):
    """Single samples: views of the batches of the engine."""

    def __init__(self, dataset: ZarrIterableDataset, name: str | None) -> None:
        super().__init__(dataset, name)
        self._samples: deque[Batch] = deque()

    def __next__(self) -> Batch:
        while not self._samples:
            self._samples.extend(self._fields.samples_of(self._next_batch()))
        sample = self._transformed(self._samples.popleft())
        assert self.cursor is not None
        self.cursor.delivered += 1
        return sample

    def close(self) -> None:
        """Stop reading, and forget what was not handed out."""
        if hasattr(self, "_samples"):  # not, where construction failed
            self._samples.clear()
        super().close()
