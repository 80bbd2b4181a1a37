"""`Data.drop_missing`: which samples have few enough missing values, counted in one pass over the rows that they read.

Invariant: a value is missing if it is NaN after decoding, or marked so otherwise, before any step such as `fill_nan`.
Each row is read once, however many windows have it, and a window counts a row that it has twice twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.validate import check_number
from zarrfeed.metadata.array.conversion import by_field, is_number
from zarrfeed.metadata.array.meaning import has_nat
from zarrfeed.metadata.description.measured_fields import MeasuredField, measured
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.samples.window import Window

#: Bytes of a batch of the pass.
_BATCH_BYTES = 16 << 20


def samples_without_missing(data: Any, names: str | Sequence[str] | None, max_share: float) -> Int64:
    """Return the positions of the chosen samples that have few enough missing values; arguments as in `drop_missing`.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        As `Data.drop_missing` does.
    """
    resolved: ResolvedData = data.resolved
    check_number("max_share", max_share, 0)
    resolved.check_choice("drop_missing")
    if resolved.blend is not None:
        raise ConfigError("drop_missing: samples are a mixture; call it on its sources")
    columns = _columns(resolved, names)
    samples = np.asarray(resolved.choice.listed(), dtype=np.int64)
    read = _rows_of(columns, samples, resolved.choice.num_samples)
    keeps = np.ones(len(samples), dtype=np.bool_)
    for column, counts in zip(columns, _counts(data, columns, read), strict=True):
        window = Window((0,)) if column.window is None else column.window
        per_row = int(np.prod(column.delivered().without_window().sample_shape, dtype=np.int64))
        missing = np.zeros(len(samples), dtype=np.int64)
        for offset in window.offsets:
            rows, outside = _rows_at(window, samples, offset, resolved.choice.num_samples)
            fill = window.pad.value if window.pad is not None and window.pad.mode == "fill" else None
            of_outside = counts[rows] if fill is None else per_row * (fill != fill)
            missing += np.where(outside, of_outside, counts[rows])
        keeps &= missing <= max_share * per_row * len(window.offsets)
    if not keeps.any():
        named = ", ".join(one.items.name for one in columns)
        raise ConfigError(
            f"drop_missing: all {len(samples)} samples have more than {max_share:.0%} of missing values in {named}"
        )
    return np.flatnonzero(keeps)


def _columns(resolved: ResolvedData, names: str | Sequence[str] | None) -> list[Column]:
    """Return the columns whose missing values count."""
    wanted = True if names is None else dict.fromkeys([names] if isinstance(names, str) else names, True)
    named = by_field("drop_missing", wanted, resolved.items)
    found = []
    for column, is_named in zip(resolved.columns, named, strict=True):
        may_lack = _may_lack(column, resolved)
        if is_named and names is not None and not may_lack:
            raise ConfigError(
                f"drop_missing: {column.items.name} has items of {column.items.dtype} without a fill value, of which "
                "none is missing"
            )
        if not is_named or not may_lack:
            continue
        if column.window is not None and column.window.lead is not None:
            raise UnsupportedError(f"drop_missing: the windows of {column.items.name} are drawn anew in each epoch")
        found.append(column)
    if not found:
        raise ConfigError("drop_missing: the samples have no array with floats or a fill value, so nothing is missing")
    return found


def _may_lack(column: Column, resolved: ResolvedData) -> bool:
    """Return whether values of a column may be missing."""
    items = column.items
    if items.is_mask or not is_number(items) or not column.field.has_numbers:
        return False
    is_time = items.described is not None and has_nat(items.described.meaning)
    is_nullable = _mask_of(column, resolved) is not None
    before = replace(column.conversions[0], steps=(), dtype=None)
    return before.has_floats(items) or items.key in resolved.origin.categories or is_time or is_nullable


def _mask_of(column: Column, resolved: ResolvedData) -> Column | None:
    """Return the mask of a nullable column of AnnData."""
    named = (column.items.side, f"{column.items.key}/mask")
    return next((one for one in resolved.columns if (one.items.side, one.items.key) == named), None)


def _rows_at(window: Window, samples: Int64, offset: int, num_samples: int) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return the row of each sample at an offset, or the nearest one inside, and whether it lies outside."""
    at = samples + offset
    rows = at if window.pad is None else window.pad.nearest(at, samples, num_samples)
    return rows, rows != at


def _rows_of(columns: Sequence[Column], samples: Int64, num_samples: int) -> Int64:
    """Return all rows that samples have, each once."""
    is_read = np.zeros(num_samples, dtype=np.bool_)
    for window in {one.window or Window((0,)) for one in columns}:
        for offset in window.offsets:
            is_read[_rows_at(window, samples, offset, num_samples)[0]] = True
    return np.flatnonzero(is_read)


def _counts(data: Any, columns: Sequence[Column], rows: Int64) -> list[Int64]:
    """Return the number of missing values in each row of some columns; 0 for rows that are not asked for."""
    resolved: ResolvedData = data.resolved
    masks = [mask for one in columns if (mask := _mask_of(one, resolved)) is not None]
    alone = replace(
        resolved,
        columns=tuple(map(_as_stored, (*columns, *masks))),
        choice=SampleChoice.all_of(resolved.choice.num_samples).select(rows),
        masks=False,
        has_lengths=False,
        packed=None,
        next_targets=False,
        windowing=None,
        statics=(),
        stacks=(),
    )
    plain, fields = measured(alone, None)
    assert len(fields) == len(columns) + len(masks)
    counts = [np.zeros(resolved.choice.num_samples, dtype=np.int64) for _ in columns]
    sample_bytes = max(1, sum(one.sample_bytes for one in plain.fields))
    batch_size = max(1, min(len(rows), _BATCH_BYTES // sample_bytes))
    # The public name, as what reads arrays lies in a layer above this one.
    dataset = import_module("zarrfeed").ZarrIterableDataset(
        replace(data, resolved=plain, growth=None),
        batch_size=batch_size,
        return_index=True,
        rank=0,
        world_size=1,
        pin_memory=False,
    )
    with dataset:
        for batch, index in dataset:
            arrays = [one.numpy() for one in batch.values()]
            for number, found in enumerate(counts):
                found[index.numpy()] = _missing_in(fields[number], arrays, number)
    return counts


def _as_stored(column: Column) -> Column:
    """Return a column of the samples as it is decoded, each sample its own row, without steps."""
    named = [replace(one, side="samples", is_coordinate=False) for one in column.array.all_items]
    array = replace(column.array, items=named[0], other_items=tuple(named[1:]))
    stored = [replace(one, steps=(), dtype=None) for one in column.conversions]
    return Column(array, replace(column.requested, steps=(), dtype=None), tuple(stored) if column.before else ())


def _missing_in(field: MeasuredField, arrays: Sequence[npt.NDArray[Any]], number: int) -> Int64:
    items = field.without_missing(arrays, number)
    if items.dtype.kind != "f":
        return np.zeros(len(items), dtype=np.int64)
    missing: Int64 = np.count_nonzero(np.isnan(items.reshape(len(items), -1)), axis=1)
    return missing
