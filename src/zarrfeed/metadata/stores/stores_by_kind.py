"""One array of several stores, gathered store by store: one class for each way in which a kind of field is joined.

Invariant: the fields that are added are of one kind, and alike but for their lengths and locations
(`metadata/stores/concat.py` checks that).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.group.anndata import with_conversion
from zarrfeed.metadata.group.batch_columns import Array, OpenedField
from zarrfeed.metadata.stores.store_parts import ArrayLocation, LayoutParts, location_of, locations_in, normalised
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field import Field, HostRows, ResidentField, StoredField, VlenField
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.fields.sparse import CsrField, Elements

#: The array of all stores, and for each of its layouts the conversion that was requested.
JoinedArray = tuple[Array, tuple[RequestedConversion, ...]]


@dataclass(frozen=True)
class StoreRows:
    """The rows that one or more stores add to an array.

    Attributes
    ----------
    store
        The name of the first of them.
    items, requested
        For each layout of the field, what is known of its items, and the conversion that was requested.
    base
        The number of the first row in the array of all stores.
    located
        The rows, the name and the location of the array of each store that was found to be like one that was opened.
        Empty: the field itself says where its rows are.
    """

    store: str
    items: Sequence[Items]
    requested: Sequence[RequestedConversion]
    base: int
    located: Sequence[tuple[int, str, ArrayLocation]]


class ArrayOfStores(ABC):
    """One array of all stores, to which the rows of one store after another are added.

    Parameters
    ----------
    first
        The field of the first store.
    items
        The description of the items there.
    """

    def __init__(self, first: Any, items: Items) -> None:
        self._first = first
        self._items = items
        self._layouts: dict[Hashable, LayoutParts] = {}

    @abstractmethod
    def add(self, field: Any, rows: StoreRows) -> None:
        """Append the rows of a field, which is of the kind of the first one."""

    @abstractmethod
    def joined(self, num_rows: int) -> JoinedArray:
        """Return the array of all stores, without any conversion."""

    def _parts_of(self, layout: Layout, items: Items, request: RequestedConversion) -> LayoutParts:
        """Return the stores that hold the array as a layout has it."""
        asked = None if request.is_empty else id(request)
        key = (normalised(layout.spec), layout.conversion, replace(items, shape=()), asked)
        return self._layouts.setdefault(key, LayoutParts(layout, items, request))


class _ArraysInMemory(ArrayOfStores):
    """Rows in memory, which are copied one after another."""

    _first: ResidentField

    def __init__(self, first: ResidentField, items: Items) -> None:
        super().__init__(first, items)
        self._rows: list[HostRows] = []

    def add(self, field: ResidentField, rows: StoreRows) -> None:
        if not all(request.is_empty for request in rows.requested):
            raise ConfigError(f"{rows.store}: {rows.items[0].name} is in memory; convert it after zarrfeed.concat()")
        self._rows.append(field.rows)

    def joined(self, num_rows: int) -> JoinedArray:
        rows = HostRows(np.concatenate([one.array for one in self._rows]))
        items = replace(self._items, shape=(num_rows, *self._items.shape[1:]))
        return Array(replace(self._first, rows=rows, conversion=None), items), (RequestedConversion(),)


class _StoredArrays(ArrayOfStores):
    """Arrays of one kind, whose stores are put together layout by layout.

    `opened` has the attributes of the field that a description sets, with the values that they have before.
    """

    _first: StoredField | VlenField

    def __init__(self, first: StoredField | VlenField, items: Items, opened: Mapping[str, Any]) -> None:
        super().__init__(first, items)
        self._opened = dict(opened)

    def add(self, field: StoredField | VlenField, rows: StoreRows) -> None:
        base = rows.base
        if rows.located:
            parts = self._parts_of(field.layouts[0], rows.items[0], rows.requested[0])
            for length, name, location in rows.located:
                parts.add(base, base + length, name, location)
                base += length
            return
        for layout, of_layout, request in zip(field.layouts, rows.items, rows.requested, strict=True):
            parts = self._parts_of(layout, of_layout, request)
            spec = layout.spec
            if layout.parts is None:
                parts.add(base, base + spec.num_samples, spec.name, location_of(spec))
                continue
            begins, ends = (base + layout.parts.begin).tolist(), (base + layout.parts.end).tolist()
            for begin, end, located in zip(begins, ends, locations_in(layout), strict=True):
                parts.add(begin, end, *located)

    def joined(self, num_rows: int) -> JoinedArray:
        groups = list(self._layouts.values())
        whole, *rest = (replace(group.joined(num_rows), conversion=None) for group in groups)
        first, *others = (
            replace(group.items, shape=layout.spec.chosen_shape)
            for group, layout in zip(groups, [whole, *rest], strict=True)
        )
        made: OpenedField = replace(self._first, spec=whole.spec, parts=whole.parts, others=tuple(rest), **self._opened)
        return Array(made, first, tuple(others)), tuple(group.request for group in groups)


class _ElementStores:
    """One array of elements of a sparse matrix, of all stores."""

    def __init__(self) -> None:
        self.groups: list[LayoutParts] = []
        self._layout: list[int] = []  # of each store
        self._first_chunk: list[int] = []
        self._lengths: list[int] = []

    def add(self, elements: Elements, parts: Sequence[LayoutParts]) -> None:
        """Append the stores of a field; `parts` has those that hold the array as each of its layouts does."""
        locations = [locations_in(layout) for layout in elements.layouts]
        for store, number in enumerate(elements.layout.tolist()):
            group, layout = parts[number], elements.layouts[number]
            first = elements.first_chunk[store : store + 1]
            # A store without elements has a location too, of a chunk that no row needs: its layout has one.
            chunks = max(1, int(elements.first_block[store + 1] - elements.first_block[store]))
            name, location = locations[number][0 if layout.parts is None else int(layout.parts.part_of(first)[0])]
            begin = group.end[-1] if group.end else 0
            group.add(begin, begin + chunks, name, location)
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


class _Matrices(ArrayOfStores):
    """Sparse matrices, whose rows and elements are numbered through."""

    _first: CsrField

    def __init__(self, first: CsrField, items: Items) -> None:
        super().__init__(first, items)
        self._columns: dict[Hashable, LayoutParts] = {}
        self._indices, self._data = _ElementStores(), _ElementStores()
        self._indptr: list[Int64] = [np.zeros(1, dtype=np.int64)]
        self._first_row: list[Int64] = [np.zeros(1, dtype=np.int64)]

    def add(self, field: CsrField, rows: StoreRows) -> None:
        items = Items("samples", None, None, (), 0)
        columns = [
            self._columns.setdefault(normalised(layout.spec), LayoutParts(layout, items, RequestedConversion()))
            for layout in field.indices.layouts
        ]
        of_layouts = zip(field.data.layouts, rows.items, rows.requested, strict=True)
        self._indices.add(field.indices, columns)
        self._data.add(field.data, [self._parts_of(*one) for one in of_layouts])
        self._indptr.append(self._indptr[-1][-1] + field.indptr[1:])
        self._first_row.append(self._first_row[-1][-1] + field.first_row[1:])

    def joined(self, num_rows: int) -> JoinedArray:
        first, parts = self._first, self._data.groups
        matrix = replace(
            first,
            path=f"{first.path} and {len(np.concatenate(self._first_row)) - 2} more",
            indptr=np.concatenate(self._indptr),
            first_row=np.concatenate(self._first_row),
            indices=self._indices.joined(),
            data=self._data.joined(),
            dense=False,
        )
        plain = with_conversion(matrix, [None] * len(matrix.data.layouts), None, dense=False)
        of_first, *others = (replace(one.items, shape=(num_rows, first.num_columns)) for one in parts)
        return Array(plain, of_first, tuple(others)), tuple(one.request for one in parts)


#: The class that puts together the fields of each kind.
_BY_KIND: dict[type[FieldKind], Callable[[Any, Items], ArrayOfStores]] = {
    ResidentField: _ArraysInMemory,
    StoredField: partial(_StoredArrays, opened={"rows": None, "conversion": None, "spared": False, "patch": None}),
    VlenField: partial(_StoredArrays, opened={"images": None}),
    CsrField: _Matrices,
}


def array_like(first: Field, items: Items) -> ArrayOfStores:
    """Return the array of all stores, to which none was added yet, for fields of the kind of the first one."""
    return _BY_KIND[type(first)](first, items)
