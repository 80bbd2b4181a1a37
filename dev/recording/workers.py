"""Play a DataLoader worker in this process: torch's own loop of a worker, with queues that are lists."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
from types import SimpleNamespace
from typing import Any

#: Names of the module of torch's workers, which it does not document.
_torch = vars(importlib.import_module("torch.utils.data._utils.worker"))
_LOOP, _END, _RESUMED = _torch["_worker_loop"], _torch["_IterableDatasetStopIteration"], _torch["_ResumeIteration"]
_STREAM: Any = vars(importlib.import_module("torch.utils.data"))["_DatasetKind"].Iterable


class _Requests:
    """The queue of what the loader asks for: so many batches, and then the end."""

    def __init__(self, count: int, done: threading.Event) -> None:
        self._left: list[Any] = [(number, [None]) for number in range(count)]
        self._done = done

    def get(self, timeout: float) -> Any:  # noqa: ARG002 - as torch calls it
        if self._left:
            return self._left.pop(0)
        self._done.set()
        return None


class _Answers:
    """The queue of batches, whose pipe tells the workers of one loader from others."""

    def __init__(self) -> None:
        read, write = os.pipe()
        self._reader, self._ends = SimpleNamespace(fileno=lambda: read), (read, write)
        self.taken: list[Any] = []

    def put(self, answer: tuple[int, Any]) -> None:
        self.taken.append(answer[1])

    def cancel_join_thread(self) -> None:
        pass

    def close(self) -> None:
        pass

    def close_pipe(self) -> None:
        for end in self._ends:
            os.close(end)


def play_worker(dataset: Any, worker: int, num_workers: int, most: int) -> list[Any]:
    """Return the first batches that one of several workers sends.

    Raises
    ------
    Exception
        The error that ends the worker's pass.
    """
    answers, done = _Answers(), threading.Event()
    arguments = (
        _STREAM,
        dataset,
        _Requests(most, done),
        answers,
        done,
        False,  # it does not collate
        lambda batch: batch,
        False,
        0,
        None,
        worker,
        num_workers,
        False,
        None,
    )
    process: Any = multiprocessing.current_process()
    before = {name: getattr(process, name, None) for name in ("_target", "_args", "_kwargs")}
    vars(process).update(_target=_LOOP, _args=arguments, _kwargs={})  # as in a worker
    try:
        _LOOP(*arguments)
    finally:
        vars(process).update(before)
        answers.close_pipe()
        _torch["_worker_info"] = None
    batches = []
    for answer in answers.taken:
        if isinstance(answer, _END):
            break
        if hasattr(answer, "reraise"):
            text = answer.exc_msg.strip().splitlines()[-1]  # behind the traceback
            raise answer.exc_type(text.partition(": ")[2])
        if not isinstance(answer, _RESUMED):
            batches.append(answer)
    return batches
