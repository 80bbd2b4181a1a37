"""Choose the number of rows of a slab: as few as cost little more than decoding each chunk once.

The number is the fewest rows that decode at most 1.13 times the bytes of the chunks, and have 1 MiB, but at most a
third of a chunk.

Invariant: the number is one for a dataset. It follows from the layout and from the grains alone, and is counted over
whole chunks, for the bytes of all arrays together: a Blosc block at the end of a slab is decoded for both slabs that it
lies in, so more rows are not always cheaper. An array that cannot be cut bounds the rows by its chunks, as each slab
that a chunk lies over decodes all of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zarrfeed.plan.blocks.decoded_bytes import Grain, bytes_of_runs, can_be_cut, decoded_bytes
from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.samples.held_blocks import ListedBlocks, RunBlocks
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.plan.windows.windows import reach
from zarrfeed.spec.arrays.array_parts import ArrayParts
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import ArraySource, array_sources
from zarrfeed.spec.fields.field import Field

#: Slabs are as short as possible while they decode so much, as a multiple of the bytes of all chunks.
CHEAP_DECODES = 1.13
#: Slabs are never so short that they decode more than this.
MOST_DECODES = 2.0
#: Bytes of a slab at least, of all arrays together: shorter ones cost more to plan and to read than to decode.
LEAST_BYTES = 1 << 20
#: Cheap slabs are so many of a chunk: of one of which half is wanted, all of the stored bytes are read.
_LEAST_SLABS = 3
#: Chunks over which decodes are counted, at most, where the chunks of arrays do not end together.
_MOST_CHUNKS = 16
#: Lengths of slabs that are tried one by one; of more, those that end where grains or chunks do, and some others.
_MANY_LENGTHS = 256
_OF_BLOCKS = ("blocks", "rows", "first")


@dataclass(frozen=True)
class SlabCost:
    """The decodes of slabs of any length.

    Attributes
    ----------
    fields
        All of a dataset.
    primary
        The number of the one whose chunks are cut.
    grains
        The grain of each of the `array_sources`.
    strip_of
        Returns how many slabs of some rows a lane reads one after another, each of which finds the rows that it shares
        with the one before decoded. None: lanes hand no rows on.
    """

    fields: tuple[Field, ...]
    primary: int
    grains: tuple[Grain, ...]
    strip_of: Callable[[int], int] | None = None

    @cached_property
    def chunk_rows(self) -> int:
        """Rows of the longest chunk that is cut."""
        return max(layout.spec.rows_per_chunk for layout in self._layouts)

    @cached_property
    def least_rows(self) -> int:
        """Rows of a slab at least."""
        of_fields = [_row_bytes(one) for one in self._sources if one.draws[0][1] == 0]  # each layout has the same rows
        return max(1, math.ceil(LEAST_BYTES / max(1, sum(of_fields))))

    def decodes(self, rows: int) -> float:
        """Return the bytes that slabs of so many rows decode, as a multiple of those of the chunks.

        Where lanes hand rows on, a run of rows is decoded once for a strip, and the rows behind a strip once more.
        """
        if rows not in self._counted:
            self._counted[rows] = self._count(rows)
        return self._counted[rows]

    @cached_property
    def _counted(self) -> dict[int, float]:
        """The decodes of slabs that were counted, by their rows: several searches ask for the same ones."""
        return {}

    def _count(self, rows: int) -> float:
        edges = Slabs.of(self._layouts, self._spans[-1].stop, rows).edges
        runs = [RunBlocks.between(span.start, span.stop, edges) for span in self._spans]
        held = ListedBlocks(*(np.concatenate([getattr(one, name) for one in runs]) for name in _OF_BLOCKS))
        strip = 1 if self.strip_of is None else self.strip_of(rows)
        decoded = 0.0
        for source, grain, of_chunks in zip(self._sources, self.grains, self._chunk_bytes, strict=True):
            of_slabs = int(decoded_bytes(Selection(held), source, self.fields, grain).sum())
            once = of_slabs
            if strip > 1 and any(reach(self.fields[number].window for number in source.fields)):
                of_source = RowRuns(source.layout, rows if can_be_cut(source.spec, grain) else 0)
                once = int(bytes_of_runs(of_source, grain).sum()) * of_chunks // source.spec.decoded_bytes
            decoded += once + max(0, of_slabs - once) / strip
        return decoded / sum(self._chunk_bytes)

    def cheap_rows(self) -> int | None:
        """Return the shortest slabs that are cheap to decode, and to read: their rows. None: only whole chunks are."""
        most = self.chunk_rows // _LEAST_SLABS
        some = itertools.takewhile(lambda rows: rows <= most, self._lengths())
        return next((rows for rows in some if self.decodes(rows) <= CHEAP_DECODES), None)

    def shorter_than(self, rows: int) -> list[int]:
        """Return shorter lengths that cost more, but not too much: descending, each cheaper than all behind it."""
        found: list[int] = []
        least = MOST_DECODES
        for one in self._lengths():
            if one >= rows:
                break
            decodes = self.decodes(one)
            if decodes <= least and (not found or decodes < least):
                found.append(one)
                least = decodes
        return found[::-1]

    @cached_property
    def _sources(self) -> Sequence[ArraySource]:
        return array_sources(self.fields)

    @property
    def _layouts(self) -> Sequence[Layout]:
        return self.fields[self.primary].layouts

    @cached_property
    def _spans(self) -> Sequence[range]:
        """Samples over which decodes are counted: of each layout those of its first store, until all chunks end."""
        lengths = [one.spec.rows_per_chunk for one in self._sources]
        common, most = math.lcm(*lengths), _MOST_CHUNKS * max(lengths)
        length = common if common <= most else most
        found = []
        for layout in self._layouts:
            begin, end = (0, layout.spec.num_samples) if layout.parts is None else _first_store(layout.parts)
            found.append(range(begin, min(end, begin + length)))
        return sorted(found, key=lambda span: span.start)

    @cached_property
    def _chunk_bytes(self) -> list[int]:
        """Decoded bytes of all chunks of the spans, of each array; the last chunk of a store is stored whole."""
        found = []
        for source in self._sources:
            total = 0
            rows, parts = source.spec.rows_per_chunk, source.layout.parts
            for span in self._spans:
                begin, end = np.array([span.start]), np.array([span.stop])
                if parts is not None:
                    begin, end = np.maximum(parts.begin, span.start), np.minimum(parts.end, span.stop)
                total += int((-(-np.maximum(0, end - begin) // rows)).sum()) * rows * _row_bytes(source)
            found.append(total)
        return found

    def _lengths(self) -> Iterator[int]:
        """Yield the rows of slabs that are shorter than a chunk, ascending."""
        some = range(self.least_rows, self.chunk_rows)
        if len(some) <= _MANY_LENGTHS:
            yield from some
            return
        number = next(number for number, one in enumerate(self._sources) if self.primary in one.fields)
        grain, source = self.grains[number].nbytes, self._sources[number]
        row = max(1, source.spec.decoded_bytes // source.spec.rows_per_chunk)
        step = grain // math.gcd(grain, row) if grain else self.chunk_rows
        aligned = np.unique([*(n for n in some if self.chunk_rows % n == 0), *some[-some[0] % step :: step]])
        between = np.geomspace(some[0], some[-1], _MANY_LENGTHS // 4).astype(np.int64)
        yield from np.union1d(aligned[:: -(-len(aligned) // _MANY_LENGTHS)], between).astype(np.int64).tolist()


def _first_store(parts: ArrayParts) -> tuple[int, int]:
    """Return the first sample, and the end of the samples, of the first store that has any."""
    has_rows = np.flatnonzero(parts.end > parts.begin)
    first = int(has_rows[0]) if len(has_rows) else 0
    return int(parts.begin[first]), int(parts.end[first])


def _row_bytes(source: ArraySource) -> int:
    """Return the decoded bytes of a row, in all of its chunks."""
    spec = source.spec
    return spec.decoded_bytes // spec.rows_per_chunk * spec.num_cells
