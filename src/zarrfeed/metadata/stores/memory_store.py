"""Arrays in memory as stored ones: what makes them one source among others that are stored.

Invariant: the bytes of the rows are not copied, but for those of the last chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import zarr
from zarr.buffer import cpu
from zarr.storage import MemoryStore

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.spec.fields.field import ResidentField, StoredField

#: Bytes of a chunk, about.
_CHUNK_BYTES = 1 << 20


def as_stored(field: ResidentField) -> StoredField:
    """Return an array in memory as a stored one, uncompressed, over the same memory.

    Raises
    ------
    ConfigError
        If Zarr has no such items: bfloat16, or records.
    """
    if field.record is not None or field.dtype == "bfloat16":
        kind = "records" if field.record is not None else "bfloat16"
        raise ConfigError(
            f"{field.name}: is in memory, and has {kind}; next to stored arrays such items have to be stored, too, or "
            "converted before"
        )
    rows, row_bytes = field.rows.array.shape
    chunk_rows = max(1, min(rows, _CHUNK_BYTES // max(1, row_bytes)))
    held: dict[str, cpu.Buffer] = {}
    zarr.create_array(
        MemoryStore(held),  # type: ignore[arg-type]
        shape=(rows, *field.row_shape),
        chunks=(chunk_rows, *field.row_shape),
        dtype=field.dtype,
        compressors=None,
        filters=None,
    )
    rest = "/0" * len(field.row_shape)
    for number in range(math.ceil(rows / chunk_rows)):
        part = field.rows.array[number * chunk_rows : (number + 1) * chunk_rows]
        if len(part) < chunk_rows:
            part = np.concatenate([part, np.zeros((chunk_rows - len(part), row_bytes), np.uint8)])
        held[f"c/{number}{rest}"] = cpu.Buffer.from_array_like(part.reshape(-1))
    spec = read_layout(zarr.open_array(MemoryStore(held), mode="r"))  # type: ignore[arg-type]
    return StoredField(field.name, replace(spec, name=f"{field.name} in memory"))


def alike_in_kind(described: Sequence[ResolvedData]) -> list[ResolvedData]:
    """Return descriptions with fields of one kind: one that some store, and others have in memory, is stored in all.

    Raises
    ------
    ConfigError
        As in `as_stored`.
    """
    stored = {n for one in described for n, column in enumerate(one.columns) if column.field.is_streamed}
    made: dict[int, ResolvedData] = {}
    for one in described:
        columns = tuple(_as_stored(column) if n in stored else column for n, column in enumerate(one.columns))
        if id(one) not in made:
            made[id(one)] = one if columns == one.columns else replace(one, columns=columns)
    return [made[id(one)] for one in described]


def _as_stored(column: Column) -> Column:
    return column.with_field(as_stored(column.field)) if isinstance(column.field, ResidentField) else column
