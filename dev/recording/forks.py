"""Run jobs in forked processes: each job has a process of its own, which a job that hangs or crashes ends alone."""

from __future__ import annotations

import os
import pickle
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Job = TypeVar("_Job")


@dataclass
class _Child:
    """A process that does a job, and what it sent so far."""

    number: int
    pid: int
    pipe: int
    until: float
    sent: bytearray = field(default_factory=bytearray)


def run_forked(
    jobs: Sequence[_Job], do: Callable[[_Job], Any], *, processes: int, limit_s: float
) -> Iterator[tuple[_Job, Any]]:
    """Do jobs, and give each with its result as it comes; the result of a job that failed is its error as text.

    Parameters
    ----------
    jobs
        The jobs.
    do
        Does one; its result must pickle, and is no text.
    processes
        How many run at once.
    limit_s
        Seconds of a job, after which its process is killed.
    """
    waiting = list(range(len(jobs)))[::-1]
    running: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or running:
                while waiting and len(running) < processes:
                    child = _fork(waiting.pop(), jobs, do, limit_s)
                    running[child.pipe] = child
                    selector.register(child.pipe, selectors.EVENT_READ)
                for key, _ in selector.select(1.0):
                    child = running[key.fd]
                    part = os.read(key.fd, 1 << 20)
                    child.sent += part
                    if not part:
                        selector.unregister(key.fd)
                        del running[key.fd]
                        yield jobs[child.number], _end(child)
                for child in running.values():
                    if time.monotonic() > child.until:
                        os.kill(child.pid, signal.SIGKILL)
        finally:
            for child in running.values():
                os.kill(child.pid, signal.SIGKILL)
                _end(child)


def _fork(number: int, jobs: Sequence[_Job], do: Callable[[_Job], Any], limit_s: float) -> _Child:
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return _Child(number, pid, read, time.monotonic() + limit_s)
    try:
        os.close(read)
        try:
            result = pickle.dumps(do(jobs[number]))
        except BaseException:  # noqa: BLE001 - told to the parent
            result = pickle.dumps(traceback.format_exc())
        with os.fdopen(write, "wb") as pipe:
            pipe.write(result)
    finally:
        os._exit(0)  # without what runs at exit, which is the parent's


def _end(child: _Child) -> Any:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    if not child.sent:
        return f"its process ended with {os.waitstatus_to_exitcode(status)}, after its time or by itself"
    return pickle.loads(bytes(child.sent))
