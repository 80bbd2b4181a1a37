"""Shuffled batches with zarr-python alone, as well as we could write it: what `zarrfeed bench` compares with.

Whole blocks are read in random order, each once, by threads that are one buffer ahead; the samples of a buffer are
permuted together. Two buffers are allocated once and used in turn, and every batch is written to the same memory, so
that no time goes into fresh memory: a batch is valid until the next one is taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr
from zarr.buffer.cpu import NDBuffer

from zarrfeed.cf import Decoding
from zarrfeed.fields import ListField, StoredField, Values, sample_bytes

#: Decoded bytes of the blocks that are permuted together; those that are read meanwhile take as many again.
_BUFFER_BYTES = 64 << 20
#: Of few blocks no more than such a part is in a buffer, so that reading and batching overlap.
_BUFFER_PART = 4


@dataclass(frozen=True)
class PlainField:
    """A field, and its array as zarr-python opened it."""

    field: StoredField | ListField
    array: zarr.Array[Any]

    @property
    def _is_copied(self) -> bool:
        """Whether items are delivered as they are stored, so that zarr-python can read into a buffer."""
        f = self.field
        stored = self.array.dtype
        conversion = isinstance(f, StoredField) and f.conversion is not None
        return not conversion and f.spec.sample_axis == 0 and stored == f.spec.dtype and stored.isnative

    def read(self, begin: int, end: int, out: npt.NDArray[Any]) -> None:
        """Read samples, as they are delivered, into memory of shape (end - begin, *sample_shape)."""
        axis = self.field.spec.sample_axis
        selection = (*[slice(None)] * axis, slice(begin, end))
        if isinstance(self.field, StoredField) and self._is_copied:
            self.array.get_basic_selection(selection, out=NDBuffer(out))  # type: ignore[arg-type]
            return
        values = np.moveaxis(np.asarray(self.array[selection]), axis, 0)
        out[...] = values if isinstance(self.field, ListField) else _delivered(values, self.field)

    def allocate(self, rows: int) -> npt.NDArray[Any]:
        """Return memory for samples."""
        f = self.field
        dtype = f.spec.dtype if isinstance(f, ListField) or f.conversion is None else np.dtype(f.conversion.result)
        return np.zeros((rows, *f.sample_shape), dtype)


def _delivered(values: npt.NDArray[Any], field: StoredField) -> npt.NDArray[Any]:
    """Return items as batches have them."""
    if values.dtype.kind in "SV" and field.spec.dtype == np.uint8:
        values = np.ascontiguousarray(values)
        return values.view(np.uint8).reshape(*values.shape, values.dtype.itemsize)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.dtype.kind in "Mm":
        return values.view(np.int64)
    decoding = None if field.conversion is None else field.conversion.decoding
    return values if decoding is None else _unpacked(values, decoding)


def _unpacked(values: npt.NDArray[Any], decoding: Decoding) -> npt.NDArray[Any]:
    """Return what attributes make of items, in NumPy: fill values, then scale, then offset."""
    items = values.view(decoding.items)
    if not (decoding.fills or decoding.scale is not None or decoding.offset is not None):
        return items.astype(decoding.result)
    result: npt.NDArray[Any] = items.astype(np.float64 if decoding.in_double else np.float32)
    missing = np.isin(items.astype(np.float64), decoding.fills) if decoding.fills else None
    if decoding.scale is not None:
        np.multiply(result, result.dtype.type(decoding.scale), out=result)
    if decoding.offset is not None:
        np.add(result, result.dtype.type(decoding.offset), out=result)
    if missing is not None:
        result[missing] = np.nan
    return result.astype(decoding.result, copy=False)


class PlainLoader:
    """Shuffled batches of some blocks of an array, or of several.

    Parameters
    ----------
    fields
        What is read. Fields that are resident are read once, when this is made.
    blocks
        Begin and end of each block, in samples.
    shuffle
        Whether blocks, and the rows of a buffer, are permuted.
    num_threads
        Blocks that are read at once.
    """

    def __init__(
        self,
        fields: Sequence[PlainField],
        blocks: Sequence[tuple[int, int]],
        *,
        batch_size: int,
        shuffle: bool,
        num_threads: int,
    ) -> None:
        self._fields = fields
        self._blocks = blocks
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._num_threads = num_threads
        self._resident: dict[int, npt.NDArray[Any]] = {}
        for number, f in enumerate(fields):
            if isinstance(f.field, StoredField) and f.field.resident:
                self._resident[number] = f.allocate(f.field.num_samples)
                f.read(0, f.field.num_samples, self._resident[number])
        block_rows = max(end - begin for begin, end in blocks)
        block_bytes = block_rows * sum(sample_bytes(f.field) for f in fields)
        most = -(-len(blocks) // _BUFFER_PART)
        self.blocks_together = min(most, max(1, _BUFFER_BYTES // max(1, block_bytes)))
        rows = self.blocks_together * block_rows
        self._buffers = [_Buffer(fields, rows), _Buffer(fields, rows)]
        self._batch = self._buffers[0].allocate_batch(min(batch_size, rows))
        self._read_ahead, self._ended = 0, math.inf  # of the last pass, if its time was up

    def time(self, seed: int, limit_s: float) -> tuple[int, float]:
        """Take the batches of a pass and drop them; return how many samples were read, in how many seconds."""
        begin = time.perf_counter()
        samples = sum(len(index) for _, index in self.epoch(seed, limit_s))
        return samples + self._read_ahead, min(time.perf_counter(), self._ended) - begin

    def epoch(self, seed: int, limit_s: float = math.inf) -> Iterator[tuple[list[Values], npt.NDArray[np.int64]]]:
        """Yield batches, one value a field, and the indices of their samples; for `limit_s` seconds at most."""
        deadline = time.perf_counter() + limit_s
        self._read_ahead, self._ended = 0, math.inf
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self._blocks)) if self._shuffle else np.arange(len(self._blocks))
        groups = [order[i : i + self.blocks_together] for i in range(0, len(order), self.blocks_together)]
        filling, ready = self._buffers
        with ThreadPoolExecutor(self._num_threads) as pool:
            pending = self._fill(pool, filling, groups[0])
            try:
                for number in range(len(groups)):
                    wait(pending, None if limit_s == math.inf else max(0.0, deadline - time.perf_counter()))
                    done = [read for read in pending if read.done()]
                    rows = sum(read.result() for read in done)
                    if len(done) < len(pending) or time.perf_counter() > deadline:
                        self._read_ahead, self._ended = rows, time.perf_counter()
                        return
                    filling, ready = ready, filling
                    pending = self._fill(pool, filling, groups[number + 1]) if number + 1 < len(groups) else []
                    slots = rng.permutation(rows) if self._shuffle else np.arange(rows)
                    for i in range(0, rows, self._batch_size):
                        yield ready.take(slots[i : i + self._batch_size], self._batch)
            finally:
                for read in pending:  # of a pass that was left
                    read.cancel()

    def _fill(self, pool: ThreadPoolExecutor, buffer: _Buffer, group: npt.NDArray[np.int64]) -> list[Future[int]]:
        """Begin to read blocks, one behind the other; each future is the number of samples of one."""
        blocks = [self._blocks[i] for i in group]
        buffer.index = np.concatenate([np.arange(begin, end) for begin, end in blocks])
        first = np.cumsum([0, *(end - begin for begin, end in blocks)]).tolist()
        return [pool.submit(self._read, buffer, row, *block) for row, block in zip(first, blocks, strict=False)]

    def _read(self, buffer: _Buffer, row: int, begin: int, end: int) -> int:
        for number, f in enumerate(self._fields):
            out = buffer.memory[number][row : row + end - begin]
            if number in self._resident:
                out[...] = self._resident[number][begin:end]
            else:
                f.read(begin, end, out)
        return end - begin


class _Buffer:
    """Memory for the samples of a group of blocks, and which these are."""

    def __init__(self, fields: Sequence[PlainField], rows: int) -> None:
        self.memory = [f.allocate(rows) for f in fields]
        self.index = np.empty(0, np.int64)
        self._fields = fields
        # (rows, bytes of a sample): NumPy copies whole rows, where torch goes through bytes one by one
        self._bytes = [
            None if isinstance(f.field, ListField) else memory.reshape(rows, -1).view(np.uint8)
            for f, memory in zip(fields, self.memory, strict=True)
        ]

    def allocate_batch(self, batch_size: int) -> list[npt.NDArray[np.uint8] | None]:
        """Return memory that `take` can write to; None for lists."""
        return [None if rows is None else np.zeros((batch_size, rows.shape[1]), np.uint8) for rows in self._bytes]

    def take(
        self, slots: npt.NDArray[np.int64], batch: Sequence[npt.NDArray[np.uint8] | None]
    ) -> tuple[list[Values], npt.NDArray[np.int64]]:
        """Copy rows into a batch."""
        values: list[Values] = []
        for f, memory, rows, to in zip(self._fields, self.memory, self._bytes, batch, strict=True):
            if rows is None or to is None or isinstance(f.field, ListField):
                values.append(memory[slots].tolist())
            else:
                np.take(rows, slots, axis=0, out=to[: len(slots)], mode="clip")  # "raise" would copy twice
                taken = torch.from_numpy(to[: len(slots)]).view(f.field.torch_dtype)
                values.append(taken.view(len(slots), *f.field.sample_shape))
        return values, self.index[slots]
