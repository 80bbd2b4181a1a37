"""The best that we could do with zarr-python: whole chunks in shuffled order, through a shuffle buffer of chunks.

Every chunk is decoded once. While batches are cut from one buffer, the next chunks are read into another one; both are
allocated once and used again, and so is the memory of batches, so that no time goes into fresh memory. With workers,
each has its own share of the chunks and its own buffers, and its batches lie in shared memory, so that none is copied
between processes.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from zarr.buffer.cpu import NDBuffer

from benchmarks.conversion import convert, converted_dtype
from benchmarks.layouts import Layout
from benchmarks.loaders.protocol import Batch
from benchmarks.stores import Store

#: Decoded bytes of the chunks that are shuffled together; the chunks that are read meanwhile take as many again.
_BUFFER_BYTES = 64 << 20
#: zarr-python needs about a millisecond for a chunk, however small: of more chunks than these a random part is timed,
#: with buffers of a quarter of it.
_MAX_CHUNKS = 4096
#: Chunks that are asked for at once, so that one is always there to be decoded.
_IN_FLIGHT = 4
#: What a worker has delivered and nobody has taken yet, as torch's DataLoader has it by default.
_PREFETCH_FACTOR = 2
#: What workers send costs a millisecond, however small: they send several small batches as one, up to about this.
_MESSAGE_BYTES = 2 << 20
#: Smaller tensors go through the pipe, as NumPy arrays: a descriptor of shared memory costs more than that.
_PIPED_BYTES = 1 << 20


class ShuffledChunks(IterableDataset[Batch]):
    """Batches of a store, shuffled among `buffer_chunks` chunks at a time.

    In a worker, small batches come several at once, as one that is still to be split. A batch is valid until the next
    but one is taken: its memory is used again. A group of chunks whose rows are no multiple of the batch size ends
    with a short batch.
    """

    def __init__(
        self, store: Store, *, num_chunks: int, buffer_chunks: int, read_threads: int, codec_pipeline: str | None
    ) -> None:
        super().__init__()
        self._layout = store.layout
        self._paths = store.array_paths
        self._num_chunks = num_chunks
        self._buffer_chunks = buffer_chunks
        self._read_threads = read_threads
        self._codec_pipeline = codec_pipeline
        self._epoch = torch.zeros(1, dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # workers that live on see it change
        self._memory: _Memory | None = None  # made in the process that reads
        self._reader: _Reader | None = None

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that is read next."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch = int(self._epoch[0])
        worker = get_worker_info()
        rng = np.random.default_rng((1, epoch))
        chunks = rng.permutation(self._layout.num_chunks)[: self._num_chunks]
        if worker is not None:
            chunks = chunks[worker.id :: worker.num_workers]
        groups = [chunks[i : i + self._buffer_chunks].tolist() for i in range(0, len(chunks), self._buffer_chunks)]
        if self._reader is None or self._memory is None:
            self._reader = _Reader(self._paths, self._layout, self._read_threads, self._codec_pipeline)
            rows = self._buffer_chunks * self._layout.rows_per_chunk
            taken = self._layout.batch_size
            if worker is not None:
                taken *= max(1, _MESSAGE_BYTES // (taken * self._layout.sample_bytes))
            arrays, shared = self._reader.arrays, worker is not None
            self._memory = _Memory.allocate(arrays, rows, self._layout, batch_rows=taken, shared=shared)
        reader, memory = self._reader, self._memory
        filling, ready = memory.buffers
        pending: Future[int] | None = None
        try:
            for number in range(len(groups)):
                rows = (pending or reader.fill(filling, groups[number])).result()
                filling, ready = ready, filling
                pending = reader.fill(filling, groups[number + 1]) if number + 1 < len(groups) else None
                slots = rng.permutation(rows)
                for begin in range(0, rows, memory.batch_rows):
                    batch = memory.take(ready, slots[begin : begin + memory.batch_rows])
                    yield batch if worker is None else [_to_send(tensor) for tensor in batch]
        finally:
            if pending is not None:  # of an epoch that was left
                pending.cancel()

    def close(self) -> None:
        """End the threads of this process."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._memory = None


