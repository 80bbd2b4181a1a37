"""The readers of a dataset in one process: made for its passes, kept between them, counted over all of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakSet

from zarrfeed.base.errors import ClosedError
from zarrfeed.engine.reader import Reader, pinned_memory, shared_memory
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import SkippedChunk
from zarrfeed.spec.error_policy import FaultPolicy
from zarrfeed.torch.distributed import in_worker

if TYPE_CHECKING:
    from zarrfeed.plan.epoch_plan import Schedule
    from zarrfeed.torch.distributed import Place
    from zarrfeed.torch.epoch_iterator import Pass

#: Where memory that processes share lies on Linux.
_SHARED_FOLDER = "/dev/shm"


class ReaderPool:
    """Readers that run, one a pass, and readers that wait for the next pass with their memory.

    Parameters
    ----------
    policy
        What all of them do where a chunk cannot be had.
    """

    def __init__(self, policy: FaultPolicy) -> None:
        self._policy = policy
        self._idle: list[Reader] = []
        self._running: WeakSet[Pass] = WeakSet()  # one that its consumer drops ends itself
        self._busy: WeakSet[Reader] = WeakSet()  # of the running passes; an interrupted one may lose its reader
        self._past_stats = Stats()
        self._past_skipped: list[SkippedChunk] = []
        self.closed = False

    def start(self, running: Pass, schedule: Schedule, place: Place, *, pinned: bool) -> None:
        """Give a pass a reader that reads what its cursor says.

        Raises
        ------
        MemoryBudgetError
            If this consumer's share of the budget is too small.
        StoreReadError
            If an array is gone.
        ClosedError
            If another thread closed the dataset meanwhile.
        """
        assert running.cursor is not None
        consumer = running.cursor.consumer
        plan = schedule.plan(running.cursor.begin, consumer)
        resources = schedule.resources(plan.order, place, consumer)
        memory, max_open = resources.memory, resources.max_open_batches
        allocator = pinned_memory if pinned else None
        if allocator is None and in_worker() and fits_shared_memory(max_open * memory.batch_bytes * memory.readers):
            allocator = shared_memory
        if self._idle:
            reader = self._idle.pop()
        else:
            reader = Reader(
                schedule.fields.fields,
                batch_size=schedule.engine_batch_size,
                num_threads=memory.num_threads,
                memory=memory,
                allocator=allocator,
                policy=self._policy,
            )
        # Before it starts, so that a thread that closes the dataset from now on ends it.
        running.reader = reader
        self._busy.add(reader)
        self._running.add(running)
        try:
            reader.start(plan, max_open, short_of_memory=resources.short_of_memory)
            if self.closed:
                raise ClosedError("this dataset was closed")
        except BaseException:
            reader.stop()  # the pass may have been closed before its reader started
            running.close()
            raise

    def take_back(self, ended: Pass, reader: Reader) -> None:
        """Keep the reader of a pass that ended for the next one; once, however often it is closed."""
        self._running.discard(ended)
        if reader not in self._busy:
            return
        self._busy.discard(reader)
        if self.closed or reader.has_bad_rows:  # they may be mended until the next pass
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
        for reader in self._idle:
            self._retire(reader)
        self._idle.clear()

    def _retire(self, reader: Reader) -> None:
        self._past_stats = self._past_stats + reader.stats()
        self._past_skipped += reader.skipped

    def _readers(self) -> list[Reader]:
        return [*self._idle, *self._busy]


def fits_shared_memory(size: int) -> bool:
    """Return whether shared memory has room for this and as much again; writing beyond its end kills the process."""
    try:
        info = os.statvfs(_SHARED_FOLDER)
    except OSError:  # not Linux: there is no such limit
        return True
    return 2 * size <= info.f_bavail * info.f_frsize
