"""Reads text and bytes of any length that lie in several stores, one after another.

What holds: chunks are numbered through, layout by layout, so that a number names the chunk of one store. Readers of
stores are made when a batch has a sample of the store; the ones that were used last are kept, with their chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.engine.stats import Stats
from zarrfeed.engine.vlen import VlenReader
from zarrfeed.spec.error_policy import Faults
from zarrfeed.spec.field import VlenField
from zarrfeed.storage.parted_source import PartedSource

Int64: TypeAlias = npt.NDArray[np.int64]
#: Chunk along the sample axis, and its place along the other axes.
_Place: TypeAlias = tuple[int, tuple[int, ...]]

#: Stores whose readers are kept.
_MOST_READERS = 16


class PartedVlenReader:
    """Reads the samples of a field of several stores; as `VlenReader`.

    Parameters
    ----------
    field
        Which one.
    cache_bytes
        Memory for decoded chunks that are kept, of all stores.
    max_decodes
        Chunks that are decoded at once.
    """

    def __init__(self, field: VlenField, *, cache_bytes: int, max_decodes: int, policy: Faults) -> None:
        self.name = field.spec.name
        assert isinstance(field.spec.source, PartedSource)
        self.source = field.spec.source
        self._field = field
        self._options: dict[str, Any] = {
            "cache_bytes": cache_bytes // _MOST_READERS,
            "max_decodes": max_decodes,
            "policy": policy,
        }
        self._first_chunk = [0, *accumulate(layout.num_chunks for layout in field.layouts)]  # of each layout
        self._readers: OrderedDict[tuple[int, int], VlenReader] = OrderedDict()
        self._past = Stats()

    def find_chunks(self, samples: Int64, offset: int) -> Int64:
        """Return the number of the chunk of the item at an offset from each sample."""
        found = np.full(len(samples), -1)
        for first, layout in zip(self._first_chunk, self._field.layouts, strict=False):
            chunk = layout.chunk_of(samples + offset)
            found = np.where(chunk >= 0, first + chunk, found)
        return found

    def open(self) -> None:
        """Begin an epoch: forget indices of shards, and stores that were read."""
        for reader in self._readers.values():
            self._past = self._past + reader.stats()
        self._readers.clear()

    def take(self, index: Int64) -> list[Any]:
        """Return samples by their index; as of `VlenReader.take`."""
        listed, errors = self.take_what_is_good(index)
        for _, error in errors:
            raise error
        return listed

    def take_what_is_good(self, index: Int64) -> tuple[list[Any], list[tuple[_Place, BaseException]]]:
        """Return the same, and which chunks could not be had, and why."""
        listed: list[Any] = [None] * len(index)
        errors: list[tuple[_Place, BaseException]] = []
        for number, part, slots in self._parts_of(index):
            parts = self._field.layouts[number].parts
            assert parts is not None
            reader = self._reader(number, part)
            taken, failed = reader.take_what_is_good(index[slots] - parts.begin[part])
            for slot, one in zip(slots.tolist(), taken, strict=True):
                listed[slot] = one
            first = self._first_chunk[number] + int(parts.chunk_of(parts.begin[part : part + 1])[0])
            errors += [((first + place[0], place[1]), error) for place, error in failed]
        return listed, errors

    def label(self, place: _Place) -> str:
        """Return the key of a chunk, and which inner chunk it is where there are such."""
        number = int(np.searchsorted(self._first_chunk, place[0], side="right")) - 1
        parts = self._field.layouts[number].parts
        assert parts is not None
        chunk = place[0] - self._first_chunk[number]
        row, _ = parts.rows_of(chunk)
        part = int(parts.part_of(np.array([row]))[0])
        begin = int(parts.chunk_of(parts.begin[part : part + 1])[0])
        return self._reader(number, part).label((chunk - begin, place[1]))

    def stats(self) -> Stats:
        """Return the counters since this reader was made."""
        return sum((reader.stats() for reader in self._readers.values()), self._past)

    def _parts_of(self, index: Int64) -> Iterator[tuple[int, int, Int64]]:
        """Yield the layouts and parts that hold some samples, and the slots of these samples."""
        for number, layout in enumerate(self._field.layouts):
            assert layout.parts is not None
            part = layout.parts.part_of(index)
            for one in np.unique(part[part >= 0]).tolist():
                yield number, one, np.flatnonzero(part == one)

    def _reader(self, number: int, part: int) -> VlenReader:
        reader = self._readers.get((number, part))
        if reader is None:
            layout = self._field.layouts[number]
            assert layout.parts is not None
            assert isinstance(layout.spec.source, PartedSource)
            shape = list(layout.spec.shape)
            shape[layout.spec.sample_axis] = int(layout.parts.end[part] - layout.parts.begin[part])
            source = layout.spec.source.sources[part]
            spec = replace(layout.spec, name=layout.parts.names[part], shape=tuple(shape), source=source)
            reader = VlenReader(replace(self._field, spec=spec, parts=None, others=()), **self._options)
            reader.open()
            self._readers[number, part] = reader
        self._readers.move_to_end((number, part))
        if len(self._readers) > _MOST_READERS:
            _, dropped = self._readers.popitem(last=False)
            self._past = self._past + dropped.stats()
        return reader
