"""Threads that take requests from an engine, read from an object store by blocking calls, and answer the engine.

A blocking call of obstore costs half the CPU time of a call that an event loop awaits, and it releases the GIL while it
waits. Each thread takes one request at a time. One call into the engine hands over the thread's last answer and takes
its next request.

Invariants:

- A request that a thread took is a `Flight` until somebody takes it over, which succeeds once. The thread that reads
  the request takes it over, or a hedged request beside it, or the event loop after an error. Whoever takes it over
  answers, and nobody else does. So the bytes of an answer are never replaced while the engine reads them.
- The limiters of the stores bound the number of threads that read. A thread that a hedged request left behind does not
  count. While the epoch lasts, there is at least one thread.
- One thread waits for requests as long as the limit allows another thread, so that no request waits for another one's
  end.
- No thread raises: the event loop deals with errors.
- A thread that is inside obstore when the interpreter ends may abort the process. So the interpreter waits for threads
  before it ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import CorruptChunkError
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.access.request_limiter import Turn
from zarrfeed.storage.access.retry import FailedAttempt
from zarrfeed.storage.chunks.blocking_reads import Blocking
from zarrfeed.storage.chunks.chunk_reader import span_of, split_ranges
from zarrfeed.storage.chunks.hedging import HedgeRule

#: Request id; first byte and end of the wanted part of the object, as in a slice.
RequestedRange: TypeAlias = tuple[int, int, int | None]
#: Number of the field, key, whether it is the index of a shard, parts.
Request: TypeAlias = tuple[int, str, bool, list[RequestedRange]]
Bytes: TypeAlias = npt.NDArray[np.uint8]


class RequestQueue(Protocol):
    """Posts requests and takes the answers: the engine (`core.Engine`), or `ObjectRequests`. Safe for threads."""

    def request_epoch(self) -> int:
        """Return the number of the epoch whose requests are posted now."""

    def exchange(
        self, epoch: int, answers: Sequence[tuple[int, Bytes | None]]
    ) -> tuple[Request, list[int], int] | None:
        """Take answers, and wait for a request of an epoch; None if the epoch ended.

        Returns the request, ids of requests whose bytes are no longer needed, and how many more requests wait.
        """

    def request_descriptor(self) -> int:
        """Return a file descriptor that is readable when there are requests."""

    def take_requests(self) -> tuple[list[Request], list[int]]:
        """Return the requests that wait, and ids of requests whose bytes are no longer needed; does not block."""

    def answer(self, answers: Sequence[tuple[int, Bytes | None]]) -> None:
        """Take answers: a request id, and the bytes; None: the store has no such object."""

    def refuse(self, request_id: int, what: str, errno_value: int) -> None:
        """Take an error of the store in place of an answer."""

    def refuse_corrupt(self, request_id: int, what: str) -> None:
        """Take an error of the bytes in place of an answer."""

    def stop(self) -> None:
        """End the epoch."""


@dataclass(slots=True, eq=False)
class Flight:
    """A request that a thread reads.

    Attributes
    ----------
    request
        The request: a field, a key and the byte ranges that are read.
    reads
        Reads stored bytes, and blocks its thread meanwhile.
    turn
        The request's turn at the limiter.
    is_hedged
        True if a second request for the same bytes was sent.
    is_left_behind
        True if the second request was answered first, so that the thread of this one ends.
    """

    request: Request
    reads: Blocking
    turn: Turn
    is_hedged: bool = False
    is_left_behind: bool = False

    @property
    def size_class(self) -> tuple[int, bool, int]:
        """The class of requests that are expected to take as long as this one."""
        number, _, is_index, parts = self.request
        begin, end = span_of([part[1:] for part in parts])
        return number, is_index, 0 if end is None else (end - begin).bit_length()


class FetchThreads:
    """The threads of one epoch.

    Parameters
    ----------
    engine
        The engine whose requests the threads take.
    reads
        Number of the field -> how its objects are read. Requests of other fields are left to `leave`.
    provided
        Request id -> the bytes that the engine may still read.
    counts
        The counters of requests.
    leave
        Leaves a request to the event loop, with the error that it met; called by any thread.
    """

    def __init__(
        self,
        engine: RequestQueue,
        reads: Mapping[int, Blocking],
        provided: dict[int, Bytes],
        counts: ReadCounts,
        leave: Callable[[Request, FailedAttempt | None], None],
    ) -> None:
        self._engine = engine
        self._epoch = engine.request_epoch()
        self._reads = reads
        self._limiters = list({id(one.limiter): one.limiter for one in reads.values()}.values())
        self._provided = provided
        self._counts = counts
        self._leave = leave
        self._rule = HedgeRule()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._flights: dict[int, Flight] = {}
        self._alive = self._running = self._busy = 0  # running: not left behind; busy: of these
        self._closing = False
        _all.add(self)

    def start(self) -> None:
        """Begin to serve requests.

        Raises
        ------
        RuntimeError
            If no thread can be started.
        """
        with self._lock:
            self._running += 1
        self._start_thread()

    def close(self, timeout_s: float, *, every_one: bool = False) -> None:
        """Serve nothing any more: after the epoch of the engine was ended. Waits for the threads, but not for ever.

        With `every_one` also for those that were left behind.
        """
        here = threading.current_thread().name.startswith(_NAME)  # the garbage collector calls on any thread
        with self._lock:
            self._closing = True
            self._flights.clear()
            if not here:
                self._changed.wait_for(lambda: not (self._alive if every_one else self._running), timeout_s)

    def take_late(self) -> Iterator[Flight]:
        """Yield requests that are late and of which a second one may be made, the oldest first; each of them once."""
        now = time.monotonic()
        with self._lock:
            flights = list(self._flights.values())
        for flight in flights:
            age_s = now - flight.turn.begin
            if flight.is_hedged or age_s < _SOON_S:
                continue
            late_after_s = self._rule.late_after(flight.size_class)
            if late_after_s is not None and age_s >= late_after_s and self._rule.take_hedge():
                flight.is_hedged = True
                yield flight

    def leave_behind(self, flight: Flight) -> bool:
        """Take a request over from its thread, which goes on reading for nobody; return whether it was still there."""
        with self._lock:
            if not self._take_over(flight):
                return False
            flight.is_left_behind = True
            self._running -= 1
            self._busy -= 1
            self._changed.notify_all()
        flight.reads.limiter.give_away(flight.turn)
        self._grow()
        return True

    def _take_over(self, flight: Flight) -> bool:
        return self._flights.pop(flight.request[3][0][0], None) is flight

    def _start_thread(self) -> None:
        with self._lock:
            self._alive += 1
        try:
            threading.Thread(target=self._run, name=_NAME, daemon=True).start()
        except RuntimeError:
            with self._lock:
                self._alive -= 1
                self._running -= 1
            raise

    def _grow(self) -> None:
        """Start another thread if none waits for requests, and another one may read."""
        with self._lock:
            if self._closing or self._busy < self._running or self._running >= self._limit():
                return
            self._running += 1
        with contextlib.suppress(RuntimeError):  # no more threads are to be had: those that are there go on
            self._start_thread()

    def _limit(self) -> int:
        return sum(limiter.limit for limiter in self._limiters)

    def _run(self) -> None:
        answers: list[tuple[int, Bytes | None]] = []
        counts_as_running = True
        try:
            while not self._retires():
                taken = self._engine.exchange(self._epoch, answers)
                answers = []
                if taken is None:
                    return
                request, finished, waiting = taken
                for request_id in finished:
                    self._provided.pop(request_id, None)
                with self._lock:
                    self._busy += 1
                self._grow()
                answers, left_behind = self._serve(request, more_wait=waiting > 0)
                if left_behind:
                    counts_as_running = False
                    return
                with self._lock:
                    self._busy -= 1
            counts_as_running = False
            if answers:
                self._engine.answer(answers)
        finally:
            with self._lock:
                self._alive -= 1
                self._running -= counts_as_running
                self._changed.notify_all()

    def _retires(self) -> bool:
        """Return whether this thread is one too many, and count it no more. One thread always stays."""
        with self._lock:
            if self._running <= max(1, self._limit()):
                return False
            self._running -= 1
            return True

    def _serve(self, request: Request, *, more_wait: bool) -> tuple[list[tuple[int, Bytes | None]], bool]:
        """Return the answers to a request, and whether this thread was left behind meanwhile."""
        number, key, _, parts = request
        reads = self._reads.get(number)
        if reads is None:
            self._leave(request, None)
            return [], False
        spans = [part[1:] for part in parts]
        flight = Flight(request, reads, reads.limiter.enter(more_wait=more_wait))
        with self._lock:
            if self._closing:
                reads.limiter.give_away(flight.turn)
                return [], False
            self._flights[parts[0][0]] = flight
        self._counts.on_request()
        failed: FailedAttempt | None = None
        found: list[Bytes | CorruptChunkError | None] | None = None
        try:
            found = split_ranges(spans, reads.get(key, *span_of(spans)))
            reads.limiter.end(flight.turn)
            self._rule.finished(flight.size_class, time.monotonic() - flight.turn.begin)
        except BaseException as error:  # noqa: BLE001 (what is not passed on is a hang)
            reads.limiter.end(flight.turn, error)
            failed = FailedAttempt(error, flight.turn.begin) if isinstance(error, Exception) else None
        with self._lock:
            is_mine = self._take_over(flight)
        answers: list[tuple[int, Bytes | None]] = []
        if not is_mine:
            return answers, flight.is_left_behind
        for part, data in zip(parts, found or (), strict=False):
            if isinstance(data, CorruptChunkError):  # which parts are, is looked at one by one
                found = None
                break
            answers.append((part[0], data))
        if found is None:
            self._leave(request, failed)
            return [], False
        self._provided.update((request_id, data) for request_id, data in answers if data is not None)
        return answers, False


_NAME = "zarrfeed-fetch"
#: Requests of this age are never late.
_SOON_S = 0.05
_all: weakref.WeakSet[FetchThreads] = weakref.WeakSet()


def wait_for_threads(timeout_s: float) -> None:
    """Wait at interpreter exit, after all epochs were ended, until no thread is left, but not for ever."""
    end = time.monotonic() + timeout_s
    for threads in list(_all):
        threads.close(max(0.0, end - time.monotonic()), every_one=True)
