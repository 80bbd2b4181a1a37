"""What the processes of the other rows do: read without end until something happens, fork, and leave in many ways."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.process.stores import check, check_epoch, make_iterable, write_stores
from zarrfeed import ClosedError, ZarrDataLoader
from zarrfeed.base.errors import ZarrfeedError

faulthandler.enable()

#: Longer than anything is read for; a process that gets so far was forgotten.
_LONG_S = 100.0
_CHILD_TIMEOUT_S = 30.0

#: What is held here is held until the interpreter has gone.
_held: list[Any] = []


def write(folder: str) -> None:
    """Write the stores, where the row's process does not read them itself."""
    write_stores(Path(folder))


def _endless(dataset: Any, deadline: float) -> Iterator[Any]:
    """Read epoch after epoch until a time."""
    while time.monotonic() < deadline:
        for batch in dataset:
            yield check(batch)
            if time.monotonic() >= deadline:
                return


def leave(kind: str, folder: str, reader: str, way: str, status: int, after_s: float, folder_of_marks: str) -> None:
    """Read for a while, and leave.

    Parameters
    ----------
    kind, folder
        What is read, and where the stores are.
    reader
        Who reads: "main", "held" (an iterator that is held for ever), "many" (three of them), "thread", "daemon" (a
        daemon thread that reads on and on) or "workers".
    way
        "end", "exit" (with `status`), "raise", or "wait": for a signal.
    after_s
        How long it reads. For the threads: how long the main thread waits.
    folder_of_marks
        Here, "begun" is made when reading begins, and "left" when exit functions run.
    """
    marks = Path(folder_of_marks)
    atexit.register((marks / "left").touch)
    dataset = make_iterable(kind, Path(folder))
    (marks / "begun").touch()
    deadline = time.monotonic() + (_LONG_S if way == "wait" else after_s)
    if reader in ("thread", "daemon"):
        thread = threading.Thread(target=_read_in_thread, args=(dataset, reader == "daemon"), daemon=reader == "daemon")
        thread.start()
        while time.monotonic() < deadline:  # a signal that comes just before a sleep does not end it
            time.sleep(0.01)
    else:
        if reader == "workers":
            dataset = ZarrDataLoader(
                dataset, num_workers=2, multiprocessing_context="fork", persistent_workers=True, timeout=_LONG_S
            )
        batches = _endless(dataset, deadline)
        if reader in ("held", "many"):
            for _ in range(1 if reader == "held" else 3):
                feed = iter(dataset)
                next(feed)
                _held.append((feed, batches, dataset))
        for _ in batches:
            pass
    if way == "raise":
        raise RuntimeError("on purpose")
    if way == "exit":
        sys.exit(status)


def _read_in_thread(dataset: Any, again: bool) -> None:
    try:
        while True:
            check_epoch(dataset)
            if not again:
                return
    except ClosedError:
        pass  # at exit all datasets are closed
    except ZarrfeedError as error:
        # Python gives no more threads to asyncio when the main thread ends.
        if "cannot schedule new futures" not in str(error):
            raise


def fork_while_reading(kind: str, folder: str, number: int, child: str, in_thread: bool) -> None:
    """Fork at a random moment of an epoch; the child does what `child` says, and this process reads on.

    Parameters
    ----------
    child
        "leave": it ends at once, without the interpreter. "return": it goes off the end of the main module, with all
        that it inherited. "drop": it drops that first. "read", "read and return": it reads an epoch.
    in_thread
        Whether another thread forks than the one that reads.
    """
    choose = random.Random(number)
    dataset = make_iterable(kind, Path(folder), seed=number)
    feed = iter(dataset)
    taken = []
    at = choose.randrange(40)
    forked: list[int] = []

    def fork() -> bool:
        time.sleep(choose.choice((0, choose.uniform(0, 0.005))))
        pid = os.fork()
        forked.append(pid)
        return pid == 0

    def fork_in_thread() -> None:
        if fork():
            _child_of_thread(dataset, child)

    thread = threading.Thread(target=fork_in_thread)
    for number_of_batch, batch in enumerate(feed):
        taken.append(check(batch))
        if number_of_batch == at and in_thread:
            thread.start()
        elif number_of_batch == at and fork():
            if child == "drop":
                del feed, batch
                gc.collect()
            _child(dataset, child)
            return
    if in_thread:
        thread.join(_LONG_S)
    check_epoch([], taken)
    check_epoch(dataset)
    _reap(forked[0])


def _child(dataset: Any, what: str) -> None:
    """Be the child of a fork, in the thread that is its main one."""
    if what == "leave":
        os._exit(0)
    if what.startswith("read"):
        check_epoch(dataset)
    if what == "read":
        os._exit(0)


def _child_of_thread(dataset: Any, what: str) -> None:
    """Be the child of a fork in a thread, whose end is the end of the process; it has no main module to return to."""
    status = 1
    try:
        _child(dataset, what)
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def _reap(child: int) -> None:
    """Raise unless the child ends well, and in time."""
    deadline = time.monotonic() + _CHILD_TIMEOUT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if status:
                raise AssertionError(f"the child ended with status {os.waitstatus_to_exitcode(status)}")
            return
        time.sleep(0.002)
    os.kill(child, signal.SIGABRT)
    os.waitpid(child, 0)
    raise AssertionError(f"the child did not end within {_CHILD_TIMEOUT_S} s")
