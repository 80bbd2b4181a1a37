"""`ArrayParts`: an array whose rows lie in several stores, one after another along the sample axis.

Invariant: parts ascend and do not overlap; chunks are numbered through, part by part, so that a chunk has rows of one
part. cpp/spec/array_parts.h has the same arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core

Int64: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ArrayParts:
    """The rows of an array that each of several stores has.

    Attributes
    ----------
    begin, end
        Each part has the rows from its begin up to its end, shape (parts,) both. Rows between two parts are in another
        array.
    prefixes
        Beginning of the keys of each part: its directory and a slash, or its number for the store bridge.
    names
        Names in messages: the path or URL of the array of each part.
    rows_per_chunk
        Length of a read chunk along the sample axis, in every part.
    """

    begin: Int64
    end: Int64
    prefixes: Sequence[bytes] = field(repr=False)
    names: Sequence[str] = field(repr=False)
    rows_per_chunk: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayParts) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def num_chunks(self) -> int:
        """Number of read chunks along the sample axis, over all parts."""
        return int(self.first_chunk[-1])

    def part_of(self, rows: Int64) -> Int64:
        """Return the part that holds each row; -1 for rows that no part has."""
        part = np.searchsorted(self.begin, rows, side="right") - 1
        return np.where((part >= 0) & (rows < self.end[part]), part, -1)

    def chunk_of(self, rows: Int64) -> Int64:
        """Return the read chunk that holds each row; -1 for rows that no part has."""
        part = self.part_of(rows)
        chunk = self.first_chunk[part] + (rows - self.begin[part]) // self.rows_per_chunk
        return np.where(part >= 0, chunk, -1)

    def rows_of(self, chunk: int) -> tuple[int, int]:
        """Return the first row of a chunk, and the end of its rows."""
        part = int(np.searchsorted(self.first_chunk, chunk, side="right")) - 1
        first = int(self.begin[part]) + (chunk - int(self.first_chunk[part])) * self.rows_per_chunk
        return first, min(first + self.rows_per_chunk, int(self.end[part]))

    def to_core(self) -> core.ArrayParts:
        """Return the parts in the form that the engine takes."""
        return core.ArrayParts(
            begin=self.begin,
            end=self.end,
            prefixes=list(self.prefixes),
            names=list(self.names),
            rows_per_chunk=self.rows_per_chunk,
        )

    @cached_property
    def first_chunk(self) -> Int64:
        """The number of the first chunk of each part, and of all chunks, shape (parts + 1,)."""
        chunks = -(-(self.end - self.begin) // self.rows_per_chunk)
        return np.concatenate(([0], np.cumsum(chunks)))

    @cached_property
    def digest(self) -> str:
        """A hash that tells parts apart."""
        hashed = hashlib.sha256(self.begin.astype("<i8").tobytes() + self.end.astype("<i8").tobytes())
        for prefix in self.prefixes:
            hashed.update(prefix + b"\0")
        return hashed.hexdigest()
