"""`ZarrSource`: Zarr arrays and groups, one store or many, wherever `zarrfeed.open` reads them.

Invariant: of several stores, each has the arrays of the first one, their numbers mean the same (`same_meaning`), and
arrays without samples, such as latitudes, have the same values. Times that stores count from dates of their own are one
axis, by value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import PurePath
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError, printable
from zarrfeed.metadata.array.cf import attributes_of, coordinate_attributes, dimension_names, inherited_by_bounds
from zarrfeed.metadata.array.cf_times import is_time_unit
from zarrfeed.metadata.array.known_groups import encoding_of
from zarrfeed.metadata.array.open import open_source
from zarrfeed.metadata.array.own_metadata import read_own, stale_fields, stale_text
from zarrfeed.metadata.face.open_data import open as open_data
from zarrfeed.metadata.group.field_sources import arrays_in
from zarrfeed.packing.sources.file_reading import check_no_grid, run_note, runs_of, segments_by
from zarrfeed.packing.sources.file_runs import nested_runs, runs_in
from zarrfeed.packing.sources.same_meaning import (
    OF_FIRST_STORE,
    OneAxis,
    Stored,
    as_one_axis,
    check_same_constants,
    comparable,
    decoded_together,
)
from zarrfeed.packing.sources.source import (
    Constant,
    Int64,
    Rows,
    Runs,
    Source,
    SourceField,
    SourceOptions,
    chosen,
)
from zarrfeed.packing.sources.stored_rows import StoredRows, array_attributes, describe_array, with_sizes
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.chunks.codec_configs import as_meant


class ZarrSource(Source):
    """Samples of Zarr stores, as they are stored: values are not unpacked, attributes are carried over.

    Attributes without meaning for the numbers, such as `long_name`, are those of the first of several stores.

    Raises
    ------
    ConfigError
        If a store has other arrays, grids, units, packing or calendars than the first one.
    """

    kind = "zarr"

    def __init__(self, paths: tuple[str, ...], options: SourceOptions) -> None:
        self._policy = Faults(timeout=options.timeout)
        access = options.access
        node = open_source(paths[0], access)
        if encoding_of(node) in ("csr_matrix", "csc_matrix"):
            raise ConfigError(
                f"{printable(paths[0])}: is a sparse matrix, whose rows are not packed by themselves; pack the AnnData "
                f"that it lies in, with variables = [{PurePath(paths[0]).name!r}]"
            )
        first = _ArraysOfStore.of(paths[0], node, access, options)
        by_name = isinstance(node, zarr.Group)
        names = chosen(list(first.sampled), options, paths[0])
        self.num_samples = first.num_samples(names)
        self.by_value: dict[str, Callable[[], Rows]] = {}
        self.runs = first.runs()
        axes: dict[str, OneAxis] = {}
        stores = [first, *(first.like(path, open_source(path, access), names) for path in paths[1:])]
        if len(paths) > 1:
            self.num_samples = sum(store.num_samples(names) for store in stores)
            for name in names:
                of_stores = [store.stored(name) for store in stores]
                axis = as_one_axis(of_stores)
                if axis is not None:
                    axes[name] = axis
                    self.by_value[name] = partial(decoded_together, of_stores)
            self.not_proved = (OF_FIRST_STORE,)
            self.runs = self._runs_of(stores, names, options)
            along = f"axis {options.sample_axis}" if first.dim is None else repr(first.dim)
            self.notes = (run_note(len(stores), along, "stores"),)
        dim = first.dim
        copied = [name for name in names if name not in axes]
        self._reads = bool(copied) or not names
        fields: dict[str, SourceField] = {}
        version: object = None
        unopened = [
            array
            for store in stores
            for name, array in store.arrays.items()
            if name in axes or (by_name and name not in store.sampled)
        ]
        self.stale = tuple(_stale_arrays(unopened, access))
        if self._reads:
            data = open_data(
                paths[0] if len(paths) == 1 else list(paths),
                sample_axis=options.sample_axis if dim is None else 0,
                sample_dim=dim,
                variables=copied if by_name else None,
                decode_cf=False,
                storage_options=options.storage_options,
                zarr_format=options.zarr_format,
                timeout=options.timeout,
            )
            version = data.version
            self.stale += tuple(stale_fields([one.field for one in data.resolved.columns]))
            self._rows = StoredRows(data.resolved, self._policy)
            for name, field in zip(copied if by_name else [""], self._rows.fields, strict=True):
                array = first.arrays[name]
                shape, inherited = first.sample_shape_of(name), first.inherited.get(name, {})
                described = describe_array(name, array, field, shape, first.dims_of(name))
                fields[name] = replace(described, attributes={**described.attributes, **inherited})
        self.attributes: Mapping[str, Any] = dict(node.attrs) if by_name else {}
        self._axes = {name: axis.values for name, axis in axes.items()}
        for name, axis in axes.items():
            dims = first.dims_of(name)
            shape = axis.values.shape[1:]
            fields[name] = SourceField(name, axis.values.dtype, shape, dims=dims, attributes=axis.attributes)
        self.fields = tuple(fields[name] for name in (names if by_name else [""]))
        self.fields = with_sizes(self.fields, self.num_samples, self.take)
        if self._reads:
            self.block_samples = self._rows.samples_together([f for f in self.fields if f.name not in axes])
        self.constants = tuple(first.constants) if options.variables is None else ()
        told = [version, self.num_samples, [str(f) for f in self.fields], list(paths)]
        digests = [hashlib.sha256(axis.values.tobytes()).hexdigest() for axis in axes.values()]
        text = json.dumps(told + digests, default=str)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def _runs_of(self, stores: Sequence[_ArraysOfStore], names: Sequence[str], options: SourceOptions) -> Runs | None:
        """Return the names and ends of several stores; for packed stores, those of the files that they were made of.

        Raises
        ------
        ConfigError
            As in `check_no_grid`.
        """
        first, lengths = stores[0], [store.num_samples(names) for store in stores]
        has_coordinate = all(first.dim in store.sampled for store in stores)
        of_dim = [store.stored(str(first.dim)) for store in stores] if has_coordinate else None
        if first.dim is not None and options.sample_dim is None and options.files_are is None:
            check_no_grid([printable(store.path) for store in stores], first.dim, lengths, of_dim or ())
        values = None if of_dim is None else comparable(of_dim)
        is_of_samples = values is not None and all(one.ndim == 1 for one in values)
        segments = segments_by(values if is_of_samples else None, len(stores))
        whole = runs_of([store.path for store in stores], lengths, segments=segments)
        return None if whole is None else nested_runs(whole, [store.runs() for store in stores])

    def take(self, samples: Int64) -> list[Rows]:
        """Return the samples of some numbers."""
        copied = [f.dtype for f in self.fields if f.name not in self._axes]
        read = iter(self._rows.take(samples, copied) if self._reads else ())
        return [self._axes[f.name][samples] if f.name in self._axes else next(read) for f in self.fields]

    def close(self) -> None:
        """Let go of the memory of the readers."""
        if self._reads:
            self._rows.close()


def _stale_arrays(arrays: Sequence[zarr.Array[Any]], access: StoreAccess) -> Iterator[str]:
    """Yield how arrays without samples differ from what consolidated metadata say of them."""
    for array, own in zip(arrays, read_own(arrays, access), strict=True):
        if own.changes:
            yield stale_text(node_name(array), array.metadata.zarr_format, own.changes)


@dataclass(frozen=True)
class _ArraysOfStore:
    """The arrays of one store: those with samples, and those without."""

    path: str
    node: Any
    access: StoreAccess
    options: SourceOptions
    arrays: Mapping[str, zarr.Array[Any]]
    dim: str | None

    @classmethod
    def of(cls, path: str, node: Any, access: StoreAccess, options: SourceOptions) -> _ArraysOfStore:
        """Return the arrays of an opened store; `sample_dim`, or the largest array, names the dimension."""
        arrays = {"": node} if isinstance(node, zarr.Array) else arrays_in("", node, access)
        dim = options.sample_dim or _samples_dim(arrays, options.sample_axis)
        store = cls(path, node, access, options, arrays, dim)
        if dim is not None and any(dimension_names(array) is None for array in store.sampled.values()):
            return replace(store, dim=options.sample_dim)
        return store

    def like(self, path: str, node: Any, names: Sequence[str]) -> _ArraysOfStore:
        """Return the arrays of another store, which are to be like those of this one.

        Raises
        ------
        ConfigError
            If they are not: if it lacks one of `names`, has an array more, or another grid.
        """
        arrays = {"": node} if isinstance(node, zarr.Array) else arrays_in("", node, self.access)
        other = replace(self, path=path, node=node, arrays=arrays)
        ours, theirs = sorted(other.sampled), sorted(self.sampled)
        if ours != theirs and (self.options.variables is None or not set(names) <= set(ours)):
            raise ConfigError(
                f"{printable(path)}: has the arrays of samples {', '.join(map(repr, ours))}, "
                f"{printable(self.path)} has {', '.join(map(repr, theirs))}: choose those of both with `variables`"
            )
        for name in names:
            dims = [dimension_names(store.arrays[name]) for store in (other, self)]
            if dims[0] != dims[1]:
                raise ConfigError(
                    f"{printable(path)}: {name!r} has the dimensions {dims[0]}, in {printable(self.path)} {dims[1]}: "
                    "transpose one of them"
                )
        if self.options.variables is None:
            check_same_constants(printable(path), other.constants, printable(self.path), self.constants)
        return other

    @cached_property
    def sampled(self) -> dict[str, zarr.Array[Any]]:
        """The arrays with samples."""
        return {
            name: array
            for name, array in self.arrays.items()
            if _has_samples(array, self.dim, self.options.sample_axis)
        }

    @cached_property
    def inherited(self) -> dict[str, dict[str, Any]]:
        """Attributes that bounds have from their coordinate, by the names of the bounds."""
        return inherited_by_bounds({name: dict(array.attrs) for name, array in self.arrays.items()})

    def _said_of(self, name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {**attributes, **self.inherited.get(name, {})}

    def axis_of(self, name: str) -> int:
        """Return the axis of samples of an array."""
        return _axis_of(self.arrays[name], self.dim, self.options.sample_axis)

    def dims_of(self, name: str) -> tuple[str | None, ...] | None:
        """Return the names of the dimensions of an array, that of the samples first."""
        dims, axis = dimension_names(self.arrays[name]), self.axis_of(name)
        return None if dims is None else (dims[axis], *dims[:axis], *dims[axis + 1 :])

    def sample_shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a sample of an array."""
        shape, axis = self.arrays[name].shape, self.axis_of(name)
        return (*shape[:axis], *shape[axis + 1 :])

    def num_samples(self, names: Sequence[str]) -> int:
        """Return the number of samples."""
        return int(self.arrays[names[0]].shape[self.axis_of(names[0])]) if names else 0

    @cached_property
    def constants(self) -> list[Constant]:
        """The arrays without samples, read once."""
        return [
            Constant(
                name, np.asarray(self._read(name)), dimension_names(array), self._said_of(name, array_attributes(array))
            )
            for name, array in self.arrays.items()
            if name not in self.sampled
        ]

    def stored(self, name: str) -> Stored:
        """Return an array with samples, for a comparison with those of other stores."""
        array = self.arrays[name]
        attributes = self._said_of(name, attributes_of(array))
        if is_time_unit(attributes.get("units")):
            attributes = self._said_of(name, coordinate_attributes(array))
        return Stored(printable(self.path), name, np.dtype(array.dtype), attributes, partial(self._rows, name))

    def _rows(self, name: str) -> Rows:
        """Return all samples of an array."""
        return np.moveaxis(np.asarray(self._read(name)), self.axis_of(name), 0)

    def runs(self) -> Runs | None:
        """Return the files that a packed store was made of; None for any other store, or if it does not know them."""
        return runs_in(self.node)

    def _read(self, name: str) -> Any:
        named = printable(f"{self.path}/{name}")
        array = as_meant(self.arrays[name], named)
        return self.access.ask(lambda: array.async_array.getitem(...), named)


def _axis_of(array: zarr.Array[Any], dim: str | None, axis: int) -> int:
    dims = dimension_names(array)
    return axis % len(array.shape) if dim is None or dims is None else dims.index(dim)


def _samples_dim(arrays: Mapping[str, zarr.Array[Any]], axis: int) -> str | None:
    """Return the name of the dimension of samples: that of the array with the most items."""
    largest = max(arrays.values(), key=lambda array: math.prod(array.shape), default=None)
    names = None if largest is None else dimension_names(largest)
    return None if names is None or not -len(names) <= axis < len(names) else names[axis]


def _has_samples(array: zarr.Array[Any], dim: str | None, axis: int) -> bool:
    names = dimension_names(array)
    if dim is not None and names is not None:
        return dim in names
    return -len(array.shape) <= axis < len(array.shape)
