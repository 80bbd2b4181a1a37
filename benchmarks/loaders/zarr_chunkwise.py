"""The best that we could do with zarr-python: whole chunks in shuffled order, through a shuffle buffer of chunks.

Every chunk is decoded once. While batches are cut from one buffer, threads read the next chunks into another one;
both are allocated once and used again, so that no time goes into fresh memory. With workers, each has its own share of
the chunks and its own buffers, and builds batches in shared memory, so that none is copied between processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import zarr
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from zarr.buffer.cpu import NDBuffer

from benchmarks.conversion import convert
from benchmarks.loaders.protocol import Batch
from benchmarks.stores import Store

#: Decoded bytes of the chunks that are shuffled together; the chunks that are read meanwhile take as many again.
_BUFFER_BYTES = 64 << 20
#: zarr-python needs about a millisecond for a chunk, however small: of more chunks than these a random part is timed,
#: with buffers of a quarter of it.
_MAX_CHUNKS = 4096


class ShuffledChunks(IterableDataset[Batch]):
    """Batches of a store, shuffled among `buffer_chunks` chunks at a time.

    A group of chunks whose rows are no multiple of the batch size ends with a short batch.
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
        self._buffers: tuple[_Buffer, _Buffer] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that is read next."""
        self._epoch[0] = epoch

    def __iter__(self) -> Iterator[Batch]:
        epoch = int(self._epoch[0])
        worker = get_worker_info()
        chunks = np.random.default_rng((1, epoch)).permutation(self._layout.num_chunks)[: self._num_chunks]
        if worker is not None:
            chunks = chunks[worker.id :: worker.num_workers]
        generator = torch.Generator().manual_seed(epoch)
        groups = [chunks[i : i + self._buffer_chunks] for i in range(0, len(chunks), self._buffer_chunks)]
        if self._buffers is None:
            with zarr.config.set({"codec_pipeline.path": self._codec_pipeline} if self._codec_pipeline else {}):
                arrays: list[Any] = [zarr.open_array(path, mode="r") for path in self._paths]
            rows = self._buffer_chunks * self._layout.rows_per_chunk
            self._buffers = (_Buffer.allocate(arrays, rows), _Buffer.allocate(arrays, rows))
        filling, ready = self._buffers
        with ThreadPoolExecutor(self._read_threads) as pool:
            pending = filling.fill(pool, groups[0].tolist()) if groups else []
            for number in range(len(groups)):
                rows = sum(read.result() for read in pending)
                filling, ready = ready, filling
                if number + 1 < len(groups):
                    pending = filling.fill(pool, groups[number + 1].tolist())
                slots = torch.randperm(rows, generator=generator)
                for begin in range(0, rows, self._layout.batch_size):
                    end = begin + self._layout.batch_size
                    samples, *targets = ready.take(slots[begin:end], shared=worker is not None)
                    yield [convert(self._layout, samples), *targets]


@dataclass(frozen=True)
class _Buffer:
    """Memory for the chunks of a group, for each array: (rows, *sample_shape)."""

    arrays: list[Any]
    memory: list[torch.Tensor]

    @staticmethod
    def allocate(arrays: list[Any], rows: int) -> _Buffer:
        memory = [torch.from_numpy(np.zeros((rows, *a.shape[1:]), a.dtype)) for a in arrays]
        return _Buffer(arrays, memory)

    def fill(self, pool: ThreadPoolExecutor, chunks: list[int]) -> list[Future[int]]:
        """Begin to read chunks, one behind the other; each future is the number of rows of one."""
        rows = [min(self._rows_per_chunk, self._num_samples - c * self._rows_per_chunk) for c in chunks]
        begins = np.cumsum([0, *rows]).tolist()
        return [pool.submit(self._read, c, begin, n) for c, begin, n in zip(chunks, begins, rows, strict=False)]

    def take(self, slots: torch.Tensor, *, shared: bool) -> list[torch.Tensor]:
        """Copy rows into a new batch, in shared memory if it has to cross to another process."""
        tensors = []
        for memory in self.memory:
            shape = (len(slots), *memory.shape[1:])
            if shared:  # as torch's default collate function does
                size = math.prod(shape) * memory.itemsize
                storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]
                out = torch.empty(0, dtype=memory.dtype).set_(storage).view(shape)
                tensors.append(torch.index_select(memory, 0, slots, out=out))
            else:
                tensors.append(torch.index_select(memory, 0, slots))
        return tensors

    @property
    def _num_samples(self) -> int:
        return int(self.arrays[0].shape[0])

    @property
    def _rows_per_chunk(self) -> int:
        return int(self.arrays[0].chunks[0])

    def _read(self, chunk: int, begin: int, rows: int) -> int:
        first = chunk * self._rows_per_chunk
        for array, memory in zip(self.arrays, self.memory, strict=True):
            rows_in_buffer: Any = memory[begin : begin + rows].numpy()  # zarr's protocol lacks numpy's overloads
            out = NDBuffer(rows_in_buffer)
            array.get_basic_selection(slice(first, first + rows), out=out)
        return rows


class ZarrChunkwise:
    """`ShuffledChunks` behind a DataLoader, or alone where there are no workers.

    `codec_pipeline` is the class that decodes in zarr-python, None for its own. Where it has threads of its own, which
    no forked process has, workers are started from a server process.
    """

    def __init__(self, store: Store, *, num_workers: int, read_threads: int, codec_pipeline: str | None = None) -> None:
        layout = store.layout
        num_chunks = min(layout.num_chunks, _MAX_CHUNKS)
        buffer_chunks = max(1, round(_BUFFER_BYTES / layout.chunk_bytes))
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
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            multiprocessing_context="forkserver" if num_workers and codec_pipeline else None,
        )
        self.samples_per_epoch = min(layout.num_samples, num_chunks * layout.rows_per_chunk)
        self.settings: dict[str, object] = {
            "num_workers": num_workers,
            "persistent_workers": num_workers > 0,
            "prefetch_factor": self._loader.prefetch_factor,
            "buffer_chunks": buffer_chunks,
            "read_threads": read_threads,
            "codec_pipeline": codec_pipeline,
        }

    def epoch(self, epoch: int) -> Iterator[Batch]:
        assert self._loader is not None
        self._dataset.set_epoch(epoch)
        return iter(self._loader)

    def close(self) -> None:
        self._loader = None  # the last reference: its worker processes end
