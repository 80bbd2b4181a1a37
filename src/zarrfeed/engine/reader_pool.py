"""The readers of a dataset in one process: made for its passes, kept between them, counted over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from zarrfeed.base.errors import ClosedError
from zarrfeed.engine.arrays import BatchArrays
from zarrfeed.engine.reader import Reader
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.plan.epoch_plan import Resources
from zarrfeed.plan.order import EpochPlan
from zarrfeed.spec.error_policy import Faults
from zarrfeed.spec.field import Field


class Running(Protocol):
    """A pass over a dataset, as its reader's owner."""

    reader: Reader | None

    def close(self) -> None:
        """Stop reading, and give the reader back."""


class ReaderPool:
    """Readers that run, one a pass, and readers that wait for the next pass with their memory.

    Parameters
    ----------
    fields
        The fields of a batch.
    batch_size
        Samples of a batch of the engine.
    policy
        What all readers do about a chunk that cannot be read.
    """

    def __init__(self, fields: Sequence[Field], *, batch_size: int, policy: Faults) -> None:
        self._fields = fields
        self._batch_size = batch_size
        self._policy = policy
        self._idle: list[Reader] = []
        self._running: WeakSet[Running] = WeakSet()  # one that its consumer drops ends itself
        self._busy: WeakSet[Reader] = WeakSet()  # of the running passes; an interrupted one may lose its reader
        self._past_stats = Stats()
        self._past_skipped: list[SkippedChunk] = []
        self.closed = False
        self._retired = False

    @property
    def is_busy(self) -> bool:
        """Whether a pass has a reader of this pool."""
        return bool(self._busy)

    def start(self, running: Running, plan: EpochPlan, resources: Resources, arrays: BatchArrays) -> None:
        """Give a pass a reader that reads `plan`.

        Raises
        ------
        StoreReadError
            If an array is gone.
        ClosedError
            If another thread closed the dataset meanwhile.
        """
        if self._idle:
            reader = self._idle.pop()
        else:
            reader = Reader(
                self._fields,
                batch_size=self._batch_size,
                num_threads=resources.memory.num_threads,
                memory=resources.memory,
                arrays=arrays,
                policy=self._policy,
            )
        # Before it starts, so that a thread that closes the dataset from now on ends it.
        running.reader = reader
        self._busy.add(reader)
        self._running.add(running)
        try:
            reader.start(plan, resources.max_open_batches, short_of_memory=resources.short_of_memory)
            if self.closed:
                raise ClosedError("this dataset was closed")
        except BaseException:
            reader.stop()  # the pass may have been closed before its reader started
            running.close()
            raise

    def take_back(self, ended: Running, reader: Reader) -> None:
        """Keep the reader of a pass that ended for the next one; once, however often it is closed."""
        self._running.discard(ended)
        if reader not in self._busy:
            return
        self._busy.discard(reader)
        if self.closed or self._retired or reader.has_bad_rows:  # they may be mended until the next pass
            self._retire(reader)
        else:
            self._idle.append(reader)

    def stats(self) -> Stats:
        """Return the counters of all readers that there ever were."""
        return sum((reader.stats() for reader in self._readers()), self._past_stats)

    def skipped(self) -> list[SkippedChunk]:
        """Return what all readers that there ever were have skipped."""
        return self._past_skipped + [chunk for reader in self._readers() for chunk in reader.skipped]

    def close(self) -> None:
        """End all passes, and free the memory of dropped batches."""
        self.closed = True
        for running in list(self._running):
            running.close()
        self.retire()

    def retire(self) -> None:
        """Keep no reader for further passes; those that run go on."""
        self._retired = True
        for reader in self._idle:
            self._retire(reader)
        self._idle.clear()

    def _retire(self, reader: Reader) -> None:
        self._past_stats = self._past_stats + reader.stats()
        self._past_skipped += reader.skipped

    def _readers(self) -> list[Reader]:
        return [*self._idle, *self._busy]
