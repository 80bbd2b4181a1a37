"""engine/fetch_threads.py: each request is answered once, by whoever takes it over. The engine is simulated."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from zarrfeed.engine.fetch_threads import Bytes, FetchThreads, Flight, Request, RequestedRange
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.access.request_limiter import RequestLimiter
from zarrfeed.storage.access.retry import FailedAttempt

TIMEOUT_S = 240.0
OBJECT = np.arange(256, dtype=np.uint8)


class SimulatedEngine:
    """Posts requests and collects answers, as the engine does."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.requests: deque[Request] = deque()
        self.answers: list[tuple[int, bytes | None]] = []
        self.finished: list[int] = []
        self.is_over = False
        self.waiting = 0

    def request_epoch(self) -> int:
        return 1

    def post(self, *requests: Request) -> None:
        with self.changed:
            self.requests.extend(requests)
            self.changed.notify_all()

    def exchange(self, epoch: int, answers: list[tuple[int, Bytes | None]]) -> Any:
        assert epoch == 1
        self.answer(answers)
        with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.requests or self.is_over)
            self.waiting -= 1
            if self.is_over:
                return None
            finished, self.finished = self.finished, []
            return self.requests.popleft(), finished, len(self.requests)

    def answer(self, answers: list[tuple[int, Bytes | None]]) -> None:
        with self.changed:
            self.answers += [(number, None if data is None else data.tobytes()) for number, data in answers]
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, TIMEOUT_S)


class SimulatedReads:
    """An object store in memory: keys that begin with "!" fail, and reads of keys with an event wait for it."""

    def __init__(self, limit: int = 4) -> None:
        self.limiter = RequestLimiter(limit, lambda _: False, first=limit)
        self.gates: dict[str, threading.Event] = {}
        self.begun = threading.Semaphore(0)
        self.lock = threading.Lock()
        self.reading = self.most = 0

    def get(self, key: str, begin: int, end: int | None) -> Bytes | None:
        with self.lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
        try:
            if key in self.gates:
                self.begun.release()
                assert self.gates[key].wait(TIMEOUT_S)
            if key.startswith("!"):
                raise OSError(key)
            return None if key == "missing" else OBJECT[begin:end]
        finally:
            with self.lock:
                self.reading -= 1


class Run:
    """Threads under test, with what they left."""

    def __init__(self, reads: SimulatedReads) -> None:
        self.engine = SimulatedEngine()
        self.reads = reads
        self.left: list[tuple[Request, FailedAttempt | None]] = []
        self.provided: dict[int, Bytes] = {}
        self.counts = ReadCounts()
        self.threads = FetchThreads(self.engine, {0: reads}, self.provided, self.counts, self.leave)  # type: ignore[arg-type]
        self.threads.start()

    def leave(self, request: Request, failed: FailedAttempt | None) -> None:
        with self.engine.changed:
            self.left.append((request, failed))
            self.engine.changed.notify_all()

    def close(self) -> None:
        for gate in self.reads.gates.values():
            gate.set()
        self.engine.end()
        self.threads.close(TIMEOUT_S, every_one=True)
        assert self.threads._alive == 0


@pytest.fixture
def make_run() -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def make(limit: int = 4, gates: tuple[str, ...] = ()) -> Run:
        reads = SimulatedReads(limit)
        reads.gates = {key: threading.Event() for key in gates}
        runs.append(Run(reads))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def whole(request_id: int, key: str = "k", field: int = 0) -> Request:
    return field, key, False, [(request_id, 0, None)]


def test_every_request_is_answered_once_by_no_more_threads_than_the_limit(make_run: Callable[..., Run]) -> None:
    run = make_run(limit=3)
    ranges = [(i % 200, i % 200 + i % 50 + 1) for i in range(1000)]
    for number, (begin, end) in enumerate(ranges):
        run.engine.post((0, "k", False, [(number, begin, end)]))
    run.engine.wait_for(lambda: len(run.engine.answers) == 1000)
    assert sorted(number for number, _ in run.engine.answers) == list(range(1000))
    for number, data in run.engine.answers:
        begin, end = ranges[number]
        assert data == OBJECT[begin:end].tobytes()
    assert run.reads.most <= 3
    assert run.counts.requests == 1000


def test_parts_of_one_object_come_from_one_read_and_a_missing_one_is_none(make_run: Callable[..., Run]) -> None:
    run = make_run()
    two: list[RequestedRange] = [(1, 2, 5), (2, 5, 9)]
    run.engine.post((0, "k", False, two), (0, "k", True, [(3, -4, None)]), whole(4, "missing"))
    run.engine.wait_for(lambda: len(run.engine.answers) == 4)
    expected = {1: OBJECT[2:5].tobytes(), 2: OBJECT[5:9].tobytes(), 3: OBJECT[-4:].tobytes(), 4: None}
    assert dict(run.engine.answers) == expected
    assert run.counts.requests == 3


def test_bytes_are_kept_until_the_engine_is_done_with_them(make_run: Callable[..., Run]) -> None:
    run = make_run(limit=1)
    run.engine.post(whole(1), whole(2))
    run.engine.wait_for(lambda: len(run.engine.answers) == 2)
    assert set(run.provided) == {1, 2}
    with run.engine.changed:
        run.engine.finished = [1]
    run.engine.post(whole(3))
    run.engine.wait_for(lambda: len(run.engine.answers) == 3)
    assert set(run.provided) == {2, 3}


