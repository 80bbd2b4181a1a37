"""A column of the samples by its name: a coordinate, a part of a date, or a column of a table of AnnData.

Invariant: a column has a value for each sample of the arrays, chosen or not, and is read whole when it is asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.metadata.array.anndata_columns import column_at
from zarrfeed.metadata.array.coordinate_values import checked_values
from zarrfeed.metadata.group.beside import Beside, StoredPath, open_beside, sibling
from zarrfeed.metadata.group.coordinates import Coordinates, NoCoordinateError, StoreCoordinates, read_coordinate
from zarrfeed.storage.access.access import StoreAccess

#: Parts of dates, named as xarray's `.dt` names them.
_DATE_PARTS = ("year", "month", "day", "dayofyear", "hour", "date")


def read_column(known: Coordinates, name: str) -> npt.NDArray[Any]:
    """Return the values of a column, shape (samples,).

    Parameters
    ----------
    known
        The coordinates of the samples.
    name
        The name of a coordinate; "time.year" and the like, of a coordinate of dates; or a path with a slash from the
        root of the store, or from a group above the arrays, such as "obs/cell_type".

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        As in `Coordinates.read`.
    """
    if "/" in name:
        return np.concatenate([_at_path(one.stores[0], name) for one in known.of_stores()])
    coordinate, dot, part = name.rpartition(".")
    if not dot or part not in _DATE_PARTS:
        return known.read(name).values
    try:
        return known.read_known(name).values  # a name may have a dot
    except NoCoordinateError:
        return _part_of_dates(known.read(coordinate).values, name, part)


def _part_of_dates(values: npt.NDArray[Any], name: str, part: str) -> npt.NDArray[Any]:
    """Return the years, months (1 to 12), days of a month or a year, hours, or whole days of times."""
    if values.dtype.kind != "M":
        raise ConfigError(f"{name}: the coordinate has values of {values.dtype}, must have dates")
    years, months, days, hours = (values.astype(f"M8[{unit}]") for unit in "YMDh")
    parts: dict[str, npt.NDArray[Any]] = {
        "year": years.astype(np.int64) + 1970,
        "month": months.astype(np.int64) % 12 + 1,
        "day": (days - months.astype(days.dtype)).astype(np.int64) + 1,
        "dayofyear": (days - years.astype(days.dtype)).astype(np.int64) + 1,
        "hour": hours.astype(np.int64) % 24,
        "date": days,
    }
    return parts[part]


def _at_path(store: Any, name: str) -> npt.NDArray[Any]:
    """Return a column of one store, looked for in all groups above its arrays, the nearest first."""
    assert isinstance(store, StoreCoordinates)
    found = store.known.get(name)
    if isinstance(found, np.ndarray):
        return checked_values(found, store.num_samples, name)
    tried = list(dict.fromkeys(_above(store, name)))
    for where in tried:
        node = _opened(where, store.access)
        if node is None:
            continue
        column = column_at(node, str(where), partial(_member, store.access))
        if column is None:
            raise ConfigError(f"{where}: is no column, neither an array with one axis nor one that AnnData writes")
        values = column.read(lambda array, _: read_coordinate(array, store.access))
        return checked_values(values, store.num_samples, str(where))
    where = f": there is no {' or '.join(map(str, tried))}" if tried else ""
    raise ConfigError(f"no column {name!r} is stored with these samples{where}; give an array of its values")


def _member(access: StoreAccess, group: zarr.Group, name: str) -> Any:
    return _opened(StoredPath(group.store_path.store, f"{group.path}/{name}".lstrip("/")), access)


def _opened(where: Beside, access: StoreAccess) -> Any:
    """Return an array or a group; None if nothing is there."""
    try:
        return open_beside(where, access)
    except StoreReadError as error:
        if error.errno != errno.ENOENT:
            raise
        return None


def _above(store: StoreCoordinates, name: str) -> Iterator[Beside]:
    """Yield where a column may be: beside each array, and in the groups above it."""
    for array in store.near:
        beside = sibling(array, name)
        if beside is not None:
            yield beside
        folder = array.store_path.path.rpartition("/")[0]
        while folder:
            folder = folder.rpartition("/")[0]
            yield StoredPath(array.store_path.store, f"{folder}/{name}" if folder else name)
