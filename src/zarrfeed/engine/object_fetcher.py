"""Fetches objects by their number in a listing: many at once, large ones in ranges, decoded in threads.

Requests go through the store bridge: the same threads, limits, retries and hedged requests as those of chunks.

Invariants: each object that was asked for becomes `done` exactly once, with a value or an error, unless the epoch ends
before that. Its bytes are written before it is done, and by nobody afterwards. A decoder never runs in a thread that
fetches, so a slow decoder does not hold up requests. The ranges of an object are of one version of it: the store is
asked for the version before the first range, and after the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ClosedError, CorruptChunkError, StoreReadError, ZarrfeedError
from zarrfeed.engine.cache_stats import CacheStats
from zarrfeed.engine.fetch_threads import Request
from zarrfeed.engine.object_decoders import Decoder
from zarrfeed.engine.object_requests import Answer, ObjectRequests
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.store_bridge import StoreBridge
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.zarr_internals import event_loop
from zarrfeed.storage.chunks.chunk_reader import ReadFailure
from zarrfeed.storage.chunks.location import StoreSource
from zarrfeed.storage.chunks.object_versions import ObjectVersion, look_up
from zarrfeed.storage.objects.listing import Listing
from zarrfeed.storage.objects.object_source import ObjectSource

Bytes: TypeAlias = npt.NDArray[np.uint8]

#: Larger objects are fetched in ranges of this size: some 0.1 s of a fast connection, many times the latency.
_RANGE_BYTES = 16 << 20
#: Seconds after which a waiting thread looks again whether the store is silent.
_LOOK_S = 0.5
_THREADS_NAME = "zarrfeed-decode"


@dataclass(slots=True, eq=False)
class Fetched:
    """An object that was asked for.

    Attributes
    ----------
    sample
        The number of the object in the listing.
    key
        The key of the object, below the source.
    value
        The value that the decoder returned; without a decoder, the bytes: uint8 of shape (bytes,).
    error
        The error because of which there is no value.
    done
        True if there is a value or an error.
    parts_left
        Number of ranges that have not arrived.
    buffer
        Memory in which the ranges are put together.
    version
        The version of the object that the ranges belong to. None: it is not read in ranges, or the store tells none.
    stored_bytes, value_bytes
        Bytes as stored, and about as many as the value takes; 0 before they are known.
    """

    sample: int
    key: str
    value: Any = None
    error: ZarrfeedError | None = None
    done: bool = False
    parts_left: int = 1
    buffer: Bytes | None = None
    version: ObjectVersion | None = None
    stored_bytes: int = 0
    value_bytes: int = 0


@dataclass(slots=True)
class _Counts:
    """Counters of fetched objects; written under the fetcher's lock."""

    objects: int = 0
    stored_bytes: int = 0
    value_bytes: int = 0
    decode_s: float = 0.0
    answered_at: float = field(default_factory=time.monotonic)


