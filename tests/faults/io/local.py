"""Rows of local files that fail, come in pieces, or take their time."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io.common import (
    LAYOUTS,
    TIMEOUT_S,
    Stopwatch,
    check_errno,
    check_injected,
    check_names,
    check_right,
    chunk_files,
    copied,
    opened,
    read_epoch,
    stored,
)
from tests.faults.io.shim import Calls, Fault, injected, preloaded
from tests.support.proc import open_files, thread_ids
from zarrfeed import StoreReadError


def cold(path: Path) -> Fault:
    """Return the fault that lets the page cache look empty, so that fetch threads read every chunk."""
    return Fault(Calls.READ_CACHED, path, error=errno.EAGAIN)


#: Errors that may pass, and are tried again; and such that last.
PASSING = (errno.EIO, errno.ESTALE, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT)
LASTING = (errno.EACCES, errno.EPERM, errno.ELOOP)


def fails(attempt: Try) -> str:
    """Let opens or reads of one file fail for ever; then read it after all, with the same dataset."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    file = attempt.random.choice(chunk_files(path))
    calls, codes = attempt.random.choice(((Calls.OPEN, PASSING + LASTING), (Calls.READ, (errno.EIO, errno.ESTALE))))
    code = attempt.random.choice(codes)
    retries = attempt.random.randint(0, 1)
    with opened(str(path), attempt.random, retries=retries) as dataset:
        with injected(Fault(calls, file, error=code), cold(path)) as acted:
            try:
                read_epoch(dataset)
            except StoreReadError as error:
                check_names(error, path, file)
                check_errno(error, code)
            else:
                raise UnspecifiedError("a file that cannot be read gave an epoch")
        check_injected(acted[0])
        tried = dataset.stats().retries
        if tried and (code in LASTING or retries == 0):
            raise UnspecifiedError(f"tried {tried} times again after {errno.errorcode[code]}, retries = {retries}")
        check_right(dataset)
    return f"error {errno.errorcode[code]}"


def passes(attempt: Try) -> str:
    """Let some opens or reads fail once or twice in a row, with errors that may pass."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    file = attempt.random.choice(chunk_files(path))
    calls = attempt.random.choice((Calls.OPEN, Calls.READ))
    times = attempt.random.randint(1, 2)
    fault = Fault(calls, file, error=attempt.random.choice(PASSING), times=times)
    with opened(str(path), attempt.random, retries=times) as dataset:
        with injected(fault, cold(path)) as acted:
            check_right(dataset)
        if acted[0] != times:
            raise UnspecifiedError(f"{acted[0]} faults were injected, must be {times}")
        # The first open may be that of a decode thread, which leaves the file to a fetch thread when it fails.
        if not times - (calls == Calls.OPEN) <= dataset.stats().retries <= times:
            raise UnspecifiedError(f"{dataset.stats().retries} retries are counted of {times}")
    return "right"


@contextlib.contextmanager
def _descriptors(free: int) -> Iterator[None]:
    """Let the process open no more than so many further files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = list(open_files())
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(max(used) + 1 - len(used))]  # no gaps below the highest
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max([*used, *held]) + 1 + free, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


def descriptors_end(attempt: Try) -> str:
    """Take the process its descriptors, really."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    free = attempt.random.randint(0, 6)
    with opened(str(path), attempt.random, retries=1) as dataset:
        outcome = "right"
        with injected(*[cold(path)] * attempt.random.randint(0, 1)), _descriptors(free):
            try:
                check_right(dataset)
            except StoreReadError as error:
                check_errno(error, errno.EMFILE)
                if str(path) not in str(error):
                    raise UnspecifiedError(f"the error names not the array: {error!r}") from error
                outcome = "error, then right"
        check_right(dataset)
    return outcome


def short_reads(attempt: Try) -> str:
    """Let reads return a part of what was asked for."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    fault = Fault(
        Calls.READ | Calls.READ_CACHED,
        path,
        most_bytes=attempt.random.choice((1, 7, 100, 400)),
        chance=attempt.random.choice((0.5, 1.0)),
        seed=attempt.number,
    )
    with opened(str(path), attempt.random) as dataset:
        is_cold = [cold(path)] * attempt.random.randint(0, 1)
        with injected(*is_cold, fault) as acted:
            check_right(dataset)
        check_injected(acted[len(is_cold)])
    return "right"


