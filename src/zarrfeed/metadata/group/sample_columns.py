"""A column of the samples by its name: a coordinate, a part of a date, or a column of a table of AnnData.

Invariant: a column has a value for each sample of the arrays, chosen or not, and is read whole when it is asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import LocalStore

from zarrfeed.base.errors import ConfigError, StoreReadError
from zarrfeed.metadata.array.anndata_columns import column_at
from zarrfeed.metadata.array.coordinate_values import checked_values, concatenated
from zarrfeed.metadata.group.beside import MOST_GROUPS, Beside, StoredPath, open_beside, sibling
from zarrfeed.metadata.group.coordinates import Coordinates, NoCoordinateError, StoreCoordinates, read_coordinate
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.storage.access.access import StoreAccess

#: Parts of dates, named as xarray's `.dt` names them.
DATE_PARTS = ("year", "month", "day", "dayofyear", "hour", "date", "season")
_SEASONS = np.array(["DJF", "MAM", "JJA", "SON"])
#: Parts of dates that cftime has by other names.
_OF_CFTIME: dict[str, Callable[[Any], Any]] = {
    "dayofyear": lambda date: date.dayofyr,
    "date": lambda date: str(date)[:10],
}
#: The table of AnnData that has a row for each sample.
OBSERVATIONS = "obs"


def read_column(known: Coordinates, name: str, *, remedy: str) -> Coordinate:
    """Return a column of the samples; `remedy` is that of `Coordinates.read`.

    Parameters
    ----------
    known
        The coordinates of the samples.
    name
        The name of a coordinate; "time.year" and the like, of a coordinate of dates; a path with a slash from the
        root of the store, or from a group above the arrays, such as "obs/cell_type"; or the name of a column of the
        table `obs` of AnnData in such a group, such as "cell_type".

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        As in `Coordinates.read`.
    """
    try:
        return _at_paths(known, name) if "/" in name else known.read_known(name)  # either may have a dot
    except NoCoordinateError as error:
        coordinate, dot, part = name.rpartition(".")
        if dot and part in DATE_PARTS:
            dates = read_column(known, coordinate, remedy=remedy)
            return replace(dates, name=name, values=part_of_dates(dates.values, name, part), names=None)
        if "/" not in name:
            with suppress(NoCoordinateError):
                return _at_paths(known, f"{OBSERVATIONS}/{name}")
        raise ConfigError(f"{error.text}; {remedy}{error.hint}") from error.__cause__


def part_of_dates(values: npt.NDArray[Any], name: str, part: str) -> npt.NDArray[Any]:
    """Return a part of each date, of any calendar, as `.dt` of xarray does; `name` is that of the part in messages.

    Raises
    ------
    ConfigError
        If the values are no dates, or have no such part.
    """
    if part not in DATE_PARTS:
        raise ConfigError(f"{name}: must be one of {', '.join(DATE_PARTS)} of a date")
    if part == "season":
        seasons: npt.NDArray[Any] = _SEASONS[part_of_dates(values, name, "month") % 12 // 3]
        return seasons
    if values.dtype.kind == "O" and all(hasattr(one, "calendar") for one in values):
        return np.array([_OF_CFTIME[part](one) if part in _OF_CFTIME else getattr(one, part) for one in values])
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


def _at_paths(known: Coordinates, name: str) -> Coordinate:
    """Return the column at a path of each store, one after the other."""
    return concatenated(name, [_at_path(one.stores[0], name) for one in known.of_stores()])


def _at_path(store: Any, name: str) -> Coordinate:
    """Return a column of one store, looked for in all groups above its arrays, the nearest first."""
    assert isinstance(store, StoreCoordinates)
    found = store.known.get(name)
    if isinstance(found, np.ndarray):
        return Coordinate(name, checked_values(found, store.num_samples, name), name)
    tried: list[Beside] = []
    where, node = found_above(store, name, tried)
    if node is None:
        lacks = f": there is no {' or '.join(map(str, tried))}" if tried else ""
        raise NoCoordinateError(f"no column {name!r} is stored with these samples{lacks}")
    column = column_at(node, str(where), partial(member_of_group, store.access))
    if column is None:
        raise ConfigError(f"{where}: is no column, neither an array with one axis nor one that AnnData writes")
    values = column.read(lambda array, _: read_coordinate(array, store.access))
    return Coordinate(name, checked_values(values, store.num_samples, str(where)), str(where))


def found_above(store: StoreCoordinates, name: str, tried: list[Beside]) -> tuple[Beside, Any]:
    """Return the first node at a path beside the arrays of a store, or in the groups above, and where it lies.

    Of a path with a slash, the folders above a local directory that was opened count as groups. The node is None if
    nothing is there. Each place that is looked at is appended to `tried`.
    """
    where: Beside = name
    candidates = [*_above(store, name)]
    for one in store.near if "/" in name else ():
        if type(one.store_path.store) is LocalStore:
            candidates += [folder / name for folder in list(Path(one.store_path.store.root).parents)[:MOST_GROUPS]]
    for where in dict.fromkeys(candidates):
        tried.append(where)
        node = _opened(where, store.access)
        if node is not None:
            return where, node
    return where, None


def member_of_group(access: StoreAccess, group: zarr.Group, name: str) -> Any:
    """Return the member of a group that has a name; None if there is none."""
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
