"""Waits that Ctrl-C ends.

Python runs the handler of a signal on the main thread, once that thread is back from what it waits for. A wait is cut
short only by a signal that the kernel delivers to the main thread within the wait: one that another thread is given, or
that comes a moment before the wait begins, is not seen before the wait is over, which may be minutes later. So each
wait here is a row of short ones.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import ALL_COMPLETED, Future, wait
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Seconds after which a wait looks whether an interrupt came.
_LOOK_S = 0.2


def wait_for(
    futures: Collection[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> set[Future[Any]]:
    """Wait as `concurrent.futures.wait` does; return the futures that are done by then."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
        done, others = wait(futures, max(0.0, left), return_when)
        if not others or (done and return_when != ALL_COMPLETED) or left <= 0:
            return done


def result_of(future: Future[Result]) -> Result:
    """Return the result of a future, as its method `result` does. Raises whatever the call raised."""
    while True:
        try:
            return future.result(_LOOK_S)
        except TimeoutError:
            if future.done():  # by the error of the call, or just now
                return future.result()
