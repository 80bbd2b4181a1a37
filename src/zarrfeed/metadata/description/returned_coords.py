"""Coordinates that come with each batch (`return_coords=`): one value for each sample, kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Array, Column, OpenedField
from zarrfeed.metadata.group.coordinates import ALONG_SAMPLES
from zarrfeed.spec.description.expression import COORDS
from zarrfeed.spec.fields.segment_text import SegmentTextField
from zarrfeed.spec.samples.coordinate import UNIT_NS, Coordinate
from zarrfeed.spec.samples.row_map import CodeRows


def check_coords(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the names of coordinates; raise ConfigError unless each is text and is named once."""
    given = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(one, str) for one in given) or len(set(given)) < len(given):
        raise ConfigError(f"return_coords = {names!r}, must be names of coordinates, such as ('time', 'member')")
    return given


def with_coords(resolved: ResolvedData, names: Sequence[str] | str | None) -> ResolvedData:
    """Return the samples with some of their coordinates as a further side of each batch.

    Parameters
    ----------
    resolved
        The samples.
    names
        The names, as `ResolvedData.coordinate` takes them. None: no coordinates.

    Raises
    ------
    ConfigError, UnsupportedError
        If a coordinate is not stored, has no values that a tensor can have, or samples are patches.
    """
    chosen = check_coords(names)
    if chosen and resolved.patching is not None:
        raise ConfigError("return_coords: samples are patches; return_index=True and Data.locate say where each lies")
    columns = [one for one in resolved.columns if one.items.side != COORDS]
    columns += [Column(_as_array(name, resolved.coordinate(name, remedy=ALONG_SAMPLES))) for name in chosen]
    return replace(resolved, columns=tuple(columns))


def _as_array(name: str, coordinate: Coordinate) -> Array:
    """Return the values of a coordinate as an array of the samples."""
    values = coordinate.values
    items = Items(COORDS, name, None, values.shape, 0, is_coordinate=True)
    if values.dtype.kind in "mM":
        values = _nanoseconds(values, coordinate.where)
    elif values.dtype.kind in "SUTO":
        texts = values.tolist()
        if not all(isinstance(one, str | bytes) for one in texts):
            raise UnsupportedError(f"{coordinate.where}: has a calendar that NumPy lacks, so its dates are no tensors")
        known = {text: code for code, text in enumerate(dict.fromkeys(texts))}
        rows = CodeRows(np.fromiter(map(known.__getitem__, texts), np.int64, len(texts)))
        field: OpenedField = SegmentTextField(items.name, tuple(known), rows)
        return Array(field, items)
    made = field_in_memory(items.name, values, 0)
    return Array(made, replace(items, dtype=made.dtype_name))


def _nanoseconds(values: npt.NDArray[Any], where: str) -> npt.NDArray[np.int64]:
    """Return dates, or spans of time, as int64 nanoseconds, those of dates since 1970; NaT stays the least int64."""
    unit, _ = np.datetime_data(values.dtype)
    ticks = np.where(np.isnat(values), 0, values.view(np.int64))
    if (np.abs(ticks) > np.iinfo(np.int64).max // UNIT_NS[unit]).any():
        raise UnsupportedError(f"{where}: has dates that int64 nanoseconds since 1970 cannot hold (1678 to 2262)")
    numbers: npt.NDArray[np.int64] = values.astype(f"{values.dtype.kind}8[ns]").view(np.int64)
    return numbers
