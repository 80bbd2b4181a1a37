"""Reads side by side: their order, and the threads that they leave."""

from __future__ import annotations

import threading

import pytest

from zarrfeed.metadata.array.side_by_side import side_by_side
from zarrfeed.storage.access.shared_access import SharedAccess


class Access(SharedAccess):
    """Says when reads are given up."""

    def __init__(self) -> None:
        super().__init__()
        self.is_given_up = threading.Event()

    def give_up(self) -> None:
        self.is_given_up.set()
        super().give_up()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("zarrfeed-open")]


def test_results_come_in_the_order_of_the_sources() -> None:
    access = Access()
    assert list(side_by_side(lambda n: n * n, range(100), access)) == [n * n for n in range(100)]
    assert not access.is_given_up.is_set()
    assert threads() == []


@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize("has_begun", [False, True])
def test_an_interrupt_in_the_start_of_a_thread_leaves_none(
    nth: int, has_begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pool adds a thread to its own after the thread's start, and joins none but its own."""
    access = Access()
    start = threading.Thread.start
    began: list[threading.Thread] = []

    def start_interrupted(thread: threading.Thread) -> None:
        if not thread.name.startswith("zarrfeed-open"):
            return start(thread)
        began.append(thread)
        if has_begun or len(began) != nth:
            start(thread)
        if len(began) == nth:
            raise KeyboardInterrupt
        return None

    def read(number: int) -> int:
        if number > 0:
            assert access.is_given_up.wait(240)
            # The thread is still there for a while after its read.
            threading.Event().wait(0.2)
        return number

    monkeypatch.setattr(threading.Thread, "start", start_interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(side_by_side(read, range(100), access))
    assert threads() == []
    assert len(began) == nth


def test_an_error_ends_the_other_reads() -> None:
    access = Access()

    def read(number: int) -> int:
        if number == 3:
            raise ValueError("no such store")
        if number > 3:
            assert access.is_given_up.wait(240)
        return number

    results = side_by_side(read, range(40), access)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no such store"):
        next(results)
    assert threads() == []
