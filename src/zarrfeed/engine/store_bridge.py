"""Chunks of stores that only Python can read, for an engine that asks for them.

The engine posts requests. Two things can serve them. If a field lies in an object store of obstore, threads take the
requests (`fetch_threads.py`) and leave errors and other fields to zarr-python's event loop. If no field does, the
event loop serves all requests: the engine's pipe becomes readable, the loop takes many requests at once, runs
`Store.get` for each request as a task, and hands the bytes back many at a time. The bytes are not copied: they stay
here until the engine says that it decoded them. No thread of the engine ever takes the GIL. The engine finds the inner
chunks of shards: it asks for parts of objects, and says which parts are read together.

Invariants: a request id is never used twice, so an answer that comes too late is for nobody; a request is answered
once; the bytes of an answer stay alive until the engine is done with them or was stopped; a `StoreBridge` in a forked
child touches neither the loop nor the engine, which are its parent's.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Coroutine, Mapping
from typing import Any

import numpy.typing as npt
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import cpu

from zarrfeed.base.errors import ConfigError, CorruptChunkError, StoreReadError
from zarrfeed.engine.fetch_threads import FetchThreads, Flight, Request, RequestedRange, RequestQueue, wait_for_threads
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.access.retry import FailedAttempt
from zarrfeed.storage.access.store_errors import errno_of, is_transient, reason_of
from zarrfeed.storage.access.zarr_internals import sync
from zarrfeed.storage.chunks.blocking_reads import blocking_reads
from zarrfeed.storage.chunks.chunk_reader import ChunkReader, ReadFailure, span_of, split_ranges
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.zarr_decoder import ChunkDecoder

_DEFAULT_POLICY = Faults()
#: Seconds that `stop` waits for the store to give up its requests: a store that blocks the loop must not block us.
_TIMEOUT_S = 1.0
#: Seconds that the interpreter waits, before it ends, for threads that a store blocks.
_TIMEOUT_AT_EXIT_S = 5.0
#: Seconds between two searches for late requests.
_LOOK_S = 0.025


class StoreBridge:
    """Answers the requests of one engine, from the start of an epoch to its end.

    Parameters
    ----------
    engine
        The engine; whoever starts it calls `start` here next, and `stop_engine` in the end.
    sources
        Number of the field -> the source of its chunks.
    max_decodes
        Chunks that zarr-python decodes at once, where it does.
    policy
        The error policy: number of retries of a read, and whether the engine goes on after errors.
    caches_all
        If True, all reads go through the node cache here. The engine reads its own chunks through its own cache.
    """

    def __init__(
        self,
        engine: RequestQueue,
        sources: Mapping[int, StoreSource],
        *,
        max_decodes: int = 1,
        policy: Faults = _DEFAULT_POLICY,
        caches_all: bool = False,
    ) -> None:
        self._engine = engine
        self.caches_all = caches_all
        self.policy = policy
        self._max_decodes = max_decodes
        self._sources = {n: source.reopened() if source.is_forked else source for n, source in sources.items()}
        self._sessions: list[_Session] = []
        self._pid = os.getpid()
        self.failure: tuple[str, BaseException] | None = None
        self.counts = ReadCounts()

    def start(self) -> None:
        """Begin to answer. The engine was started before."""
        self.stop()
        self.failure = None
        if not self._sources:
            return
        session = _Session(self, self._engine, self._sources, self._max_decodes)
        self._sessions.append(session)
        _live.add(self)
        try:
            sync(session.open())
        except ConfigError:
            raise
        except Exception as error:
            raise StoreReadError(errno_of(error), f"the store cannot be opened: {reason_of(error)}") from error

    def stop(self) -> None:
        """Give up requests under way, and drop the bytes of answers, after the engine was stopped; by any thread."""
        for session in list(self._sessions):
            if os.getpid() == self._pid:
                session.close()
            else:
                session.abandon()
            with contextlib.suppress(ValueError):  # another thread did it, too
                self._sessions.remove(session)  # not before: an interrupt may come in between

    def stop_engine(self) -> None:
        """Stop the engine, whose threads may still read the bytes of answers, and then this."""
        self._engine.stop()
        self.stop()

    @property
    def concurrency(self) -> int:
        """Number of requests to far stores that may be under way at once now."""
        limiters = (source.limiter for source in self._sources.values() if source.is_far)
        return sum({id(limiter): limiter.limit for limiter in limiters if limiter is not None}.values())

    def explain(self, error: StoreReadError | CorruptChunkError) -> None:
        """Attach the store's own exception to the error that the engine made of it."""
        if self.failure is not None and self.failure[0] in str(error):
            error.__cause__ = self.failure[1]


