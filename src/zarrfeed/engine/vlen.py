"""Look up samples of text or bytes of any length (vlen data) by their index, chunk by chunk, when a batch is made.

Invariant: only chunks that hold samples of the batch are read, and zarr-python's own pipeline decodes them in threads.
A cache keeps the decoded chunks that were used last, within a limit. All work on the cache is done on zarr-python's
event loop, so nothing needs a lock. A look-up that was interrupted ends on that loop by itself, and changes nothing but
the cache.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import sys
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from zarr.buffer import cpu

from zarrfeed.base.errors import DecodeError, StoreReadError, ZarrfeedError
from zarrfeed.engine.cache_stats import CacheStats
from zarrfeed.engine.sample_lookup import SampleLookup, skipped_part
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.field_rows import find_rows
from zarrfeed.spec.arrays.item_choice import ItemChoice
from zarrfeed.spec.arrays.sharding import ShardReading
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import VlenField
from zarrfeed.storage.access.read_counts import ReadCounts
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.access.zarr_internals import sync
from zarrfeed.storage.chunks.chunk_reader import ChunkReader, ReadFailure, locate_chunk
from zarrfeed.storage.chunks.location import StoreSource

Int64: TypeAlias = npt.NDArray[np.int64]
Objects: TypeAlias = npt.NDArray[np.object_]
#: Index of a chunk along the sample axis, and along the other axes.
ChunkIndex: TypeAlias = tuple[int, tuple[int, ...]]
#: A chunk that could not be read or decoded, and why.
ChunkError: TypeAlias = tuple[ChunkIndex, BaseException]

#: Chunks that are asked for at once.
_MAX_REQUESTS = 32
#: Bytes of an item beside its object: a pointer in the array.
_POINTER_BYTES = 8


@dataclass
class _CachedChunk:
    """A decoded chunk: its items, the sample axis first, without padding, and the bytes of memory that they take."""

    items: Objects
    size: int


class EncodedLookup(SampleLookup[ChunkError]):
    """Looks up text and bytes of any length: `VlenReader` in one store, `PartedVlenReader` in several.

    Attributes
    ----------
    field
        The field. A sample is the row of its array with the sample's index, or the rows of a window.
    """

    field: VlenField

    async def look_up(self, index: Int64) -> tuple[Objects, list[ChunkError]]:
        """Return rows, with the first axis along their `index`, and the unreadable chunks; on zarr-python's loop."""
        raise NotImplementedError

    def chunks_of_rows(self, rows: Int64) -> Int64:
        """Return the number of the chunk of each row, along the sample axis."""
        raise NotImplementedError

    async def look_up_samples(self, index: Int64) -> tuple[Objects, list[ChunkError]]:
        """Like `look_up`, but return the rows of samples, whose window makes an axis; None for rows that are filled."""
        window = self.field.window
        if window is None:
            return await self.look_up(index)
        rows = self.rows_of(index)
        distinct, number = np.unique(rows, return_inverse=True)
        first = int(np.searchsorted(distinct, 0))  # -1 comes before it
        items, errors = await self.look_up(distinct[first:])
        none = np.full((first, *items.shape[1:]), None, dtype=object)
        taken = np.concatenate([none, items])[number.reshape(rows.shape)]
        return taken.reshape(len(index), *window.shape, *items.shape[1:]), errors

    def rows_of(self, samples: Int64) -> Int64:
        """Return the rows of samples, shape (samples, rows of the window); -1 for a row that is filled."""
        return np.stack([self.find_rows(samples, offset) for offset in self.offsets], axis=1)

    def find_rows(self, samples: Int64, offset: int) -> Int64:
        """Return the row at an offset from each sample; -1 for a row that is filled."""
        rows = find_rows(self.field, samples, offset)
        is_filled = self.field.fill_value is not None
        return np.where(rows == samples + offset, rows, -1) if is_filled else rows

    def find_chunks(self, samples: Int64, offset: int) -> Int64:
        """Return the number of the chunk of the row at an offset from each sample; -1 for a row that is filled."""
        rows = self.find_rows(samples, offset)
        return np.where(rows < 0, -1, self.chunks_of_rows(np.maximum(rows, 0)))

    def chunk_index_of(self, sample: int, item: tuple[int, ...]) -> ChunkIndex:
        """Return the chunk in which an item of a sample lies."""
        raise NotImplementedError

    def label(self, chunk_index: ChunkIndex) -> str:
        """Return the key of a chunk, and which inner chunk it is where there are such."""
        raise NotImplementedError

    def array_of(self, chunk_index: ChunkIndex) -> str:
        """Return the name in errors of the array that has a chunk."""
        raise NotImplementedError

    def close(self) -> None:
        """End the epoch. Decoded chunks stay in the cache."""

    def take_what_is_good(self, index: Int64) -> tuple[list[Any], list[ChunkError]]:
        """Return samples, and the chunks that could not be read; their samples are incomplete.

        Samples are nested lists, as deep as the array has axes.
        """
        taken, errors = sync(self.look_up_samples(index))
        listed: list[Any] = taken.tolist()
        return listed, errors

    def _error_of(self, bad: ChunkError) -> BaseException:
        return bad[1]

    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:
        """Map the skip id of array `number` to its chunks."""
        return {number: SkippedField(name, self.find_chunks, self.offsets)}

    @property
    def offsets(self) -> tuple[int, ...]:
        """The distances of the rows of a sample from its own."""
        return (0,) if self.field.window is None else self.field.window.offsets

    def skipped(self, number: int, index: Int64, errors: list[ChunkError]) -> Skipped:
        """Return the slots that lack their sample because a chunk of array `number` is bad, as the engine does.

        Raises
        ------
        BaseException
            Any of the errors that says nothing of a chunk.
        """
        named = [chunk_index[0] for chunk_index, _ in errors]
        chunks_of = np.stack([self.find_chunks(index, offset) for offset in self.offsets], axis=1)
        bad = np.flatnonzero(np.isin(chunks_of, named).any(axis=1))
        chunks = [skipped_part(number, chunk_index[0], self.label(chunk_index), error) for chunk_index, error in errors]
        return bad.tolist(), index[bad].tolist(), chunks


