"""Reads one epoch of objects: a plan in, batches of objects out (`reader_pool.EpochReader`).

The plan says in which order objects are wanted, so they are asked for in that order, ahead of the batches.

Invariants: objects are handed out in the order of the plan. The objects that were asked for and not handed out take no
more than the budget, or are the next batch. So a batch never waits for an object that was not asked for. An object that
cannot be read becomes an error, or another object, in the batch that it belongs to, whenever it failed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from zarrfeed.base.errors import StoreReadError
from zarrfeed.base.native import core
from zarrfeed.engine.object_fetcher import Fetched, ObjectFetcher
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedChunk, SkippedField, Substitutes
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.exit_finalizers import finalize
from zarrfeed.storage.access.retry import is_of_chunk
from zarrfeed.storage.objects.listing import Listing

#: Batches that are asked for at once. The other one is fetched while the consumer is busy with the first.
_BATCHES_AHEAD = 2
#: And so many objects for each request that the store takes at once: enough to see whether more requests pay. More
#: would only take memory that is not in the caches of the processor.
_AHEAD_OF_REQUESTS = 4
#: Bytes that an object of unknown size is assumed to have.
_UNKNOWN_BYTES = 1 << 20


class ObjectReader:
    """Reads epochs of objects, one at a time.

    Parameters
    ----------
    fetcher
        The fetcher that reads the objects.
    listing
        The sizes of the objects.
    batch_size
        Objects of a batch.
    budget
        Bytes of objects that are asked for ahead.
    with_index
        If True, batches also have the numbers of their objects.
    policy
        The error policy: the treatment of objects that cannot be read or decoded.

    Attributes
    ----------
    skipped
        Objects that were skipped since the reader was made.
    has_bad_rows
        False: every epoch asks for every object.
    """

    def __init__(
        self,
        fetcher: ObjectFetcher,
        listing: Listing,
        *,
        batch_size: int,
        budget: int,
        with_index: bool,
        policy: Faults,
    ) -> None:
        self._fetcher = fetcher
        self._sizes = np.where(listing.sizes < 0, _UNKNOWN_BYTES, listing.sizes)
        self._batch_size = batch_size
        self._budget = budget
        self._with_index = with_index
        self._policy = policy
        self.skipped: list[SkippedChunk] = []
        self.has_bad_rows = False
        self._substitutes: Substitutes | None = None
        self._order: Int64 = np.empty(0, np.int64)
        self._asked = 0
        self._ahead: deque[Fetched] = deque()
        self._ahead_bytes = 0
        self._counted = Stats()
        self._returned_at: float | None = None
        finalize(self, fetcher.close)

    def start(
        self,
        plan: ReadPlan,
        max_open_batches: int,  # noqa: ARG002
        *,
        short_of_memory: bool = False,  # noqa: ARG002
        keep_bytes: int = 0,  # noqa: ARG002
    ) -> None:
        """Begin an epoch; stop the one that is being read. The budget bounds the objects that are read ahead.

        Raises
        ------
        StoreReadError
            If the store cannot be opened.
        """
        self.stop()
        self._order = core.sample_order(plan.to_core())
        self._asked = 0
        if self._policy.skips:
            field = SkippedField("objects", lambda samples, offset: samples + offset, (0,))
            self._substitutes = Substitutes({0: [field]}, plan, max_errors=self._policy.max_errors, report=self.skipped)
        self._fetcher.open()
        self._ask()

    def next(self) -> tuple[Any, ...] | None:
        """Return the next batch: a list of objects, and an int64 array of their numbers if wanted. None at the end.

        Raises
        ------
        StoreReadError, CorruptChunkError
            For an object that cannot be read or decoded; the message names it.
        """
        begin = time.perf_counter()
        busy_s = 0.0 if self._returned_at is None else begin - self._returned_at
        self._ask()
        objects = [self._ahead[i] for i in range(min(self._batch_size, len(self._ahead)))]
        if not objects:
            return None
        decoded_s = self._fetcher.decode_s
        self._fetcher.wait(objects)
        waited_s = time.perf_counter() - begin
        for one in objects:
            self._ahead.popleft()
            self._ahead_bytes -= int(self._sizes[one.sample])
        self._ask()
        batch = self._batch(objects)
        self._returned_at = time.perf_counter()
        self._counted += Stats(
            batches=1,
            samples=len(objects),
            consumer_wait_s=self._returned_at - begin,
            consumer_busy_s=busy_s,
            idle_storage_s=max(0.0, waited_s - (self._fetcher.decode_s - decoded_s)),
        )
        return batch

    def stop(self) -> None:
        """End the epoch; threads have ended when this returns."""
        self._fetcher.close()
        self._ahead.clear()
        self._ahead_bytes = 0
        self._order = np.empty(0, np.int64)
        self._asked = 0
        self._returned_at = None

    def stats(self) -> Stats:
        """Return the counters since this reader was made."""
        return self._counted + self._fetcher.stats() + Stats(chunks_skipped=len(self.skipped))

    def _ask(self) -> None:
        """Ask for the next objects, as far as the budget allows, and for the whole of the next batch."""
        wanted, room, left = self._asked, self._budget / self._fetcher.expansion, len(self._order)
        ahead = len(self._ahead)
        most = _BATCHES_AHEAD * self._batch_size + _AHEAD_OF_REQUESTS * self._fetcher.concurrency
        while wanted < left and ahead < most:
            size = int(self._sizes[self._order[wanted]])
            if ahead >= self._batch_size and self._ahead_bytes + size > room:
                break
            self._ahead_bytes += size
            ahead += 1
            wanted += 1
        if wanted > self._asked:
            self._ahead.extend(self._fetcher.fetch(self._order[self._asked : wanted]))
            self._asked = wanted

    def _batch(self, objects: list[Fetched]) -> tuple[Any, ...]:
        if self._substitutes is None:
            for one in objects:
                if one.error is not None:
                    raise one.error
            values, index = [one.value for one in objects], [one.sample for one in objects]
        else:
            arrays, skipped = _arrays_of(objects)
            if skipped is not None:
                self._substitutes.fill(arrays, skipped, self._read_samples)
            values, index = list(arrays[0]), arrays[1].tolist()
        return (values, np.array(index, np.int64)) if self._with_index else (values,)

    def _read_samples(self, samples: Int64) -> tuple[tuple[Any, ...], Skipped | None]:
        """Read the objects that replace skipped ones, at once."""
        objects = self._fetcher.fetch(samples, first=True)
        self._fetcher.wait(objects)
        return _arrays_of(objects)


def _arrays_of(objects: Sequence[Fetched]) -> tuple[tuple[Any, ...], Skipped | None]:
    """Return values and numbers of objects, and the objects that cannot be read.

    Raises
    ------
    BaseException
        An error that says nothing of an object.
    """
    values = np.empty(len(objects), object)
    bad: list[int] = []
    for slot, one in enumerate(objects):
        if one.error is None:
            values[slot] = one.value
            continue
        if not is_of_chunk(one.error):
            raise one.error
        bad.append(slot)
    index = np.array([one.sample for one in objects], np.int64)
    if not bad:
        return (values, index), None
    chunks = []
    for slot in bad:
        error, sample = objects[slot].error, objects[slot].sample
        code = error.errno if isinstance(error, StoreReadError) and error.errno is not None else 0
        what = error.strerror if isinstance(error, StoreReadError) else str(error)
        chunks.append((0, sample, objects[slot].key, type(error).__name__, code, str(what)))
    return (values, index), (bad, index[bad].tolist(), chunks)
