"""The rows of its arrays that a field has for samples, and the read chunks in which they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.samples.row_map import NO_ROW, OneRow

#: Returns the read chunk along the sample axis of the row at an offset from each of some samples; -1 where another
#: layout, or no array, has the row.
FindChunks: TypeAlias = Callable[[Int64, int], Int64]


def find_rows(field: Field, samples: Int64, offset: int) -> Int64:
    """Return the row at an offset from each sample; a row that is padded is the nearest one of its segment.

    Rows that the row map lacks are -1, or lie beyond the ends of the array.
    """
    at, window = samples + offset, field.window
    if window is not None and window.pad is not None:
        at = window.pad.nearest(at, samples, field.num_samples)
    return at if field.row_map is None else field.row_map.rows_of(at)


def describe_join(field: Field) -> str:
    """Describe how many samples have a row of a field's array; "" where each sample has the row with its index."""
    rows = field.row_map
    return "" if rows is None or isinstance(rows, OneRow) else rows.describe(field.num_rows)


def chunk_finder(field: Field, runs: RowRuns) -> FindChunks:
    """Return the function that finds the chunks, or the runs that these are cut into, of a layout of a field."""

    def find_chunks(samples: Int64, offset: int) -> Int64:
        rows = find_rows(field, samples, offset)
        outside = (rows < 0) | (rows >= runs.layout.spec.num_samples)
        return np.where(outside, -1, runs.of(np.where(outside, 0, rows)))

    return find_chunks


def reads_gaps(fields: Sequence[Field], samples: Int64) -> npt.NDArray[np.bool_]:
    """Return True for each sample that has a row, in any field, which the row map of the field lacks."""
    found = np.zeros(len(samples), dtype=bool)
    for field in fields:
        if field.row_map is None or not field.row_map.lacks_some:
            continue
        for offset in (0,) if field.window is None else field.window.reads:
            found |= find_rows(field, samples, offset) == NO_ROW
    return found


def check_gaps_can_be_nan(fields: Sequence[Field]) -> None:
    """Raise ConfigError if windows are padded with a number where the field lacks rows, which are NaN."""
    for field in fields:
        rows, window = field.row_map, field.window
        pad = None if window is None else window.pad
        if rows is None or not rows.lacks_some or pad is None or pad.mode != "fill" or pad.value != pad.value:
            continue
        raise ConfigError(
            f"pad of {field.name} = {pad.value}: rows that the join lacks are NaN, and a field has one such value; "
            "must be 'edge' or 'nan', or let missing= of the join be 'drop' or 'nearest'"
        )