def test_what_cannot_be_told_here_is_left_to_the_event_loop(make_run: Callable[..., Run]) -> None:
    run = make_run()
    too_long: list[RequestedRange] = [(2, 0, 9), (3, 250, 300)]
    run.engine.post(whole(1, "!bad"), (0, "k", False, too_long), whole(4, field=7), whole(5))
    run.engine.wait_for(lambda: len(run.left) == 3 and len(run.engine.answers) == 1)
    left = {request[3][0][0]: failed for request, failed in run.left}
    assert isinstance(left[1], FailedAttempt)
    assert isinstance(left[1].error, OSError)
    assert left[2] is None  # bytes that the object lacks: the loop asks for each part
    assert left[4] is None  # a field that threads do not read
    assert run.engine.answers[0][0] == 5


def test_a_request_waits_for_no_other_ones_end(make_run: Callable[..., Run]) -> None:
    run = make_run(limit=3, gates=("slow", "slower"))
    run.engine.post(whole(1, "slow"), whole(2, "slower"))
    assert all(run.reads.begun.acquire(timeout=TIMEOUT_S) for _ in range(2))
    run.engine.post(whole(3))
    run.engine.wait_for(lambda: [number for number, _ in run.engine.answers] == [3])


def test_a_request_that_was_taken_over_is_not_answered_by_its_thread(make_run: Callable[..., Run]) -> None:
    run = make_run(limit=1, gates=("slow",))
    run.engine.post(whole(1, "slow"), whole(2))
    assert run.reads.begun.acquire(timeout=TIMEOUT_S)
    (flight,) = run.threads._flights.values()
    assert run.threads.leave_behind(flight)
    assert not run.threads.leave_behind(flight)
    # Its turn is over: another thread serves what waits.
    run.engine.wait_for(lambda: [number for number, _ in run.engine.answers] == [2])
    run.reads.gates["slow"].set()
    run.engine.post(whole(3))
    run.engine.wait_for(lambda: len(run.engine.answers) == 2)
    assert [number for number, _ in run.engine.answers] == [2, 3]
    assert not run.left


def test_late_requests_are_told_once_and_only_some(make_run: Callable[..., Run]) -> None:
    run = make_run(limit=4, gates=("late", "later"))
    run.engine.post(*(whole(i) for i in range(100)))
    run.engine.wait_for(lambda: len(run.engine.answers) == 100)
    run.engine.post(whole(200, "late"), whole(201, "later"))
    assert all(run.reads.begun.acquire(timeout=TIMEOUT_S) for _ in range(2))

    def make_late(flight: Flight, by_s: float) -> None:
        flight.turn.begin -= by_s

    assert not list(run.threads.take_late())
    for flight in run.threads._flights.values():
        make_late(flight, 100.0)
    assert {flight.request[1] for flight in run.threads.take_late()} == {"late", "later"}
    assert not list(run.threads.take_late())


def test_closing_waits_for_reads_but_not_for_ever_and_nothing_is_answered_afterwards(
    make_run: Callable[..., Run],
) -> None:
    run = make_run(limit=2, gates=("hangs",))
    run.engine.post(whole(1, "hangs"))
    assert run.reads.begun.acquire(timeout=TIMEOUT_S)
    run.engine.end()
    run.threads.close(0.01)
    with run.threads._lock:  # the thread that has nothing to read may end later
        assert run.threads._changed.wait_for(lambda: run.threads._alive == 1, TIMEOUT_S)
    run.reads.gates["hangs"].set()
    run.threads.close(TIMEOUT_S, every_one=True)
    assert run.threads._alive == 0
    assert not run.engine.answers
    assert not run.left


def test_without_a_thread_to_be_had_starting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Run(SimulatedReads())


def test_with_one_thread_to_be_had_everything_is_served(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(limit=4)
    run.engine.wait_for(lambda: run.engine.waiting == 1)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    run.engine.post(*(whole(i) for i in range(50)))
    run.engine.wait_for(lambda: len(run.engine.answers) == 50)


def test_a_thread_is_left_however_often_the_limit_falls(make_run: Callable[..., Run]) -> None:
    """Threads that each saw one thread too many all ended, so that nobody served the rest of the epoch."""
    run = make_run(limit=4)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(1000):
            run.reads.limiter.controller.limit = 1 if number % 2 else 4
            run.engine.post(*(whole(4 * number + i) for i in range(4)))
            run.engine.wait_for(lambda n=number: len(run.engine.answers) == 4 * n + 4)  # type: ignore[misc]
    finally:
        sys.setswitchinterval(switch_interval)


@pytest.mark.parametrize("seed", range(3))
def test_each_request_ends_once_whatever_is_slow_fails_or_is_taken_over(
    make_run: Callable[..., Run], seed: int
) -> None:
    """Answered by its thread, left to the event loop, or taken over by a hedge: exactly one of the three."""
    run = make_run(limit=8)
    random = Random(seed)
    total = 3000
    hedged: list[int] = []

    def hedge() -> None:
        while not run.engine.is_over:
            run.reads.limiter.controller.limit = random.choice((1, 2, 4, 8))
            with run.threads._lock:
                flights = list(run.threads._flights.values())
            for flight in flights:
                if random.random() < 0.3 and run.threads.leave_behind(flight):
                    with run.engine.changed:
                        hedged.append(flight.request[3][0][0])
                        run.engine.changed.notify_all()

    def ended() -> int:
        return len(run.engine.answers) + len(run.left) + len(hedged)

    hedging = threading.Thread(target=hedge)
    hedging.start()
    try:
        for begin in range(0, total, 100):
            run.engine.post(*(whole(i, "!bad" if random.random() < 0.1 else "k") for i in range(begin, begin + 100)))
        run.engine.wait_for(lambda: ended() >= total)
    finally:
        run.engine.end()
        hedging.join(TIMEOUT_S)
    numbers = [number for number, _ in run.engine.answers] + [request[3][0][0] for request, _ in run.left] + hedged
    assert sorted(numbers) == list(range(total))
