"""Batches of DataLoader workers come one by one from each, whatever happens to the workers."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data._utils import worker

from tests.support.examples import tries
from zarrfeed import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.torch.passes.result_queue import ResultQueue

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

CONTEXT = multiprocessing.get_context("fork")
LARGE = b"x" * (1 << 20)  # more than a pipe holds


def _run(number: int, body: Callable[[], None]) -> None:
    worker._worker_info = worker.WorkerInfo(id=number, num_workers=2, seed=0, dataset=torch.utils.data.Dataset())
    body()


@contextmanager
def worker_of(number: int, body: Callable[[], None]) -> Iterator[Any]:
    process = CONTEXT.Process(target=_run, args=(number, body))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def _put(results: ResultQueue, items: list[Any]) -> None:
    for item in items:
        results.put(item)
    signal.pause()  # a process that ends may leave items unsent


@pytest.mark.parametrize("large", [b"", LARGE])
def test_batches_of_a_worker_are_lost_or_change_places(large: bytes) -> None:
    results = ResultQueue(CONTEXT, 2)
    sent = [[(number, torch.tensor(item), large) for item in range(5)] for number in range(2)]
    with worker_of(0, partial(_put, results, sent[0])), worker_of(1, partial(_put, results, sent[1])):
        got = [results.get(timeout=60) for _ in range(10)]
    for number in range(2):
        assert [(int(item), rest) for of, item, rest in got if of == number] == [(item, large) for item in range(5)]
    with pytest.raises(queue.Empty):
        results.get(timeout=0)
    results.close()


def test_a_worker_that_is_killed_within_a_message_stops_the_others() -> None:
    results = ResultQueue(CONTEXT, 2)
    with (
        worker_of(0, partial(_put, results, [(0, LARGE)])) as first,
        worker_of(1, partial(_put, results, [(0, "right")])),
    ):
        assert results._readers[0].poll(60)  # more than the pipe holds is still to come, since nobody reads
        first.kill()
        first.join()
        with pytest.raises(queue.Empty):
            results.get(timeout=60)
        assert results.get(timeout=60) == (0, "right")
    with pytest.raises(queue.Empty):
        results.get(timeout=60)
    results.close()


def test_the_pinning_thread_is_not_woken() -> None:
    results = ResultQueue(CONTEXT, 1)
    with pytest.raises(queue.Empty):
        results.get(timeout=0)
    results.put((None, None))
    assert results.get(timeout=60) == (None, None)
    results.close()


def test_an_item_that_cannot_be_sent_is_forgotten(capfd: pytest.CaptureFixture[str]) -> None:
    results = ResultQueue(CONTEXT, 1)
    with worker_of(0, partial(_put, results, [lambda: None, (1, "next")])):
        assert results.get(timeout=60) == (1, "next")
    assert "Can't pickle local object" in capfd.readouterr().err.replace("can't", "Can't")
    results.close()


class _InterruptedAt:
    """A `worker_init_fn` that raises KeyboardInterrupt at the call of this number that concerns sent batches."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = 0

    def __call__(self, _: int) -> None:
        sys.setprofile(self.count)

    def count(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return") and any(
            part in frame.f_code.co_filename for part in ("result_queue", "multiprocessing/")
        ):
            self.calls += 1
            if self.calls == self.number:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_is_interrupted_as_it_hands_over_a_batch_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 5 s, after which torch terminates it: here that would be 300 s."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 300)
    dataset = ZarrIterableDataset(np.arange(64), batch_size=4, num_threads=1)
    before = set(multiprocessing.active_children())
    read: list[int] = []
    number = 0
    while len(read) < 16:  # until there are not as many calls
        number += tries(2, 1)
        loader = ZarrDataLoader(
            dataset, num_workers=1, multiprocessing_context="fork", worker_init_fn=_InterruptedAt(number)
        )
        try:
            read = [int(batch[0]) for batch in loader]
        except RuntimeError as error:
            assert "exited unexpectedly" in str(error), f"at call {number}: {error}"  # noqa: PT017
        else:
            assert read == [*range(0, 64, 4)], f"at call {number}"
        del loader
    assert number > 16
    assert set(multiprocessing.active_children()) <= before
