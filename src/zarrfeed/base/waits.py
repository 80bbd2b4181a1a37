"""Waits that Ctrl-C ends.

Python runs the handler of a signal on the main thread, once that thread is back from what it waits for. A wait is cut
short only by a signal that the kernel delivers to the main thread within the wait: one that another thread is given, or
that comes a moment before the wait begins, is not seen before the wait is over, which may be minutes later. So each
wait here is a row of short ones.

A timeout counts the time in which this process ran. A process that was stopped for a minute, because the machine is
overloaded or a batch scheduler suspended the job, has not waited a minute for its store: the answer may be there, and
nobody has read it yet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ALL_COMPLETED, Future, wait
from typing import Any, TypeVar

Result = TypeVar("Result")

#: Seconds after which a wait looks whether an interrupt came.
_LOOK_S = 0.2
#: A look counts as at most so many times its interval: a longer one means that the process did not run.
_COUNTED = 2.0


def looks(timeout: float | None, look_s: float) -> Iterator[float]:
    """Divide a wait into looks: yield the seconds of each, until `timeout` seconds have passed; then 0 for a last one.

    The caller waits between two items. Example: `any(event.wait(seconds) for seconds in looks(60, 0.2))`.
    """
    left = math.inf if timeout is None else timeout
    while left > 0:
        look = min(look_s, left)
        begin = time.monotonic()
        yield look
        left -= min(time.monotonic() - begin, _COUNTED * look)
    yield 0.0


def wait_for(
    futures: Collection[Future[Any]], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> set[Future[Any]]:
    """Wait as `concurrent.futures.wait` does; return the futures that are done by then."""
    done: set[Future[Any]] = set()
    for look in looks(timeout, _LOOK_S):
        done, others = wait(futures, look, return_when)
        if not others or (done and return_when != ALL_COMPLETED):
            break
    return done


def result_of(future: Future[Result]) -> Result:
    """Return the result of a future, as its method `result` does. Raises whatever the call raised."""
    while True:
        try:
            return future.result(_LOOK_S)
        except TimeoutError:
            if future.done():  # by the error of the call, or just now
                return future.result()
