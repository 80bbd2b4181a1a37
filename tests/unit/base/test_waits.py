"""Waits for futures: an interrupt ends them whichever thread the kernel gives it to."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from zarrfeed.base import waits
from zarrfeed.base.waits import looks, result_of, wait_for

_TIMEOUT_S = 100.0


@contextmanager
def interrupted_elsewhere() -> Iterator[None]:
    """Send SIGINT to another thread than the main one, which then may wait on: no signal ends its system call."""
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt may come before the wait
        threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()
        yield
    assert time.monotonic() - begin < _TIMEOUT_S / 2


@pytest.mark.parametrize(
    "wait",
    [
        lambda future: wait_for([future]),
        lambda future: wait_for([future], 2 * _TIMEOUT_S),
        lambda future: wait_for([future, Future()], return_when=FIRST_COMPLETED),
        result_of,
    ],
)
def test_an_interrupt_that_another_thread_gets_is_not_seen_before_the_end(wait: Callable[[Future[int]], Any]) -> None:
    future: Future[int] = Future()
    late = threading.Timer(_TIMEOUT_S, future.set_result, [1])  # so that a wait that is not interrupted fails
    late.start()
    with interrupted_elsewhere():
        wait(future)
    late.cancel()


def test_a_wait_ends_too_early_or_too_late() -> None:
    done, other = Future[int](), Future[int]()
    done.set_result(1)
    assert wait_for([done]) == {done}
    assert wait_for([done, other], return_when=FIRST_COMPLETED) == {done}
    for timeout in (0, 0.3):  # also longer than one look
        begin = time.monotonic()
        assert wait_for([done, other], timeout) == {done}
        assert time.monotonic() - begin >= timeout
    threading.Timer(0.3, other.set_result, [2]).start()
    assert wait_for([done, other], _TIMEOUT_S) == {done, other}
    assert wait_for([]) == set()


def test_looks_wait_for_another_time_than_the_timeout() -> None:
    for timeout, look_s, least in ((0, 0.2, 1), (0.05, 0.02, 3), (0.02, 9, 2)):
        begin = time.monotonic()
        waits = []
        for seconds in looks(timeout, look_s):
            waits.append(seconds)
            time.sleep(seconds)
        assert time.monotonic() - begin >= timeout
        assert waits[-1] == 0
        assert max(waits) <= look_s
        assert len(waits) >= least, waits
    assert next(looks(None, 0.2)) == 0.2


def test_a_timeout_counts_the_time_in_which_the_process_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this clock each look of 0.2 s takes a minute; the answer comes after three of them."""
    looks = itertools.count()
    future: Future[int] = Future()

    def monotonic() -> float:
        number = next(looks)  # two for each look
        if number == 6:
            future.set_result(1)
        return 60.0 * number

    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=monotonic))
    assert wait_for([future], 1.5) == {future}
    assert wait_for([Future()], 0.5) == set()


def test_the_error_of_a_call_is_taken_for_the_end_of_a_wait() -> None:
    """A call may raise TimeoutError itself."""
    future: Future[int] = Future()
    threading.Timer(0.3, future.set_exception, [TimeoutError("of the call")]).start()
    with pytest.raises(TimeoutError, match="of the call"):
        result_of(future)
    cancelled: Future[int] = Future()
    threading.Timer(0.1, cancelled.cancel).start()
    with pytest.raises(CancelledError):
        result_of(cancelled)
