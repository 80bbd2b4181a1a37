"""Workers of a `ZarrDataLoader` end as soon as they are told to, whenever an interrupt came before."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import _utils

from tests.support.examples import is_large, tries
from zarrfeed import ZarrDataLoader, ZarrIterableDataset
from zarrfeed.torch.passes.result_queue import ResultQueue
from zarrfeed.torch.passes.worker_shutdown import Flag, IndexQueue, ending_workers

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

NUM_SAMPLES = 64
#: Modules in which torch starts workers, asks them for batches and ends them.
_INTERRUPTED = (
    "multiprocessing/queues",
    "multiprocessing/connection",
    "threading",
    "data/dataloader",
    "worker_shutdown",
)
#: These ask for batches, in torch, in its queues with threads or in pipes. (All 130 functions take 20 s of CPU.)
_ASKING = {"put", "__enter__", "__exit__", "_send", "_start_thread", "notify", "start", "_reset", "_try_put_index"}
#: Under these Python itself forgets an interrupt, or does what `os.fork` runs in both processes. `_launch` forks: other
#: libraries take locks before, which the worker waits for if the interrupt kept them from being released.
_SPARED = {"__del__", "_after_fork", "_bootstrap", "_launch", "_run_after_forkers", "_callback"}


def _callers(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


@contextmanager
def interrupt_at(number: int) -> Iterator[list[str]]:
    """Raise KeyboardInterrupt as the call of this number begins or ends, of those that torch's loader makes."""
    calls: list[str] = []
    process = os.getpid()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return") or os.getpid() != process:
            return
        if any(part in frame.f_code.co_filename for part in _INTERRUPTED):
            calls.append(f"{event} of {frame.f_code.co_name}")
            if len(calls) >= number and _SPARED.isdisjoint(_callers(frame)):
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def make_loader(*, persistent: bool) -> ZarrDataLoader:
    dataset = ZarrIterableDataset(np.arange(NUM_SAMPLES), batch_size=4, shuffle=True, num_threads=1)
    return ZarrDataLoader(
        dataset, num_workers=2, multiprocessing_context="fork", prefetch_factor=2, persistent_workers=persistent
    )


def read_twice(loader: ZarrDataLoader) -> None:
    for _ in range(2):
        for _ in itertools.islice(loader, 3):
            pass


@pytest.mark.filterwarnings("ignore:Exception ignored in. <function _MultiProcessing")  # of one that was half made
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_were_told_nothing_are_waited_for(persistent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For 5 s each, where the interrupt left a queue whose thread was never started: here that would be 300 s."""
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 300)
    before = set(multiprocessing.active_children())
    with interrupt_at(sys.maxsize) as calls:
        read_twice(make_loader(persistent=persistent))
    first = {call: number for number, call in reversed([*enumerate(calls, 1)])}
    assert {"call of put", "return of put", "call of _reset"} <= {*first}
    numbers = [number for call, number in first.items() if call.split()[-1] in _ASKING]
    for number in numbers[persistent :: tries(2, 1)] if not is_large() else numbers:
        with suppress(KeyboardInterrupt), interrupt_at(number) as calls:
            read_twice(make_loader(persistent=persistent))
        gc.collect()
        for worker in set(multiprocessing.active_children()) - before:
            worker.join(60)  # one that torch had not noted yet when the interrupt came
            assert not worker.is_alive(), f"after the interrupt at {calls[-1]}"


def test_torch_has_a_queue_with_a_thread_for_messages_to_workers() -> None:
    loader = make_loader(persistent=True)
    next(iter(loader))
    made: Any = loader._iterator
    assert [type(one) for one in made._index_queues] == [IndexQueue] * 2
    assert type(made._worker_result_queue) is ResultQueue
    assert type(made._workers_done_event) is Flag
    assert loader.multiprocessing_context is multiprocessing.get_context("fork")
    pickle.dumps(loader.multiprocessing_context)


def test_an_index_queue_loses_or_mixes_messages() -> None:
    ended = Flag()
    index_queue = IndexQueue(multiprocessing.get_context(), ended)
    sent = [(number, None) for number in range(100)]
    for message in sent:
        index_queue.put(message)
    assert [index_queue.get(timeout=60) for _ in sent] == sent
    with pytest.raises(queue.Empty):
        index_queue.get(timeout=0)
    ended.set()
    index_queue.put((7, None))
    assert index_queue.get(timeout=60) == (7, None)  # torch's worker drops it
    assert index_queue.get(timeout=60) is None
    index_queue.cancel_join_thread()
    index_queue.close()


def _answer(messages: IndexQueue, answers: Any) -> None:
    while (message := messages.get(timeout=60)) is not None:
        answers.send(message)
    answers.send("end")


@pytest.mark.usefixtures("warm_spawn")
def test_a_spawned_process_does_not_get_messages_or_the_end() -> None:
    context = multiprocessing.get_context("spawn")
    made: Any = ending_workers(context, 1)
    results, ended, messages = made.Queue(), made.Event(), made.Queue()
    results.close()
    mine, theirs = context.Pipe()
    worker = context.Process(target=_answer, args=(messages, theirs))
    worker.start()
    messages.put((0, torch.tensor(3)))
    number, value = mine.recv()
    assert (number, int(value)) == (0, 3)
    ended.set()
    assert mine.recv() == "end"
    worker.join(60)
    assert worker.exitcode == 0
