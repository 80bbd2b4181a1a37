"""Samples as the packed store has them: their dtype, and the fill value of an array."""

from __future__ import annotations

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.cells.csr_rows import convert_items
from zarrfeed.packing.sources.source import Rows, SourceField
from zarrfeed.packing.targets.pack_layout import FieldLayout


def fill_of(field: SourceField, layout: FieldLayout) -> Rows:
    """Return the fill value of a packed array, an array of shape (1,)."""
    if layout.kind != "number":
        return np.zeros(1, "u1")
    dtype = layout.item
    if field.fill_value is None:
        return np.full(1, "NaT", dtype) if dtype.kind in "mM" else np.zeros(1, dtype)
    with np.errstate(over="ignore"):
        return np.array([field.fill_value]).astype(field.dtype).astype(dtype)


def as_packed(rows: Rows, layout: FieldLayout) -> Rows:
    """Return samples with the dtype of the packed store.

    Raises
    ------
    ConfigError
        If a value has no place in it.
    """
    if layout.sparse is not None:
        stored = np.lib.format.descr_to_dtype(layout.sparse.stored)
        if stored == layout.item:
            return rows
        return convert_items(rows, layout.sparse.indices.item, stored, lambda values: _cast(values, layout))
    if layout.kind != "number" or rows.dtype == layout.item:
        return rows
    return _cast(rows, layout)


def _cast(rows: Rows, layout: FieldLayout) -> Rows:
    """Return numbers with the dtype of the packed store."""
    dtype = layout.item
    with np.errstate(over="ignore", invalid="ignore"):
        packed = rows.astype(dtype)
    if dtype.kind == "f":
        lost = bool((np.isinf(packed) & ~np.isinf(rows)).any()) if rows.dtype.kind == "f" else False
        lost = lost or (rows.dtype.kind in "iu" and bool((packed.astype(rows.dtype) != rows).any()))
    else:
        with np.errstate(invalid="ignore"):
            lost = bool((packed.astype(rows.dtype) != rows).any() or ((packed < 0) != (rows < 0)).any())
    if lost:
        raise ConfigError(f"dtype of {layout.name or 'the array'}: {dtype} cannot hold a value of the source")
    return packed
