"""Executors of the tools: calls at once, results as they come, and items whose worker died."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from zarrfeed import ConfigError
from zarrfeed.base.errors import LostWorkerError
from zarrfeed.base.executors import open_executor, run_all, run_in_order


class WorkerCrashedError(Exception):
    """As Ray calls it."""


def test_results_of_all_items_come_once() -> None:
    with ThreadPoolExecutor(3) as pool:
        assert sorted(run_all(pool, lambda n: n * n, range(50), 4)) == [n * n for n in range(50)]
        assert list(run_all(pool, lambda n: n, [], 4)) == []


def test_no_more_calls_are_begun_than_may_be_at_once() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def count(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1

    with ThreadPoolExecutor(8) as pool:
        assert len(list(run_all(pool, count, range(100), 3))) == 100
    assert 1 <= most <= 3


@pytest.mark.parametrize(("failures", "is_done"), [(2, True), (3, False)])
def test_an_item_whose_worker_died_is_tried_again(failures: int, is_done: bool) -> None:
    tries = 0

    def fail(item: int) -> int:
        nonlocal tries
        if item == 3:
            tries += 1
            if tries <= failures:
                raise WorkerCrashedError
        return item

    with ThreadPoolExecutor(2) as pool:
        if is_done:
            assert sorted(run_all(pool, fail, range(6), 2)) == list(range(6))
        else:
            with pytest.raises(LostWorkerError, match="in each of 3 tries"):
                list(run_all(pool, fail, range(6), 2))


def test_an_error_ends_the_run_and_calls_that_have_not_begun_are_cancelled() -> None:
    begun: list[int] = []

    def fail(item: int) -> int:
        begun.append(item)
        if item == 1:
            raise ConfigError("wrong")
        return item

    with ThreadPoolExecutor(1) as pool, pytest.raises(ConfigError, match="wrong"):
        list(run_all(pool, fail, range(1000), 4))
    assert len(begun) < 10


def test_an_executor_is_asked_how_many_workers_it_has() -> None:
    with ThreadPoolExecutor(3) as pool, open_executor(pool, None) as (executor, at_once):
        assert executor is pool
        assert at_once == 6
    with ThreadPoolExecutor(3) as pool, open_executor(pool, 2) as (_, at_once):
        assert at_once == 2
    with open_executor(None, 2) as (executor, at_once):
        assert at_once == 2
        assert executor.submit(int, "3").result() == 3


class _Own(Executor):
    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_any_executor_of_the_kind_of_concurrent_futures_does() -> None:
    with open_executor(_Own(), None) as (executor, at_once):
        assert sorted(run_all(executor, lambda n: n + 1, range(5), at_once)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("named", ["slurm", "", "spark://host", 5, object()])
def test_what_is_no_executor_is_refused(named: Any) -> None:
    with pytest.raises(ConfigError, match="executor = "), open_executor(named, None):
        pass


@pytest.mark.parametrize("fails", [(), (0,), (3, 5)])
def test_results_come_in_the_order_of_the_items_whichever_ends_first(fails: tuple[int, ...]) -> None:
    lost: list[int] = []
    later = threading.Event()  # item 0 ends after another one has

    def work(item: int) -> int:
        if item in fails and item not in lost:
            lost.append(item)
            raise WorkerCrashedError
        if item == 0:
            assert later.wait(240)
        if item == 1:
            later.set()
        return item

    with ThreadPoolExecutor(2) as pool:
        assert list(run_in_order(pool, work, range(20), 4)) == list(range(20))
    assert tuple(sorted(lost)) == fails


def test_the_first_error_in_order_ends_an_ordered_run() -> None:
    failed = threading.Event()

    def fail(item: int) -> int:
        if item == 1:
            assert failed.wait(240)
        if item in (1, 2):
            failed.set()
            raise ConfigError(f"wrong {item}")
        return item

    with ThreadPoolExecutor(3) as pool, pytest.raises(ConfigError, match="wrong 1"):
        list(run_in_order(pool, fail, range(1000), 3))


def test_a_pool_that_is_broken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(*_: Any) -> Future[Any]:
        raise BrokenProcessPool("a process in the process pool was terminated abruptly")

    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(pool, "submit", submit)
        for run in (run_all, run_in_order):
            with pytest.raises(LostWorkerError, match="call again with a new executor"):
                list(run(pool, int, ["1"], 2))
