"""Rows: the interpreter exits, or forks, at random moments of an epoch that is read."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.process.census import Surroundings, wait_until
from tests.faults.process.started import Ended, Started, preloaded, run
from tests.support.scripts import without_words_of_zarr

#: As in stores.py, which is not imported here: it takes seconds, and other processes do it.
_KINDS = ("zstd", "blosc", "shards", "codec", "fed", "fed shards", "text", "access")
_READERS = ("main", "held", "many", "thread", "daemon")
#: Of these tries each has DataLoader workers, which take longer.
_WORKERS_EVERY = 9
#: Of these tries each has a new interpreter, not one that was forked before it had a thread.
_FRESH_EVERY = 12
_LONGEST_S = 0.15
_ALONE_S = 40.0
#: An interrupt that Python loses, as it comes in a function that runs in os.fork, is followed by another.
_AGAIN_S = 8.0

#: What must not be on stderr, beside the traceback of the main thread.
_COMPLAINT = re.compile(r"Exception ignored|in thread|terminate called|Fatal|FATAL|Task was destroyed|never awaited")
_LOST_IN_FORK = re.compile(
    r"Exception ignored in: <function (_releaseLock|.*fork.*)>?.*\n(.*\n)*?KeyboardInterrupt: *\n"
)
#: The first interrupt left the lock of a queue of multiprocessing taken, which waits for it at exit: until the second.
_QUEUE_LEFT_LOCKED = re.compile(
    r"Exception ignored in atexit callback: <function _exit_function .*\n(.*\n)*?KeyboardInterrupt: *\n"
)
#: Python's word about zarr-python, if Ctrl-C comes after it made a coroutine and before that is with the event loop.
_NEVER_AWAITED = re.compile(r".*RuntimeWarning: coroutine .* was never awaited\n( .*\n)?(RuntimeWarning: Enable .*\n)?")
#: Content of the file by which Python's tempfile finds out whether a folder can be written to.
_OF_TEMPFILE = b"blat"
#: multiprocessing's thread in a worker that hands over a tensor, and finds that the main process has gone.
_OF_A_SENDER = "multiprocessing/resource_sharer.py"

#: Way to leave -> the exit status, the signal, and how what is said on stderr ends.
_WAYS: dict[str, tuple[int | None, int, str]] = {
    "end": (0, 0, ""),
    "exit": (None, 0, ""),
    "raise": (1, 0, "RuntimeError: on purpose"),
    "interrupt": (-signal.SIGINT, signal.SIGINT, "KeyboardInterrupt"),
    "terminate": (-signal.SIGTERM, signal.SIGTERM, ""),
}


def stores(attempt: Try) -> Path:
    """Return the folder of the row's stores, which another process has written."""
    preloaded()  # its server starts here, as it is no process of the try
    if not (attempt.shared / "stores").exists():
        well(run("write", attempt.directory, attempt.shared))
    return attempt.shared


def without_words_of_others(ended: Ended) -> Ended:
    """Return the same without what zarr-python says at exit if its thread does not end in 0.2 s."""
    return Ended(ended.status, ended.out, without_words_of_zarr(ended.err))


def well(ended: Ended) -> Ended:
    """Return how a process ended; UnspecifiedError unless that was with 0 and without a word on stderr."""
    if ended.status or ended.err:
        raise UnspecifiedError(f"status {ended.status}, stderr: {ended.err}")
    return ended


def send_while_reading(process: int, number: int, directory: Path, after_s: float) -> None:
    """Send a signal to a process, so long after it began to read."""
    if not wait_until((directory / "begun").exists, _ALONE_S):
        raise UnspecifiedError("it did not begin to read")
    time.sleep(after_s)
    os.kill(process, number)


def check_temporary_files(directory: Path, where: str) -> None:
    """Raise UnspecifiedError if a process left temporary files.

    Some are not ours, and are left by any process that is killed at that moment, whatever it reads: the folder with a
    socket through which multiprocessing sends descriptors; the file that `tempfile` writes into each candidate for the
    folder of temporary files, and deletes; ten empty files by which torch's loader, when a worker does not answer,
    sees whether descriptors are left; torch's cache.
    """
    left = [path for path in (directory / "tmp").iterdir() if not _is_of_a_library(path)]
    if left:
        raise UnspecifiedError(f"{where}: temporary files are left: {left}")