def interrupted(attempt: Try) -> str:
    """Let most opens and reads be interrupted by signals, in the middle of a file too."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    calls = Calls.OPEN | Calls.READ | Calls.READ_CACHED
    chance = attempt.random.choice((0.5, 0.9, 0.98))
    storm = Fault(calls, path, error=errno.EINTR, chance=chance, seed=attempt.number)
    pieces = Fault(Calls.READ | Calls.READ_CACHED, path, most_bytes=attempt.random.choice((0, 200)))
    with opened(str(path), attempt.random) as dataset:
        with injected(storm, *[cold(path)] * attempt.random.randint(0, 1), pieces) as acted:
            check_right(dataset)
        check_injected(acted[0])
    return "right"


def unlinked(attempt: Try) -> str:
    """Remove files between open and read, as another process may; the next epoch misses them."""
    layout = attempt.random.choice(sorted(LAYOUTS))
    path = copied(attempt, layout)
    removed: set[Path] = set()

    def remove(file: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
        removed.add(file)

    # One lane, and cold: so that no chunk is opened a second time, to be read by two lanes or by another thread.
    fault = Fault(Calls.READ, path / "c", chance=0.3, seed=attempt.number, hook=remove)
    with opened(str(path), attempt.random, lanes=1) as dataset:
        with injected(fault, cold(path)) as acted:
            epoch = read_epoch(dataset)
        check_injected(acted[0])
        gone = np.logical_or.reduce([epoch.lies_in(file, layout) for file in removed])
        # A shard is opened for each chunk of it: it may be gone from the second one on.
        in_shards = gone & epoch.is_fill() if "shards" in LAYOUTS[layout] else gone & False
        epoch.must(epoch.is_of(0) | in_shards, "right")
        epoch = read_epoch(dataset)
        gone = np.logical_or.reduce([epoch.lies_in(file, layout) for file in removed])
        epoch.must((gone & epoch.is_fill()) | (~gone & epoch.is_of(0)), "right, or fill values where the chunk is gone")
    with opened(str(path), attempt.random, missing="raise") as dataset:
        try:
            read_epoch(dataset)
        except StoreReadError as error:
            check_errno(error, errno.ENOENT)
            if not any(file.relative_to(path).as_posix() in str(error) for file in removed):
                raise UnspecifiedError(f"the error names none of {removed}: {error!r}") from error
        else:
            raise UnspecifiedError("no error for a missing chunk")
    return "right, then fill values"


def slow(attempt: Try) -> str:
    """Let some opens and reads take 20 ms."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    fault = Fault(Calls.OPEN | Calls.READ, path, stall_ms=20, times=5, chance=0.2, seed=attempt.number)
    with opened(str(path), attempt.random, timeout=20) as dataset:
        with injected(fault, cold(path)) as acted:
            check_right(dataset)
        check_injected(acted[0])
    return "right"


def hangs(attempt: Try) -> str:
    """Let an open or a read not return; read on while it hangs, or after; then let it return, and its thread end."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    file = attempt.random.choice(chunk_files(path))
    calls = attempt.random.choice((Calls.OPEN, Calls.READ))
    hung = Fault(calls, file, stall_ms=60_000, times=attempt.random.choice((1, -1)))
    threads = len(thread_ids())
    with opened(str(path), attempt.random, timeout=TIMEOUT_S) as dataset:
        with injected(hung, cold(path)) as acted:
            watch = Stopwatch()
            try:
                read_epoch(dataset)
            except StoreReadError as error:
                watch.check(TIMEOUT_S + 2)
                check_names(error, path, file)
                check_errno(error, errno.ETIMEDOUT)
            else:
                raise UnspecifiedError("a read that does not return gave an epoch")
            check_injected(acted[0])
            if hung.times == 1 and attempt.random.random() < 0.5:
                check_right(dataset)
            if attempt.random.random() < 0.5:
                dataset.close()
        if not dataset.session.closed:
            check_right(dataset)
    give_up = time.monotonic() + 10
    while len(thread_ids()) > threads:
        if time.monotonic() > give_up:
            raise UnspecifiedError(f"{len(thread_ids())} threads are left, {threads} were there before")
        time.sleep(0.001)
    return "error, then right"


_ERROR = "StoreReadError with this errno that names array and chunk; without the fault the same dataset reads on, right"

ROWS = (
    Row(
        "fails",
        "opens of a chunk fail for ever, or reads of it",
        "StoreReadError with this errno that names array and chunk; retried only if it may pass; without the fault "
        "the same dataset reads on, right",
        fails,
        300,
        variables=preloaded,
    ),
    Row(
        "passes",
        "opens or reads fail with such errors once or twice",
        "every batch right, as many retries counted, but for a first open that is left to a fetch thread",
        passes,
        200,
        variables=preloaded,
    ),
    Row(
        "no-descriptors",
        "the process has 0 to 6 descriptors left (`RLIMIT_NOFILE`)",
        "right, or StoreReadError with EMFILE that names the array; afterwards right",
        descriptors_end,
        200,
        variables=preloaded,
    ),
    Row(
        "short-reads",
        "reads return 1 byte to a part of what was asked for",
        "every batch right",
        short_reads,
        300,
        variables=preloaded,
    ),
    Row(
        "EINTR",
        "50% to 98% of opens and reads fail with EINTR, in the middle of files too",
        "every batch right",
        interrupted,
        300,
        variables=preloaded,
    ),
    Row(
        "unlinked",
        "chunks are removed between open and read",
        "the epoch right (a shard from its next chunk on fill values); the next one fill values for them alone, or "
        'StoreReadError with ENOENT for `missing="raise"`',
        unlinked,
        300,
        variables=preloaded,
    ),
    Row("slow-reads", "opens and reads take 20 ms", "every batch right", slow, 200, 2, variables=preloaded),
    Row(
        "hangs",
        "an open or a read does not return",
        "StoreReadError with ETIMEDOUT that names array and chunk, within `timeout` (1 s) + 2 s; the same dataset "
        "reads on, right, while it hangs and after; no thread is left when it returns",
        hangs,
        60,
        2,
        variables=preloaded,
    ),
)
