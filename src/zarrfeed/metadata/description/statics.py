"""The arguments of `Data.static` -> `StaticField`s. Reads metadata; values are read when a dataset is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.optional_torch import is_tensor
from zarrfeed.metadata.array.array import check_any_is_stored, read_layout
from zarrfeed.metadata.array.cf import dimension_names, find_decoding
from zarrfeed.metadata.array.conversion import Items, conversion_of, is_number
from zarrfeed.metadata.array.dask_arrays import refuse_dask
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.metadata.array.open import open_source
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.coordinates import Coordinates
from zarrfeed.spec.description.expression import Expression
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.spec.fields.static import StaticField
from zarrfeed.storage.access.access import StoreAccess


def open_statics(
    resolved: ResolvedData, expression: Expression, names: Sequence[str], arrays: Mapping[str, Any]
) -> tuple[StaticField, ...]:
    """Return the static fields that a user asks for.

    Parameters
    ----------
    resolved
        The samples, beside whose arrays others lie.
    expression
        The expression of the samples: static arrays are decoded alike.
    names
        Names of arrays in the group of the samples.
    arrays
        Name in the batch -> a number, an array in memory, or a stored array.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError
        If an array is not there, or cannot be read; the message names it.
    """
    if not names and not arrays:
        raise ConfigError("static() needs the name of an array, or name=array")
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"static: got a {type(name).__name__}, must be a name; give arrays as name=array")
        if name in arrays or names.count(name) > 1:
            raise ConfigError(f"static: {name!r} is named twice")
    known = resolved.origin.coordinates
    decode_cf = bool(getattr(expression.opened, "decode_cf", True))
    made = []
    for name in names:
        if known is None:
            raise ConfigError(f"static: the samples are in no group that {name!r} could be in; give {name}=array")
        array, access = known.array_beside(name)
        made.append(_as_chosen(_stored(name, array, access, known.dims, decode_cf), known, resolved))
    access = StoreAccess() if known is None else known.access
    for name, source in arrays.items():
        if isinstance(source, np.ndarray | np.generic | int | float) or is_tensor(source):
            made.append(_in_memory(name, source))
            continue
        opened = open_source(source, access)
        if not isinstance(opened, zarr.Array):
            refuse_dask(source, f"static {name!r}")
            raise ConfigError(
                f"static {name!r}: got a {type(source).__name__}, must be a number, a NumPy array, a tensor, a "
                "zarr.Array, or a path or a URL of one"
            )
        made.append(_stored(name, opened, access, () if known is None else known.dims, decode_cf))
    return tuple(made)


def _as_chosen(static: StaticField, known: Coordinates, resolved: ResolvedData) -> StaticField:
    """Return an array of the samples' group with the items alone that were chosen of them before, as xarray has it."""
    dims = [dim for one in resolved.items for dim in one.dimensions or ()]
    for dim, positions in known.chosen.items():
        if static.dimensions is None or dim not in static.dimensions:
            continue
        axis = static.dimensions.index(dim)
        if max(positions) >= static.shape[axis]:
            raise ConfigError(
                f"static {static.name!r}: has {static.shape[axis]} items along {dim!r}, of which item "
                f"{max(positions)} was chosen; give the array itself, {static.name}=..."
            )
        static = static.choosing(axis, positions, dropped=len(positions) == 1 and dim not in dims)
    return static


def _in_memory(name: str, source: Any) -> StaticField:
    array = source if is_tensor(source) else np.asarray(source)
    field = field_in_memory(f"static {name!r}", array if array.ndim else array.reshape(1), 0)
    if field.rows.array.size == 0 or getattr(array.dtype, "names", None):
        raise ConfigError(
            f"static {name!r}: an array of {array.dtype} of shape {tuple(array.shape)}, must have numbers"
        )
    return StaticField(name, field, tuple(array.shape))


def _stored(
    name: str, array: zarr.Array[Any], access: StoreAccess, dims: Sequence[str], decode_cf: bool
) -> StaticField:
    shape, dimensions = tuple(array.shape), dimension_names(array)
    for dim in dims:
        if dimensions is not None and dim in dimensions:
            raise ConfigError(
                f"static {name!r}: has the sample dimension {dim!r}, so it differs from sample to sample: name it in "
                "variables= of open()"
            )
    if not shape:
        raise ConfigError(f"static {name!r}: is a scalar; give its value, {name}=...")
    spec = check_any_is_stored(read_layout(array, access=access))
    decoding = find_decoding(array) if decode_cf and not spec.item_type else None
    items = Items("static", name, spec.dtype.name, shape, 0, dimensions, decoding, is_record=spec.record is not None)
    if spec.item_type or not is_number(items) or spec.sample_shape != shape[1:]:
        raise UnsupportedError(f"static {name!r}: has items of {spec.stored_dtype}, must have numbers")
    return StaticField(name, StoredField(name, spec, conversion=conversion_of(items)), shape, dimensions)
