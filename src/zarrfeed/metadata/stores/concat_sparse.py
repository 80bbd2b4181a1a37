"""Sparse matrices of several stores as one: their rows one after another."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.wish import Wish
from zarrfeed.metadata.stores.store_parts import LayoutParts, normalised, places_in
from zarrfeed.spec.sparse import CsrField, Elements, Int64


class _ElementStores:
    """One array of elements of all stores."""

    def __init__(self) -> None:
        self.groups: list[LayoutParts] = []
        self._layout: list[int] = []  # of each store
        self._first_chunk: list[int] = []
        self._lengths: list[int] = []

    def add(self, elements: Elements, parts: Sequence[LayoutParts]) -> None:
        """Append the stores of a field; `parts` has those that hold the array as each of its layouts does."""
        places = [places_in(layout) for layout in elements.layouts]
        for store, number in enumerate(elements.layout.tolist()):
            group, layout = parts[number], elements.layouts[number]
            first = elements.first_chunk[store : store + 1]
            # A store without elements has a place too, of a chunk that no row needs: its layout has one.
            chunks = max(1, int(elements.first_block[store + 1] - elements.first_block[store]))
            name, place = places[number][0 if layout.parts is None else int(layout.parts.part_of(first)[0])]
            begin = group.end[-1] if group.end else 0
            group.add(begin, begin + chunks, name, place)
            if not any(group is one for one in self.groups):
                self.groups.append(group)
            self._layout.append(next(n for n, one in enumerate(self.groups) if one is group))
            self._first_chunk.append(begin)
        self._lengths += np.diff(elements.begin).tolist()

    def joined(self) -> Elements:
        """Return the array of all stores."""
        return Elements(
            tuple(replace(group.joined(group.end[-1]), conversion=group.layout.conversion) for group in self.groups),
            np.array(self._layout, dtype=np.int64),
            np.array(self._first_chunk, dtype=np.int64),
            np.concatenate(([0], np.cumsum(self._lengths))),
        )


class MatrixStores:
    """A sparse matrix of all stores."""

    def __init__(self) -> None:
        self._columns: dict[Hashable, LayoutParts] = {}
        self._indices, self._data = _ElementStores(), _ElementStores()
        self._indptr: list[Int64] = [np.zeros(1, dtype=np.int64)]
        self._first_row: list[Int64] = [np.zeros(1, dtype=np.int64)]

    def add(self, field: CsrField, parts: Sequence[LayoutParts]) -> None:
        """Append the stores of a field; `parts` has those that hold the values as each of its layouts does."""
        items = Items("samples", None, None, (), 0)
        columns = [
            self._columns.setdefault(normalised(layout.spec), LayoutParts(layout, items, Wish()))
            for layout in field.indices.layouts
        ]
        self._indices.add(field.indices, columns)
        self._data.add(field.data, parts)
        self._indptr.append(self._indptr[-1][-1] + field.indptr[1:])
        self._first_row.append(self._first_row[-1][-1] + field.first_row[1:])

    def joined(self, first: CsrField) -> tuple[CsrField, list[LayoutParts]]:
        """Return the field of all stores, and the stores that hold the values alike, layout by layout."""
        joined = replace(
            first,
            path=f"{first.path} and {len(np.concatenate(self._first_row)) - 2} more",
            indptr=np.concatenate(self._indptr),
            first_row=np.concatenate(self._first_row),
            indices=self._indices.joined(),
            data=self._data.joined(),
            dense=False,
        )
        return joined, self._data.groups
