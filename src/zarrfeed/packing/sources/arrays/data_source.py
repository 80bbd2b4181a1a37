"""`DataSource`: the selected samples of a `Data`, with the items that samples have of them, as they are stored.

Invariant: samples and items that `Data.sel`, `isel`, `select`, `blocks` and `split` leave out are neither read nor
packed. Methods that change samples on their way into a batch are refused, since a store has samples as they are stored.
Windows of the packed store do not span samples that were no neighbours before: runs end where stores and segments end,
and where a list, a mask or a split left samples out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError, UnsupportedError, printable
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.description.item_calls import StaticCall
from zarrfeed.metadata.description.measured_fields import layout_fingerprint, samples_digest
from zarrfeed.metadata.description.resolved import IN_ORDER, ResolvedData
from zarrfeed.metadata.face.data import Data
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.stores.stored_arrays import StoredPart, stored_parts
from zarrfeed.packing.sources.arrays.data_coordinates import SAMPLE, CoordinateReader, StoreCoordinates
from zarrfeed.packing.sources.file_reading import runs_of
from zarrfeed.packing.sources.same_meaning import (
    OF_FIRST_STORE,
    Stored,
    as_one_axis,
    check_same_constants,
    check_same_meaning,
    decoded_together,
)
from zarrfeed.packing.sources.source import Int64, Rows, Runs, Source, SourceField
from zarrfeed.packing.sources.stored_rows import StoredRows, describe_array, with_sizes
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.description.expression import ConcatCall, Expression, OpenCall
from zarrfeed.spec.description.freeze import FrozenMapping
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.samples.row_map import GridRows
from zarrfeed.storage.access.access import StoreAccess

_WITHOUT_COORDINATES = "an array by itself is packed without coordinates; open its group with variables=[...] for them"
#: Methods that choose among stored samples and items.
_SELECTING = (".select", ".sel", ".isel", ".blocks", ".split", ".segments", ".sel_segments")


class DataSource(Source):
    """The selected samples of a `Data`.

    Raises
    ------
    ConfigError, UnsupportedError
        If a `Data` has no place in a store; the message says what to do.
    """

    kind = "data"

    def __init__(self, data: Data, timeout: float) -> None:
        check_packable(data)
        resolved = _as_stored(data.resolved)
        self._rows = StoredRows(resolved, Faults(timeout=timeout))
        samples = np.asarray(resolved.choice.listed(), dtype=np.int64)
        self.num_samples = len(samples)
        known = data.resolved.origin.coordinates
        access = StoreAccess() if known is None else known.access
        parts = [list(stored_parts(f)) for f in resolved.fields]
        names = [one.items.key or "" for one in resolved.columns]
        self._is_array = names == [""]
        opened = [[] if not of_field else _of_layouts(of_field, access) for of_field in parts]
        of_fields = [
            _describe(name, one, field, arrays)
            for name, one, field, arrays in zip(names, resolved.columns, resolved.fields, opened, strict=True)
        ]
        self._copied = [f.dtype for f in of_fields]
        self._axes: dict[str, Rows] = {}
        self.by_value = {}
        self.runs = _cut_runs(_runs_of(data), resolved, samples)
        if self._is_array:
            is_named = bool(opened[0]) and of_fields[0].dims is not None
            self.notes = (
                "an array by itself is packed without coordinates: open its group, variables=[...]",
            ) * is_named
        else:
            grids = () if known is None else known.grids
            reader = CoordinateReader(access, names, _statics_of(data), takes_all=_takes_all(data))
            of_stores = _coordinates(parts, opened, reader, access, grids)
            if grids:
                self.notes = (
                    f"{' x '.join(grids[0])} are one dimension, {SAMPLE!r}, with a value of each for each sample",
                )
            of_fields += self._with_coordinates(of_stores, samples) if of_stores else []
        self.fields = with_sizes(of_fields, self.num_samples, self.take)
        self.block_samples = self._rows.samples_together(self.fields[: len(names)])
        told: list[Any] = [self.num_samples, [str(f) for f in self.fields], samples_digest(resolved)]
        for field, column, of_field in zip(resolved.fields, resolved.columns, parts, strict=True):
            where = [part.location if isinstance(part.location, str) else part.name for part in of_field]
            told += [layout_fingerprint(field, column.items, (), ""), where]
        for values in self._axes.values():
            told.append(values.tolist() if values.dtype == object else hashlib.sha256(values.tobytes()).hexdigest())
        self.fingerprint = hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()

    def _with_coordinates(self, of_stores: Sequence[StoreCoordinates], samples: Int64) -> list[SourceField]:
        """Take up the coordinates of all stores; return those that have a value for each sample."""
        first = of_stores[0]
        for other in of_stores[1:]:
            check_same_constants("a later store", other.constants, "the first store", first.constants)
        if len(of_stores) > 1:
            self.not_proved = (OF_FIRST_STORE,)
        self.constants = tuple(first.constants)
        self.attributes = dict(first.attributes)
        if first.scalars:
            known = str(self.attributes.get("coordinates", "")).split()
            self.attributes["coordinates"] = " ".join([*known, *(one for one in first.scalars if one not in known)])
        made, by_value = [], dict[str, Callable[[], Rows]]()
        for name, stored in first.along_samples.items():
            of_name = [one.along_samples[name] for one in of_stores if name in one.along_samples]
            if len(of_name) < len(of_stores):
                raise ConfigError(f"{stored.where}: other stores lack this coordinate; leave it out of the first one")
            axis = as_one_axis(of_name)
            values = np.concatenate([one.read() for one in of_name]) if axis is None else axis.values
            values = values[samples]
            attributes = dict(stored.attributes if axis is None else axis.attributes)
            if axis is not None:
                by_value[name] = lambda of_name=of_name: decoded_together(of_name)[samples]  # type: ignore[misc]
            if values.dtype.kind in "OTU":
                values = values.astype(object)
                field = SourceField(name, values.dtype, values.shape[1:], "text", first.dims[name], attributes)
            else:
                values = values.astype(values.dtype.newbyteorder("="))
                field = SourceField(name, values.dtype, values.shape[1:], dims=first.dims[name], attributes=attributes)
            self._axes[name] = values
            made.append(field)
        self.by_value = by_value
        return made

    def take(self, samples: Int64) -> list[Rows]:
        """Return the samples of some numbers, which count those that are selected."""
        return [*self._rows.take(samples, self._copied), *(values[samples] for values in self._axes.values())]

    def close(self) -> None:
        """Let go of the memory of the readers."""
        self._rows.close()


def check_packable(data: Data) -> None:
    """Raise ConfigError for a `Data` that no store can hold; says what to do in its place."""
    _check_calls(data.expression)
    if data.growth is not None:
        raise ConfigError("pack: the store is opened with refresh='epoch', and may grow; open it without refresh")
    if data.resolved.given is not None:
        raise ConfigError(f"pack: {IN_ORDER}; a packed store keeps the order of the array: pack without keep_order")
    if any(one.items.side == "targets" for one in data.resolved.columns):
        raise ConfigError(
            "pack: a store has no sides: open samples and targets as one mapping, {'x': samples, 'y': targets}, and "
            "name the sides when you open the packed store, variables={'samples': ['x'], 'targets': ['y']}"
        )
    for one in data.resolved.columns:
        name = one.items.key or "the array"
        if one.field.row_map is not None and not isinstance(one.field.row_map, GridRows):
            raise ConfigError(f"pack: {name} is a level of an image pyramid; pack each level by its path")
        if not one.field.has_rows and not one.field.item_type:
            raise UnsupportedError(f"pack: {name} is an element of AnnData; pack the path of the store or file")
        if "/" in name:
            own = name.rpartition("/")[2]
            raise UnsupportedError(
                f"pack: {name!r} lies in a group; give names of your own: zarrfeed.open({{{own!r}: path of the array}})"
            )
        if one.items.is_record:
            raise UnsupportedError(f"pack: {name} has records, which are not packed; leave it out with variables=")


def _check_calls(expression: Expression) -> None:
    opened = expression.opened
    if isinstance(opened, ConcatCall):
        for one in opened.data:
            _check_calls(one)
    elif not isinstance(opened, OpenCall):
        what = opened.function.removeprefix("zarrfeed.")
        raise ConfigError(
            f"pack: the samples are those of zarrfeed.{what}, which has no place in one store: pack each of its "
            f"inputs, and {what} the packed stores"
        )
    for call in expression.calls:
        of_group = isinstance(call, StaticCall) and not call.arrays.items
        if call.function not in _SELECTING and not of_group:
            raise ConfigError(
                f"pack: writes samples as they are stored, and {call.function[1:]}() changes them on their way into a "
                f"batch: pack without it, and call it on the packed store, zarrfeed.open(out){call}"
            )


def _as_stored(resolved: ResolvedData) -> ResolvedData:
    """Return the same samples, neither decoded nor converted."""
    columns = tuple(
        Column(
            replace(
                one.array,
                items=replace(one.array.items, decoding=None),
                other_items=tuple(replace(items, decoding=None) for items in one.array.other_items),
            ),
            RequestedConversion(),
        )
        for one in resolved.columns
    )
    return replace(resolved, columns=columns, statics=())


def _of_layouts(parts: Sequence[StoredPart], access: StoreAccess) -> list[zarr.Array[Any]]:
    """Return an array of each layout, that of the first store first, whose numbers mean the same.

    Raises
    ------
    ConfigError
        If their numbers mean something else.
    """
    by_layout = {id(one.layout): one for one in reversed(parts)}
    first = parts[0]
    others = [one for one in by_layout.values() if one is not first]
    arrays = [one.open(access) for one in (first, *others)]
    told = [
        Stored(one.name, "", np.dtype(array.dtype), dict(array.attrs), lambda: np.zeros(0))
        for one, array in zip((first, *others), arrays, strict=True)
    ]
    for other in told[1:]:
        check_same_meaning(other, told[0])
    return arrays


def _describe(name: str, column: Column, field: Field, arrays: Sequence[zarr.Array[Any]]) -> SourceField:
    """Describe a column as a field of the packed store."""
    if not arrays:
        try:
            dtype = np.dtype(field.dtype_name)
        except TypeError as error:
            raise UnsupportedError(f"pack: {name or 'the array'} is {field.dtype_name}, which Zarr lacks") from error
        return SourceField(name, dtype, tuple(field.row_shape))
    dims, axis = column.items.dimensions, column.items.sample_axis
    if dims is not None:
        own = SAMPLE if isinstance(field.row_map, GridRows) else dims[axis]
        dims = (own, *dims[:axis], *dims[axis + 1 :])
    shape = () if field.item_type else tuple(column.items.shape[:axis] + column.items.shape[axis + 1 :])
    return describe_array(name, arrays[0], field, shape, dims)


def _statics_of(data: Data) -> list[str]:
    """Return the names of the arrays of the group that `static()` named."""
    return [name for call in data.expression.calls if isinstance(call, StaticCall) for name in call.names]


def _takes_all(data: Data) -> bool:
    """Return whether all arrays of a group were opened, so that those without samples go along."""
    opened = data.expression.opened
    return type(opened) is OpenCall and opened.variables is None and not isinstance(opened.samples, FrozenMapping)


def _coordinates(
    parts: Sequence[Sequence[StoredPart]],
    opened: Sequence[Sequence[zarr.Array[Any]]],
    reader: CoordinateReader,
    access: StoreAccess,
    grids: Sequence[Mapping[str, int]],
) -> list[StoreCoordinates]:
    """Return the coordinates of each store: in the first one, beside all of its arrays; in others, beside one.

    `grids` are the sample dimensions of each store, where there are several.
    """
    stored = [(of_field, arrays) for of_field, arrays in zip(parts, opened, strict=True) if of_field]
    if not stored:
        return []
    of_first = stored[0][0]
    each = grids or [{}] * len(of_first)
    beside_first = [(arrays[0], of_field[0].layout.spec) for of_field, arrays in stored]
    made = [reader.read(beside_first, of_first[0].end - of_first[0].begin, each[0])]
    for one, grid in zip(of_first[1:], each[1:], strict=True):
        made.append(reader.read([(one.open(access), one.layout.spec)], one.end - one.begin, grid))
    return made


def _runs_of(data: Data) -> Runs | None:
    """Return the names and ends of the stores, and the ends of the segments that windows do not leave."""
    table, borders = data.resolved.origin.stores, data.resolved.choice.borders
    segments = None if borders is None else borders[1:]
    if table is not None:
        runs = runs_of(table.names, np.diff(table.first).tolist(), segments=None)
        return None if runs is None else replace(runs, segment_ends=segments)
    if segments is None:
        return None
    return Runs((printable(data.expression.source_name()),), segments[-1:], segments)


def _cut_runs(runs: Runs | None, resolved: ResolvedData, samples: Int64) -> Runs | None:
    """Return runs of the selected samples alone; segments end where samples side by side were not so before, too."""
    cuts = np.flatnonzero(np.diff(samples) != 1) + 1
    if isinstance(resolved.choice.listed(), range):  # every n-th sample
        cuts = cuts[:0]
    if runs is None and not len(cuts):
        return None
    total = np.array([len(samples)])
    if runs is None:
        return Runs(("samples",), total, np.append(cuts, total))
    ends = np.searchsorted(samples, runs.ends)
    inside = np.diff(ends, prepend=0) > 0
    segments = None if runs.segment_ends is None else np.searchsorted(samples, runs.segment_ends)
    if segments is not None or len(cuts):
        known = total if segments is None else segments
        segments = np.unique(np.concatenate([known[known > 0], cuts, total]))
    return Runs(tuple(name for name, one in zip(runs.names, inside, strict=True) if one), ends[inside], segments)
