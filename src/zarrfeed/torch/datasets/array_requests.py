"""`ArrayRequests`: reads requests for samples of arrays, in one process, with one engine.

A request is one batch of the engine. Requests that are known before they come, as `LookAhead` tells them, are read
together: each chunk is decoded once for all of them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from zarrfeed.base.errors import CorruptChunkError, MemoryBudgetError, StoreReadError, ZarrfeedError
from zarrfeed.base.job_memory import job_bytes
from zarrfeed.base.units import format_bytes
from zarrfeed.engine.reader import Reader
from zarrfeed.engine.stats import Stats
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import MemoryPlan, plan_memory
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.batch_request import Requests, positions_of
from zarrfeed.plan.schedule.schedule_options import default_budget
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.batch_tensors import tensors_of
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.sparse import CsrField
from zarrfeed.torch.batches.batch import Values
from zarrfeed.torch.batches.tensors import Tensors, torch_dtype
from zarrfeed.torch.batches.worker_memory import WorkerMemory
from zarrfeed.torch.datasets.indexed import share_of_worker
from zarrfeed.torch.datasets.look_ahead import PlannedIndices, ReadAhead
from zarrfeed.torch.passes.looks import LooksOfSamples
from zarrfeed.torch.ranks.distributed import in_worker


@dataclass(eq=False)
class ArrayRequests:
    """Reads samples of arrays by their positions; one request at a time.

    Attributes
    ----------
    fields
        The fields of a batch.
    requests
        The samples that can be requested; makes the plan of a request.
    policy
        The error policy: the treatment of chunks that cannot be read.
    num_threads
        Decode threads. None: the cores, shared by the workers of a DataLoader.
    cache_bytes
        Bytes of the cache of decoded chunks, for all workers together.
    looks
        If True, readers look whether the arrays have changed. The arrays of a store that grows are not looked at: its
        version stays.
    lock
        Lock that the reading thread holds.
    """

    fields: tuple[Field, ...]
    requests: Requests
    policy: Faults
    num_threads: int | None
    cache_bytes: int
    looks: bool
    lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _reader: Reader | None = field(default=None, init=False)
    _capacity: int = field(default=0, init=False)
    _ahead: ReadAhead | None = field(default=None, init=False)  # the batches that `_reader` delivers, one after another
    _failed: int | None = field(default=None, init=False)  # the window whose batches are read one by one, after errors
    _past_stats: Stats = field(default_factory=Stats, init=False)
    _looks: LooksOfSamples | None = field(default=None, init=False)

    def read(self, wanted: Int64, asked: Any) -> tuple[Values, ...]:
        """Return one tensor of shape (indices, *sample_shape), or one list, for each field."""
        if not len(wanted):
            return tuple(_no_samples(tensor.field) for tensor in tensors_of(self.fields))
        if self._looks is None and self.looks:
            self._looks = LooksOfSamples(self.fields, len(self.requests), self.policy)
        try:
            if self._looks is not None:
                self._looks.before(len(wanted))
            if isinstance(asked, PlannedIndices) and asked.window.key != self._failed:
                try:
                    return self._read_ahead(asked)
                except (CorruptChunkError, StoreReadError):  # maybe of a batch that comes later, or never
                    self._end_ahead()
                    self._failed = asked.window.key
            return self._read_now(wanted)
        except ZarrfeedError as error:
            if self._looks is not None:
                self._looks.explain(error)
            raise
        except BaseException:  # an interrupt, maybe of stop()
            if self._reader is not None:
                self._reader.stop()
            self._drop_reader()
            raise

    def stats(self) -> Stats:
        """Return the counters of all readers of this process."""
        return self._past_stats if self._reader is None else self._past_stats + self._reader.stats()

    def close(self) -> None:
        """Free the cache."""
        if self._looks is not None:
            self._looks.close()
        self._drop_reader()

    def resources(self, rows: int) -> tuple[MemoryPlan, int]:
        """Return the memory plan of a request of so many rows, and the number of workers.

        Raises
        ------
        MemoryBudgetError
            If the machine does not have the memory.
        """
        num_threads, workers = share_of_worker(self.num_threads)
        budget = default_budget() // workers
        needs = FieldNeeds.of(self.fields)
        memory = plan_memory(needs, batch_size=rows, num_threads=num_threads, budget=budget, min_open_batches=1)
        needed, there = budget - memory.batch_room + memory.batch_bytes, job_bytes()
        if needed > there:
            raise MemoryBudgetError(
                f"{rows} sample{'s' * (rows != 1)} at once: {format_bytes(needed, round_up=True)} are needed to read, "
                f"decode and hold them, and the job may use {format_bytes(there)}"
            )
        return memory, workers

    def _read_now(self, wanted: Int64) -> tuple[Values, ...]:
        if self._ahead is not None:
            try:
                self._ahead.finish()
            except (CorruptChunkError, StoreReadError):
                self._end_ahead()
        reader = self._reader_for(len(wanted))
        try:
            reader.start(self.requests.plan(wanted), 1)
            batch = reader.next()
        finally:
            reader.stop()
        assert batch is not None
        return batch

    def _read_ahead(self, wanted: PlannedIndices) -> tuple[Values, ...]:
        if self._ahead is None or not self._ahead.has(wanted):
            self._end_ahead()
            self._ahead = self._start_ahead(wanted)
        values = self._ahead.take(wanted.number)
        if self._ahead.is_over():
            self._ahead = None
        return values

    def _start_ahead(self, wanted: PlannedIndices) -> ReadAhead:
        """Begin to read a batch, and as many of those that this process will be asked for as there is room for."""
        rows = len(wanted)
        memory, workers = self.resources(rows)
        most = max(1, self.cache_bytes // workers // 2 // max(1, memory.batch_bytes))
        parts: list[Int64] = []
        numbers = wanted.window.numbers(wanted.number, workers)
        for number in numbers[:most]:
            try:
                part = positions_of(wanted.window.batch(number), len(self.requests))
            except IndexError:  # which is raised when that batch is wanted
                break
            if not 0 < len(part) <= rows:
                break
            parts.append(part)
            if len(part) < rows:
                break
        reader = self._reader_for(rows, is_exact=True)
        reader.start(self.requests.plan(np.concatenate(parts)), len(parts))
        return ReadAhead(wanted.window.key, numbers[: len(parts)], reader)

    def _end_ahead(self) -> None:
        if self._ahead is not None and self._reader is not None:
            self._reader.stop()
        self._ahead = None

    def _reader_for(self, rows: int, *, is_exact: bool = False) -> Reader:
        """Return a reader whose batches have room for `rows` samples; with `is_exact`, have exactly `rows`."""
        if self._reader is not None and (rows == self._capacity if is_exact else rows <= self._capacity):
            return self._reader
        room = rows if is_exact else max(rows, 2 * self._capacity)  # growing requests must not begin anew with each
        self._drop_reader()
        try:
            memory, workers = self.resources(room)
        except MemoryBudgetError:
            room = rows
            memory, workers = self.resources(room)
        # the fields share the cache: the engine caches chunks of tensors, and each vlen field its own
        stored = sum(f.is_stored for f in self.fields)
        # the other half is for batches that are read ahead
        cache_bytes = self.cache_bytes // workers // (1 + is_exact)
        memory = replace(memory, list_cache_bytes=cache_bytes // max(1, stored))
        self._reader = Reader(
            self.fields,
            batch_size=room,
            num_threads=memory.num_threads,
            memory=memory,
            arrays=Tensors(WorkerMemory(memory.batch_bytes) if in_worker() else None),
            cache_bytes=cache_bytes - memory.list_bytes,
            caller_runs=True,
            policy=self.policy,
        )
        self._capacity = room
        return self._reader

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._past_stats = self._past_stats + self._reader.stats()
        self._reader, self._capacity, self._ahead = None, 0, None


def _no_samples(field: Field) -> Values:
    if isinstance(field, CsrField) and not field.dense:
        nothing = torch.zeros(0, dtype=torch.int64)
        values = torch.zeros(0, dtype=torch_dtype(field.dtype_name))
        return Tensors().csr(torch.zeros(1, dtype=torch.int64), nothing, values, (0, field.num_columns))
    if field.item_type and (field.images is None or not field.images.shape):
        return []
    return torch.empty(0, *field.sample_shape, dtype=torch_dtype(field.dtype_name))
