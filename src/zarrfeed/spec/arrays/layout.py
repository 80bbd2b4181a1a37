"""`Layout`: the form in which one store, or several stores alike, hold an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.array_parts import ArrayParts, Int64
from zarrfeed.spec.values.conversion import Conversion


@dataclass(frozen=True)
class Layout:
    """An array in one store, or in several that store it alike.

    Attributes
    ----------
    spec
        The description of the array; its shape along the sample axis is that of all stores together.
    parts
        The rows that each store has. None: one store has all of them.
    conversion
        The conversion of its items; None: they stay as they are.
    """

    spec: ArraySpec
    parts: ArrayParts | None = None
    conversion: Conversion | None = None

    @property
    def num_chunks(self) -> int:
        """Number of read chunks along the sample axis."""
        return -(-self.spec.num_samples // self.spec.rows_per_chunk) if self.parts is None else self.parts.num_chunks

    @property
    def num_shards(self) -> int:
        """Shards of all stores; 0 if there are none."""
        if self.parts is None or self.spec.shard is None:
            return self.spec.num_shards
        rows = self.spec.shard_shape[self.spec.sample_axis]
        along = -(-self.spec.num_samples // rows)
        in_parts = int((-(-(self.parts.end - self.parts.begin) // rows)).sum())
        return self.spec.num_shards // along * in_parts

    def chunk_of(self, rows: Int64) -> Int64:
        """Return the read chunk along the sample axis that holds each row; -1 for rows that are in another layout."""
        return rows // self.spec.rows_per_chunk if self.parts is None else self.parts.chunk_of(rows)

    def rows_of(self, chunk: int) -> tuple[int, int]:
        """Return the first row of a read chunk, and the end of its rows."""
        if self.parts is not None:
            return self.parts.rows_of(chunk)
        first = chunk * self.spec.rows_per_chunk
        return first, min(first + self.spec.rows_per_chunk, self.spec.num_samples)


def with_conversions(layouts: Sequence[Layout], conversions: Sequence[Conversion | None]) -> tuple[Layout, ...]:
    """Return layouts with a conversion of the items of each."""
    return tuple(replace(one, conversion=of_one) for one, of_one in zip(layouts, conversions, strict=True))