class ObjectFetcher:
    """Fetches the objects of one listing.

    Parameters
    ----------
    source
        The name of the source in messages.
    stored
        The store of the objects.
    listing
        The keys of the objects.
    decoder
        Called with the bytes and the key; None: the bytes are the value.
    num_threads
        Number of threads that decode.
    policy
        The error policy: number of retries of a read, and the longest silence of the store.
    """

    def __init__(
        self,
        source: ObjectSource,
        stored: StoreSource,
        listing: Listing,
        decoder: Decoder | None,
        *,
        num_threads: int,
        policy: Faults,
    ) -> None:
        self._source = source
        self._stored = stored
        self._listing = listing
        self._decoder = decoder
        self._num_threads = num_threads
        self._policy = policy
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pending: dict[int, tuple[Fetched, int]] = {}  # request id -> object, first byte of the range
        self._counts = _Counts()
        self._requests = ObjectRequests(self._on_answer)
        caches = stored.cached is not None and stored.cached.versions is not None
        self._bridge = StoreBridge(self._requests, {0: stored}, policy=policy, caches_all=caches)
        self._awaited: set[Fetched] = set()  # whoever waits is woken when the last of them is done
        self._threads: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: set[Future[None]] = set()  # tasks that ask for versions
        self._epoch = 0

    def open(self) -> None:
        """Begin an epoch.

        Raises
        ------
        StoreReadError
            If the store cannot be opened.
        ConfigError
            If the store does not work in a forked process.
        """
        self._bridge.start()
        self._loop = event_loop()
        if self._decoder is not None:
            self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix=_THREADS_NAME)

    def close(self) -> None:
        """End the epoch: nothing is fetched any more, and threads that decode have ended."""
        self._bridge.stop_engine()
        with self._lock:
            self._epoch += 1
            self._pending.clear()
            looking = list(self._looking)
            self._changed.notify_all()
        for one in looking:
            one.cancel()
        threads, self._threads = self._threads, None
        if threads is not None:
            # The garbage collector may call on a thread that decodes, which cannot wait for itself.
            is_here = threading.current_thread().name.startswith(_THREADS_NAME)
            threads.shutdown(wait=not is_here, cancel_futures=True)

    def fetch(self, samples: Sequence[int] | npt.NDArray[np.int64], *, first: bool = False) -> list[Fetched]:
        """Ask for objects, by their numbers; with `first` before all that wait. `wait` waits for them."""
        objects: list[Fetched] = []
        large: list[Fetched] = []
        requests: list[Request] = []
        with self._lock:
            if not self._pending:
                self._counts.answered_at = time.monotonic()  # nobody waited for the store until now
            for sample in samples:
                one = Fetched(int(sample), self._listing.key(int(sample)))
                objects.append(one)
                if self._listing.sizes[one.sample] > 2 * _RANGE_BYTES:
                    large.append(one)
                else:
                    requests += self._requests_for(one, [(0, None)])
            epoch = self._epoch
        self._requests.post(requests, first=first)
        for one in large:
            self._look(self._ask_for_ranges(one, epoch))
        return objects

    def wait(self, objects: Sequence[Fetched]) -> None:
        """Wait until objects are done. One thread at a time waits.

        Raises
        ------
        StoreReadError
            If the store answers no request for as long as the timeout.
        ClosedError
            If another thread ends the epoch meanwhile.
        """
        with self._lock:
            epoch, self._awaited = self._epoch, {one for one in objects if not one.done}
            while self._awaited:
                begin = time.monotonic()
                self._changed.wait(_LOOK_S)
                stopped_s = time.monotonic() - begin - 2 * _LOOK_S
                self._counts.answered_at += max(0.0, stopped_s)  # the store may have answered while nobody ran
                if epoch != self._epoch:
                    raise ClosedError("this dataset was closed")
                silent_s = time.monotonic() - self._counts.answered_at
                if self._awaited and self._pending and silent_s > self._policy.timeout:
                    late, _ = self._pending[min(self._pending)]
                    what = f"the store did not answer within {self._policy.timeout:g} s (timeout)"
                    raise StoreReadError(errno.ETIMEDOUT, f"{self._source.named(late.key)}: {what}")

    @property
    def expansion(self) -> float:
        """Bytes of a value for each stored byte, as seen so far; at least 1."""
        counts = self._counts
        return max(1.0, counts.value_bytes / counts.stored_bytes) if counts.stored_bytes else 1.0

    @property
    def concurrency(self) -> int:
        """Number of requests that may be under way at once now."""
        return self._bridge.concurrency

    @property
    def decode_s(self) -> float:
        """Seconds that decoders took, summed over threads."""
        return self._counts.decode_s

    def stats(self) -> Stats:
        """Return the counters since this was made."""
        counts, reads = self._counts, self._bridge.counts
        cached = self._stored.cached
        troubles = () if cached is None or not cached.trouble() else (cached.trouble(),)
        return Stats(
            chunks_read=counts.objects,
            bytes_read=counts.stored_bytes,
            stored_bytes=counts.stored_bytes,
            chunk_bytes=counts.value_bytes,
            bytes_decoded=counts.value_bytes,
            decode_s=counts.decode_s,
            requests=reads.requests,
            retries=reads.retries,
            hedges=reads.hedges,
            hedges_won=reads.hedges_won,
            concurrency=self.concurrency,
            cache=CacheStats.of_python(reads.cache) + CacheStats(troubles=troubles),
        )

    def _requests_for(self, one: Fetched, spans: Sequence[tuple[int, int | None]]) -> list[Request]:
        """Return the requests for parts of an object; with the lock."""
        one.parts_left = len(spans)
        ids = self._requests.new_ids(len(spans))
        self._pending.update((request_id, (one, begin)) for request_id, (begin, _) in zip(ids, spans, strict=True))
        return [(0, one.key, False, [(i, *span)]) for i, span in zip(ids, spans, strict=True)]

    def _look(self, work: Coroutine[Any, Any, None]) -> None:
        """Ask the store which version an object has, such as its ETag, on zarr-python's event loop."""
        assert self._loop is not None
        try:
            looking = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop is closed: the interpreter is about to exit
            work.close()
            return
        with self._lock:
            self._looking.add(looking)
        looking.add_done_callback(self._looked)

    def _looked(self, looking: Future[None]) -> None:
        with self._lock:
            self._looking.discard(looking)
            self._counts.answered_at = time.monotonic()

    async def _ask_for_ranges(self, one: Fetched, epoch: int) -> None:
        """Ask for a large object, once it is known which version there is."""
        try:
            version = await look_up(self._source, one.key, self._policy)
        except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
            self._fail(one, error)
            return
        size = int(self._listing.sizes[one.sample]) if version is None else version.size
        with self._lock:
            if epoch != self._epoch:
                return
            one.version, one.stored_bytes = version, size
            ends = [min(size, begin + _RANGE_BYTES) for begin in range(0, max(1, size), _RANGE_BYTES)]
            requests = self._requests_for(one, list(zip([0, *ends], ends, strict=False)))
        self._requests.post(requests)

    async def _check_version(self, one: Fetched, data: Bytes) -> None:
        """Deliver an object that was read in ranges if it is still the same one."""
        try:
            now = await look_up(self._source, one.key, self._policy)
        except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
            self._fail(one, error)
            return
        if now != one.version:
            self._fail(one, StoreReadError(errno.EIO, "was replaced while its ranges were read"))
        else:
            self._deliver(one, data)

    def _on_answer(self, request_id: int, answer: Answer) -> None:
        """Take the answer to a request, on any thread."""
        with self._lock:
            found = self._pending.pop(request_id, None)
            self._counts.answered_at = time.monotonic()
            if found is None:
                return
            one, begin = found
            if one.done:  # another range of it failed
                return
            is_range = one.stored_bytes > 0
            if is_range and one.buffer is None:
                one.buffer = np.empty(one.stored_bytes, np.uint8)
            buffer = one.buffer
        if answer is None:
            answer = StoreReadError(errno.ENOENT, "is gone: it was deleted after it was listed")
        if not isinstance(answer, np.ndarray):
            self._fail(one, answer)
            return
        data = answer
        if buffer is not None:
            buffer[begin : begin + len(answer)] = answer
            with self._lock:
                one.parts_left -= 1
                if one.parts_left or one.done:
                    return
                one.buffer = None
            data = buffer
        one.stored_bytes = len(data)
        if one.version is None:
            self._deliver(one, data)
        else:
            self._look(self._check_version(one, data))

    def _deliver(self, one: Fetched, data: Bytes) -> None:
        """Decode an object, or hand its bytes out as they are."""
        threads = self._threads
        if self._decoder is None:
            self._finish(one, data, 0.0)
        elif threads is not None:
            with contextlib.suppress(RuntimeError):  # it was shut down: the epoch ended
                threads.submit(self._decode, self._decoder, one, data)

    def _decode(self, decoder: Decoder, one: Fetched, data: Bytes) -> None:
        begin = time.perf_counter()
        try:
            value = decoder(data.data, one.key)
        except Exception as error:  # noqa: BLE001 (of any class: it is the user's function)
            failed = CorruptChunkError(f"decode raised {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._fail(one, failed)
        except BaseException as error:  # noqa: BLE001 (what is not passed on is a hang)
            failed = CorruptChunkError(f"decode ended with {type(error).__name__}")
            failed.__cause__ = error
            self._fail(one, failed)
        else:
            self._finish(one, value, time.perf_counter() - begin)

    def _finish(self, one: Fetched, value: Any, decode_s: float) -> None:
        value_bytes = bytes_of(value)
        with self._lock:
            one.value, one.done, one.value_bytes = value, True, value_bytes
            self._counts.objects += 1
            self._counts.stored_bytes += one.stored_bytes
            self._counts.value_bytes += value_bytes
            self._counts.decode_s += decode_s
            self._wake(one)

    def _fail(self, one: Fetched, error: Exception) -> None:
        made = ReadFailure.of(error).named(f"{self._source.named(one.key)}: ")
        if made.__cause__ is error and isinstance(error, ZarrfeedError):  # the store bridge may know the store's own
            made.__cause__ = None
            self._bridge.explain(made)
        with self._lock:
            one.error, one.done, one.buffer = made, True, None
            self._wake(one)

    def _wake(self, one: Fetched) -> None:
        """Wake whoever waits if this object was the last one; with the lock."""
        if one in self._awaited:
            self._awaited.discard(one)
            if not self._awaited:
                self._changed.notify_all()


def bytes_of(value: Any) -> int:
    """Return about how many bytes a decoded object takes."""
    size = getattr(value, "nbytes", None)  # arrays, tensors, views
    if isinstance(size, int):
        return size
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    return sys.getsizeof(value)
