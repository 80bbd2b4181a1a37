"""The stored arrays of a `Data`, and which of their chunks have something that is selected.

Invariants: a chunk is checked if an epoch may read it, and no other one. These are the chunks with a row of a selected
sample, or of its window, and with a selected item along each other axis. For patches, they are those of the samples
that patches are cut out of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from zarrfeed.base.errors import ConfigError, UnsupportedError, printable
from zarrfeed.metadata.stores.stored_arrays import StoredPart, stored_parts
from zarrfeed.plan.samples.field_rows import find_rows
from zarrfeed.plan.samples.sample_set import Samples, pieces_of
from zarrfeed.spec.arrays.array import ArraySpec, MergedAxes
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.sparse import CsrField
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.tools.verify.chunks import Box, Int64
from zarrfeed.tools.verify.find_arrays import Found

if TYPE_CHECKING:
    from zarrfeed.metadata.face.data import Data


def find_selected(data: Data, access: StoreAccess) -> tuple[Found, dict[str, list[Box]]]:
    """Return the arrays of a `Data`, and the boxes of each that are selected, by the array's name in the report.

    Raises
    ------
    ConfigError
        If all arrays of the samples are in memory.
    StoreReadError
        If an array cannot be opened.
    UnsupportedError
        If an array is a sparse matrix.
    """
    resolved = data.resolved.without_patches()
    samples = resolved.choice.ascending()
    found, boxes = Found(printable(str(data))), dict[str, list[Box]]()
    called: dict[str, str] = {}
    for field, column in zip(resolved.fields, resolved.columns, strict=True):
        if isinstance(field, CsrField):
            raise UnsupportedError(f"verify: {field.name} is a sparse matrix; give the path of its store")
        parts = list(stored_parts(field))
        for part in parts:
            key = column.items.key or ""
            path = called.setdefault(part.name, part.name if len(parts) > 1 or key in found.arrays else key)
            selected = _boxes_of(field, part, samples)
            if not selected:
                continue
            if path not in found.arrays:
                found.arrays[path] = part.open(access)
            boxes.setdefault(path, []).extend(selected)
    if not found.arrays:
        raise ConfigError("verify: all arrays of the samples are in memory, and none is stored")
    return found, boxes


def _boxes_of(field: Field, part: StoredPart, samples: Samples) -> list[Box]:
    """Return boxes of an array whose chunks have selected items: for each the positions along each axis.

    Along axes of samples these are the first rows of chunks.
    """
    spec = part.layout.spec
    each = spec.rows_per_chunk
    offsets: Sequence[int] = (0,) if field.window is None else field.window.reads
    chunks = [
        np.unique(part.rows_of(find_rows(field, np.asarray(piece), offset)) // each)
        for piece in pieces_of(samples)
        for offset in offsets
    ]
    selected = np.unique(np.concatenate(chunks))
    if not len(selected):
        return []
    if spec.merged is not None:
        return list(_boxes_of_merged(spec, spec.merged, selected))
    axes = range(spec.num_key_axes)
    return [tuple(selected * each if axis == spec.sample_axis else _items_of(spec, axis) for axis in axes)]


def _boxes_of_merged(spec: ArraySpec, merged: MergedAxes, chunks: Int64) -> Iterator[Box]:
    """Yield boxes of the stored array whose axes of samples are one axis of `spec`: one for each outer index."""
    shape = merged.stored.chunk_shape
    step, count = min((step, count) for axis, step, count in merged.key_indices if axis == spec.sample_axis)
    for run in np.split(chunks, np.flatnonzero(np.diff(chunks // (step * count))) + 1):
        yield tuple(
            np.unique(run // step % count) * shape[own] if axis == spec.sample_axis else _items_of(spec, axis)
            for own, (axis, step, count) in enumerate(merged.key_indices)
        )


def _items_of(spec: ArraySpec, axis: int) -> Int64:
    length = spec.shape[axis]
    positions = range(length) if spec.choice is None else spec.choice.positions(axis, length)
    return np.asarray(positions, dtype=np.int64)
