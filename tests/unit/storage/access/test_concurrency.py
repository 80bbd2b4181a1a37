"""How many requests a store is asked at once, on simulated servers with their own clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from zarrfeed.storage.access.concurrency import ConcurrencyController


@dataclass
class Simulation:
    """A client that always has another request, and a server; time is what the next event says.

    `serve(now, busy)` returns when a request that arrives now is answered, and whether it succeeds; `busy` requests
    were under way before it.
    """

    serve: Callable[[float, int], tuple[float, bool]]
    controller: ConcurrencyController
    now: float = 0.0
    failures: int = 0
    finished: list[float] = field(default_factory=list)
    limits: list[tuple[float, int]] = field(default_factory=list)

    def run(self, until: float) -> Simulation:
        numbers = itertools.count()
        under_way: list[tuple[float, int, float, int, bool]] = []
        while self.now < until:
            while len(under_way) < self.controller.limit:
                end, succeeds = self.serve(self.now, len(under_way))
                heapq.heappush(under_way, (end, next(numbers), self.now, self.controller.epoch, succeeds))
            end, _, begin, epoch, succeeds = heapq.heappop(under_way)
            self.now = end
            if not succeeds:
                self.failures += 1
                self.controller.failed(epoch, end)
            else:
                self.finished.append(end)
                self.controller.finished(epoch, end - begin, end)
            self.limits.append((end, self.controller.limit))
        return self

    def rate(self, since: float) -> float:
        return sum(end > since for end in self.finished) / (self.now - since)


class Workers:
    """A server with some workers and a queue: what does not find room in the queue comes back a second later."""

    def __init__(self, workers: int, service_s: float, latency_s: float = 0.0, queue: int = 10**6) -> None:
        self._free_at = [0.0] * workers
        self._service_s, self._latency_s, self._queue = service_s, latency_s, queue
        self.dropped = 0

    def __call__(self, now: float, busy: int) -> tuple[float, bool]:
        if busy > len(self._free_at) + self._queue:
            self.dropped += 1
            return now + 1.0 + self._service_s, True
        begin = max(now, heapq.heappop(self._free_at))
        heapq.heappush(self._free_at, begin + self._service_s)
        return begin + self._service_s + self._latency_s, True


def test_a_far_store_is_asked_for_all_within_20_round_trips() -> None:
    for latency_s in (0.02, 0.1):
        simulation = Simulation(Workers(10**4, 0.0, latency_s), ConcurrencyController(256)).run(30 * latency_s)
        first = next(now for now, limit in simulation.limits if limit == 256)
        assert first <= 20 * latency_s + 1e-6
        assert simulation.limits[-1][1] == 256


def test_a_server_with_a_short_queue_is_never_asked_for_more_than_it_queues() -> None:
    for latency_s in (0.0, 0.0005):
        server = Workers(1, 0.001, latency_s, queue=5)
        simulation = Simulation(server, ConcurrencyController(256)).run(100.0)
        assert server.dropped == 0
        assert simulation.rate(1.0) > 0.95 * 1000


@pytest.mark.parametrize(("workers", "service_s", "latency_s"), [(16, 0.005, 0.0), (2, 0.0005, 0.001), (4, 0.01, 0.02)])
def test_a_server_gets_as_much_as_keeps_it_busy_and_not_much_more(
    workers: int, service_s: float, latency_s: float
) -> None:
    simulation = Simulation(Workers(workers, service_s, latency_s), ConcurrencyController(256)).run(20.0)
    assert simulation.rate(2.0) > 0.94 * workers / service_s
    needed = workers * (1 + latency_s / service_s)
    assert max(limit for _, limit in simulation.limits) <= 4 * needed


def test_a_server_that_refuses_beyond_some_requests_is_asked_less() -> None:
    def serve(now: float, busy: int) -> tuple[float, bool]:
        return now + 0.02, busy < 24

    simulation = Simulation(serve, ConcurrencyController(256)).run(120.0)
    assert simulation.failures < 0.02 * len(simulation.finished)
    assert simulation.rate(10.0) > 0.6 * 16 / 0.02
    assert simulation.limits[-1][1] <= 32


def test_after_an_outage_the_limit_grows_back() -> None:
    def serve(now: float, _: int) -> tuple[float, bool]:
        return now + 0.02, not 5 <= now < 8

    simulation = Simulation(serve, ConcurrencyController(256)).run(12.0)
    assert min(limit for now, limit in simulation.limits if 5 < now < 8) == 1
    assert next(limit for now, limit in reversed(simulation.limits) if now < 5) == 256
    assert simulation.limits[-1][1] == 256


def test_connections_that_are_dropped_now_and_then_halve_the_limit() -> None:
    controller = ConcurrencyController(64)
    Simulation(Workers(10**4, 0.0, 0.02), controller).run(1.0)
    assert controller.limit == 64
    turns = itertools.count(1)
    Simulation(lambda now, _: (now + (3.0 if next(turns) % 20 == 0 else 0.02), True), controller, now=1.0).run(30.0)
    assert controller.limit <= 32
    rare = ConcurrencyController(64)
    turns = itertools.count(1)
    Simulation(lambda now, _: (now + (1.5 if next(turns) % 1000 == 0 else 0.02), True), rare).run(30.0)
    assert rare.limit == 64  # one in a thousand is what far stores are like


def test_failures_of_requests_that_were_under_way_together_count_once() -> None:
    controller = ConcurrencyController(256)
    Simulation(Workers(10**4, 0.0, 0.02), controller).run(1.0)
    epoch = controller.epoch
    for _ in range(100):
        controller.failed(epoch, 1.0)
    assert controller.limit == 128
    for _ in range(100):
        controller.failed(controller.epoch, 1.0)
    assert controller.limit == 1


def test_a_limit_of_one_stays_one() -> None:
    assert Simulation(Workers(8, 0.01), ConcurrencyController(1)).run(5.0).limits[-1][1] == 1