class VlenReader(EncodedLookup):
    """Reads the samples of one field.

    Parameters
    ----------
    field
        The field, whose samples are text or bytes of any length.
    cache_bytes
        Memory for cached decoded chunks; those that one batch takes at once come on top.
    max_decodes
        Chunks that are decoded at once.
    """

    def __init__(self, field: VlenField, *, cache_bytes: int, max_decodes: int, policy: Faults) -> None:
        self.field = field
        spec = field.spec
        source = spec.source
        assert isinstance(source, StoreSource)
        assert source.decoder is not None
        self._spec = spec
        self._source = source.reopened() if source.is_forked else source
        self._decoder = source.decoder
        self._cache_bytes = cache_bytes
        self._max_decodes = max_decodes
        self._policy = policy
        self._cache: OrderedDict[ChunkIndex, _CachedChunk] = OrderedDict()
        self._used_bytes = 0
        self._counts = ReadCounts()
        self._stats = Stats()
        others = [axis for axis in range(len(spec.shape)) if axis != spec.sample_axis]
        choice = spec.choice or ItemChoice.of_all(len(spec.shape))
        chunks = (choice.chunks(a, spec.shape[a], spec.chunk_shape[a]).tolist() for a in others)
        self._cells = list(itertools.product(*chunks))
        self._others = others
        #: of each other axis the stored items that samples have
        self._chosen = [choice.positions(a, spec.shape[a]) for a in others]
        self._dropped = [one is not None and one.dropped for a in others for one in [choice.axes[a]]]
        sharding = None if spec.shard is None else ShardReading(spec.shard)
        self._make_reader = partial(ChunkReader, self._source, policy, self._counts, sharding=sharding)
        self._reader = self._make_reader()

    @property
    def name(self) -> str:
        """The name of the array in errors."""
        return self._spec.name

    @property
    def source(self) -> StoreSource:
        """The source of the chunks."""
        return self._source

    def chunks_of_rows(self, rows: Int64) -> Int64:
        """Return the number of the chunk of each row, along the sample axis."""
        return rows // self._spec.rows_per_chunk

    def open(self, plan: ReadPlan, max_open_batches: int) -> None:  # noqa: ARG002 (samples are looked up when wanted)
        """Begin an epoch: make the store ready, forget indices of shards.

        Raises
        ------
        StoreReadError
            If the store cannot be opened. And ConfigError, if it does not work in a forked process.
        """
        sync(self.begin())

    async def begin(self) -> None:
        """Do the same, on zarr-python's loop."""
        self._reader = self._make_reader()
        try:
            await self._source.open()
        except ZarrfeedError:
            raise
        except Exception as error:
            raise StoreReadError(errno_of(error), f"the store cannot be opened: {reason_of(error)}") from error

    def chunk_index_of(self, sample: int, item: tuple[int, ...]) -> ChunkIndex:
        """Return the chunk in which an item of a sample lies."""
        numbers = iter(item)
        at = [0 if dropped else next(numbers) for dropped in self._dropped]
        cell = tuple(
            chosen[i] // self._spec.chunk_shape[axis]
            for i, chosen, axis in zip(at, self._chosen, self._others, strict=True)
        )
        return sample // self._spec.rows_per_chunk, cell

    def array_of(self, chunk_index: ChunkIndex) -> str:  # noqa: ARG002 (it is one array)
        """Return the name of the array in errors."""
        return self._spec.name

    def label(self, chunk_index: ChunkIndex) -> str:
        """Return the key of a chunk, and which inner chunk it is where there are such."""
        key, position = locate_chunk(self._spec, self._grid(chunk_index))
        return f"{key} {self._reader.inner_label(position)}".rstrip()

    def stats(self) -> Stats:
        """Return the counters since this reader was made."""
        return self._stats + Stats(
            requests=self._counts.requests,
            retries=self._counts.retries,
            indices_read=self._counts.indices_read,
            cache=CacheStats.of_python(self._counts.cache),
        )

    async def look_up(self, index: Int64) -> tuple[Objects, list[ChunkError]]:
        """Return rows, with the first axis along their `index`, and the unreadable chunks; on zarr-python's loop."""
        taken = np.empty((len(index), *map(len, self._chosen)), dtype=object)
        chunk = index // self._spec.rows_per_chunk
        # chunk along the sample axis -> slots of the batch that it fills
        slots = {int(c): np.flatnonzero(chunk == c) for c in np.unique(chunk)}
        reading, decoding = asyncio.Semaphore(_MAX_REQUESTS), asyncio.Semaphore(self._max_decodes)

        async def fill(chunk_index: ChunkIndex) -> BaseException | None:
            try:
                async with reading:
                    items = await self._items(chunk_index, decoding)
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 (`take` raises it)
                return error
            where = slots[chunk_index[0]]
            to, of_chunk = self._items_of_cell(chunk_index[1])
            rows = index[where] - chunk_index[0] * self._spec.rows_per_chunk
            taken[np.ix_(where, *to)] = items[np.ix_(rows, *of_chunk)]
            return None

        chunk_indices = list(itertools.product(slots, self._cells))
        results = await asyncio.gather(*map(fill, chunk_indices))
        return taken.reshape(len(index), *self._spec.sample_shape), [
            (chunk_index, error) for chunk_index, error in zip(chunk_indices, results, strict=True) if error is not None
        ]

    def _items_of_cell(self, cell: tuple[int, ...]) -> tuple[list[Int64], list[Int64]]:
        """Return, for each other axis, the items of a sample that lie in a cell, and where they lie in its chunk."""
        to, of_chunk = [], []
        for i, chosen, axis in zip(cell, self._chosen, self._others, strict=True):
            stored, length = np.asarray(chosen, dtype=np.int64), self._spec.chunk_shape[axis]
            inside = np.flatnonzero(stored // length == i)
            to.append(inside)
            of_chunk.append(stored[inside] - i * length)
        return to, of_chunk

    async def _items(self, chunk_index: ChunkIndex, decoding: asyncio.Semaphore) -> Objects:
        """Return a decoded chunk, from the cache or from the store."""
        chunk = self._cache.get(chunk_index)
        if chunk is None:
            chunk = await self._read(chunk_index, decoding)
            if chunk_index not in self._cache:
                self._cache[chunk_index] = chunk
                self._used_bytes += chunk.size
        if chunk_index in self._cache:
            self._cache.move_to_end(chunk_index)
        while self._used_bytes > self._cache_bytes:
            _, dropped = self._cache.popitem(last=False)
            self._used_bytes -= dropped.size
        return chunk.items

    async def _read(self, chunk_index: ChunkIndex, decoding: asyncio.Semaphore) -> _CachedChunk:
        key, position = locate_chunk(self._spec, self._grid(chunk_index))
        inner = self._reader.inner_label(position)
        inner = f"{inner}: " if inner else ""
        where = f"{self._spec.name} chunk {key}: "
        try:
            stored = await self._reader.read(key, position)
            if stored is None and self._policy.missing == "raise":
                raise StoreReadError(errno.ENOENT, f"{inner}is missing from the store")
            async with decoding:
                buffer = None if stored is None else cpu.Buffer.from_array_like(stored)
                items = await self._decoder.decode_items(buffer)
                chunk = await asyncio.to_thread(self._trimmed, items, chunk_index)
        except DecodeError as error:
            raise ReadFailure.of(error).named(f"{where}{inner}") from error.__cause__
        except Exception as error:  # noqa: BLE001 (of any class: a store is anybody's code)
            failure = ReadFailure.of(error)
            raise failure.named(where) from failure.cause
        if stored is None:
            self._stats += Stats(chunks_missing=1)
        else:
            stored_size, size = len(stored), chunk.size
            self._stats += Stats(
                chunks_read=1, bytes_read=stored_size, stored_bytes=stored_size, chunk_bytes=size, bytes_decoded=size
            )
        return chunk

    def _grid(self, chunk_index: ChunkIndex) -> list[int]:
        grid = list(chunk_index[1])
        grid.insert(self._spec.sample_axis, chunk_index[0])
        return grid

    def _trimmed(self, items: npt.NDArray[Any], chunk_index: ChunkIndex) -> _CachedChunk:
        """Return a chunk as Python objects, the sample axis first, cut at the ends of the array."""
        spec = self._spec
        sizes = zip(self._grid(chunk_index), spec.chunk_shape, spec.shape, strict=True)
        inside = items[tuple(slice(0, n - i * c) for i, c, n in sizes)].astype(object)
        size = inside.size * _POINTER_BYTES + sum(map(sys.getsizeof, inside.flat))
        return _CachedChunk(np.moveaxis(inside, spec.sample_axis, 0), size)
