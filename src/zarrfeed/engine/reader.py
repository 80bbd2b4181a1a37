"""Reads one epoch: an engine and a plan in, batches of arrays (and lists of vlen values) out.

Who owns what: the engine writes batches into memory of its own pool, or into buffers that a library of arrays provides
(`arrays.py`). A delivered batch belongs to the arrays over it; when the last of them is dropped, the memory goes back
to the pool, or to the library. A buffer is provided once: what was delivered in it is never written again, also while
only another process holds it. So a batch that a user holds is never overwritten.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.base.native import core
from zarrfeed.engine.batch_arrays import Array, BatchArrays, ByteArrays
from zarrfeed.engine.cache_stats import CacheStats
from zarrfeed.engine.csr_reader import CsrReader
from zarrfeed.engine.engine_fields import EngineFields, stats_of
from zarrfeed.engine.lookups import LookupOptions, make_lookup
from zarrfeed.engine.resident_fields import load_resident, load_residents
from zarrfeed.engine.sample_lookup import SampleLookup
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.store_bridge import StoreBridge
from zarrfeed.engine.substitution import Bytes, Skipped, SkippedChunk, SkippedField, Substitutes
from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.plan.order.carry import carries, plan_carry
from zarrfeed.plan.order.order import EpochPlan, Order
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.samples.field_rows import chunk_finder, find_rows
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.batch_request import plan_patches, plan_request
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import (
    Field,
    IndexField,
    ResidentField,
    StoredField,
)
from zarrfeed.storage.access.exit_finalizers import finalize

__all__ = ["Reader", "load_resident"]

_DEFAULT_POLICY = Faults()

#: Cache for chunks whose samples replace skipped ones: batch after batch needs rows of the same chunk.
_MOST_SPARE_CACHE = 64 << 20


class Reader:
    """An engine with its fields and its memory; reads one epoch at a time, and reuses memory in the next epoch.

    Parameters
    ----------
    fields
        Fields of a batch, in the order in which arrays are returned. Resident stored fields are read now.
    batch_size
        Samples of a batch.
    num_threads
        Number of decode threads.
    memory
        The division of the memory budget.
    arrays
        The array library that batches are made with, and that may provide their memory.
    cache_bytes
        Memory for cached decoded chunks, also between epochs.
    caller_runs
        If True, the caller of `next` decodes, too; for many small plans. Other threads are started only for much work,
        and shard indices stay cached between plans.
    policy
        The error policy: the treatment of a chunk that cannot be read or decoded.

    Attributes
    ----------
    skipped
        Chunks that were skipped since the reader was made.
    has_bad_rows
        True if a field in memory lacks rows, because their chunks could not be read when the reader was made.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        *,
        batch_size: int,
        num_threads: int,
        memory: MemoryPlan,
        arrays: BatchArrays,
        cache_bytes: int = 0,
        caller_runs: bool = False,
        policy: Faults = _DEFAULT_POLICY,
    ) -> None:
        self._fields: list[Field] = []
        self._policy = policy
        self._memory = memory
        self.skipped: list[SkippedChunk] = []
        self.has_bad_rows = False
        self._loaded = {number: f for number, f in enumerate(fields) if isinstance(f, StoredField) and f.resident}
        self._substitutes: Substitutes | None = None
        self._spare: Reader | None = None  # reads the samples that replace skipped ones
        self._load_stats = Stats()
        self._waited_s = [0.0, 0.0]  # for text and images, and for sparse matrices
        residents = self._load() if self._loaded else {}
        vlen_readers: dict[int, SampleLookup[Any]] = {}
        options = LookupOptions(batch_size, num_threads, memory, arrays, policy, Reader)
        for number, field in enumerate(fields):
            if field.is_lookup:
                vlen_readers[len(self._fields)] = make_lookup(field, options)
                self._fields.append(IndexField(field.num_samples, field.name))
            elif number in residents:
                self._fields.append(residents[number])
            else:
                self._fields.append(field)
        self._carries = memory.carry_bytes > 0 and any(map(carries, self._fields))
        self._to_engine = EngineFields(self._fields)
        tensors = self._to_engine.tensors
        self._sizes = [tensor.field.sample_bytes for tensor in tensors]
        tensor_of = {number: t for t, tensor in enumerate(tensors) for number in tensor.members}
        self._vlen_readers = {tensor_of[number]: reader for number, reader in vlen_readers.items()}  # by tensor
        self._tensors = [tensor_of[number] for number, _ in self._to_engine.outputs]  # of each output
        self._arrays = arrays
        self._viewers = [arrays.viewer(tensor.field) for tensor in tensors] if arrays.provides_memory else []
        self._batch_size = batch_size
        self._provided: dict[int, Array] = {}  # by address
        self._to_provide = 0  # batches of the epoch that have no memory yet
        self._engine = core.Engine(
            self._to_engine.to_cores(arrays, memory.index_cache_bytes),
            policy.engine_options(
                batch_size=batch_size,
                num_threads=num_threads,
                num_fetch_threads=memory.num_fetch_threads,
                max_requests=memory.max_requests,
                coalesce=memory.coalesce,
                provides_memory=arrays.provides_memory,
                cache_bytes=cache_bytes,
                carry_bytes=memory.carry_bytes * self._carries,
                caller_runs=caller_runs,
                max_block_bytes=memory.block_bytes,
            ),
            cached=self._to_engine.cached_sources(),
        )
        self._stores = self._to_engine.python_sources()
        self._bridge = StoreBridge(
            self._engine,
            self._stores,
            max_decodes=num_threads,
            policy=policy,
        )
        finalize(self, _end, self._bridge, tuple(vlen_readers.values()))

    def start(
        self, plan: ReadPlan, max_open_batches: int, *, short_of_memory: bool = False, keep_bytes: int = 0
    ) -> None:
        """Begin an epoch; an epoch that is being read is stopped.

        `short_of_memory` says that more open batches would help but the memory budget forbids them. `keep_bytes` is for
        chunks that are cached for other columns of patches.

        Raises
        ------
        StoreReadError
            If an array is gone.
        MemoryBudgetError
            If the plan needs more open batches.
        """
        self.stop()
        for reader in self._vlen_readers.values():
            reader.open(plan, max_open_batches)
        if self._carries:
            listed = plan.listed()
            to_read = listed.to_core(plan_carry(listed, self._fields).to_core())
        else:
            to_read = plan.to_core()
        self._engine.start(
            to_read,
            max_open_batches,
            short_of_memory=short_of_memory,
            keep_bytes=keep_bytes * self._carries,
        )
        self._bridge.start()
        self._substitutes = self._make_substitutes(plan) if self._policy.skips else None
        if self._arrays.provides_memory:
            self._to_provide = -(-plan.steps // self._batch_size)
            for _ in range(max_open_batches):
                self._provide_buffer()

    def next(self) -> tuple[Any, ...] | None:
        """Return the next batch, or None at the end: of each field an array of shape (rows, *sample_shape), or a list.

        Waits without the GIL; signals are looked at while waiting.
        """
        batch = self.next_arrays()
        if batch is None:
            return None
        arrays, skipped = batch
        if skipped is not None:
            self._substitute(arrays, skipped)
        if not self._vlen_readers:
            return arrays
        return self._with_vlen(arrays)

    def next_arrays(self) -> tuple[tuple[Array, ...], Skipped | None] | None:
        """Return the next batch and its skipped slots; vlen fields have the sample's index in place of its values."""
        try:
            result = self._engine.next()
        except (StoreReadError, CorruptChunkError) as error:
            self._bridge.explain(error)
            raise
        if result is None:
            return None
        rows, buffers, skipped = result
        if not self._arrays.provides_memory:
            return tuple([self._arrays.from_capsule(capsule) for capsule in buffers]), skipped
        provided = [self._provided.pop(cast(int, address)) for address in buffers]
        arrays = tuple(view(buffer, rows) for view, buffer in zip(self._viewers, provided, strict=True))
        self._provide_buffer()
        return arrays, skipped

    def _with_vlen(self, arrays: tuple[Array, ...]) -> tuple[Any, ...]:
        values = list(arrays)
        waiting = deque(self._vlen_readers)
        while waiting:
            number = waiting.popleft()
            index = self._arrays.bytes_of(arrays[number]).view(np.int64).reshape(-1)
            reader = self._vlen_readers[number]
            begin = time.perf_counter()
            errors: list[Any] = []
            if self._substitutes is None:
                values[number] = reader.take(index)
            else:
                values[number], errors = reader.take_what_is_good(index)
            self._waited_s[isinstance(reader, CsrReader)] += time.perf_counter() - begin
            if errors:
                self._substitute(arrays, reader.skipped(self._tensors.index(number), index, errors))
                waiting = deque(self._vlen_readers)  # all fields have another sample there
        return tuple(values)

    def _load(self) -> dict[int, ResidentField]:
        """Return small fields in memory; keys are indices among the fields."""
        residents, stats = load_residents(list(self._loaded.values()), self._policy)
        self._load_stats = self._load_stats + stats
        self.has_bad_rows = any(resident.bad_rows for resident in residents)
        return dict(zip(self._loaded, residents, strict=True))

    def _make_substitutes(self, plan: ReadPlan) -> Substitutes:
        skippable: dict[int, list[SkippedField]] = {}  # by number of the source
        for number, (of_field, layout) in enumerate(self._to_engine.outputs):
            f, window = self._fields[of_field], self._fields[of_field].window
            offsets = (0,) if window is None else window.reads
            of_source = skippable.setdefault(self._to_engine.source_numbers[number], [])
            if f.patch is not None:
                of_source.append(SkippedField(f.name, None, offsets))
            elif layout is not None:
                of_source.append(SkippedField(f.name, chunk_finder(f, RowRuns(layout)), offsets))
            elif (loaded := self._loaded.get(of_field)) is not None:
                of_source.append(SkippedField(f.name, partial(_find_loaded, loaded), offsets))
            elif (tensor := self._tensors[number]) in self._vlen_readers:
                for alone, one in self._vlen_readers[tensor].skippable(number, f.name).items():
                    skippable.setdefault(alone, []).append(one)
        self._order, self._epoch = plan.order, plan.epoch
        return Substitutes(skippable, plan, max_errors=self._policy.max_errors, report=self.skipped)

    def _substitute(self, arrays: Sequence[Array], skipped: Skipped) -> None:
        assert self._substitutes is not None
        self._substitutes.fill([self._arrays.bytes_of(array) for array in arrays], skipped, self._read_samples)

    def _read_samples(self, samples: Int64) -> tuple[tuple[Bytes, ...], Skipped | None]:
        """Read samples by their index in the array, at once: the bytes of each field."""
        if self._spare is None:
            self._spare = Reader(
                self._fields,
                batch_size=self._batch_size,
                num_threads=1,
                memory=replace(self._memory, carry_bytes=0),  # the groups of a request are not in the order of steps
                arrays=ByteArrays(),
                cache_bytes=min(_MOST_SPARE_CACHE, self._memory.budget // 8),
                caller_runs=True,
                policy=self._policy,
            )
        try:
            self._spare.start(_request(self._order, self._epoch, samples), 1)
            batch = self._spare.next_arrays()
        finally:
            self._spare.stop()
        assert batch is not None
        return batch

    def stop(self) -> None:
        """End the epoch: threads finish their chunk, and have ended when this returns."""
        self._bridge.stop_engine()
        for reader in self._vlen_readers.values():
            reader.close()
        self._provided.clear()
        self._spare = None  # with its cache: chunks may be repaired before the next epoch

    def stats(self) -> Stats:
        """Return the counters since this reader was made."""
        vlen = sum((reader.stats() for reader in self._vlen_readers.values()), Stats())
        list_s, sparse_s = self._waited_s
        # The consumer waits for vlen fields too, but the engine cannot know that.
        here = Stats(
            chunks_skipped=len(self.skipped),
            list_s=list_s,
            sparse_s=sparse_s,
            consumer_wait_s=list_s + sparse_s,
            consumer_busy_s=-list_s - sparse_s,
            cache=CacheStats(troubles=self._cache_troubles()),
        )
        return self._load_stats + stats_of(self._engine, self._bridge) + vlen + here

    def _cache_troubles(self) -> tuple[str, ...]:
        """Return the reasons why the node cache does not do all that it could for these fields."""
        sources = [*self._stores.values(), *(reader.source for reader in self._vlen_readers.values())]
        troubles = [one.cache_trouble for one in sources if one is not None]
        return tuple(dict.fromkeys(filter(None, troubles + self._to_engine.cache_troubles())))

    def _provide_buffer(self) -> None:
        """Give the engine the memory of one more batch of the epoch, if it has any more."""
        if not self._to_provide:
            return
        self._to_provide -= 1
        buffers = [self._arrays.allocate(max(1, self._batch_size * size)) for size in self._sizes]
        self._provided.update((address, buffer) for buffer, address in buffers)
        self._engine.provide_buffers([address for _, address in buffers])


def _end(bridge: StoreBridge, lookups: Sequence[SampleLookup[Any]]) -> None:
    """End the epoch of a reader that is gone, or that the interpreter leaves behind."""
    bridge.stop_engine()
    for lookup in lookups:
        lookup.close()


def _request(order: Order, epoch: int, samples: Int64) -> EpochPlan:
    """Return the plan of one batch with some samples of an order, turned as in an epoch if they are patches."""
    order = order.by_block
    if isinstance(order, SweptOrder):
        return plan_patches(order.tiles.grid, *order.tiles.starts(samples), of=order.of_epochs, epoch=epoch)
    return plan_request(samples, order.num_samples, order.block_rows)


def _find_loaded(field: StoredField, samples: Int64, offset: int) -> Int64:
    """Return the first row of the chunk of the row at an offset from each sample: the number of a chunk in memory."""
    rows = find_rows(field, samples, offset)
    first = np.full(len(rows), -1)
    for layout in field.layouts:
        chunk = layout.chunk_of(rows)
        here = (chunk >= 0) & (rows >= 0)
        first[here] = [layout.rows_of(int(one))[0] for one in chunk[here]]
    return first
