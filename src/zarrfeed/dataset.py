"""`ZarrIterableDataset`: a Zarr array as a stream of shuffled, ready batches."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.utils.data

from zarrfeed._import_core import core
from zarrfeed.assignment import Consumer, rank_and_world_size, worker_and_count
from zarrfeed.checks import check_bool, check_int
from zarrfeed.errors import ClosedError, ConfigError
from zarrfeed.explain import Explanation, explain
from zarrfeed.feed import Allocator, Reader, pinned_memory
from zarrfeed.fields import Batch, Field, sample_bytes
from zarrfeed.memory import parse_bytes, plan_memory
from zarrfeed.order import EpochPlan, Int64, Order, choose_lanes, open_batches
from zarrfeed.sources import Source, read_fields
from zarrfeed.stats import Stats

#: Without a batch size, samples are views of internal batches of about this size.
_INTERNAL_BATCH_BYTES = 4 << 20
_INTERNAL_BATCH_SAMPLES = 1024
_INT64_MAX = 2**63 - 1


class ZarrIterableDataset(torch.utils.data.IterableDataset[Batch]):
    """Stream samples of a Zarr array, shuffled and batched by a compiled engine.

    Parameters
    ----------
    samples
        An array: a path, a `file://` URL, or an open `zarr.Array` in a local store, Zarr v2 or v3; or a NumPy array
        or CPU tensor. Or several with as many samples: a group (a path, or an open `zarr.Group`), which stands for
        all arrays in it but not for groups in it, or a mapping of names to arrays. The chunks along `sample_axis`
        are the blocks that are shuffled; of several arrays, those of a large one with long chunks, which `explain()`
        names (docs/design.md, section 4). They may be chunked differently. Arrays in memory are used where they lie,
        not copied, if they are contiguous in native byte order; do not resize or share them while a dataset has them.
    targets
        The same, with as many samples along axis 0.
    batch_size
        Samples of a batch. None yields single samples, which are views of a larger buffer: holding one holds about
        4 MiB.
    shuffle
        Whether blocks, and rows inside them, are permuted anew in every epoch.
    seed
        Key of all permutations, in [0, 2**64). The order is a function of the arrays' layout, seed, epoch, lanes and
        mix, whatever the number of threads.
    drop_last
        Whether the last batch is dropped if it is short. Without effect for `batch_size=None`.
    return_index
        Whether the global sample index (int64) is added as the last tensor.
    sample_axis
        The axis of `samples`, of every array in it, whose indices are samples. A sample has the other axes, in order.
    lanes
        How many blocks are open side by side: consecutive samples come from that many blocks. None: chosen from the
        layout and `memory_budget`.
    mix
        How many consecutive blocks of a lane have their rows permuted together. Mixes more, costs memory.
    num_threads
        Decode threads. None: the cores that this process may use.
    memory_budget
        Bytes, or text such as "2GiB": what may be in flight, open or ready at once. Batches that you hold do not count.
    pin_memory
        Whether batches lie in page-locked memory. None: where there is an accelerator.

    Yields
    ------
    `samples` alone gives a tensor of shape (batch, *sample_shape), with `targets` a tuple (samples, targets), with
    `return_index` the index behind these. In place of the tensor, a group or a mapping gives a dict of tensors.
    For `batch_size=None` the first axis is absent.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, MemoryBudgetError
        At construction, for what cannot work.
    CorruptChunkError, StoreReadError
        From the iteration, for a chunk that cannot be decoded or read; the message names array and chunk.

    Notes
    -----
    A tensor owns its memory: a batch that you hold is never overwritten, and dropped ones are recycled. Iterating a
    second time takes the next epoch, unless `set_epoch` says which. Threads exist only while an epoch is read.
    """

    def __init__(
        self,
        samples: Source,
        targets: Source | None = None,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        return_index: bool = False,
        sample_axis: int = 0,
        lanes: int | None = None,
        mix: int = 1,
        num_threads: int | None = None,
        memory_budget: int | str = "1GiB",
        pin_memory: bool | None = None,
    ) -> None:
        super().__init__()
        check_int("seed", seed, 0, 2**64 - 1)
        check_int("sample_axis", sample_axis, -_INT64_MAX, _INT64_MAX)
        check_int("mix", mix, 1, _INT64_MAX)
        for name, value in (("batch_size", batch_size), ("lanes", lanes), ("num_threads", num_threads)):
            if value is not None:
                check_int(name, value, 1)
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last), ("return_index", return_index)):
            check_bool(name, flag)
        if pin_memory is not None:
            check_bool("pin_memory", pin_memory)
        budget = parse_bytes(memory_budget)
        if pin_memory and not _has_accelerator():
            raise ConfigError("pin_memory = True needs an accelerator, and torch finds none; None decides by itself")

        field_set = read_fields(
            samples,
            targets,
            sample_axis=int(sample_axis),
            return_index=bool(return_index),
            resident_bytes=budget // 16,
        )
        fields, n, block_rows = field_set.fields, field_set.num_samples, field_set.block_rows
        if lanes is not None and lanes > n:
            raise ConfigError(f"lanes = {lanes}, must be at most the number of samples, {n}")

        self._field_set = field_set
        self._batch_size = batch_size
        self._engine_batch_size = min(n, batch_size or _internal_batch_size(fields))
        self._drop_last = drop_last
        self._pin_memory = pin_memory
        self._num_threads = num_threads or _usable_cores()
        mix = min(mix, -(-n // block_rows))
        one_round = Order(n, block_rows, shuffle=shuffle, seed=seed, lanes=(lanes or 1) if shuffle else 1, mix=mix)
        self._memory = plan_memory(
            fields,
            batch_size=self._engine_batch_size,
            num_threads=self._num_threads,
            budget=budget,
            min_open_batches=open_batches(one_round, self._engine_batch_size),
        )
        if shuffle and lanes is None:
            lanes = choose_lanes(
                n,
                block_rows,
                mix=mix,
                batch_size=self._engine_batch_size,
                max_open_batches=self._memory.batch_room // self._memory.batch_bytes,
            )
            one_round = replace(one_round, lanes=lanes)
        self._order = one_round
        self._max_open_batches(self._order, Consumer(), self._num_threads)  # refuses a budget that is too small

        self._next_epoch = 0
        self._reset_process()

    def _reset_process(self) -> None:
        """Forget engines: they belong to the process that made them."""
        self._pid = os.getpid()
        self._closed = getattr(self, "_closed", False)
        self._idle: list[Reader] = []
        self._running: list[_Epoch] = []
        self._past_stats = Stats()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_pid", "_idle", "_running", "_past_stats"):
            state.pop(name)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset_process()

    def __len__(self) -> int:
        """Return the number of batches of an epoch, or of samples for `batch_size=None`, on this rank."""
        steps = self._consumer(ignore_workers=True).steps(self._order.num_samples)
        if self._batch_size is None:
            return steps
        return steps // self._batch_size if self._drop_last else -(-steps // self._batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """Begin the next epoch, or the one that `set_epoch` named."""
        self._check_open()
        epoch = self._next_epoch
        self._next_epoch += 1
        feed = _Epoch(self, epoch)
        if self._batch_size is None:
            return (sample for batch in feed for sample in self._field_set.samples_of(batch))
        return map(self._field_set.assemble, feed)

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next iteration reads: any int from 0. The one under way is not changed."""
        check_int("epoch", epoch, 0, _INT64_MAX)
        self._next_epoch = int(epoch)

    def sample_order(self, epoch: int | None = None) -> Int64:
        """List the global sample indices in the order of delivery, without reading data.

        Parameters
        ----------
        epoch
            Which epoch; the next one to be read, unless given.

        Returns
        -------
        int64 array of shape (samples delivered on this rank,)
        """
        if epoch is None:
            epoch = self._next_epoch
        check_int("epoch", epoch, 0, _INT64_MAX)
        plan = self._plan(int(epoch), self._consumer(ignore_workers=True))
        order: Int64 = core.sample_order(plan.to_core())
        return order

    def explain(self) -> Explanation:
        """Describe how this dataset is read: arrays, blocks, lanes, amplification, memory, quality of the shuffle.

        Returns
        -------
        An object with the figures as attributes; `str()` of it is a page for people.
        """
        consumer = self._consumer(ignore_workers=True)
        order = self._order_for(consumer)
        return explain(
            fields=self._field_set,
            plan=self._plan(0, consumer),
            batch_size=self._engine_batch_size,
            memory=self._memory,
            max_open_batches=self._max_open_batches(order, consumer, self._num_threads),
            num_threads=self._num_threads,
            pinned=self._pins(),
        )

    def stats(self) -> Stats:
        """Return counters since this dataset was made (in this process)."""
        self._check_process()
        live = [*self._idle, *(feed.reader for feed in self._running if feed.reader is not None)]
        total = self._past_stats
        for reader in live:
            total = total + reader.stats()
        return total

    def close(self) -> None:
        """Stop all threads and free the memory of dropped batches. May be called twice; iterating is over after it."""
        self._check_process()
        self._closed = True
        for feed in list(self._running):
            feed.close()
        for reader in self._idle:
            self._past_stats = self._past_stats + reader.stats()
        self._idle.clear()

    def __enter__(self) -> ZarrIterableDataset:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"ZarrIterableDataset({self._field_set.describe()}, "
            f"batch_size={self._batch_size}, shuffle={self._order.shuffle}, lanes={self._order.lanes})"
        )

    def _check_open(self) -> None:
        self._check_process()
        if self._closed:
            raise ClosedError("this dataset was closed")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:  # forked: the parent's threads are not here
            self._reset_process()

    def _consumer(self, *, ignore_workers: bool = False) -> Consumer:
        rank, world_size = rank_and_world_size()
        worker, num_workers = (0, 1) if ignore_workers else worker_and_count()
        return Consumer(rank, world_size, worker, num_workers)

    def _order_for(self, consumer: Consumer) -> Order:
        """Return the order: without shuffling every consumer reads one contiguous piece."""
        return self._order if self._order.shuffle else replace(self._order, lanes=consumer.stride)

    def _plan(self, epoch: int, consumer: Consumer) -> EpochPlan:
        steps = consumer.steps(self._order.num_samples)
        if self._drop_last and self._batch_size is not None:
            steps = steps // self._batch_size * self._batch_size
        return self._order_for(consumer).plan(epoch, first=consumer.first, stride=consumer.stride, steps=steps)

    def _max_open_batches(self, order: Order, consumer: Consumer, num_threads: int) -> int:
        return self._memory.max_open_batches(
            order,
            stride=consumer.stride,
            batch_size=self._engine_batch_size,
            num_threads=num_threads,
            cells=self._field_set.cells,
        )

    def _pins(self) -> bool:
        if self._pin_memory is None:
            return torch.utils.data.get_worker_info() is None and _has_accelerator()
        return self._pin_memory

    def _allocator(self) -> Allocator | None:
        return pinned_memory if self._pins() else None

    def _take_reader(self, num_threads: int) -> Reader:
        if self._idle:
            return self._idle.pop()
        return Reader(
            self._field_set.fields,
            batch_size=self._engine_batch_size,
            num_threads=num_threads,
            memory=self._memory,
            allocator=self._allocator(),
        )


