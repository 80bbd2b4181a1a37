"""`ZarrDataset`: samples of Zarr arrays by index, many at once, for any `Sampler`.

The same engine with the plan of a request (`batch_request.py`): samples are grouped by chunk, each chunk is decoded
once, by many threads, and one batch comes out.

What holds: a batch owns its memory. One request is read at a time in a process; threads wait for each other. Nothing of
an engine crosses a fork or a pickle.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch
import torch.utils.data
from torch.utils.data._utils.collate import default_collate_fn_map

from zarrfeed.base.errors import (
    ClosedError,
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    StoreReadError,
    ZarrfeedError,
)
from zarrfeed.base.suggestions import refuses_moved_names
from zarrfeed.base.system import physical_bytes, usable_cores
from zarrfeed.base.units import format_bytes, parse_bytes
from zarrfeed.base.validate import check_flags, check_num_threads
from zarrfeed.engine.reader import Reader
from zarrfeed.engine.stats import Stats
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.fields import Source
from zarrfeed.metadata.stores.growth import disposable_in, hold_opened
from zarrfeed.plan.budget.memory import MemoryPlan, plan_memory
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.batch_request import Requests, RowRequests, positions_of
from zarrfeed.plan.schedule.schedule_options import DEFAULT_BUDGET
from zarrfeed.report.describe import describe
from zarrfeed.report.notebook import random_access_html
from zarrfeed.spec.batch_tensors import tensors_of
from zarrfeed.spec.error_policy import Faults
from zarrfeed.spec.feeding import as_options
from zarrfeed.spec.field import Field, StoredField, VlenField, dtype_name
from zarrfeed.spec.sparse import CsrField
from zarrfeed.torch.batches.batch import Batch, BatchAssembler, Values
from zarrfeed.torch.batches.host_rows import with_shared_rows
from zarrfeed.torch.batches.static_tensors import StaticTensors
from zarrfeed.torch.batches.tensors import Tensors, torch_dtype
from zarrfeed.torch.batches.worker_memory import WorkerMemory
from zarrfeed.torch.datasets.look_ahead import PlannedIndices, ReadAhead
from zarrfeed.torch.datasets.options import MOVED_TO_DATA, as_data, faults_for
from zarrfeed.torch.passes.looks import LooksOfSamples
from zarrfeed.torch.ranks.callers import collates_by_default
from zarrfeed.torch.ranks.distributed import in_worker

DEFAULT_CACHE = 256 << 20


class ZarrDataset(torch.utils.data.Dataset[Batch]):
    """Read samples of Zarr arrays by index, in any order and as often as wanted.

    Parameters
    ----------
    data
        What the samples are: a `Data`, as `zarrfeed.open` returns it, or whatever `zarrfeed.open` takes as `samples`.
        `dataset[i]` is its i-th sample, in the order of the array; `return_index` tells where it is there. Of patches,
        `dataset[i]` is that at the i-th position of the list, or the i-th of the grid, in C order, volume by volume.
    targets
        In place of a `Data`, `targets` of `zarrfeed.open`: arrays with as many samples along axis 0.
    return_index
        Whether the global sample index (int64) is added as the last tensor.
    num_threads
        Decode threads. None: the cores that this process may use, shared by the workers of a DataLoader.
    cache
        Bytes, or text such as "2GiB", of a cache of the decoded chunks that were used last; the workers of a DataLoader
        share them. A cached chunk is neither read nor decoded again. Once the cache is full, a chunk is cached when it
        is wanted for the second time in a while. Of other Blosc chunks only the wanted part is decoded. 0: no cache.
    faults
        A `Faults`, or a mapping such as {"missing": "raise"}, as of `ZarrIterableDataset`. Chunks cannot be skipped: a
        sample that was asked for cannot be replaced.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        At construction, for what cannot work.
    MemoryBudgetError
        Where the machine has not the memory, at construction or for a request.
    CorruptChunkError, StoreReadError
        From reading, for a chunk that cannot be decoded or read; the message names array and chunk.

    Notes
    -----
    `dataset[i]` is a sample, `dataset[[3, 1, 3]]` a batch. A `DataLoader(dataset, batch_size=64, sampler=...)` asks for
    all samples of a batch at once, and its default `collate_fn` takes the batch as it was decoded: nothing is copied,
    in workers neither. A `collate_fn` of your own gets a list of samples of plain types, which are views of the batch;
    `torch.save` of a view saves the whole batch, so `clone()` it first. Samplers of torch, such as DistributedSampler
    or WeightedRandomSampler, work as they are. With `batch_size=None, sampler=BatchSampler(...)` the batch is not cut
    into samples in between, which saves about a microsecond each. Around a batch sampler in random order, `LookAhead`
    has each chunk decoded once for many batches.
    For training over all samples `ZarrIterableDataset` is several times faster, since it decodes every chunk once.
    Parts of windows that torch's `random_split` makes share rows: use `Data.split` instead.

    The stored arrays must not change: decoded chunks, indices of shards and the absence of chunks are remembered. A
    batch is not bounded but by the request. Any thread may read; requests of several threads wait for each other.

    Examples
    --------
    >>> import numpy as np, zarr, zarrfeed
    >>> dataset = zarrfeed.ZarrDataset(zarrfeed.open(np.arange(10) * 10).select(slice(2, None)))
    >>> dataset[0], dataset[[3, 1, 3]]
    (tensor(20), tensor([50, 30, 50]))

    Patches at positions, in any order:

    >>> image = zarr.array(np.arange(36).reshape(6, 6), chunks=(3, 3))
    >>> patches = zarrfeed.open(image).patch({0: 2, 1: 2}, sampling="positions", positions=[(0, 0), (2, 3)])
    >>> zarrfeed.ZarrDataset(patches)[[1, 0]].tolist()
    [[[15, 16], [21, 22]], [[0, 1], [6, 7]]]
    """

    #: Bytes that small arrays take in memory, which are read as a whole.
    _resident_room = DEFAULT_BUDGET // 16

    @refuses_moved_names(MOVED_TO_DATA)
    def __init__(
        self,
        data: Data | Source,
        targets: Source | None = None,
        *,
        return_index: bool = False,
        num_threads: int | None = None,
        cache: int | str = DEFAULT_CACHE,
        faults: Faults | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._policy = as_options(Faults, "faults", faults)
        if self._policy.skips:
            raise ConfigError("on_error = 'skip', must be 'raise': a sample that was asked for cannot be replaced")
        check_num_threads(num_threads)
        self._num_threads = num_threads
        self._cache_bytes = parse_bytes(cache, "cache", least=0)
        check_flags(return_index=return_index)
        self._data = with_shared_rows(as_data(data, targets, self._policy), self._policy)
        if self._data.resolved.blend is not None:
            raise ConfigError("a mixture is an order, and ZarrDataset has none: use ZarrIterableDataset, or concat")
        self._policy = faults_for(self._data, self._policy)
        opened = self._data.resolved.opened
        self._leases, may_lose = hold_opened(opened, self._data.version), bool(disposable_in(opened))
        self._fields, self._selection = self._data.resolved.planned(
            return_index=bool(return_index),
            room=0 if may_lose else self._resident_room,
        )
        patching, fields = self._data.resolved.patching, self._fields
        self._requests: Requests = (
            RowRequests(fields.num_samples, fields.block_rows, self._selection)
            if patching is None
            else patching.requests()
        )
        statics = StaticTensors.read(self._data.resolved.statics, self._policy)
        self._assembler = BatchAssembler(self._fields, statics)
        self._closed = False
        self._reset_process()
        self._resources(1)  # what no request can be read with is refused here

    def _reset_process(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._capacity = 0
        self._ahead: ReadAhead | None = None  # what `reader` delivers, one batch after another
        self._failed: int | None = None  # the window whose batches are read one by one, after an error
        self._past_stats = Stats()
        self._looks: LooksOfSamples | None = None

    def __getstate__(self) -> dict[str, Any]:
        of_process = ("_pid", "_lock", "_reader", "_capacity", "_ahead", "_failed", "_past_stats", "_looks")
        return {name: value for name, value in self.__dict__.items() if name not in of_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_process()

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._requests)

    def __getitem__(self, index: SupportsIndex | npt.ArrayLike) -> Batch:
        """Return one sample, which owns its memory, or for a sequence of indices a batch of them.

        Raises
        ------
        IndexError
            If an index is out of range; negative ones count from the end.
        """
        try:
            one = operator.index(index)  # type: ignore[arg-type]
        except TypeError:
            return self._assembler.assemble(self._read(index))
        # a view would keep the whole buffer
        rows = [values[0] for values in self._read(np.array([one]))]
        return self._assembler.assemble_sample([row.clone() if isinstance(row, torch.Tensor) else row for row in rows])

    def __getitems__(self, indices: npt.ArrayLike) -> list[Any]:
        """Return the samples at some indices as a list; a DataLoader's default `collate_fn` gets them as one batch."""
        return _samples_or_batch(self._assembler, self._read(indices))

    def stats(self) -> Stats:
        """Return counters since this dataset was made (in this process)."""
        self._check_process()
        return self._past_stats if self._reader is None else self._past_stats + self._reader.stats()

    def close(self) -> None:
        """Free the cache. May be called twice; reading is over after it."""
        self._check_process()
        with self._lock:
            self._closed = True
            self._leases = ()
            if self._looks is not None:
                self._looks.close()
            self._drop_reader()

    @property
    def data(self) -> Data:
        """The samples that this dataset reads."""
        return self._data

    def __repr__(self) -> str:
        return f"ZarrDataset({describe(self._fields, self._selection, self._assembler.statics.fields)})"

    def _repr_html_(self) -> str:
        return random_access_html(self._fields, self._selection, self._assembler.statics.fields)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # forked: the lock may be held, and the engine's threads are not here
            self._reset_process()

    def _read(self, indices: Any) -> tuple[Values, ...]:
        """Return one tensor a field, of shape (indices, *sample_shape), or list."""
        wanted = positions_of(np.asarray(indices), len(self))
        self._check_process()
        with self._lock:
            if self._closed:
                raise ClosedError("this dataset was closed")
            if not len(wanted):
                return tuple(_no_samples(tensor.field) for tensor in tensors_of(self._fields.fields))
            looks = self._looks_here()
            try:
                if looks is not None:
                    looks.before(len(wanted))
                if isinstance(indices, PlannedIndices) and indices.window.key != self._failed:
                    try:
                        return self._read_ahead(indices)
                    except (CorruptChunkError, StoreReadError):  # maybe of a batch that comes later, or never
                        self._end_ahead()
                        self._failed = indices.window.key
                return self._read_now(wanted)
            except ZarrfeedError as error:
                if looks is not None:
                    looks.explain(error)
                raise
            except BaseException:  # an interrupt, maybe of stop()
                if self._reader is not None:
                    self._reader.stop()
                self._drop_reader()
                raise

    def _looks_here(self) -> LooksOfSamples | None:
        """Return the looks of this process at the arrays; None for a store that grows, whose version stays."""
        if self._looks is None and self._data.version is None:
            self._looks = LooksOfSamples(self._fields.fields, len(self), self._policy)
        return self._looks

    def _read_now(self, wanted: Int64) -> tuple[Values, ...]:
        if self._ahead is not None:
            try:
                self._ahead.finish()
            except (CorruptChunkError, StoreReadError):
                self._end_ahead()
        reader = self._reader_for(len(wanted))
        try:
            reader.start(self._requests.plan(wanted), 1)
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
        memory, workers = self._resources(rows)
        most = max(1, self._cache_bytes // workers // 2 // max(1, memory.batch_bytes))
        parts: list[Int64] = []
        numbers = wanted.window.numbers(wanted.number, workers)
        for number in numbers[:most]:
            try:
                part = positions_of(wanted.window.batch(number), len(self))
            except IndexError:  # which is raised when that batch is wanted
                break
            if not 0 < len(part) <= rows:
                break
            parts.append(part)
            if len(part) < rows:
                break
        reader = self._reader_for(rows, is_exact=True)
        reader.start(self._requests.plan(np.concatenate(parts)), len(parts))
        return ReadAhead(wanted.window.key, numbers[: len(parts)], reader)

    def _end_ahead(self) -> None:
        if self._ahead is not None and self._reader is not None:
            self._reader.stop()
        self._ahead = None

    def _reader_for(self, rows: int, *, is_exact: bool = False) -> Reader:
        """Return a reader whose batches have room for so many samples, or are of so many."""
        if self._reader is not None and (rows == self._capacity if is_exact else rows <= self._capacity):
            return self._reader
        if not is_exact:
            rows = max(rows, 2 * self._capacity)  # requests that grow step by step must not begin anew with each
        self._drop_reader()
        memory, workers = self._resources(rows)
        # the fields share the cache: the engine caches chunks of tensors, and each vlen field its own
        stored = sum(isinstance(f, StoredField | VlenField | CsrField) for f in self._fields.fields)
        # the other half is for batches that are read ahead
        cache_bytes = self._cache_bytes // workers // (1 + is_exact)
        memory = replace(memory, list_cache_bytes=cache_bytes // max(1, stored))
        self._reader = Reader(
            self._fields.fields,
            batch_size=rows,
            num_threads=memory.num_threads,
            memory=memory,
            arrays=Tensors(WorkerMemory(memory.batch_bytes) if in_worker() else None),
            cache_bytes=cache_bytes - memory.list_bytes,
            caller_runs=True,
            policy=self._policy,
        )
        self._capacity = rows
        return self._reader

    def _resources(self, rows: int) -> tuple[MemoryPlan, int]:
        """Return what a batch takes, and how many workers there are.

        Raises
        ------
        MemoryBudgetError
            If the machine does not have the memory.
        """
        info = torch.utils.data.get_worker_info()
        workers = 1 if info is None else info.num_workers
        num_threads = self._num_threads or max(1, usable_cores() // workers)
        budget = DEFAULT_BUDGET // workers
        memory = plan_memory(
            self._fields.fields, batch_size=rows, num_threads=num_threads, budget=budget, min_open_batches=1
        )
        needed, there = budget - memory.batch_room + memory.batch_bytes, physical_bytes()
        if needed > there:
            raise MemoryBudgetError(
                f"{rows} sample{'s' * (rows != 1)} at once: {format_bytes(needed, round_up=True)} are needed to read, "
                f"decode and hold them, and the machine has {format_bytes(there)}"
            )
        return memory, workers

    def _drop_reader(self) -> None:
        if self._reader is not None:
            self._past_stats = self._past_stats + self._reader.stats()
        self._reader, self._capacity, self._ahead = None, 0, None


def _no_samples(field: Field) -> Values:
    if isinstance(field, CsrField) and not field.dense:
        nothing = torch.zeros(0, dtype=torch.int64)
        values = torch.zeros(0, dtype=torch_dtype(dtype_name(field)))
        return Tensors().csr(torch.zeros(1, dtype=torch.int64), nothing, values, (0, field.num_columns))
    if isinstance(field, VlenField) and (field.images is None or not field.images.shape):
        return []
    return torch.empty(0, *field.sample_shape, dtype=torch_dtype(dtype_name(field)))


class _WholeBatch:
    """A batch in the place of its samples, as it was decoded: torch's `default_collate` takes it out without a copy."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def _samples_or_batch(assembler: BatchAssembler, values: Sequence[Values]) -> list[Any]:
    """Return the samples of a batch, or for `default_collate` of a DataLoader what it makes the batch of.

    A DataLoader hands what `__getitems__` returned to its `collate_fn`. If that is `default_collate`, and nobody else
    sees the samples in between, this is a list with one object of a type that is registered with torch. Everybody else
    gets a list of samples of plain types, which `default_collate` stacks like any other.

    Parameters
    ----------
    assembler
        Makes samples of the values of their fields.
    values
        One tensor a field, of shape (samples, *sample_shape), or a list of the samples.
    """
    unpacked = assembler.unpack(values)
    if not len(unpacked[0]) or not collates_by_default():
        return list(assembler.samples_of(unpacked))
    batch = assembler.assemble(unpacked)
    return [_WholeBatch(list(batch) if isinstance(batch, tuple) else batch)]  # default_collate makes lists of tuples


def _take_out(samples: Sequence[_WholeBatch], *, collate_fn_map: Any = None) -> Batch:  # noqa: ARG001 - torch gives it
    (whole,) = samples
    return whole.batch


default_collate_fn_map[_WholeBatch] = _take_out
