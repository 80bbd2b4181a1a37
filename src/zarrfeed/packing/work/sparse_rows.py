"""Sparse matrices of a packed store: the positions of their elements, and the writing of units and gatherings.

Invariant: the packed `indptr` is the running sum of the row lengths in the packed order. The source's `indptr` alone
gives these lengths. So the rows of each stored object of `data` and `indices` are known before any row is read. A unit
leaves the elements of its rows in a file, all columns before all values; a gathering copies runs of such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from zarrfeed.base.errors import CorruptChunkError
from zarrfeed.packing.sources.cells.csr_rows import from_items
from zarrfeed.packing.sources.source import Int64, Rows, SourceField
from zarrfeed.packing.targets.pack_layout import FieldLayout, SparseLayout
from zarrfeed.packing.work.job import PartOfStore, Unit
from zarrfeed.plan.order.random_bijection import RandomBijection


def with_elements(
    layouts: Sequence[FieldLayout], fields: Sequence[SourceField], parts: Sequence[PartOfStore], seed: int | None
) -> tuple[FieldLayout, ...]:
    """Return the layouts, those of sparse matrices with the number of elements of each part."""
    if not any(layout.sparse for layout in layouts):
        return tuple(layouts)
    total = parts[-1].end
    numbers = np.arange(total) if seed is None else RandomBijection(total, seed).numbers(np.arange(total))
    made = []
    for layout, field in zip(layouts, fields, strict=True):
        if layout.sparse is not None:
            counts = [int(packed_indptr(field, numbers[part.begin : part.end])[-1]) for part in parts]
            layout = replace(layout, sparse=replace(layout.sparse, elements=tuple(counts)))
        made.append(layout)
    return tuple(made)


def packed_indptr(field: SourceField, numbers: Int64) -> Int64:
    """Return the beginnings of some rows, one after the other, and the end; shape (rows + 1,)."""
    assert field.csr is not None
    made = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(field.csr.lengths[numbers], out=made[1:])
    return made


def element_parts(rows: Rows, sparse: SparseLayout) -> list[bytes]:
    """Return the content of a unit's file: the columns of its rows, and their values."""
    elements = from_items(rows, sparse.indices.item.itemsize, sparse.data.item.itemsize)
    return [elements.indices, elements.data]


def read_elements(
    files: Sequence[tuple[Unit, Path]], sparse: SparseLayout, indptr: Int64, begin: int, end: int
) -> tuple[Rows, Rows]:
    """Return the values and the columns of the elements [begin, end) of a part.

    Parameters
    ----------
    files
        The units of the part, and their files.
    sparse
        Layout of the matrix.
    indptr
        `indptr` of the part.
    begin, end
        Numbers of elements.

    Raises
    ------
    CorruptChunkError
        If a file has not the elements of its unit.
    """
    index, value = sparse.indices.item, sparse.data.item
    data, indices = list[Rows](), list[Rows]()
    for path, count, first, stop in _runs(files, indptr, begin, end):
        if path.stat().st_size != count * (index.itemsize + value.itemsize):
            raise CorruptChunkError(f"{path}: is no whole file of {count} elements")
        stored = np.memmap(path, np.uint8, mode="r")
        columns, values = stored[: count * index.itemsize], stored[count * index.itemsize :]
        indices.append(columns[first * index.itemsize : stop * index.itemsize].view(index))
        data.append(np.array(values[first * value.itemsize : stop * value.itemsize]).view(value))
    return np.concatenate(data), np.concatenate(indices)


def _runs(
    files: Sequence[tuple[Unit, Path]], indptr: Int64, begin: int, end: int
) -> Iterator[tuple[Path, int, int, int]]:
    """Yield each file with some of the elements: its path, how many elements it has, and which of them these are."""
    for unit, path in files:
        first, stop = indptr[[unit.begin - unit.part.begin, unit.end - unit.part.begin]].tolist()
        if first < end and begin < stop:
            yield path, stop - first, max(begin, first) - first, min(end, stop) - first
