"""Rows of sparse matrices as items of bytes: the columns of a row, and then its values, as `pack` carries them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from zarrfeed.packing.sources.source import Int64, Rows, objects_of


@dataclass(frozen=True)
class Elements:
    """Stored values of some rows, one row after the other.

    Attributes
    ----------
    counts
        Number of stored values of each row, shape (rows,).
    indices, data
        The bytes of the columns, and of the values.
    """

    counts: Int64
    indices: bytes
    data: bytes


def to_items(begins: Int64, indices: Rows, data: Rows) -> Rows:
    """Return rows as items of dtype object; `begins` has the first element of each row, and the end of the last."""
    index, value = indices.dtype.itemsize, data.dtype.itemsize
    of_indices, of_data = (np.ascontiguousarray(one).view(np.uint8).tobytes() for one in (indices, data))
    edges: list[int] = begins.tolist()
    return objects_of([of_indices[a * index : b * index] + of_data[a * value : b * value] for a, b in pairwise(edges)])


def from_items(items: Sequence[bytes] | Rows, index_bytes: int, value_bytes: int) -> Elements:
    """Return the elements of rows."""
    width = index_bytes + value_bytes
    counts = np.array([len(item) // width for item in items], np.int64)
    cuts = (counts * index_bytes).tolist()
    return Elements(
        counts,
        b"".join(item[:cut] for item, cut in zip(items, cuts, strict=True)),
        b"".join(item[cut:] for item, cut in zip(items, cuts, strict=True)),
    )


def convert_items(items: Rows, index: np.dtype[Any], value: np.dtype[Any], convert: Callable[[Rows], Rows]) -> Rows:
    """Return rows with their values converted; `convert` is given the values of all rows."""
    elements = from_items(items, index.itemsize, value.itemsize)
    begins = np.concatenate(([0], np.cumsum(elements.counts)))
    return to_items(begins, np.frombuffer(elements.indices, index), convert(np.frombuffer(elements.data, value)))