class _Epoch(Iterator[tuple[torch.Tensor, ...]]):
    """One pass over a dataset: yields batches, and gives its reader back when it ends for whatever reason."""

    def __init__(self, dataset: ZarrIterableDataset, epoch: int) -> None:
        self.reader: Reader | None = None
        self._dataset = dataset
        consumer = dataset._consumer()
        num_threads = max(1, dataset._num_threads // consumer.num_workers)
        plan = dataset._plan(epoch, consumer)
        max_open = dataset._max_open_batches(plan.order, consumer, num_threads)
        self.reader = dataset._take_reader(num_threads)
        dataset._running.append(self)
        try:
            self.reader.start(plan, max_open)
        except BaseException:
            self.close()
            raise

    def __next__(self) -> tuple[torch.Tensor, ...]:
        if self.reader is None:
            if self._dataset._closed:
                raise ClosedError("this dataset was closed")
            raise StopIteration
        try:
            batch = self.reader.next()
        except BaseException:
            self.close()
            raise
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    def close(self) -> None:
        """Stop reading; the reader and its memory serve the next epoch."""
        reader, self.reader = self.reader, None
        if reader is None:
            return
        reader.stop()
        dataset = self._dataset
        if self not in dataset._running:  # of the process that forked this one, and so is its reader
            return
        dataset._running.remove(self)
        if dataset._closed:
            dataset._past_stats = dataset._past_stats + reader.stats()
        else:
            dataset._idle.append(reader)

    def __del__(self) -> None:
        self.close()


def _internal_batch_size(fields: Sequence[Field]) -> int:
    return int(np.clip(_INTERNAL_BATCH_BYTES // sum(sample_bytes(f) for f in fields), 1, _INTERNAL_BATCH_SAMPLES))


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _has_accelerator() -> bool:
    accelerator = getattr(torch, "accelerator", None)
    return bool(accelerator.is_available() if accelerator is not None else torch.cuda.is_available())
