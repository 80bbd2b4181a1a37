"""Rows of stores that Python reads: what their `get` raises, cuts off or holds up."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import zarr
from zarr.abc.buffer import Buffer
from zarr.abc.store import Store
from zarr.buffer import cpu
from zarr.storage import LocalStore, MemoryStore, WrapperStore

from tests.faults.harness.row import Row, Try, UnspecifiedError
from tests.faults.io.common import (
    LAYOUTS,
    TIMEOUT_S,
    Stopwatch,
    check_errno,
    check_injected,
    check_right,
    chunk_files,
    opened,
    read_epoch,
    stored,
)
from zarrfeed import CorruptChunkError, StoreReadError

#: What becomes of an answer: given the bytes, or None, it returns what the store returns, or raises.
Answer = Callable[[Buffer | None], Awaitable[Buffer | None]]


class ClientError(Exception):
    """What a client of some store might raise: of no class that anybody else knows."""


#: Name -> what a store may raise. Those of the first may pass.
PASSING: dict[str, Callable[[], BaseException]] = {
    "EIO": lambda: OSError(errno.EIO, "Input/output error"),
    "OSError": lambda: OSError("without a number"),
    "ConnectionResetError": lambda: ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "ConnectionError": lambda: ConnectionError("without a number"),
    "TimeoutError": TimeoutError,
    "ClientError": lambda: ClientError("503 Slow Down"),
}
LASTING: dict[str, Callable[[], BaseException]] = {
    "PermissionError": lambda: PermissionError(errno.EACCES, "Permission denied"),
    "ValueError": lambda: ValueError("wrong"),
    "CancelledError": asyncio.CancelledError,
}


class FaultyStore(WrapperStore[Store]):
    """A store some keys of which are answered in another way: `times`, after `skip` right answers; -1: for ever."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.keys: set[str] = set()
        self.skip = 0
        self.times = 0
        self.acted = 0
        self.answer: Answer | None = None

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Buffer | None:
        """Return what the store has, or what `answer` makes of it."""
        found = await super().get(key, prototype, byte_range)
        if self.answer is None or key not in self.keys or self.acted == self.times:
            return found
        if self.skip > 0:
            self.skip -= 1
            return found
        self.acted += 1
        return await self.answer(found)


def in_memory(path: Path) -> MemoryStore:
    """Return a copy of a local store in memory."""
    files = [file for file in path.rglob("*") if file.is_file()]
    objects: dict[str, Buffer] = {
        file.relative_to(path).as_posix(): cpu.Buffer.from_bytes(file.read_bytes()) for file in files
    }
    return MemoryStore(objects, read_only=True)


def _faulty(attempt: Try, answer: Answer, times: int = -1) -> tuple[FaultyStore, zarr.Array[Any]]:
    """Return a store with a bad key, and the array at its root."""
    layout = attempt.random.choice(sorted(LAYOUTS))
    path = stored(attempt.shared, layout)
    store = FaultyStore(LocalStore(path, read_only=True) if attempt.random.random() < 0.5 else in_memory(path))
    store.keys = {attempt.random.choice(chunk_files(path)).relative_to(path).as_posix()}
    store.skip = attempt.random.randint(0, 1) if "shards" in LAYOUTS[layout] else 0  # its index, or a chunk in it
    store.times, store.answer = times, answer
    return store, zarr.open_array(store, mode="r")


def _check_names(error: Exception, store: FaultyStore) -> None:
    names = [f"{store} {what} {key}{end}" for what in ("chunk", "shard") for key in store.keys for end in (":", " ")]
    if not any(name in str(error) for name in names):
        raise UnspecifiedError(f"the error names not {store} and {store.keys}: {error!r}")


