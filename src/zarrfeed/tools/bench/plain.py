"""Shuffled batches with zarr-python alone, as fast as we could make it: the loader that zarrfeed is compared with.

`zarrfeed bench` and the benchmark suite both use it. Whole blocks of chunks are read in random order, each once, into a
buffer; the rows of a buffer are permuted together and copied to batches while the next buffer is read. The reading is
done by zarr-python's asynchronous arrays on an event loop of our own, in this process or in DataLoader workers, with as
many threads or workers as the caller asks for.

Invariants:

- Buffers and the memory of batches are allocated once and used in turn, so that no time goes into fresh memory. A batch
  is therefore valid until the next but one is taken.
- With workers, each block belongs to exactly one worker, and batches cross to the training process in shared memory.
- A pass that reaches its deadline starts no further read, in any process, and ends when the reads in flight have ended.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import zarr
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from zarr.buffer.cpu import NDBuffer

from zarrfeed.tools.bench.plain_fields import PlainField

Block: TypeAlias = tuple[int, int]
#: A batch has one of these for each field.
PlainValues: TypeAlias = "torch.Tensor | list[Any]"

#: Decoded bytes of the blocks that are permuted together, over all workers; the blocks that are read meanwhile take as
#: many again.
_BUFFER_BYTES = 64 << 20
#: A buffer holds at most this part of the blocks, so that reading and batching overlap where there are few blocks.
_BUFFER_PART = 4
#: Block reads in flight for each thread, so that a stored chunk is always there to be decoded.
_IN_FLIGHT = 2
#: Messages that a worker may have sent before they are taken: the default of torch's DataLoader.
_PREFETCH_FACTOR = 2
#: A message between processes costs about a millisecond: a worker sends several small batches as one, up to this size.
_MESSAGE_BYTES = 2 << 20
#: Smaller tensors cross as NumPy arrays through the pipe: a descriptor of shared memory costs more than that.
_PIPED_BYTES = 1 << 20
#: Kinds of dtypes that zarr-python can decode straight into our memory.
_NUMERIC = "biufc"


class _Control:
    """State that the processes of a loader share: the pass, its deadline, and the samples that each has read."""

    def __init__(self, num_processes: int) -> None:
        self._pass = torch.zeros(1, dtype=torch.int64)
        self._deadline = torch.zeros(1, dtype=torch.float64)  # by time.monotonic(), the same clock in all processes
        self._samples = torch.zeros(num_processes, dtype=torch.int64)
        for tensor in (self._pass, self._deadline, self._samples):
            tensor.share_memory_()  # type: ignore[no-untyped-call]  # workers that live on see it change

    def begin(self, seed: int, limit_s: float) -> None:
        self._pass[0], self._deadline[0] = seed, time.monotonic() + limit_s
        self._samples.zero_()

    @property
    def seed(self) -> int:
        return int(self._pass[0])

    @property
    def expired(self) -> bool:
        return time.monotonic() > float(self._deadline[0])

    @property
    def samples(self) -> int:
        return int(self._samples.sum())

    def count(self, process: int, samples: int) -> None:
        self._samples[process] += samples


@dataclass(frozen=True)
class _Settings:
    """Settings that are sent to the processes of a loader, as a pickle: each process opens the arrays anew."""

    open_arrays: Callable[[], Sequence[zarr.Array[Any]]]
    fields: tuple[PlainField, ...]
    blocks: npt.NDArray[np.int64]
    blocks_per_pass: int
    blocks_together: int
    batch_size: int
    shuffle: bool
    return_index: bool
    num_threads: int
    control: _Control

    @property
    def buffer_rows(self) -> int:
        return self.blocks_together * int((self.blocks[:, 1] - self.blocks[:, 0]).max())

    @property
    def sample_bytes(self) -> int:
        return max(1, sum(f.sample_bytes for f in self.fields))


class _Batches(IterableDataset[list[PlainValues]]):
    """The batches of the blocks that belong to this process. A worker sends several small batches as one, to be split.

    A group of blocks whose rows are no multiple of the batch size ends with a short batch.
    """

    def __init__(self, settings: _Settings) -> None:
        super().__init__()
        self._settings = settings
        self._reader: _Reader | None = None  # made in the process that reads
        self._memory: _Memory | None = None

    def __iter__(self) -> Iterator[list[PlainValues]]:
        s, worker = self._settings, get_worker_info()
        process, num_processes = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rng = np.random.default_rng((1, s.control.seed))
        order = rng.permutation(len(s.blocks)) if s.shuffle else np.arange(len(s.blocks))
        order = order[: s.blocks_per_pass][process::num_processes]
        groups = [s.blocks[order[i : i + s.blocks_together]] for i in range(0, len(order), s.blocks_together)]
        if self._reader is None or self._memory is None:
            self._reader = _Reader(s, process)
            self._memory = _Memory(s, shared=worker is not None)
        reader, memory = self._reader, self._memory
        pending: Future[bool] | None = None
        filling, ready = memory.buffers
        try:
            for number, group in enumerate(groups):
                complete = (pending or reader.fill(filling, group)).result()
                if not complete:
                    return
                filling, ready = ready, filling
                pending = reader.fill(filling, groups[number + 1]) if number + 1 < len(groups) else None
                rows = len(ready.index)
                slots = rng.permutation(rows) if s.shuffle else np.arange(rows)
                for begin in range(0, rows, memory.batch_rows):
                    batch = memory.take(ready, slots[begin : begin + memory.batch_rows])
                    yield batch if worker is None else [_to_send(values) for values in batch]
        finally:
            if pending is not None:  # of a pass that was left
                pending.cancel()

    def close(self) -> None:
        """End the threads of this process, and free its memory."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._memory = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_memory": None}


