"""Reads text and bytes of any length that lie in several stores, one after another.

Invariants: chunks are numbered through, layout by layout, so that a number names the chunk of one store. Readers of
stores are made when a batch has a sample of the store; the ones that were used last are cached, with their chunks.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from zarrfeed.engine.stats import Stats
from zarrfeed.engine.vlen import ChunkError, ChunkIndex, EncodedLookup, Int64, Objects, VlenReader
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import VlenField
from zarrfeed.storage.chunks.parted_source import PartedSource

#: Stores whose readers are cached.
_MOST_READERS = 16


class PartedVlenReader(EncodedLookup):
    """Reads the samples of a field of several stores; as `VlenReader`.

    Parameters
    ----------
    field
        The field, whose samples are text or bytes of any length.
    cache_bytes
        Memory for cached decoded chunks, of all stores.
    max_decodes
        Chunks that are decoded at once.
    """

    def __init__(self, field: VlenField, *, cache_bytes: int, max_decodes: int, policy: Faults) -> None:
        self.name = field.spec.name
        assert isinstance(field.spec.source, PartedSource)
        self._source = field.spec.source
        self.field = field
        self._options: dict[str, Any] = {
            "cache_bytes": cache_bytes // _MOST_READERS,
            "max_decodes": max_decodes,
            "policy": policy,
        }
        self._first_chunk = [0, *accumulate(layout.num_chunks for layout in field.layouts)]  # of each layout
        self._readers: OrderedDict[tuple[int, int], VlenReader] = OrderedDict()
        self._past = Stats()

    @property
    def source(self) -> PartedSource:
        """The source of the chunks."""
        return self._source

    def chunks_of_rows(self, rows: Int64) -> Int64:
        """Return the number of the chunk of each row, along the sample axis."""
        found = np.full(len(rows), -1)
        for first, layout in zip(self._first_chunk, self.field.layouts, strict=False):
            chunk = layout.chunk_of(rows)
            found = np.where(chunk >= 0, first + chunk, found)
        return found

    def open(self, plan: ReadPlan, max_open_batches: int) -> None:  # noqa: ARG002 (samples are looked up when wanted)
        """Begin an epoch: forget indices of shards, and stores that were read."""
        for reader in self._readers.values():
            self._past = self._past + reader.stats()
        self._readers.clear()

    async def look_up(self, index: Int64) -> tuple[Objects, list[ChunkError]]:
        """Return rows by their index, and the chunks that could not be read; as `VlenReader.look_up`."""
        taken = np.empty((len(index), *self.field.spec.sample_shape), dtype=object)
        errors: list[ChunkError] = []

        at_once = asyncio.Semaphore(_MOST_READERS)

        async def take(number: int, part: int, slots: Int64) -> None:
            parts = self.field.layouts[number].parts
            assert parts is not None
            async with at_once:
                reader = await self._opened(number, part)
                items, failed = await reader.look_up(index[slots] - parts.begin[part])
            taken[slots] = items
            first = self._first_of(number, part)
            errors.extend(((first + chunk_index[0], chunk_index[1]), error) for chunk_index, error in failed)

        await asyncio.gather(*(take(*one) for one in self._parts_of(index)))
        while len(self._readers) > _MOST_READERS:
            _, dropped = self._readers.popitem(last=False)
            self._past = self._past + dropped.stats()
        return taken, sorted(errors, key=lambda one: one[0])

    def chunk_index_of(self, sample: int, item: tuple[int, ...]) -> ChunkIndex:
        """Return the chunk in which an item of a sample lies."""
        ((number, part, _),) = self._parts_of(np.array([sample]))
        parts = self.field.layouts[number].parts
        assert parts is not None
        chunk, cell = self._reader(number, part).chunk_index_of(sample - int(parts.begin[part]), item)
        return self._first_of(number, part) + chunk, cell

    def label(self, chunk_index: ChunkIndex) -> str:
        """Return the key of a chunk, and which inner chunk it is where there are such."""
        number, part = self._part_at(chunk_index)
        return self._reader(number, part).label((chunk_index[0] - self._first_of(number, part), chunk_index[1]))

    def array_of(self, chunk_index: ChunkIndex) -> str:
        """Return the name in errors of the array that has a chunk."""
        number, part = self._part_at(chunk_index)
        parts = self.field.layouts[number].parts
        assert parts is not None
        return parts.names[part]

    def stats(self) -> Stats:
        """Return the counters since this reader was made."""
        return sum((reader.stats() for reader in list(self._readers.values())), self._past)  # the loop may add one

    def _parts_of(self, index: Int64) -> Iterator[tuple[int, int, Int64]]:
        """Yield the layouts and parts that hold some samples, and the slots of these samples."""
        for number, layout in enumerate(self.field.layouts):
            assert layout.parts is not None
            part = layout.parts.part_of(index)
            for one in np.unique(part[part >= 0]).tolist():
                yield number, one, np.flatnonzero(part == one)

    def _part_at(self, chunk_index: ChunkIndex) -> tuple[int, int]:
        """Return the layout and the part of a chunk."""
        number = int(np.searchsorted(self._first_chunk, chunk_index[0], side="right")) - 1
        parts = self.field.layouts[number].parts
        assert parts is not None
        row, _ = parts.rows_of(chunk_index[0] - self._first_chunk[number])
        return number, int(parts.part_of(np.array([row]))[0])

    def _first_of(self, number: int, part: int) -> int:
        """Return the number of the first chunk of a part."""
        parts = self.field.layouts[number].parts
        assert parts is not None
        return self._first_chunk[number] + int(parts.chunk_of(parts.begin[part : part + 1])[0])

    async def _opened(self, number: int, part: int) -> VlenReader:
        """Return the reader of a part, which is ready to read; on zarr-python's loop."""
        reader = self._readers.get((number, part))
        if reader is None:
            reader = self._reader(number, part)
            await reader.begin()
            self._readers[number, part] = reader
        self._readers.move_to_end((number, part))
        return reader

    def _reader(self, number: int, part: int) -> VlenReader:
        """Return the reader of a part, which may not be ready to read."""
        reader = self._readers.get((number, part))
        if reader is not None:
            return reader
        layout = self.field.layouts[number]
        assert layout.parts is not None
        assert isinstance(layout.spec.source, PartedSource)
        shape = list(layout.spec.shape)
        shape[layout.spec.sample_axis] = int(layout.parts.end[part] - layout.parts.begin[part])
        source = layout.spec.source.sources[part]
        spec = replace(layout.spec, name=layout.parts.names[part], shape=tuple(shape), source=source)
        return VlenReader(replace(self.field, spec=spec, parts=None, others=(), window=None), **self._options)
