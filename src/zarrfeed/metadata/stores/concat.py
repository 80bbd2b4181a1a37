"""Several descriptions, or stores, as one along the sample axis.

Invariant: sample i of store s is sample first[s] + i of the whole, and no chunk, block or window has samples of two
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
from zarrfeed.metadata.group.batch_columns import Column, Origin
from zarrfeed.metadata.group.coordinates import Coordinates, UnopenedCoordinates
from zarrfeed.metadata.patches.patching import PatchAxes, Patching
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.metadata.stores.memory_store import alike_in_kind
from zarrfeed.metadata.stores.store_parts import ArrayLocation
from zarrfeed.metadata.stores.stores_by_kind import StoreRows, array_like
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.samples.sample_set import distinct
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.windows.windows import with_borders
from zarrfeed.spec.fields.field import (
    Field,
)
from zarrfeed.spec.patches.level import LevelRows
from zarrfeed.spec.samples.row_map import GridRows
from zarrfeed.spec.samples.segments import Segments
from zarrfeed.spec.samples.window import Borders, Window


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
        Names of the stores.
    located
        For each column, the name and the location of the array of each store. Empty: the run is `resolved` itself.
    unopened
        The places of the coordinates of each store, if `located` is not empty.
    """

    resolved: ResolvedData
    lengths: list[int]
    stores: list[str]
    located: list[list[tuple[str, ArrayLocation]]] = field(default_factory=list)
    unopened: list[UnopenedCoordinates] = field(default_factory=list)

    @property
    def coordinates(self) -> Coordinates | None:
        """The coordinates of the samples."""
        known = self.resolved.origin.coordinates
        return known if known is None or not self.unopened else replace(known, stores=tuple(self.unopened), _read={})

    def extend(self, other: Run) -> bool:
        """Append the stores of another run, if both are like the same store; return whether they are."""
        if other.resolved is not self.resolved or not self.located or not other.located:
            return False
        self.lengths.extend(other.lengths)
        self.stores.extend(other.stores)
        self.unopened.extend(other.unopened)
        for ours, theirs in zip(self.located, other.located, strict=True):
            ours.extend(theirs)
        return True


