"""The stored arrays of a `Data`, and which of their chunks have something that is selected.

Invariants: a chunk is checked if an epoch may read it, and no other one. These are the chunks with a row of a selected
sample, or of its window, and with a selected item along each other axis. For patches, they are those of the samples
that patches are cut out of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from zarrfeed.base.errors import ConfigError, UnsupportedError, printable
from zarrfeed.metadata.stores.stored_arrays import StoredPart, stored_parts
from zarrfeed.plan.samples.field_rows import find_rows
from zarrfeed.plan.samples.sample_set import Samples, pieces_of
from zarrfeed.spec.array import ArraySpec
from zarrfeed.spec.field import Field
from zarrfeed.spec.row_map import GridRows
from zarrfeed.spec.sparse import CsrField
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
        if isinstance(field.row_map, GridRows):
            raise UnsupportedError(
                f"verify: samples of {field.name} are numbered by several dimensions; give the path of its store"
            )
        parts = list(stored_parts(field))
        for part in parts:
            key = column.items.key or ""
            path = called.setdefault(part.name, part.name if len(parts) > 1 or key in found.arrays else key)
            box = _box_of(field, part, samples)
            if box is None:
                continue
            if path not in found.arrays:
                found.arrays[path] = part.open(access)
            boxes.setdefault(path, []).append(box)
    if not found.arrays:
        raise ConfigError("verify: all arrays of the samples are in memory, and none is stored")
    return found, boxes


def _box_of(field: Field, part: StoredPart, samples: Samples) -> Box | None:
    """Return the positions along each axis of an array's chunks that have selected items; None if no chunk has.

    Along the sample axis these are the first rows of chunks.
    """
    spec = part.layout.spec
    each = spec.rows_per_chunk
    offsets: Sequence[int] = (0,) if field.window is None else field.window.reads
    chunks = [
        np.unique(part.rows_of(find_rows(field, np.asarray(piece), offset)) // each)
        for piece in pieces_of(samples)
        for offset in offsets
    ]
    rows = np.unique(np.concatenate(chunks)) * each
    if not len(rows):
        return None
    return tuple(rows if axis == spec.sample_axis else _items_of(spec, axis) for axis in range(spec.num_key_axes))


def _items_of(spec: ArraySpec, axis: int) -> Int64:
    length = spec.shape[axis]
    positions = range(length) if spec.choice is None else spec.choice.positions(axis, length)
    return np.asarray(positions, dtype=np.int64)
