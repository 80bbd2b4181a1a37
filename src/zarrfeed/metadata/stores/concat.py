"""Several descriptions, or stores, as one along the sample axis.

What holds: sample i of store s is sample first[s] + i of the whole, and no chunk, block or window has samples of two
stores. Stores that hold an array alike, but for its length, are one layout of the field: what the plan has of each of
them is a few numbers and its path.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.described import check_same_direction, check_same_values
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.anndata import with_conversion
from zarrfeed.metadata.group.coordinates import Coordinates, UnopenedCoordinates
from zarrfeed.metadata.group.fields import OpenedField, OpenedFields
from zarrfeed.metadata.patches.patching import Patching
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.metadata.stores.memory_store import alike_in_kind
from zarrfeed.metadata.stores.store_parts import ArrayLocation, LayoutParts, location_of, locations_in, normalised
from zarrfeed.plan.samples.sample_choice import SampleChoice
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.field import (
    Field,
    HostRows,
    ResidentField,
    StoredField,
    VlenField,
    described_dtype,
    record_of,
)
from zarrfeed.spec.layout import Layout
from zarrfeed.spec.level import LevelRows
from zarrfeed.spec.sparse import CsrField, Elements


@dataclass(frozen=True)
class Run:
    """Stores side by side that are alike but for their lengths and locations.

    Attributes
    ----------
    resolved
        The description of one of them.
    lengths
        Samples of each store.
    stores
        Their names.
    names, locations
        For each field, the name and the location of the array of each store. Empty: the run is `resolved` itself.
    unopened
        Where the coordinates of each store are then.
    """

    resolved: ResolvedData
    lengths: list[int]
    stores: list[str]
    names: list[list[str]] = field(default_factory=list)
    locations: list[list[ArrayLocation]] = field(default_factory=list)
    unopened: list[UnopenedCoordinates] = field(default_factory=list)

    @property
    def coordinates(self) -> Coordinates | None:
        """What can be looked up of the samples."""
        known = self.resolved.opened.coordinates
        return known if known is None or not self.unopened else replace(known, stores=tuple(self.unopened), _read={})

    def extend(self, other: Run) -> bool:
        """Append the stores of another run, if both are like the same store; return whether they are."""
        if other.resolved is not self.resolved or not self.locations or not other.locations:
            return False
        self.lengths.extend(other.lengths)
        self.stores.extend(other.stores)
        self.unopened.extend(other.unopened)
        for number, (names, locations) in enumerate(zip(other.names, other.locations, strict=True)):
            self.names[number].extend(names)
            self.locations[number].extend(locations)
        return True


class _FieldStores:
    """One field of all stores."""

    def __init__(self, first: Field, items: Items, request: RequestedConversion, store: str) -> None:
        self.first = first
        self._items, self._requested = items, request
        self._store = store
        self._layouts: dict[Hashable, LayoutParts] = {}
        self._resident: list[ResidentField] = []
        self._matrices = _MatrixStores()
        self._levels: list[LevelRows] = []

    def add_run(self, f: Field, run: Run, number: int, base: int) -> None:
        """Append the field of a run, whose number is `number`; its first sample becomes sample `base`."""
        items, requested = run.resolved.opened.items_of(number), run.resolved.requested_of(number)
        opened = run.resolved.opened.fields[number]
        if isinstance(opened, StoredField) and isinstance(opened.rows, LevelRows):  # it has rows of its own
            base = sum(one.num_rows for one in self._levels)
            self._levels.append(opened.rows)
        elif self._levels:
            raise ConfigError(f"{run.stores[0]}: {items[0].name} is no level of an image, in {self._store} it is one")
        self._check(f, items[0], run.stores[0], requested[0])
        if isinstance(f, ResidentField):
            if not all(request.is_empty for request in requested):
                raise ConfigError(f"{run.stores[0]}: {items[0].name} is in memory; convert it after zarrfeed.concat()")
            self._resident.append(f)
            return
        if isinstance(f, CsrField):
            self._matrices.add(f, [self._parts_of(*one) for one in zip(f.data.layouts, items, requested, strict=True)])
            return
        assert isinstance(f, StoredField | VlenField)
        if run.locations:
            parts = self._parts_of(f.layouts[0], items[0], requested[0])
            for length, name, location in zip(run.lengths, run.names[number], run.locations[number], strict=True):
                parts.add(base, base + length, name, location)
                base += length
            return
        for layout, of_layout, request in zip(f.layouts, items, requested, strict=True):
            parts = self._parts_of(layout, of_layout, request)
            spec = layout.spec
            if layout.parts is None:
                parts.add(base, base + spec.num_samples, spec.name, location_of(spec))
                continue
            names, locations = zip(*locations_in(layout), strict=True)
            begins, ends = (base + layout.parts.begin).tolist(), (base + layout.parts.end).tolist()
            for begin, end, name, location in zip(begins, ends, names, locations, strict=True):
                parts.add(begin, end, name, location)

    def _parts_of(self, layout: Layout, items: Items, request: RequestedConversion) -> LayoutParts:
        """Return the stores that hold the field as a layout has it."""
        asked = None if request.is_empty else id(request)
        key = (normalised(layout.spec), layout.conversion, replace(items, shape=()), asked)
        return self._layouts.setdefault(key, LayoutParts(layout, items, request))

    def joined(self, num_samples: int) -> tuple[OpenedField, tuple[Items, ...], tuple[RequestedConversion, ...]]:
        """Return the field of all stores, and for each of its layouts what is known of the items, and was asked."""
        f = self.first
        if isinstance(f, ResidentField):
            rows = np.concatenate([one.rows.array for one in self._resident])
            shape = (num_samples, *self._items.shape[1:])
            return replace(f, rows=HostRows(rows)), (replace(self._items, shape=shape),), (RequestedConversion(),)
        if isinstance(f, CsrField):
            matrix, parts = self._matrices.joined(f)
            whole = (num_samples, f.num_columns)
            return matrix, tuple(replace(one.items, shape=whole) for one in parts), tuple(one.request for one in parts)
        assert isinstance(f, StoredField | VlenField)
        levels = LevelRows.concat(self._levels)
        if levels is not None:
            num_samples = levels.num_rows
        groups = list(self._layouts.values())
        layouts = [group.joined(num_samples) for group in groups]
        items = tuple(
            replace(group.items, shape=layout.spec.shape) for group, layout in zip(groups, layouts, strict=True)
        )
        first = replace(f, spec=layouts[0].spec, parts=layouts[0].parts, others=tuple(layouts[1:]))
        if isinstance(first, StoredField):
            first = replace(first, rows=levels)
        return first, items, tuple(group.request for group in groups)

    def _check(self, f: Field, items: Items, store: str, request: RequestedConversion) -> None:
        """Raise ConfigError if the field of a store is not like that of the first one."""
        said, first = items.described, self._items.described
        if said is not None and first is not None and said is not first:
            if request.mean_std is None and self._requested.mean_std is None:  # what is normalised has no units
                check_same_values(items.name, store, said, self._store, first)
            check_same_direction(store, said, self._store, first)
        self._check_axes(items, store)
        ours, theirs = _kind(self.first), _kind(f)
        if type(f) is not type(self.first) or ours != theirs:
            raise ConfigError(
                f"{store}: {items.name} is {_in_words(f)}, in {self._store} it is {_in_words(self.first)}: the samples "
                "of all stores must have the same shape and dtype" + _CAST * (ours[0] == theirs[0])
            )

    def _check_axes(self, items: Items, store: str) -> None:
        """Raise ConfigError if the axes of a sample are those of the first store in another order."""
        ours, theirs = (_dims_of_row(one) for one in (items, self._items))
        if ours != theirs and None not in (*ours, *theirs) and sorted(map(str, ours)) == sorted(map(str, theirs)):
            raise ConfigError(
                f"{store}: a sample of {items.name} has the axes {ours}, in {self._store} {theirs}: transpose one"
            )


def _dims_of_row(items: Items) -> tuple[str | None, ...]:
    """Return the names of the axes of a sample; nothing if they have none."""
    return tuple(dim for axis, dim in enumerate(items.dimensions or ()) if axis != items.sample_axis)


_CAST = "; dtype= of zarrfeed.concat, or of Data.cast, converts them"


def _kind(f: Field) -> tuple[Hashable, ...]:
    """Return what must be the same in all stores: the shape of a row, the dtype, the members of a record."""
    assert isinstance(f, StoredField | ResidentField | VlenField | CsrField)
    if isinstance(f, CsrField):
        return f.sample_shape, described_dtype(f), None, None
    shape = f.sample_shape if isinstance(f, VlenField) else f.row_shape
    return shape, described_dtype(f), record_of(f), f.images if isinstance(f, VlenField) else None


def _in_words(f: Field) -> str:
    memory = "in memory, " if isinstance(f, ResidentField) else ""
    shape, dtype = _kind(f)[:2]
    return f"{memory}{dtype} of shape {shape}"


def concat_runs(runs: Sequence[Run], *, contiguous: bool = False) -> ResolvedData:
    """Return the description of the samples of all runs, one after another.

    With `contiguous`, windows may reach from one description into the next one.

    Raises
    ------
    ConfigError
        If they do not have the same fields, shapes, dtypes and windows; the message names the store.
    """
    alike = alike_in_kind([run.resolved for run in runs])
    runs = [replace(run, resolved=resolved) for run, resolved in zip(runs, alike, strict=True)]
    first, store = runs[0].resolved, runs[0].stores[0]
    fields = [
        _FieldStores(f, items, first.requested_of(number)[0], store)
        for number, (f, items) in enumerate(zip(_as_delivered(first), first.opened.items, strict=True))
    ]
    delivered: dict[int, list[OpenedField]] = {}  # by the identity of a description
    arrays: list[zarr.Array[Any]] = []
    base = 0
    for run in runs:
        if id(run.resolved) not in delivered:
            _check_alike(first, store, run.resolved, run.stores[0])
            delivered[id(run.resolved)] = _as_delivered(run.resolved)
            arrays += run.resolved.opened.arrays
        for number, (stores, f) in enumerate(zip(fields, delivered[id(run.resolved)], strict=True)):
            stores.add_run(f, run, number, base)
        base += sum(run.lengths)
    joined = [stores.joined(base) for stores in fields]
    known = [run.coordinates for run in runs]
    lengths = np.concatenate([np.asarray(run.lengths, dtype=np.int64) for run in runs])
    table = StoreTable([name for run in runs for name in run.stores], np.concatenate(([0], np.cumsum(lengths))))
    opened = OpenedFields(
        tuple(_unconverted(f) for f, _, _ in joined),
        tuple(items[0] for _, items, _ in joined),
        first.opened.sides,
        first.opened.num_sample_fields,
        arrays=tuple(arrays),
        other_items=tuple(items[1:] for _, items, _ in joined),
        stores=table,
        categories=first.opened.categories,
        coordinates=None if None in known else Coordinates.concat([one for one in known if one is not None]),
    )
    choice = SampleChoice.concat(
        [run.resolved.choice for run in runs], [run.lengths for run in runs], table.first, contiguous=contiguous
    )
    return ResolvedData(
        opened,
        choice,
        (RequestedConversion(),) * len(fields),
        first.windows,
        tuple(requested for _, _, requested in joined),
        patching=_patches(runs, table.first),
    )


def _patches(runs: Sequence[Run], first: Int64) -> Patching | None:
    """Return the patches of all runs; None if samples are none."""
    cut = [run.resolved.patching for run in runs]
    if all(one is None for one in cut):
        return None
    if None in cut:
        raise ConfigError(f"{runs[cut.index(None)].stores[0]}: its samples are no patches, those of others are")
    begins = np.cumsum([0, *(len(run.stores) for run in runs)])[:-1]
    return Patching.concat([one for one in cut if one is not None], first[begins].tolist(), [r.stores[0] for r in runs])


def _as_delivered(resolved: ResolvedData) -> list[OpenedField]:
    """Return the fields as they are opened, with their conversions, as dtypes are compared after them."""
    made = []
    for f in resolved.fields:
        assert isinstance(f, StoredField | ResidentField | VlenField | CsrField)
        made.append(f if isinstance(f, VlenField | CsrField) else replace(f, window=None))
    return made


def _unconverted(f: OpenedField) -> OpenedField:
    if isinstance(f, VlenField):
        return replace(f, images=None)
    if isinstance(f, ResidentField):
        return replace(f, conversion=None)
    if isinstance(f, CsrField):
        return with_conversion(f, [None] * len(f.data.layouts), None, dense=False)
    others = tuple(replace(layout, conversion=None) for layout in f.others)
    return replace(f, conversion=None, spared=False, others=others, patch=None)


def _check_alike(first: ResolvedData, store: str, other: ResolvedData, name: str) -> None:
    """Raise ConfigError if two descriptions have other fields, or other windows."""
    ours, theirs = ([items.name for items in one.opened.items] for one in (first, other))
    if ours != theirs:
        raise ConfigError(f"{name}: has {', '.join(theirs)}; {store} has {', '.join(ours)}: they must have the same")
    if first.opened.categories != other.opened.categories:
        keys = [key for key, names in first.opened.categories.items() if other.opened.categories.get(key) != names]
        raise ConfigError(
            f"{name}: the categories of {', '.join(map(repr, keys))} are not those of {store}, so their codes mean "
            "something else"
        )
    if first.statics or other.statics:
        raise ConfigError(f"{store if first.statics else name}: call static() after zarrfeed.concat()")
    if first.windows != other.windows:
        raise ConfigError(f"{name}: its windows are not those of {store}; call window() after zarrfeed.concat()")


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


class _MatrixStores:
    """A sparse matrix of all stores: their rows one after another."""

    def __init__(self) -> None:
        self._columns: dict[Hashable, LayoutParts] = {}
        self._indices, self._data = _ElementStores(), _ElementStores()
        self._indptr: list[Int64] = [np.zeros(1, dtype=np.int64)]
        self._first_row: list[Int64] = [np.zeros(1, dtype=np.int64)]

    def add(self, field: CsrField, parts: Sequence[LayoutParts]) -> None:
        """Append the stores of a field; `parts` has those that hold the values as each of its layouts does."""
        items = Items("samples", None, None, (), 0)
        columns = [
            self._columns.setdefault(normalised(layout.spec), LayoutParts(layout, items, RequestedConversion()))
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
