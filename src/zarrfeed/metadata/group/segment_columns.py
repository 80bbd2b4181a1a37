"""A column of segments by its name: one value for each episode, patient or document, read whole when it is asked for.

A name is looked for beside the arrays of the samples, beside the ends of the segments, and in the groups above.
"segment" is the number of each segment, where nothing else has this name.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.anndata_columns import column_at
from zarrfeed.metadata.array.cf import coordinate_attributes
from zarrfeed.metadata.array.coordinate_values import checked_values, decode_values
from zarrfeed.metadata.group.batch_columns import Origin
from zarrfeed.metadata.group.beside import Beside
from zarrfeed.metadata.group.coordinates import StoreCoordinates
from zarrfeed.metadata.group.sample_columns import found_above, member_of_group, read_column
from zarrfeed.metadata.group.whole_arrays import MOST_VALUES, read_whole
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.spec.samples.segments import Segments
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import node_name

#: The name of the numbers of segments.
NUMBER = "segment"


def segments_known(origin: Origin, method: str) -> Segments:
    """Return the segments of the samples; raise ConfigError if there are none."""
    if origin.segments is None:
        raise ConfigError(
            f"{method}: these samples have no segments: name their ends first, "
            "data.segments('meta/episode_ends') or data.segments(ends); data.segments() makes each of many stores one"
        )
    return origin.segments


def read_segments(origin: Origin, segments: Segments, name: str, *, decodes: bool = True) -> npt.NDArray[Any]:
    """Return the values of a column of segments, shape (segments, ...), decoded as xarray decodes them.

    Parameters
    ----------
    origin
        Facts about the samples beside their arrays.
    segments
        The segments of the samples.
    name
        The name of an array, or its path with slashes; or the name of values in memory.
    decodes
        True if attributes such as `scale_factor` are heeded.

    Raises
    ------
    ConfigError
        If nothing of this name is stored, or it does not have a value for each segment.
    UnsupportedError, StoreReadError, CorruptChunkError
        As in `Coordinates.read`.
    """
    if name in origin.segment_values:
        return origin.segment_values[name]
    known = origin.coordinates
    if known is None:
        if name == NUMBER:
            return np.arange(len(segments))
        raise ConfigError(f"no column {name!r} is stored with these samples; give its values, {name}=values")
    parts = []
    for one, count in zip(known.of_stores(), segments.counts, strict=True):
        store = one.stores[0]
        assert isinstance(store, StoreCoordinates)
        where, node = _found(store, segments, name)
        if node is None:
            if name == NUMBER:
                return np.arange(len(segments))
            raise ConfigError(f"no column {name!r} is stored with these samples{where}")
        column = column_at(node, str(where), partial(member_of_group, store.access))
        if column is None:
            raise ConfigError(f"{where}: is no column, neither an array nor one that AnnData writes")
        values = column.read(partial(_read_part, store.access, decodes))
        if len(values) != count:
            raise ConfigError(f"{where}: has {len(values)} values, must have one for each of {count} segments")
        parts.append(values)
    return np.concatenate(parts)


def segment_coordinate(origin: Origin, method: str, name: str) -> Coordinate:
    """Return the values of a column of segments in the form that labels are compared with.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        As in `read_segments`.
    """
    segments = segments_known(origin, method)
    where = f"column {name!r}"
    return Coordinate(name, checked_values(read_segments(origin, segments, name), len(segments), where), where)


def read_any_column(
    origin: Origin, name: str, *, remedy: str, borders: npt.NDArray[np.int64] | None = None
) -> Coordinate:
    """Return a value for each sample: of a column of the samples, else of the one of their segments.

    `remedy` is that of `Coordinates.read`. Where no segments are named, those between `borders` are numbered: stores.

    Raises
    ------
    ConfigError
        If there is neither. And as in `read_column`.
    """
    segments, known = origin.segments, origin.coordinates
    error = None
    if known is not None and name not in origin.segment_values:
        try:
            return read_column(known, name, remedy=remedy)
        except ConfigError as raised:
            error = raised
    if segments is not None:
        try:
            found = segment_coordinate(origin, name, name)
            return replace(found, values=found.values[segments.of_samples])
        except ConfigError as raised:
            error = error or raised
    elif name == NUMBER:
        if borders is not None:
            return Coordinate(name, np.repeat(np.arange(len(borders) - 1), np.diff(borders)), f"column {name!r}")
        segments_known(origin, name)
    raise error or ConfigError(f"coordinate {name!r}: these samples have no coordinates")


def _found(store: StoreCoordinates, segments: Segments, name: str) -> tuple[str | Beside, Any]:
    """Return where a column of a store lies, and its node; no node: where it was looked for, for a message."""
    tried: list[Beside] = []
    for path in (name, f"{segments.folder}/{name}") if segments.folder else (name,):
        at, node = found_above(store, path, tried)
        if node is not None:
            return at, node
    return f": there is no {' or '.join(map(str, tried))}" if tried else "", None


def _read_part(access: StoreAccess, decodes: bool, array: zarr.Array[Any], _: str) -> npt.NDArray[Any]:
    return read_whole_array(array, access, decodes=decodes)


def read_whole_array(array: zarr.Array[Any], access: StoreAccess, *, decodes: bool) -> npt.NDArray[Any]:
    """Return all items of an array; packed ones become float32, as those of the samples.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        As in `read_segments`.
    """
    where = node_name(array)
    if array.ndim < 1 or array.size > MOST_VALUES:
        raise ConfigError(f"{where}: has the shape {array.shape}, must have a row for each segment, and few items")
    values = read_whole(array, where, access)
    decoded = decode_values(values, coordinate_attributes(array), where) if decodes else values
    return decoded.astype("f4") if decoded.dtype != values.dtype and decoded.dtype.kind == "f" else decoded
