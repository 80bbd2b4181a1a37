"""`AheadReader`: a `SampleLookup` that makes batches before the consumer wants them.

The plan says which samples come next, so batches are asked for ahead of the one that is wanted. `CsrReader` and
`ImageReader` are kinds of it: they say how a batch is made, ahead or while the caller waits, and what it lacks.

Invariants: a batch that was asked for ahead is handed out only for exactly the samples that it was asked for; any other
batch, such as one with substitutes, is made when it is wanted. Batches are asked for in the order of the plan. Those
ahead take no more than the memory plan has for open batches, of which the wanted one is one. Once `close` has returned,
nothing is asked for and threads have ended; who waited for a batch meanwhile gets a `ClosedError`.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from zarrfeed.base.errors import ClosedError
from zarrfeed.base.waits import result_of
from zarrfeed.engine.sample_lookup import Bad, SampleLookup
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.selection import Int64

#: Batches that are asked for beside the one that is wanted, at most: one is looked up while another is decoded.
_MOST_AHEAD = 3

#: A batch as a kind of reader makes it.
Made = TypeVar("Made")


def batches_ahead(max_open_batches: int) -> int:
    """Return the number of batches to ask for ahead, if so many may be open: the wanted batch is one of these."""
    return min(_MOST_AHEAD, max_open_batches - 1)


@dataclass(frozen=True)
class _Asked(Generic[Made]):
    """A batch that was asked for ahead."""

    index: Int64
    batch: Future[Made]


class AheadReader(SampleLookup[Bad], Generic[Made, Bad]):
    """Reads the samples of one field, and makes batches of them ahead.

    Parameters
    ----------
    batch_size
        Samples of a batch.
    num_threads
        Threads that make batches.
    threads_name
        Prefix of the names of these threads; no other threads of the process may have it.
    planned_bytes
        Bytes of a batch in the memory plan. A kind that sees larger batches raises `_batch_bytes`, and fewer are asked
        for ahead.
    """

    def __init__(self, *, batch_size: int, num_threads: int, threads_name: str, planned_bytes: int = 1) -> None:
        self._batch_size = batch_size
        self._num_threads = num_threads
        self._threads_name = threads_name
        self._planned_bytes = self._batch_bytes = planned_bytes  # of a batch: as planned; the largest one so far
        self._threads: ThreadPoolExecutor | None = None
        self._epoch = 0  # threads give up batches of an epoch that has ended
        self._coming: Iterator[tuple[int, Int64]] | None = None  # batches that were not asked for yet, with numbers
        self._room = 0
        self._ahead: deque[_Asked[Made]] = deque()

    def open(self, plan: ReadPlan, max_open_batches: int) -> None:
        """Begin an epoch, and ask for its first batches if it has several.

        Raises
        ------
        StoreReadError, ConfigError
            If an array is gone.
        """
        self.close()
        coming = self._begin(plan, max_open_batches)
        self._room = batches_ahead(max_open_batches) * self._planned_bytes
        if plan.steps > self._batch_size:
            self._coming = enumerate(coming)
            self._ask()

    def close(self) -> None:
        """End the epoch: nothing is asked for any more, and threads have ended."""
        self._epoch += 1
        self._coming = None
        for one in tuple(self._ahead):
            one.batch.cancel()
        self._ahead.clear()
        self._stop()
        threads, self._threads = self._threads, None
        if threads is not None:
            # The garbage collector may call on one of these threads, which cannot wait for its own end.
            is_here = threading.current_thread().name.startswith(self._threads_name)
            threads.shutdown(wait=not is_here, cancel_futures=True)

    def take_what_is_good(self, index: Int64) -> tuple[Any, list[Bad]]:
        """Return samples, and the errors of samples that could not be made. Samples with an error are undefined.

        Raises
        ------
        ClosedError
            If another thread ends the epoch meanwhile.
        """
        epoch = self._epoch
        try:
            awaited = self._awaited(index)
            made = self._make_now(index) if awaited is None else awaited
        except (CancelledError, RuntimeError) as error:  # from a cancelled batch, or threads that have ended
            if epoch == self._epoch:
                raise
            raise ClosedError("this dataset was closed") from error
        if epoch != self._epoch:
            raise ClosedError("this dataset was closed")
        taken = self._hand_out(made)
        self._ask()
        return taken

    @abstractmethod
    def _begin(self, plan: ReadPlan, max_open_batches: int) -> Iterator[Int64]:
        """Begin an epoch; return the samples of its batches, of which nothing is taken if it has one batch alone."""

    def _stop(self) -> None:
        """Wake the threads that make batches of an epoch that ends."""

    @abstractmethod
    def _make_ahead(self, index: Int64, number: int, epoch: int) -> Future[Made]:
        """Begin to make a batch of the plan, by its number in the epoch; give up when the epoch is another."""

    @abstractmethod
    def _make_now(self, index: Int64) -> Made:
        """Make a batch while the caller waits."""

    def _pass_over(self, batch: Future[Made]) -> None:
        """Do without a batch that was asked for, since other samples were wanted in its place."""
        batch.cancel()

    @abstractmethod
    def _hand_out(self, made: Made) -> tuple[Any, list[Bad]]:
        """Return the samples of a batch that the consumer takes, and the errors of samples that could not be made."""

    def _start_threads(self) -> ThreadPoolExecutor:
        """Return the threads of an epoch that begins; they end with it."""
        self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix=self._threads_name)
        return self._threads

    def _ask(self) -> None:
        """Ask for the next batches, as many as there is room for."""
        while (coming := self._coming) is not None and len(self._ahead) < self._room // self._batch_bytes:
            if (following := next(coming, None)) is None:
                return
            number, index = following
            epoch = self._epoch
            try:
                batch = self._make_ahead(index, number, epoch)
            except RuntimeError:  # of threads that have ended
                if epoch == self._epoch:
                    raise
                return
            self._ahead.append(_Asked(index, batch))

    def _awaited(self, index: Int64) -> Made | None:
        """Wait for a batch that was asked for ahead; None if these samples were not."""
        wanted = next((one for one in tuple(self._ahead) if np.array_equal(one.index, index)), None)
        if wanted is None:
            return None
        made = result_of(wanted.batch)  # until then `close` finds it among the others
        while self._ahead and (first := self._ahead.popleft()) is not wanted:
            self._pass_over(first.batch)
        return made
