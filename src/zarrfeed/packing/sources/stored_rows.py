"""`StoredRows`: the samples of stored arrays as they are stored, and descriptions of such arrays for the packed store.

Invariant: values are not unpacked. Attributes and fill values are those of the stored array, so that they mean in the
packed store the same as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.base.json_attributes import float_fill
from zarrfeed.engine.row_reader import RowReader
from zarrfeed.metadata.array.cf import dimension_names
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.packing.sources.source import Int64, Kind, Rows, SourceField
from zarrfeed.plan.schedule.batch_request import RowRequests
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import Field

#: Attributes that say how arrays of Zarr v2 are laid out, which their dimension names say in v3.
_LAYOUT_ATTRIBUTES = ("_ARRAY_DIMENSIONS",)
#: Number of samples of bytes or text that are measured, to choose the samples of a chunk.
_MEASURED = 16
#: Arrays of at most so many bytes, all together, are read once and cached.
_RESIDENT_BYTES = 64 << 20
#: Chunks of at least so many bytes are not decoded more often than need be.
_LARGE_BYTES = 4 << 20


class StoredRows:
    """The chosen samples of a description, by their positions among them. Any thread may read.

    Parameters
    ----------
    resolved
        Arrays whose items are neither decoded nor converted.
    policy
        The handling of chunks that cannot be read.

    Attributes
    ----------
    fields
        The arrays.
    """

    def __init__(self, resolved: ResolvedData, policy: Faults) -> None:
        self._set, selection = resolved.planned(room=_RESIDENT_BYTES)
        self._requests = RowRequests(self._set.num_samples, self._set.block_rows, selection)
        self._policy = policy
        self._local = threading.local()

    @property
    def fields(self) -> tuple[Field, ...]:
        """The arrays."""
        return self._set.fields

    def take(self, positions: Int64, dtypes: Sequence[np.dtype[Any]]) -> list[Rows]:
        """Return the samples at some positions: for each array, in one of the dtypes.

        Raises
        ------
        CorruptChunkError, StoreReadError
            For a chunk that cannot be decoded or read.
        """
        reader = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = RowReader(self._set, self._requests, self._policy)
        return [
            rows if rows.dtype == object else _as_stored(rows, dtype)
            for rows, dtype in zip(reader.read(positions), dtypes, strict=True)
        ]

    def samples_together(self, described: Sequence[SourceField]) -> int:
        """Return the samples of a chunk that is too large to be decoded again and again."""
        largest = max(f.mean_bytes for f in described)
        stored: Sequence[Any] = self.fields
        rows = [
            1
            if getattr(field, "resident", False)
            else max((one.spec.rows_per_chunk for one in field.layouts), default=1)
            for field in stored
        ]
        return max(
            n
            for n, f in zip(rows, described, strict=True)
            if f.mean_bytes == largest or n * f.mean_bytes >= _LARGE_BYTES
        )

    def close(self) -> None:
        """Let go of the memory of the readers."""
        self._local = threading.local()


def with_sizes(
    fields: Sequence[SourceField], num_samples: int, take: Callable[[Int64], list[Rows]]
) -> tuple[SourceField, ...]:
    """Return fields with the mean bytes of some samples, where these are of any length; `take` reads samples."""
    if all(f.kind == "number" for f in fields):
        return tuple(fields)
    some = take(np.unique(np.linspace(0, num_samples - 1, _MEASURED).astype(np.int64)))
    return tuple(
        f if f.kind == "number" else replace(f, mean_bytes=sum(map(len, rows)) // len(rows))
        for f, rows in zip(fields, some, strict=True)
    )


def describe_array(
    name: str, array: zarr.Array[Any], field: Field, shape: tuple[int, ...], dims: tuple[str | None, ...] | None
) -> SourceField:
    """Describe a stored array as a field of the packed store.

    Parameters
    ----------
    name
        Name of the packed array; "" if it is the whole store.
    array, field
        The stored array, and the field that reads it.
    shape, dims
        Shape of a sample; and the names of the dimensions, that of the samples first.

    Raises
    ------
    UnsupportedError
        If samples are neither numbers nor one text each.
    """
    attributes = array_attributes(array)
    if field.item_type:
        if shape:
            raise UnsupportedError(f"{name or 'the array'}: text of shape {shape} for each sample is not packed")
        kind: Kind = "text" if field.item_type == "str" else "bytes"
        return SourceField(name, np.dtype(object), (), kind, dims, attributes)
    if not field.has_rows:
        raise UnsupportedError(f"{name}: sparse matrices are not packed")
    dtype = np.dtype(array.dtype).newbyteorder("=")
    return SourceField(name, dtype, shape, "number", dims, attributes, array.metadata.fill_value)


def array_attributes(array: zarr.Array[Any]) -> dict[str, Any]:
    """Return the attributes that a packed array takes over, among them the fill value as xarray writes it in v3."""
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