@dataclass
class _Buffer:
    """Memory for the rows of a group of blocks, one array a field, and which samples these are."""

    memory: list[npt.NDArray[Any]]
    index: npt.NDArray[np.int64]

    @classmethod
    def allocate(cls, fields: Sequence[PlainField], rows: int) -> _Buffer:
        """Return memory for so many rows."""
        return cls([f.allocate(rows) for f in fields], np.zeros(0, np.int64))


class _Reader:
    """Reads blocks by zarr-python's asynchronous arrays, on an event loop with a thread of its own.

    zarr-python's blocking methods do the same on a loop that all callers share: then two threads hand over for every
    chunk, and its loop has more threads than there are cores.
    """

    def __init__(self, settings: _Settings, process: int) -> None:
        self._settings, self._process = settings, process
        self._arrays: list[Any] = list(settings.open_arrays())
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(settings.num_threads))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._resident: dict[int, npt.NDArray[Any]] = {}
        for number, (f, array) in enumerate(zip(settings.fields, self._arrays, strict=True)):
            if f.resident:
                whole = f.allocate(array.shape[f.sample_axis])
                asyncio.run_coroutine_threadsafe(self._read(number, 0, len(whole), whole), self._loop).result()
                self._resident[number] = whole

    def fill(self, buffer: _Buffer, blocks: npt.NDArray[np.int64]) -> Future[bool]:
        """Begin to read blocks, one behind the other in the buffer; the future is False if the deadline came first."""
        return asyncio.run_coroutine_threadsafe(self._fill(buffer, blocks), self._loop)

    async def _fill(self, buffer: _Buffer, blocks: npt.NDArray[np.int64]) -> bool:
        control, process, complete = self._settings.control, self._process, True
        rows = np.cumsum([0, *(blocks[:, 1] - blocks[:, 0])]).tolist()
        buffer.index = np.concatenate([np.arange(begin, end) for begin, end in blocks])
        todo = iter(list(zip(rows, blocks.tolist(), strict=False)))

        async def read_some() -> None:
            nonlocal complete
            for row, (begin, end) in todo:  # shared: each block is taken by one of those who read
                if control.expired:
                    complete = False
                    return
                for number, memory in enumerate(buffer.memory):
                    await self._read(number, begin, end, memory[row : row + end - begin])
                control.count(process, end - begin)

        await asyncio.gather(*(read_some() for _ in range(_IN_FLIGHT * self._settings.num_threads)))
        return complete

    async def _read(self, number: int, begin: int, end: int, out: npt.NDArray[Any]) -> None:
        """Read samples of a field to memory of shape (end - begin, *sample_shape), as items."""
        if number in self._resident:
            out[...] = self._resident[number][begin:end]
            return
        f, array = self._settings.fields[number], self._arrays[number]
        selection = (*[slice(None)] * f.sample_axis, slice(begin, end))
        if f.sample_axis == 0 and array.dtype == f.items and f.items.kind in _NUMERIC:
            # zarr's protocol lacks numpy's overloads
            await array.async_array.get_orthogonal_selection(selection, out=NDBuffer(out))  # type: ignore[arg-type]
            return
        values = np.moveaxis(np.asarray(await array.async_array.get_orthogonal_selection(selection)), f.sample_axis, 0)
        if f.delivered is None:
            out[...] = values
            return
        out[...] = f.as_items(np.ascontiguousarray(values, dtype=f.stored))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Memory:
    """Two buffers, and the memory of batches, used in turn."""

    def __init__(self, settings: _Settings, *, shared: bool) -> None:
        s, rows = settings, settings.buffer_rows
        taken = s.batch_size * (max(1, _MESSAGE_BYTES // (s.batch_size * s.sample_bytes)) if shared else 1)
        self.batch_rows = min(taken, rows)
        self.buffers = (_Buffer.allocate(s.fields, rows), _Buffer.allocate(s.fields, rows))
        self._fields, self._return_index = s.fields, s.return_index
        #: items that are still to be converted
        self._items = [f.allocate(self.batch_rows) if f.convert is not None else None for f in s.fields]
        # The caller holds one batch while another is written; of a worker's, some are queued and one is on its way.
        count = _PREFETCH_FACTOR + 2 if shared else 2
        shapes = [(self.batch_rows, *memory.shape[1:]) for memory in self.buffers[0].memory]
        make = _shared_tensor if shared else _tensor
        self._batches = deque(
            [
                None if f.delivered is None else make(shape, f.delivered)
                for f, shape in zip(s.fields, shapes, strict=True)
            ]
            for _ in range(count)
        )

    def take(self, buffer: _Buffer, slots: npt.NDArray[np.int64]) -> list[PlainValues]:
        """Copy rows into the batch that was taken longest ago."""
        self._batches.rotate()
        values: list[PlainValues] = []
        for f, memory, tensor, items in zip(self._fields, buffer.memory, self._batches[0], self._items, strict=True):
            if tensor is None:
                values.append(memory[slots].tolist())
                continue
            out = tensor[: len(slots)]
            if f.convert is None or items is None:
                np.take(memory, slots, axis=0, out=out.numpy(), mode="clip")  # mode="raise" would copy twice
            else:
                np.take(memory, slots, axis=0, out=items[: len(slots)], mode="clip")
                f.convert(items[: len(slots)], out)
            values.append(out)
        if self._return_index:
            values.append(torch.from_numpy(buffer.index[slots]))
        return values


def _tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def _shared_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros in shared memory, as torch's default collate function makes it, unless they are few."""
    size = math.prod(shape) * dtype.itemsize
    if size <= _PIPED_BYTES and dtype != torch.bfloat16:  # which NumPy lacks
        return torch.zeros(shape, dtype=dtype)
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch has no public allocator of it
    return torch.empty(0, dtype=dtype).set_(storage).view(shape).zero_()


def _to_send(values: PlainValues) -> Any:
    if isinstance(values, list) or values.is_shared():  # type: ignore[no-untyped-call]
        return values
    return values.numpy()


def _as_it_is(fields: Any) -> Any:
    """Return the fields unchanged: torch's own function would make tensors of arrays, to be sent as descriptors."""
    return fields


class PlainLoader:
    """Shuffled batches of some blocks of one or several arrays.

    Parameters
    ----------
    open_arrays
        Returns the arrays of `fields`; called once in each process that reads. Must be picklable where `context` is
        "spawn" or "forkserver".
    fields
        The arrays that are read, one field each.
    blocks
        Begin and end of each block, in samples.
    batch_size, shuffle
        Samples of a batch; if True, blocks, and the rows of a buffer, are permuted.
    num_workers, num_threads
        DataLoader workers (0: this process reads), and threads that decode in each process.
    blocks_per_pass
        Blocks of a pass; fewer than all are another random part in each pass. None: all.
    return_index
        If True, the samples' indices are the last value of a batch.
    context
        Start method of the workers; None: Python's default.
    """

    def __init__(
        self,
        open_arrays: Callable[[], Sequence[zarr.Array[Any]]],
        fields: Sequence[PlainField],
        blocks: Sequence[Block],
        *,
        batch_size: int,
        shuffle: bool,
        num_workers: int,
        num_threads: int,
        blocks_per_pass: int | None = None,
        return_index: bool = False,
        context: str | None = None,
    ) -> None:
        bounds = np.array(blocks, dtype=np.int64).reshape(-1, 2)
        blocks_per_pass = min(len(bounds), blocks_per_pass or len(bounds))
        block_bytes = int((bounds[:, 1] - bounds[:, 0]).max()) * max(1, sum(f.sample_bytes for f in fields))
        processes = max(1, num_workers)
        own_blocks = -(-blocks_per_pass // processes)
        together = min(-(-own_blocks // _BUFFER_PART), round(_BUFFER_BYTES / processes / block_bytes))
        self.blocks_together = min(own_blocks, max(num_threads, together))
        self.num_workers, self.num_threads = num_workers, num_threads
        self._batch_size = batch_size
        self._control = _Control(processes)
        self._dataset = _Batches(
            _Settings(
                open_arrays,
                tuple(fields),
                bounds,
                blocks_per_pass,
                self.blocks_together,
                batch_size,
                shuffle,
                return_index,
                num_threads,
                self._control,
            )
        )
        self._loader: DataLoader[Any] | None = DataLoader(
            self._dataset,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=_PREFETCH_FACTOR if num_workers else None,
            persistent_workers=num_workers > 0,
            multiprocessing_context=context if num_workers else None,
        )

    @property
    def settings(self) -> dict[str, object]:
        """The settings that the loader chose, for the record."""
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "prefetch_factor": _PREFETCH_FACTOR if self.num_workers else None,
            "blocks_together": self.blocks_together,
            "threads": self.num_threads,
            "blocks_in_flight": _IN_FLIGHT * self.num_threads,
        }

    def start(self) -> None:
        """Start workers and open arrays, which is otherwise done by the first pass."""
        for _ in self.epoch(0, limit_s=-1):
            pass

    def epoch(self, seed: int, limit_s: float = math.inf) -> Iterator[list[PlainValues]]:
        """Yield the batches of a pass, one value a field; after `limit_s` seconds no further block is read."""
        assert self._loader is not None
        self._control.begin(seed, limit_s)
        for message in self._loader:
            parts = [_split(values, self._batch_size) for values in message]
            yield from map(list, zip(*parts, strict=True))

    def time(self, seed: int, limit_s: float) -> tuple[int, float]:
        """Take the batches of a pass and drop them; return how many samples were read, in how many seconds.

        If a pass reached its limit, the blocks count whose reading has ended, delivered or not.
        """
        begin = time.perf_counter()
        for _ in self.epoch(seed, limit_s):
            pass
        return self._control.samples, time.perf_counter() - begin

    def close(self) -> None:
        """End threads and worker processes, and free the memory."""
        self._loader = None  # the last reference: its worker processes end
        self._dataset.close()


def _split(values: Any, batch_size: int) -> Sequence[PlainValues]:
    if isinstance(values, list):
        return [values[i : i + batch_size] for i in range(0, len(values), batch_size)]
    tensor = values if isinstance(values, torch.Tensor) else torch.from_numpy(values)
    return torch.split(tensor, batch_size)