def raises(attempt: Try) -> str:
    """Let `get` raise, once, twice or for ever."""
    name, make = attempt.random.choice(sorted((PASSING | LASTING).items()))
    retries, times = attempt.random.randint(0, 2), attempt.random.choice((1, 1, 2, -1))
    raised: list[BaseException] = []

    async def answer(_: Buffer | None) -> Buffer | None:
        raised.append(make())
        raise raised[-1]

    store, array = _faulty(attempt, answer, times)
    passes = name in PASSING and 0 < times <= retries
    with opened(array, attempt.random, retries=retries) as dataset:
        try:
            check_right(dataset)
        except StoreReadError as error:
            _check_names(error, store)
            unnamed = errno.ETIMEDOUT if isinstance(raised[-1], TimeoutError) else errno.EIO
            check_errno(error, getattr(raised[-1], "errno", None) or unnamed)
            if passes or error.__cause__ not in raised:
                raise UnspecifiedError(f"{name} {times} times, retries = {retries}: {error!r}") from error
        else:
            if not passes or dataset.stats().retries != times:
                raise UnspecifiedError(f"{name} {times} times, retries = {retries}, {dataset.stats().retries} counted")
        check_injected(store.acted)
        store.answer = None
        check_right(dataset)
    return "right" if passes else "error, then right"


def cut(attempt: Try) -> str:
    """Let `get` return a part of what was asked for, for ever."""
    share = attempt.random.random()

    async def answer(found: Buffer | None) -> Buffer | None:
        assert found is not None
        return found[: int(share * len(found))]

    store, array = _faulty(attempt, answer)
    with opened(array, attempt.random) as dataset:
        try:
            read_epoch(dataset)
        except (CorruptChunkError, StoreReadError) as error:
            _check_names(error, store)
        else:
            raise UnspecifiedError("a part of a chunk gave an epoch")
        check_injected(store.acted)
        store.answer = None
        check_right(dataset)
    return "error, then right"


def stalls(attempt: Try) -> str:
    """Let `get` take its time: as a task, or by blocking the event loop, shorter or longer than the timeout."""
    is_late, blocks = attempt.random.random() < 0.7, attempt.random.random() < 0.2
    seconds = (1.5 * TIMEOUT_S if blocks else 60.0) if is_late else 0.02
    timeout_s = TIMEOUT_S if is_late else 20.0

    async def answer(found: Buffer | None) -> Buffer | None:
        if blocks:
            time.sleep(seconds)
        else:
            await asyncio.sleep(seconds)
        return found

    store, array = _faulty(attempt, answer, times=1)
    with opened(array, attempt.random, timeout=timeout_s) as dataset:
        watch = Stopwatch()
        try:
            check_right(dataset)
        except StoreReadError as error:
            watch.check(timeout_s + 2)
            check_errno(error, errno.ETIMEDOUT)
            if not blocks:  # then no other request is answered either
                _check_names(error, store)
            if not is_late:
                raise UnspecifiedError(f"{seconds} s of stalling, timeout = {timeout_s}: {error!r}") from error
        else:
            if is_late:
                raise UnspecifiedError(f"{seconds} s of stalling gave an epoch, timeout = {timeout_s}")
        check_injected(store.acted)
        check_right(dataset)
    return "error, then right" if is_late else "right"


ROWS = (
    Row(
        "store-raises",
        "`Store.get` raises OSError, ConnectionError, TimeoutError, PermissionError, ValueError, CancelledError or an "
        "exception of its own, once, twice or for ever",
        "right where it passes and there are `retries`, which are counted; else StoreReadError that names array and "
        "chunk, with the exception as its cause; then right",
        raises,
        300,
    ),
    Row(
        "store-cuts",
        "`Store.get` returns a part of what was asked for",
        "CorruptChunkError or StoreReadError that names array and chunk; then right",
        cut,
        300,
    ),
    Row(
        "store-stalls",
        "`Store.get` takes 20 ms; or longer than the timeout; or blocks the event loop for as long",
        "right, or StoreReadError with ETIMEDOUT that names array and chunk, within `timeout` (1 s) + 2 s; then right",
        stalls,
        60,
        2,
    ),
)