class _Session:
    """One epoch. But for `close`, `abandon` and `_leave`, everything runs on zarr-python's event loop."""

    def __init__(
        self,
        bridge: StoreBridge,
        engine: RequestQueue,
        sources: Mapping[int, StoreSource],
        max_decodes: int,
    ) -> None:
        self._bridge = weakref.ref(bridge)
        self._engine = engine
        self._counts = bridge.counts
        self._policy = bridge.policy
        self._readers = {
            n: ChunkReader(source, bridge.policy, bridge.counts, is_watched=True, caches_all=bridge.caches_all)
            for n, source in sources.items()
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._tasks: set[asyncio.Task[Any]] = set()
        self._provided: dict[int, npt.NDArray[Any]] = {}
        self._answers: list[tuple[int, npt.NDArray[Any] | None]] = []
        self._decoding = asyncio.Semaphore(max_decodes)
        self._given_up = False
        self._closing = False
        self._idle = threading.Event()
        self._threads: FetchThreads | None = None
        by_threads = {} if bridge.caches_all else sources  # the node cache is read on the loop
        self._reads = {n: reads for n, source in by_threads.items() if (reads := blocking_reads(source)) is not None}

    async def open(self) -> None:
        """Watch for requests."""
        for reader in self._readers.values():
            await reader.source.open()
        self._loop = asyncio.get_running_loop()
        if self._given_up:  # by whoever waited for this, and was interrupted
            self._closing = True
            self._idle.set()
            return
        if self._reads:
            self._threads = FetchThreads(self._engine, self._reads, self._provided, self._counts, self._leave)
            self._threads.start()
            self._look_for_late(self._threads)
            return
        # A descriptor of our own: the engine may be gone before the loop stops to watch it.
        self._descriptor = os.dup(self._engine.request_descriptor())
        self._loop.add_reader(self._descriptor, self._serve)

    def close(self) -> None:
        """End the session, from any thread. Afterwards nothing of it is on the loop, unless the store holds it up."""
        self._given_up = True  # before the loop is looked for, as `open` looks for it after the loop is there
        if self._threads is not None:
            self._threads.close(_TIMEOUT_S)
        loop = self._loop
        if loop is None:
            return
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:
            here = False
        if here:  # the garbage collector may call a finalizer on any thread
            self._shut_down()
            return
        try:
            loop.call_soon_threadsafe(self._shut_down)
        except RuntimeError:  # the loop is closed: the interpreter is about to exit
            self._forget()
            return
        self._idle.wait(_TIMEOUT_S)

    def abandon(self) -> None:
        """Let go of the requests that a forked child inherited, without a word to the parent's loop."""
        for task in self._tasks:
            # The task never completes in this process, and asyncio would print a complaint when it is collected.
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - asyncio has no public switch
        self._forget()

    def _shut_down(self) -> None:
        if self._closing:
            return
        self._closing = True
        assert self._loop is not None
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
        for task in self._tasks:
            task.cancel()
        self._forget()
        if not self._tasks:
            self._idle.set()

    def _forget(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._provided.clear()
        self._answers.clear()
        self._readers.clear()

    def _serve(self) -> None:
        if self._closing:
            return
        requests, finished = self._engine.take_requests()
        for request_id in finished:
            self._provided.pop(request_id, None)
        for request in requests:
            self._serve_one(request)

    def _serve_one(self, request: Request, failed: FailedAttempt | None = None) -> None:
        if self._closing:
            return
        number, key, is_index, parts = request
        reader = self._readers[number]
        self._spawn(
            self._fetch_index(reader, key, parts[0], failed) if is_index else self._fetch(reader, key, parts, failed)
        )

    def _leave(self, request: Request, failed: FailedAttempt | None) -> None:
        """Serve a request on the loop that a thread left: an error, or a field that needs the loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: the interpreter is about to exit
            self._loop.call_soon_threadsafe(self._serve_one, request, failed)

    def _look_for_late(self, threads: FetchThreads) -> None:
        if self._closing:
            return
        for flight in threads.take_late():
            self._spawn(self._hedge(threads, flight))
        assert self._loop is not None
        self._loop.call_later(_LOOK_S, self._look_for_late, threads)

    async def _hedge(self, threads: FetchThreads, flight: Flight) -> None:
        """Make a late request a second time. The first answer counts; errors are those of the first request."""
        number, key, _, parts = flight.request
        spans = [part[1:] for part in parts]
        self._counts.on_request()
        self._counts.hedges += 1
        try:
            source = self._readers[number].source
            found = split_ranges(spans, await source.get(key, _byte_range(*span_of(spans)), at_once=True))
        except Exception:  # noqa: BLE001 (of any class: a store is anybody's code)
            return
        is_good = not any(isinstance(data, CorruptChunkError) for data in found)
        if is_good and threads.leave_behind(flight):
            self._counts.hedges_won += 1
            for part, data in zip(parts, found, strict=True):
                assert not isinstance(data, CorruptChunkError)
                self._answer(part[0], data)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._drop)
        return task

    def _drop(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # so that asyncio does not complain that nobody asked
        if self._closing and not self._tasks:
            self._idle.set()

    async def _fetch_index(
        self, reader: ChunkReader, key: str, part: RequestedRange, failed: FailedAttempt | None
    ) -> None:
        request_id, begin, end = part
        try:
            stored = await reader.get(key, _byte_range(begin, end), failed)
        except BaseException as error:  # noqa: BLE001 (`_fail` passes it on)
            self._fail(request_id, error)
        else:
            self._answer(request_id, stored)  # of any size: the engine reports a wrong one

    async def _fetch(
        self, reader: ChunkReader, key: str, parts: list[RequestedRange], failed: FailedAttempt | None = None
    ) -> None:
        try:
            found = await reader.get_ranges(key, [(begin, end) for _, begin, end in parts], failed)
        except BaseException as error:  # noqa: BLE001 (`_fail` passes it on)
            is_lasting = isinstance(error, Exception) and not is_transient(error)
            if (self._policy.skips or is_lasting) and len(parts) > 1 and not self._closing:
                # Read each range alone: a range is bad or good, whatever other ranges were asked for with it. A store
                # that did not answer any of several requests would only delay the error.
                for part in parts:
                    self._spawn(self._fetch(reader, key, [part]))
            else:
                for request_id, _, _ in parts:
                    self._fail(request_id, error)
            return
        decoder = reader.source.decoder
        for part, data in zip(parts, found, strict=True):
            if self._closing:
                return
            request_id = part[0]
            if isinstance(data, CorruptChunkError) and len(parts) > 1:
                self._spawn(self._fetch(reader, key, [part]))
            elif isinstance(data, CorruptChunkError):
                self._fail(request_id, data)
            elif decoder is None or data is None:
                self._answer(request_id, data)
            else:
                self._spawn(self._decode_and_answer(decoder, request_id, data))

    async def _decode_and_answer(self, decoder: ChunkDecoder, request_id: int, data: npt.NDArray[Any]) -> None:
        try:
            decoded = await self._decode(decoder, data)
        except BaseException as error:  # noqa: BLE001 (`_fail` passes it on)
            self._fail(request_id, error)
        else:
            self._answer(request_id, decoded)

    async def _decode(self, decoder: ChunkDecoder, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a chunk as the engine takes it."""
        begin = time.perf_counter()
        try:
            async with self._decoding:
                return await decoder.decode(cpu.Buffer.from_array_like(data))
        finally:
            self._counts.decode_s += time.perf_counter() - begin

    def _answer(self, request_id: int, data: npt.NDArray[Any] | None) -> None:
        if self._closing:
            return
        if data is not None:
            self._provided[request_id] = data
        self._answers.append((request_id, data))
        if len(self._answers) == 1:  # later answers in this turn of the loop go with it
            assert self._loop is not None
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        answers, self._answers = self._answers, []
        if answers and not self._closing:
            self._engine.answer(answers)

    def _fail(self, request_id: int, error: BaseException) -> None:
        """Report an error of any class: user code may raise anything, and an unreported error would be a hang.

        An interrupt that leaves a task ends the loop, which is not ours; only a cancellation is passed on.
        """
        if self._closing:
            if isinstance(error, asyncio.CancelledError):
                raise error
            return
        found = ReadFailure.of(error)
        bridge = self._bridge()
        if bridge is not None and bridge.failure is None:
            bridge.failure = (found.text, found.cause)
        if found.is_corrupt:
            self._engine.refuse_corrupt(request_id, found.text)
        else:
            self._engine.refuse(request_id, found.text, found.errno_value)


def _byte_range(begin: int, end: int | None) -> ByteRequest | None:
    """Return a range as zarr-python asks a store for it: (0, None) is the whole object, (-n, None) its last n bytes."""
    if end is not None:
        return RangeByteRequest(begin, end)
    return SuffixByteRequest(-begin) if begin else None


_live: weakref.WeakSet[StoreBridge] = weakref.WeakSet()


def _stop_all() -> None:
    """Cancel all tasks at exit, before zarr-python closes its event loop.

    asyncio prints a complaint on stderr for each task that is still pending when its loop is closed.
    """
    for bridge in list(_live):
        bridge.stop_engine()
    wait_for_threads(_TIMEOUT_AT_EXIT_S)


# atexit runs the function that was registered last first. zarr-python registered its own when it was imported, earlier.
atexit.register(_stop_all)