def _is_of_a_library(path: Path) -> bool:
    if path.is_dir():
        is_of_multiprocessing = path.name.startswith("pymp-") and all(inside.is_socket() for inside in path.iterdir())
        return is_of_multiprocessing or path.name.startswith("torchinductor_")
    return path.is_file() and path.read_bytes() in (b"", _OF_TEMPFILE)


def leave(attempt: Try) -> str:
    """Exit while an epoch is read."""
    folder, choose = stores(attempt), attempt.random
    is_fresh = attempt.number % _FRESH_EVERY == _FRESH_EVERY - 1
    way = choose.choice([way for way, (_, number, _) in _WAYS.items() if not (is_fresh and number)])
    kind = choose.choice(_KINDS)
    with_workers = attempt.number % _WORKERS_EVERY == 1 and kind != "access"
    reader = "workers" if with_workers else choose.choice(_READERS)
    status, number, said = _WAYS[way]
    if status is None:
        status = choose.randrange(256)
    after_s = choose.uniform(0, _LONGEST_S)
    what = [kind, folder, reader, "wait" if number else way, status, after_s, attempt.directory]
    where = f"{way}, {reader} reads {kind}"
    surroundings = Surroundings.look()
    if is_fresh:
        ended = run("leave", attempt.directory, *what, python=[sys.executable])
    else:
        process = Started("leave", attempt.directory, *what)
        if number:
            send_while_reading(process.pid, number, attempt.directory, after_s)
        if with_workers and way == "interrupt" and not process.ends_within(_AGAIN_S):
            way = "interrupt, at the second one"
            os.kill(process.pid, number)
        ended = process.wait()
        if way == "interrupt, at the second one":
            err = _LOST_IN_FORK.sub("", ended.err) if _LOST_IN_FORK.match(ended.err) else ended.err
            ended = Ended(ended.status, ended.out, _QUEUE_LEFT_LOCKED.sub("", err))
    if way.startswith("interrupt"):
        ended = Ended(ended.status, ended.out, _NEVER_AWAITED.sub("", ended.err))
    _judge(without_words_of_others(ended), status, said, where)
    if way != "terminate" and not (attempt.directory / "left").exists():
        raise UnspecifiedError(f"{where}: no exit functions were run")
    if with_workers:
        surroundings.check(_ALONE_S)
    check_temporary_files(attempt.directory, where)
    return f"{way}, in a new interpreter" if is_fresh else way


def _judge(ended: Ended, status: int, said: str, where: str) -> None:
    if ended.status != status:
        raise UnspecifiedError(f"{where}: status {ended.status} in place of {status}: {ended.err}")
    if _COMPLAINT.search(ended.err) or not _says_no_more(ended.err, said):
        raise UnspecifiedError(f"{where}: stderr: {ended.err}")


def _says_no_more(err: str, said: str) -> bool:
    """Return whether stderr has the traceback that ends with `said`, or nothing if that is empty, and no more."""
    if said == "KeyboardInterrupt" and _OF_A_SENDER in err and ", in _serve\n" in err:
        return said in err  # two processes write at once, so that their tracebacks are mixed
    return err.startswith("Traceback") and err.rstrip().endswith(said) if said else err == ""


def fork(attempt: Try) -> str:
    """Fork while an epoch is read."""
    folder, choose = stores(attempt), attempt.random
    kind = _KINDS[attempt.number % len(_KINDS)]
    in_thread = choose.random() < 0.4
    child = choose.choice(("leave", "drop", "read", *(() if in_thread else ("return", "read and return"))))
    arguments: list[Any] = [kind, folder, choose.randrange(1 << 32), child, in_thread]
    surroundings = Surroundings.look()
    ended = without_words_of_others(run("fork_while_reading", attempt.directory, *arguments))
    if ended.status or ended.err:
        raise UnspecifiedError(f"{arguments}: status {ended.status}: {ended.err}")
    surroundings.check(_ALONE_S)
    return "the child read an epoch" if child.startswith("read") else "the child ended"


ROWS = (
    Row(
        "fork",
        "fork at a random moment of an epoch, by the thread that reads or another; the child ends in several ways, or "
        "reads from the start",
        "both processes read right epochs and end with 0, without a message",
        fork,
        runs=300,
        short_runs=4,
        timeout_s=200,
    ),
    Row(
        "exit",
        "the interpreter ends at a random moment of an epoch: off the end, sys.exit(n), an exception, SIGINT, SIGTERM; "
        "iterators held, threads that read, DataLoader workers",
        "that exit status; on stderr the traceback and nothing else",
        leave,
        runs=552,
        short_runs=4,
        timeout_s=200,
    ),
)