class _ColumnStores:
    """One column of all stores."""

    def __init__(self, delivered: Field, column: Column, store: str) -> None:
        self.first = delivered
        self._column, self._store = column, store
        self._items, self._requested = column.items, column.conversions[0]
        self._stored: list[zarr.Array[Any]] = []
        self._patch_axes: list[PatchAxes] = []
        self._array_of_stores = array_like(delivered, column.items)
        self._padded_at: list[Int64] = []
        self._gaps: list[str] = []
        self._levels: list[LevelRows] = []
        self._grids: list[tuple[GridRows, int]] = []  # with the rows of each array

    def add_run(self, f: Field, run: Run, number: int, base: int) -> None:
        """Append the column of a run, whose number is `number`; its first sample becomes sample `base`."""
        column = run.resolved.columns[number]
        self._add_borders(column.window, base, sum(run.lengths))
        items, requested, opened = column.array.all_items, column.conversions, column.field
        if isinstance(opened.row_map, LevelRows):  # it has rows of its own
            base = sum(one.num_rows for one in self._levels)
            self._levels.append(opened.row_map)
        elif self._levels:
            raise ConfigError(f"{run.stores[0]}: {items[0].name} is no level of an image, in {self._store} it is one")
        if isinstance(opened.row_map, GridRows):
            base = sum(num_rows for _, num_rows in self._grids)
            self._grids.append((opened.row_map, opened.num_rows))
        self._check(f, items[0], run.stores[0], requested[0])
        located: list[tuple[int, str, ArrayLocation]] = []
        if run.located:
            located = [(length, *one) for length, one in zip(run.lengths, run.located[number], strict=True)]
        self._array_of_stores.add(f, StoreRows(run.stores[0], items, requested, base, located))

    def add_described(self, column: Column, store: str) -> None:
        """Append what the column of a description has for all of its runs."""
        ours, theirs = self._column.patch_axes, column.patch_axes
        self._stored += column.array.stored
        if ours is not None and theirs is not None:
            if ours.axes != theirs.axes:
                raise _cut_otherwise(store, self._store)
            self._patch_axes.append(theirs)

    def joined(self, num_samples: int) -> Column:
        """Return the column of all stores."""
        levels = LevelRows.concat(self._levels)
        rows = GridRows.concat(self._grids) if self._grids else levels
        num_rows = num_samples if levels is None else levels.num_rows
        array, before = self._array_of_stores.joined(sum(n for _, n in self._grids) if self._grids else num_rows)
        if rows is not None:
            array = replace(array, field=array.field.with_row_map(rows))
        axes = PatchAxes.concat(self._patch_axes) if self._patch_axes else None
        borders = Borders(distinct(np.concatenate(self._padded_at)), "; ".join(self._gaps)) if self._padded_at else None
        window = with_borders(self._column.window, borders)
        return Column(replace(array, stored=tuple(self._stored)), before=before, window=window, patch_axes=axes)

    def _add_borders(self, window: Window | None, base: int, length: int) -> None:
        """Append the borders at which the windows of a run are padded, where they are: its ends, and those inside."""
        if window is None or window.pad is None:
            return
        inside = window.pad.borders
        self._padded_at.append(base + (np.array([0, length]) if inside is None else inside.first))
        if inside is not None and inside.gaps and inside.gaps not in self._gaps:
            self._gaps.append(inside.gaps)

    def _check(self, f: Field, items: Items, store: str, request: RequestedConversion) -> None:
        """Raise ConfigError if the field of a store is not like that of the first one."""
        said, first = items.described, self._items.described
        if said is not None and first is not None and said is not first:
            if not request.steps and not self._requested.steps:  # what is normalised has no units
                check_same_values(items.name, store, said, self._store, first)
            check_same_direction(store, said, self._store, first)
        self._check_axes(items, store)
        ours, theirs = _kind(self.first), _kind(f)
        if type(f) is not type(self.first) or ours != theirs:
            are_volumes = len(f.sample_shape) == len(self.first.sample_shape) > 1
            remedy = _CAST if ours[0] == theirs[0] else _CUT_FIRST * are_volumes
            raise ConfigError(
                f"{store}: {items.name} is {_in_words(f)}, in {self._store} it is {_in_words(self.first)}: the samples "
                f"of all stores must have the same shape and dtype{remedy}"
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
_CUT_FIRST = (
    "; cut volumes of different sizes first: zarrfeed.concat([zarrfeed.open(path).patch(...) for path in paths])"
)


def _kind(f: Field) -> tuple[Hashable, ...]:
    """Return all that must be the same in all stores: the shape of a row, the dtype, the members of a record."""
    return f.sample_shape, f.described_dtype, f.record, f.images


def _in_words(f: Field) -> str:
    memory = "" if f.is_stored else "in memory, "
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
    if contiguous and (dims := _sample_dims(first)):
        raise ConfigError(
            f"contiguous = True: windows lie along {dims[-1]!r} and leave no {dims[0]!r}, so none reaches from one "
            "store into the next"
        )
    columns = [_ColumnStores(f, one, store) for f, one in zip(_as_delivered(first), first.columns, strict=True)]
    delivered: dict[int, list[Field]] = {}  # by the identity of a description
    base = 0
    for run in runs:
        resolved = run.resolved
        if id(resolved) not in delivered:
            _check_alike(first, store, resolved, run.stores[0])
            delivered[id(resolved)] = _as_delivered(resolved)
            for stores, column in zip(columns, resolved.columns, strict=True):
                stores.add_described(column, run.stores[0])
        for number, f in enumerate(delivered[id(resolved)]):
            columns[number].add_run(f, run, number, base)
        base += sum(run.lengths)
    known = [run.coordinates for run in runs]
    lengths = np.concatenate([np.asarray(run.lengths, dtype=np.int64) for run in runs])
    table = StoreTable([name for run in runs for name in run.stores], np.concatenate(([0], np.cumsum(lengths))))
    choice = SampleChoice.concat(
        [run.resolved.choice for run in runs], [run.lengths for run in runs], table.first, contiguous=contiguous
    )
    coordinates = None if None in known else Coordinates.concat([one for one in known if one is not None])
    origin = Origin(stores=table, categories=first.origin.categories, coordinates=coordinates, segments=_segments(runs))
    joined = tuple(stores.joined(base) for stores in columns)
    return ResolvedData(joined, origin, choice, patching=_patches(runs, table.first))


def _segments(runs: Sequence[Run]) -> Segments | None:
    """Return the segments of all runs; None if one has none."""
    found = [one for run in runs if len(run.lengths) == 1 and (one := run.resolved.origin.segments) is not None]
    return Segments.concat(found, [run.lengths[0] for run in runs]) if len(found) == len(runs) else None


def _patches(runs: Sequence[Run], first: Int64) -> Patching | None:
    """Return the patches of all runs; None if samples are none."""
    cut = [run.resolved.patching for run in runs]
    if all(one is None for one in cut):
        return None
    if None in cut:
        raise ConfigError(
            f"{runs[cut.index(None)].stores[0]}: its samples are no patches, but those of other stores are"
        )
    patchings = [one for one in cut if one is not None]
    weighted = next((one for one in patchings if one.request.weights is not None), patchings[0])
    for one, run in zip(patchings, runs, strict=True):
        if not one.is_cut_like(weighted):
            raise _cut_otherwise(run.stores[0], runs[0].stores[0])
    begins = np.cumsum([0, *(len(run.stores) for run in runs)])[:-1]
    return Patching.concat(patchings, first[begins].tolist())


def _cut_otherwise(store: str, first: str) -> ConfigError:
    return ConfigError(f"{store}: is cut into other patches than {first}")


def _as_delivered(resolved: ResolvedData) -> list[Field]:
    """Return the fields as they are opened, with their conversions, as dtypes are compared after them."""
    return [f.without_window() for f in resolved.fields]


def _check_alike(first: ResolvedData, store: str, other: ResolvedData, name: str) -> None:
    """Raise ConfigError if two descriptions have other fields, or other windows."""
    ours, theirs = ([items.name for items in one.items] for one in (first, other))
    if ours != theirs:
        raise ConfigError(f"{name}: has {', '.join(theirs)}, {store} has {', '.join(ours)}; they must have the same")
    if first.origin.categories != other.origin.categories:
        keys = [key for key, names in first.origin.categories.items() if other.origin.categories.get(key) != names]
        raise ConfigError(
            f"{name}: the categories of {', '.join(map(repr, keys))} are not those of {store}, so their codes mean "
            "something else"
        )
    dims, other_dims = (_sample_dims(one) for one in (first, other))
    if dims != other_dims:
        raise ConfigError(
            f"{name}: its samples are numbered by {_named(other_dims)}, those of {store} by {_named(dims)}; they must "
            "have the same sample_dim"
        )
    if first.statics or other.statics:
        raise ConfigError(f"{store if first.statics else name}: call static() after zarrfeed.concat()")
    windows, others = ([with_borders(column.window, None) for column in one.columns] for one in (first, other))
    if windows != others:
        raise ConfigError(f"{name}: its windows are not those of {store}; call window() after zarrfeed.concat()")


def _sample_dims(resolved: ResolvedData) -> tuple[str, ...]:
    """Return the dimensions that number the samples, where there are several; else nothing."""
    known = resolved.origin.coordinates
    return () if known is None or not known.grids else known.sample_dims


def _named(dims: tuple[str, ...]) -> str:
    return ", ".join(map(repr, dims)) or "one dimension"
