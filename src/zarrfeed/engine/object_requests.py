"""A queue of requests for objects, as the store bridge takes them (`fetch_threads.RequestQueue`).

Invariants: a request that was posted is taken once, in the order of posting, unless the epoch ends before that. Each
request that was taken is answered or refused once; what comes after the end of its epoch is dropped. `stop` wakes all
who wait.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.engine.fetch_threads import Request

Bytes: TypeAlias = npt.NDArray[np.uint8]
#: The answer to a request: bytes; None: there is no such object; or the error because of which there are no bytes.
Answer: TypeAlias = Bytes | StoreReadError | CorruptChunkError | None


class ObjectRequests:
    """The requests of one reader of objects.

    Parameters
    ----------
    on_answer
        Called with a request id and the answer, by any thread, without a lock.
    """

    def __init__(self, on_answer: Callable[[int, Answer], None]) -> None:
        self._on_answer = on_answer
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._epoch = 0
        self._waiting: deque[Request] = deque()
        self._taken: set[int] = set()
        self._finished: list[int] = []
        self._next_id = 0
        # Readable while requests wait; a pipe, since an eventfd is Linux's alone.
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        weakref.finalize(self, _close, self._readable, self._writable).atexit = False

    def new_ids(self, count: int) -> range:
        """Return ids for so many requests, which are never used again."""
        with self._lock:
            first, self._next_id = self._next_id, self._next_id + count
        return range(first, first + count)

    def post(self, requests: Iterable[Request], *, first: bool = False) -> None:
        """Add requests, behind those that wait, or before them."""
        added = list(requests)
        with self._lock:
            if first:
                self._waiting.extendleft(reversed(added))
            else:
                self._waiting.extend(added)
            self._changed.notify(len(added))
        with contextlib.suppress(BlockingIOError):  # it is readable already
            os.write(self._writable, b"r")

    def request_epoch(self) -> int:
        """Return the number of the epoch whose requests are posted now."""
        with self._lock:
            return self._epoch

    def exchange(
        self, epoch: int, answers: Sequence[tuple[int, Bytes | None]]
    ) -> tuple[Request, list[int], int] | None:
        """Take answers, and wait for a request of an epoch; None if the epoch ended."""
        self.answer(answers)
        with self._lock:
            self._changed.wait_for(lambda: self._waiting or self._epoch != epoch)
            if self._epoch != epoch:
                return None
            return self._take(), self._take_finished(), len(self._waiting)

    def request_descriptor(self) -> int:
        """Return a file descriptor that is readable when requests wait."""
        return self._readable

    def take_requests(self) -> tuple[list[Request], list[int]]:
        """Return the requests that wait, and ids of requests whose bytes are no longer needed."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._readable, 4096):
                pass
        with self._lock:
            return [self._take() for _ in range(len(self._waiting))], self._take_finished()

    def answer(self, answers: Sequence[tuple[int, Bytes | None]]) -> None:
        """Take answers: a request id, and the bytes; None: there is no such object."""
        for request_id, data in answers:
            self._end(request_id, data)

    def refuse(self, request_id: int, what: str, errno_value: int) -> None:
        """Take an error of the store in place of an answer."""
        self._end(request_id, StoreReadError(errno_value, what))

    def refuse_corrupt(self, request_id: int, what: str) -> None:
        """Take an error of the bytes in place of an answer."""
        self._end(request_id, CorruptChunkError(what))

    def stop(self) -> None:
        """End the epoch: requests that wait are dropped, and answers to those that were taken."""
        with self._lock:
            self._epoch += 1
            self._waiting.clear()
            self._taken.clear()
            self._finished.clear()
            self._changed.notify_all()

    def _take(self) -> Request:
        request = self._waiting.popleft()
        self._taken.update(part[0] for part in request[3])
        return request

    def _take_finished(self) -> list[int]:
        finished, self._finished = self._finished, []
        return finished

    def _end(self, request_id: int, answer: Answer) -> None:
        with self._lock:
            if request_id not in self._taken:  # of an epoch that ended
                return
            self._taken.discard(request_id)
            self._finished.append(request_id)  # whoever is told holds the bytes itself
        self._on_answer(request_id, answer)


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
