"""`ZarrSource`: Zarr arrays and groups, one store or many, wherever `zarrfeed.open` reads them."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.engine.row_reader import RowReader
from zarrfeed.metadata.cf import dimension_names
from zarrfeed.metadata.open import arrays_of_group, open_source
from zarrfeed.metadata.open_data import open as open_data
from zarrfeed.plan.batch_request import RowRequests
from zarrfeed.spec.error_policy import Faults
from zarrfeed.spec.field import StoredField, VlenField
from zarrfeed.storage.access import StoreAccess
from zarrfeed.tools.pack.sources.items import float_fill
from zarrfeed.tools.pack.sources.source import Constant, Int64, Kind, Rows, SourceField, SourceOptions, chosen

#: Attributes that say how arrays of Zarr v2 are laid out, which their dimension names say in v3.
_LAYOUT_ATTRIBUTES = ("_ARRAY_DIMENSIONS",)
#: Samples of bytes or text whose lengths are looked at, to tell how many make a chunk.
_MEASURED = 16
#: Arrays of so many bytes, all together, are read once and kept.
_RESIDENT_BYTES = 64 << 20
#: A chunk of so many bytes is not decoded more often than need be.
_LARGE_BYTES = 4 << 20


class ZarrSource:
    """Samples of Zarr stores, as they are stored: values are not unpacked, attributes are carried over.

    Of several stores, attributes and constants are those of the first one.
    """

    kind = "zarr"

    def __init__(self, paths: tuple[str, ...], options: SourceOptions) -> None:
        self._policy = Faults(timeout=options.timeout)
        access = StoreAccess(self._policy, options.storage_options)
        node = open_source(paths[0], access)
        arrays = {"": node} if isinstance(node, zarr.Array) else arrays_of_group(node, access)
        dim = options.sample_dim or _samples_dim(arrays, options.sample_axis)
        along = {name: array for name, array in arrays.items() if _has_samples(array, dim, options.sample_axis)}
        if dim is not None and any(dimension_names(array) is None for array in along.values()):
            dim = options.sample_dim
        names = chosen(list(along), options, paths[0])
        by_name = isinstance(node, zarr.Group)
        data = open_data(
            paths[0] if len(paths) == 1 else list(paths),
            sample_axis=options.sample_axis if dim is None else 0,
            sample_dim=dim,
            variables=names if by_name else None,
            decode_cf=False,
            storage_options=options.storage_options,
            timeout=options.timeout,
        )
        self.num_samples = len(data)
        self._set, selection = data.resolved.planned(room=_RESIDENT_BYTES)
        self._requests = RowRequests(self._set.num_samples, self._set.block_rows, selection)
        self._local = threading.local()
        self.attributes: Mapping[str, Any] = dict(node.attrs) if by_name else {}
        self.fields = tuple(
            _describe(name, arrays[name], field, dim, options.sample_axis)
            for name, field in zip(names if by_name else [""], self._set.fields, strict=True)
        )
        self._dtypes = [f.dtype for f in self.fields]
        self.fields = self._with_sizes()
        self.block_samples = self._samples_together()
        self.constants = tuple(
            Constant(name, np.asarray(array[...]), dimension_names(array), _attributes(array))
            for name, array in arrays.items()
            if name not in along and options.variables is None
        )
        described = [data.version, self.num_samples, [str(f) for f in self.fields], list(paths)]
        self.fingerprint = hashlib.sha256(json.dumps(described, default=str).encode()).hexdigest()

    def _samples_together(self) -> int:
        """Return the samples of a chunk that is too large to be decoded again and again."""
        largest = max(f.mean_bytes for f in self.fields)
        stored: Sequence[Any] = self._set.fields
        rows = [
            1 if getattr(field, "resident", False) else max(one.spec.rows_per_chunk for one in field.layouts)
            for field in stored
        ]
        matters = [
            n
            for n, f in zip(rows, self.fields, strict=True)
            if f.mean_bytes == largest or n * f.mean_bytes >= _LARGE_BYTES
        ]
        return max(matters)

    def _with_sizes(self) -> tuple[SourceField, ...]:
        """Return the fields with the mean bytes of some samples, where these are of any length."""
        if all(f.kind == "number" for f in self.fields):
            return self.fields
        some = self.take(np.unique(np.linspace(0, self.num_samples - 1, _MEASURED).astype(np.int64)))
        return tuple(
            f if f.kind == "number" else replace(f, mean_bytes=sum(map(len, rows)) // len(rows))
            for f, rows in zip(self.fields, some, strict=True)
        )

    def read(self, begin: int, end: int) -> list[Rows]:
        """Return the samples [begin, end)."""
        return self.take(np.arange(begin, end))

    def take(self, samples: Int64) -> list[Rows]:
        """Return the samples of some numbers."""
        reader = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = RowReader(self._set, self._requests, self._policy)
        return [
            rows if rows.dtype == object else _as_stored(rows, dtype)
            for rows, dtype in zip(reader.read(samples), self._dtypes, strict=True)
        ]

    def close(self) -> None:
        """Let go of the memory of the readers."""
        self._local = threading.local()


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


def _describe(name: str, array: zarr.Array[Any], field: Any, dim: str | None, axis: int) -> SourceField:
    dims = dimension_names(array)
    axis = axis % len(array.shape) if dim is None or dims is None else dims.index(dim)
    if dims is not None:
        dims = (dims[axis], *(dim for number, dim in enumerate(dims) if number != axis))
    shape = tuple(n for number, n in enumerate(array.shape) if number != axis)
    known: dict[str, Any] = {"dims": dims, "attributes": _attributes(array)}
    if isinstance(field, VlenField):
        if shape:
            raise UnsupportedError(f"{name or 'the array'}: text of shape {shape} a sample is not packed")
        kind: Kind = "text" if field.spec.item_type == "str" else "bytes"
        return SourceField(name, np.dtype(object), (), kind, **known)
    if not isinstance(field, StoredField):
        raise UnsupportedError(f"{name}: sparse matrices are not packed")
    return SourceField(
        name, np.dtype(array.dtype).newbyteorder("="), shape, fill_value=array.metadata.fill_value, **known
    )


def _attributes(array: zarr.Array[Any]) -> dict[str, Any]:
    attributes = {name: value for name, value in dict(array.attrs).items() if name not in _LAYOUT_ATTRIBUTES}
    fill = array.metadata.fill_value
    if array.metadata.zarr_format == 2 and dimension_names(array) is not None and fill is not None:
        # In v2, xarray takes the fill value of the array for the attribute; in v3, it wants the attribute.
        is_float = np.dtype(array.dtype).kind == "f"
        encoded = float_fill(fill) if is_float else fill
        attributes.setdefault("_FillValue", encoded.item() if isinstance(encoded, np.generic) else encoded)
    return attributes


def _as_stored(rows: Rows, dtype: np.dtype[Any]) -> Rows:
    """Return rows with the dtype of the array, such as times, whose numbers the engine has."""
    if rows.dtype == dtype:
        return rows
    flat = rows.reshape(len(rows), -1).view(np.uint8)
    shape = rows.shape[1:-1] if dtype.kind in "SV" else rows.shape[1:]
    return flat.view(dtype).reshape(len(rows), *shape)
