"""Passes of a `ZarrDataLoader` over the batches of its workers, or of a dataset whose `__iter__` a user wrote."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from zarrfeed.plan.schedule.cursor import Cursor
from zarrfeed.storage.append.eviction import Lease
from zarrfeed.torch.batches.batch import Batch
from zarrfeed.torch.batches.pass_positions import CountedPass
from zarrfeed.torch.datasets.sent_batch import SentBatch
from zarrfeed.torch.passes.session import Session

#: Seconds that the loader waits for torch's SIGCHLD handler. If a worker is killed while it sends a batch, this process
#: sees the broken connection before the handler runs; the handler's error tells the user that a worker was killed.
_UNTIL_TOLD_S = 1.0


class StartsWorkers(Protocol):
    """A loader, as far as a pass of its workers needs it."""

    @property
    def session(self) -> Session:
        """The epochs of its dataset."""

    def start_workers(self, new: WorkerPass) -> tuple[Cursor, Iterator[SentBatch]]:
        """Begin a pass: claim the next epoch, and return its cursor and the iterator over its workers' batches."""

    def drop_workers(self, served: WorkerPass) -> None:
        """Let the next pass start new workers, if a pass has the persistent ones."""


class WorkerPass(CountedPass):
    """Batches that worker processes read. The pass begins, and starts workers, with its first batch.

    Attributes
    ----------
    pins
        True if the loader copies batches to page-locked memory, provided that the user asked for it.
    """

    # These are attributes of the class, because construction may be interrupted before any of them is set.
    _batches: Iterator[SentBatch] | None = None
    _leases: tuple[Lease, ...] = ()

    def __init__(self, loader: StartsWorkers) -> None:
        super().__init__(loader.session)
        self._loader = loader
        self._begun = False
        self.pins = True

    def leave_unpinned(self) -> None:
        """Let the loader not copy batches to page-locked memory, if its workers do not run already."""
        self.pins = False

    def fetch(self) -> Batch:
        """Return the next batch without counting it."""
        if not self._begun:
            self._begin()
        batches = self._batches
        if batches is None:
            raise StopIteration
        try:
            return next(batches).received()
        except StopIteration:
            self._release()
            raise
        except (ConnectionError, EOFError):
            try:
                time.sleep(_UNTIL_TOLD_S)
            finally:
                self.close()
            raise
        except BaseException as error:
            # Frames of torch are a cycle with the error of a worker, and hold the iterator and so the workers, which
            # would live until the garbage collector comes.
            batches = None
            traceback.clear_frames(error.__traceback__)
            self.close()
            if not isinstance(error, Exception):
                self._loader.drop_workers(self)
            raise

    def lend_workers(self) -> bool:
        """Give the workers to another pass, if this one needs them no more; return whether it does."""
        lock = self._lock.held
        if not lock.acquire(blocking=False):  # a thread is waiting for a batch
            return False
        try:
            if self.cursor is not None and self.cursor.under_way:
                return False
            self._release()
            return True
        finally:
            lock.release()

    def close(self) -> None:
        """Stop reading; workers that are not persistent end."""
        self._begun = True
        if self.cursor is not None:
            self.cursor.closed = True
        self._release()

    def __del__(self) -> None:
        self.close()

    def _begin(self) -> None:
        self.cursor, self._batches = self._loader.start_workers(self)
        # Until all workers have their own, and longer.
        self._leases = self._loader.session.hold(self.cursor.begin.edition)
        self._begun = True

    def _release(self) -> None:
        self._batches = None
        self._leases = ()


class OverriddenPass(CountedPass):
    """A pass in this process whose batches come through the `__iter__` of a user's subclass of a dataset.

    Its position is that of the pass inside when the batch was made that the consumer got last.
    """

    def __init__(self, session: Session, batches: Iterator[Batch]) -> None:
        super().__init__(session)
        self._passes, self._batches = session.passes, batches
        self._inside: Cursor | None = None
        self._fetched: deque[int] = deque()

    def fetch(self) -> Batch:
        """Return the next batch without counting it."""
        batch = next(self._batches)
        if self._inside is None and self._passes.last is not None:
            self._inside = self._passes.last
            self.cursor = replace(self._inside, delivered=self._inside.begin.batches, ended=False)
        self._fetched.append(0 if self._inside is None else self._inside.delivered)
        return batch

    def count(self) -> None:
        """Count one batch that the consumer got."""
        delivered = self._fetched.popleft()
        if self.cursor is not None:
            self.cursor.delivered = delivered
            self._report()

    def close(self) -> None:
        """Stop reading."""
        if self.cursor is not None:
            self.cursor.closed = True
        close = getattr(self._batches, "close", None)
        if callable(close):
            close()

    def __del__(self) -> None:
        if self.cursor is not None:
            self.cursor.closed = True