class _Reader:
    """Reads chunks by zarr-python's asynchronous arrays, on an event loop with its own thread.

    zarr-python's blocking methods do the same on a loop that it shares among all callers: then two threads change
    places more for every chunk, and its loop has more threads than there are cores.
    """

    def __init__(self, paths: Sequence[Any], layout: Layout, threads: int, codec_pipeline: str | None) -> None:
        with zarr.config.set({"codec_pipeline.path": codec_pipeline} if codec_pipeline else {}):
            self.arrays: list[Any] = [zarr.open_array(path, mode="r") for path in paths]
        self._num_samples, self._rows_per_chunk = layout.num_samples, layout.rows_per_chunk
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(threads))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def fill(self, buffer: Sequence[npt.NDArray[Any]], chunks: Sequence[int]) -> Future[int]:
        """Begin to read chunks, one behind the other in the buffer; the future is the number of their rows."""
        return asyncio.run_coroutine_threadsafe(self._fill(buffer, chunks), self._loop)

    async def _fill(self, buffer: Sequence[npt.NDArray[Any]], chunks: Sequence[int]) -> int:
        firsts = [chunk * self._rows_per_chunk for chunk in chunks]
        rows = [min(self._rows_per_chunk, self._num_samples - first) for first in firsts]
        begins = np.cumsum([0, *rows]).tolist()
        todo = iter(list(zip(firsts, begins, rows, strict=False)))

        async def read_some() -> None:
            for first, begin, count in todo:  # shared: each chunk is taken by one of those who read
                for array, memory in zip(self.arrays, buffer, strict=True):
                    # zarr's protocol lacks numpy's overloads
                    out = NDBuffer(memory[begin : begin + count])  # type: ignore[arg-type]
                    await array.async_array.get_orthogonal_selection((slice(first, first + count),), out=out)

        await asyncio.gather(*(read_some() for _ in range(_IN_FLIGHT)))
        return int(begins[-1])

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True)
class _Memory:
    """Two buffers, each of (rows, *sample_shape) for each array, and the memory of batches, used in turn."""

    layout: Layout
    batch_rows: int
    buffers: tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]
    #: Of samples before they are converted, if they are.
    stored: npt.NDArray[Any] | None
    batches: deque[list[torch.Tensor]]

    @staticmethod
    def allocate(arrays: Sequence[Any], rows: int, layout: Layout, *, batch_rows: int, shared: bool) -> _Memory:
        """Allocate for groups of so many rows, batches in shared memory if they have to cross to another process."""
        # one is written, one is held; of a worker's, some were delivered and one is on its way besides
        count = _PREFETCH_FACTOR + 2 if shared else 2
        shapes = [(batch_rows, *array.shape[1:]) for array in arrays]
        samples_dtype, *targets = (torch.from_numpy(np.empty(0, array.dtype)).dtype for array in arrays)
        dtypes = [converted_dtype(layout) or samples_dtype, *targets]
        make = _shared_tensor if shared else torch.zeros
        return _Memory(
            layout,
            batch_rows,
            (_zeros(arrays, rows), _zeros(arrays, rows)),
            None if converted_dtype(layout) is None else np.zeros(shapes[0], arrays[0].dtype),
            deque(
                [make(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)] for _ in range(count)
            ),
        )

    def take(self, buffer: Sequence[npt.NDArray[Any]], slots: npt.NDArray[np.int64]) -> list[torch.Tensor]:
        """Copy rows into the batch that was taken longest ago."""
        self.batches.rotate()
        batch = [tensor[: len(slots)] for tensor in self.batches[0]]
        for number, (memory, tensor) in enumerate(zip(buffer, batch, strict=True)):
            if number == 0 and self.stored is not None:
                stored = self.stored[: len(slots)]
                np.take(memory, slots, axis=0, out=stored, mode="clip")
                convert(self.layout, torch.from_numpy(stored), out=tensor)
            else:  # "raise" would copy twice
                np.take(memory, slots, axis=0, out=tensor.numpy(), mode="clip")
        return batch


def _zeros(arrays: Sequence[Any], rows: int) -> list[npt.NDArray[Any]]:
    return [np.zeros((rows, *array.shape[1:]), array.dtype) for array in arrays]


def _shared_tensor(shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros in shared memory, as torch's default collate function makes it, unless they are few."""
    size = math.prod(shape) * dtype.itemsize
    if size <= _PIPED_BYTES and dtype != torch.bfloat16:  # which NumPy lacks
        return torch.zeros(shape, dtype=dtype)
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(storage).view(shape).zero_()


def _to_send(tensor: torch.Tensor) -> Any:
    return tensor if tensor.is_shared() else tensor.numpy()  # type: ignore[no-untyped-call]


def _as_it_is(fields: Any) -> Any:
    """Return what it is given: torch's own function would make tensors of arrays, to be sent as descriptors."""
    return fields


def _received(field: Any) -> torch.Tensor:
    return field if isinstance(field, torch.Tensor) else torch.from_numpy(field)


class ZarrChunkwise:
    """`ShuffledChunks` behind a DataLoader, or alone where there are no workers.

    `codec_pipeline` is the class that decodes in zarr-python, None for its own. Where it has threads of its own, which
    no forked process has, workers are started from a server process.
    """

    def __init__(self, store: Store, *, num_workers: int, read_threads: int, codec_pipeline: str | None = None) -> None:
        layout = store.layout
        num_chunks = min(layout.num_chunks, _MAX_CHUNKS)
        # of large chunks as many as are decoded at once
        buffer_chunks = max(read_threads, round(_BUFFER_BYTES / layout.chunk_bytes))
        if num_chunks < layout.num_chunks:
            buffer_chunks = min(buffer_chunks, num_chunks // 4)
        self._dataset = ShuffledChunks(
            store,
            num_chunks=num_chunks,
            buffer_chunks=buffer_chunks,
            read_threads=read_threads,
            codec_pipeline=codec_pipeline,
        )
        self._loader: DataLoader[Any] | None = DataLoader(
            self._dataset,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=_PREFETCH_FACTOR if num_workers else None,
            persistent_workers=num_workers > 0,
            multiprocessing_context="forkserver" if num_workers and codec_pipeline else None,
        )
        self._batch_size = layout.batch_size
        self.samples_per_epoch = min(layout.num_samples, num_chunks * layout.rows_per_chunk)
        self.settings: dict[str, object] = {
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0,
            "prefetch_factor": self._loader.prefetch_factor,
            "buffer_chunks": buffer_chunks,
            "read_threads": read_threads,
            "chunks_in_flight": _IN_FLIGHT,
            "codec_pipeline": codec_pipeline,
        }

    def epoch(self, epoch: int) -> Iterator[Batch]:
        assert self._loader is not None
        self._dataset.set_epoch(epoch)
        for fields in self._loader:
            yield from zip(*(torch.split(_received(field), self._batch_size) for field in fields), strict=True)

    def close(self) -> None:
        self._loader = None  # the last reference: its worker processes end
        self._dataset.close()
