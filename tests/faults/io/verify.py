"""Rows of `verify`: files and objects of other stores that fail, for a while or for ever, and that do not answer."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io import common
from tests.faults.io.common import (
    LAYOUTS,
    SAMPLES,
    TIMEOUT_S,
    Stopwatch,
    check_injected,
    chunk_files,
    samples_of,
    stored,
)
from tests.faults.io.local import PASSING, cold
from tests.faults.io.shim import Calls, Fault, injected, preloaded
from tests.faults.io.store import PASSING as PASSING_OF_STORES
from tests.faults.io.store import Answer, FaultyStore, in_memory
from tests.support.proc import thread_ids
from zarrfeed import verify
from zarrfeed.tools.verify import VerifyReport

#: Read chunks of every array.
_CHUNKS = SAMPLES // common.ROWS


def _check_counts(report: VerifyReport, bad: int) -> None:
    (array,) = report.arrays
    counts = (array.chunks, array.good, array.missing, array.bad, array.problem)
    if counts != (_CHUNKS, _CHUNKS - bad, 0, bad, ""):
        raise UnspecifiedError(f"chunks, good, missing, bad and problem are {counts}, {bad} of {_CHUNKS} must be bad")


def _check_findings(report: VerifyReport, key: str, bad: int, message: str) -> None:
    """Raise UnspecifiedError unless these chunks of the file or object are unreadable, and no others."""
    _check_counts(report, bad)
    for finding in report.findings:
        if (finding.key, finding.cause) != (key, "unreadable") or message not in finding.message:
            raise UnspecifiedError(f"{finding}, must be unreadable, of {key}, with {message!r}")
    if sum(finding.chunks for finding in report.findings) != bad:
        raise UnspecifiedError(f"{report.findings} are not of {bad} chunks")


def _chunks_of(file: Path, layout: str) -> int:
    return len(samples_of(file, layout)) // common.ROWS


def passes(attempt: Try) -> str:
    """Let some opens or reads fail once or twice in a row, with errors that may pass."""
    path = stored(attempt.shared, attempt.random.choice(sorted(LAYOUTS)))
    file = attempt.random.choice(chunk_files(path))
    times = attempt.random.randint(1, 2)
    calls = attempt.random.choice((Calls.OPEN, Calls.READ))
    fault = Fault(calls, file, error=attempt.random.choice(PASSING), times=times)
    with injected(fault, cold(path)) as acted:
        report = verify(path, num_threads=attempt.random.randint(1, 4), retries=times)
    if acted[0] != times:
        raise UnspecifiedError(f"{acted[0]} faults were injected, must be {times}")
    _check_counts(report, 0)
    return "good"


def fails(attempt: Try) -> str:
    """Let opens of one file fail for ever; then check it after all."""
    layout = attempt.random.choice(sorted(LAYOUTS))
    path = stored(attempt.shared, layout)
    file = attempt.random.choice(chunk_files(path))
    code = attempt.random.choice((errno.EIO, errno.ESTALE, errno.EACCES))
    retries = attempt.random.randint(0, 1)
    with injected(Fault(Calls.OPEN, file, error=code), cold(path)) as acted:
        report = verify(path, num_threads=attempt.random.randint(1, 4), retries=retries)
    check_injected(acted[0])
    _check_findings(report, file.relative_to(path).as_posix(), _chunks_of(file, layout), os.strerror(code))
    _check_counts(verify(path), 0)
    return f"error {errno.errorcode[code]}"


def hangs(attempt: Try) -> str:
    """Let the first open or read of a file not return; the others are checked while it hangs."""
    layout = attempt.random.choice(sorted(LAYOUTS))
    path = stored(attempt.shared, layout)
    file = attempt.random.choice(chunk_files(path))
    calls = attempt.random.choice((Calls.OPEN, Calls.READ))
    times = attempt.random.choice((1, -1))
    threads = len(thread_ids())
    with injected(Fault(calls, file, stall_ms=60_000, times=times), cold(path)) as acted:
        watch = Stopwatch()
        report = verify(path, num_threads=attempt.random.randint(1, 4), timeout=TIMEOUT_S)
        watch.check(TIMEOUT_S + 2)
        check_injected(acted[0])
        # Of a shard whose index does not come, all chunks are one finding.
        message = f"did not answer within {TIMEOUT_S:g} s (timeout)"
        _check_findings(report, file.relative_to(path).as_posix(), _chunks_of(file, layout), message)
        if times == 1:
            _check_counts(verify(path, timeout=TIMEOUT_S), 0)
    give_up = time.monotonic() + 10
    while len(thread_ids()) > threads:
        if time.monotonic() > give_up:
            raise UnspecifiedError(f"{len(thread_ids())} threads are left, {threads} were there before")
        time.sleep(0.001)
    return "error"


def _faulty_store(attempt: Try, answer: Answer, times: int, skip: int) -> tuple[FaultyStore, str, int]:
    """Return a store, the key of its bad object, and the chunks in that."""
    layout = attempt.random.choice(sorted(LAYOUTS))
    path = stored(attempt.shared, layout)
    file = attempt.random.choice(chunk_files(path))
    store = FaultyStore(LocalStore(path, read_only=True) if attempt.random.random() < 0.5 else in_memory(path))
    key = file.relative_to(path).as_posix()
    store.keys, store.answer, store.times = {key}, answer, times
    store.skip = skip if "shards" in LAYOUTS[layout] else 0  # its index, or what lies in it
    return store, key, _chunks_of(file, layout)


def store_passes(attempt: Try) -> str:
    """Let the store raise once or twice in a row, with errors that may pass."""
    name, make = attempt.random.choice(sorted(PASSING_OF_STORES.items()))
    times = attempt.random.randint(1, 2)

    async def answer(_: Buffer | None) -> Buffer | None:
        raise make()

    store, _, _ = _faulty_store(attempt, answer, times, attempt.random.randint(0, 1))
    report = verify(store, num_threads=attempt.random.randint(1, 4), retries=times)
    if store.acted != times:
        raise UnspecifiedError(f"{store.acted} answers were {name}, must be {times}")
    _check_counts(report, 0)
    return "good"


def store_hangs(attempt: Try) -> str:
    """Let the store not answer for one object; the others are checked while it hangs."""

    async def answer(_: Buffer | None) -> Buffer | None:
        await asyncio.Event().wait()
        return None

    store, key, bad = _faulty_store(attempt, answer, -1, 0)
    watch = Stopwatch()
    report = verify(store, num_threads=attempt.random.randint(1, 4), timeout=TIMEOUT_S)
    watch.check(TIMEOUT_S + 2)
    check_injected(store.acted)
    _check_findings(report, key, bad, f"did not answer within {TIMEOUT_S:g} s (timeout)")
    store.answer = None
    _check_counts(verify(store, timeout=TIMEOUT_S), 0)
    return "error"


ROWS = (
    Row(
        "verify-store-passes",
        "`verify` of a store that Python reads: `get` raises once or twice, with errors that may pass",
        "every chunk good",
        store_passes,
        100,
    ),
    Row(
        "verify-store-hangs",
        "`verify` of a store that Python reads: `get` of an object does not return",
        "its chunks unreadable after `timeout` (1 s), all others good",
        store_hangs,
        30,
        2,
    ),
    Row(
        "verify-passes",
        "`verify`: opens or reads of a file fail once or twice, with errors that may pass",
        "every chunk good",
        passes,
        100,
        variables=preloaded,
    ),
    Row(
        "verify-fails",
        "`verify`: opens of a file fail for ever",
        "its chunks unreadable with this error, all others good; without the fault all are good",
        fails,
        100,
        variables=preloaded,
    ),
    Row(
        "verify-hangs",
        "`verify`: an open or a read of a file does not return",
        "its chunks unreadable after `timeout` (1 s), all others good; no thread is left when it returns",
        hangs,
        30,
        2,
        variables=preloaded,
    ),
)
