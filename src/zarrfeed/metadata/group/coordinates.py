"""The coordinates of samples: one value a sample, such as its time, found beside the arrays and read when it is asked.

A coordinate is an array with one axis and one value a sample. That of the sample dimension has the dimension's name, as
xarray writes it. It is looked for among the arrays that were opened, in their group, and beside them in the store.

Invariant: opening reads no value of a coordinate. `Coordinates.read` reads it whole and keeps it, since it is small
next to the samples. A pickled `Coordinates` has no values, and reads them again.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError, StoreReadError, UnsupportedError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.cf import coordinate_attributes, dimension_names
from zarrfeed.metadata.array.code_names import code_names
from zarrfeed.metadata.array.coordinate_values import checked_values, concatenated, decode_values
from zarrfeed.metadata.array.meaning import meaning_of
from zarrfeed.metadata.array.open import open_source
from zarrfeed.metadata.array.side_by_side import side_by_side
from zarrfeed.metadata.array.values import refuse_repeated_fill
from zarrfeed.metadata.group.beside import Beside, StoredPath, open_beside, sibling
from zarrfeed.metadata.group.grid_coordinates import GridCoordinate
from zarrfeed.metadata.group.whole_arrays import MOST_VALUES, read_whole
from zarrfeed.spec.arrays.item_choice import Positions, compose
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.shared_access import SharedAccess

#: Advice for a name that is not stored, where values may be given, and where they may not.
GIVE_COORDS = "give its values as coords="
ALONG_SAMPLES = "name a coordinate along the samples"


class NoCoordinateError(ConfigError):
    """No coordinate of that name is stored with the samples; `hint` may name another one, behind what can be done."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text + hint)
        self.text, self.hint = text, hint


@dataclass(frozen=True, eq=False)
class StoreCoordinates:
    """The places of the coordinates of all samples, or of the samples of one of many stores.

    Attributes
    ----------
    num_samples
        Number of samples.
    known
        Arrays with one axis that were opened or listed with the arrays of the samples, by their names.
    near
        Arrays of the samples, beside which others may lie in the store.
    access
        The access to the store.
    may_grow
        True if a writer may have appended to the coordinate already.
    reopens
        True if arrays may have grown since they were opened, so that they are opened anew before they are read.
    grid
        The sample dimensions and their lengths, where there are several; else empty.
    """

    num_samples: int
    known: Mapping[str, zarr.Array[Any] | npt.NDArray[Any]] = field(default_factory=dict)
    near: tuple[zarr.Array[Any], ...] = ()
    access: StoreAccess = field(default_factory=StoreAccess)
    may_grow: bool = False
    reopens: bool = False
    grid: Mapping[str, int] = field(default_factory=dict)

    def read_along(self, name: str) -> GridCoordinate:
        """Return the coordinate of a name, decoded, along the sample dimensions that it has."""
        found = self.find(name)
        if isinstance(found, np.ndarray):
            where, dims, values = f"coordinate {name!r}", None, found
        else:
            where, dims = node_name(found), dimension_names(found)
            values = _stored_values(found, where, self.access, axes=len(self.grid))
        return GridCoordinate.of(name, values, dims or (name,), where, self.grid)

    def read(self, name: str, dims: tuple[str, ...]) -> Coordinate:
        """Return the coordinate of a name, decoded."""
        found = self.find(name)
        if self.grid:
            expanded = self.read_along(name).expanded(self.grid)
            return replace(expanded, units=_units_of(found, expanded.values))
        names = code_names(found.metadata.attributes) if isinstance(found, zarr.Array) else None
        if self.reopens and isinstance(found, zarr.Array):
            found = open_beside(StoredPath(found.store_path.store, found.store_path.path), self.access)
        if isinstance(found, np.ndarray):
            where, array_dims, values = f"coordinate {name!r}", None, found
        else:
            where = node_name(found)
            array_dims = dimension_names(found)
            if array_dims is not None and dims and array_dims[0] not in (None, *dims):
                raise ConfigError(f"{where}: lies along {array_dims[0]!r}, must lie along {_one_of(dims)}")
            values = _stored_values(found, where, self.access)
        if self.may_grow:
            values = values[: self.num_samples]
        return Coordinate(name, checked_values(values, self.num_samples, where), where, names, _units_of(found, values))

    def find(self, name: str) -> zarr.Array[Any] | npt.NDArray[Any]:
        """Return the array of a name, with one axis."""
        found = self.known.get(name)
        return self._beside(name) if found is None else found

    def array_beside(self, name: str) -> zarr.Array[Any]:
        """Return the array of a name, with any axes, that lies beside one of the arrays in the store."""
        tried, found = self._look_beside(name)
        if found is not None:
            if isinstance(found[1], zarr.Array):
                return found[1]
            raise ConfigError(f"{found[0]}: is no array")
        where = f": there is no {' or '.join(map(str, tried))}" if tried else ""
        raise ConfigError(f"no array {name!r} lies beside the arrays of the samples{where}; give {name}=array")

    def _look_beside(self, name: str) -> tuple[list[Beside], tuple[Beside, Any] | None]:
        """Look for a name beside the arrays: return the places where it may lie, and the first place where it does."""
        tried = [beside for array in self.near if (beside := sibling(array, name)) is not None]
        for beside in tried:
            try:
                return tried, (beside, open_beside(beside, self.access))
            except StoreReadError as error:
                if error.errno != errno.ENOENT:
                    raise
        return tried, None

    def _beside(self, name: str) -> zarr.Array[Any]:
        """Return an array of this name that lies beside one of the arrays, in the store."""
        tried, found = self._look_beside(name)
        if found is not None:
            if isinstance(found[1], zarr.Array) and 1 <= len(found[1].shape) <= max(1, len(self.grid)):
                return found[1]
            raise NoCoordinateError(f"{found[0]}: is no array with one axis, which the coordinate {name!r} must be")
        known = ", ".join(map(repr, self.known)) or "none"
        where = f"; neither is there an array {' or '.join(map(str, tried))}" if tried else ""
        raise NoCoordinateError(
            f"no coordinate {name!r} is stored with these samples, known are: {known}{where}",
            did_you_mean(name, self.known),
        )


@dataclass(frozen=True, eq=False)
class UnopenedCoordinates:
    """The place of the coordinates of one of many stores, which was described without being opened.

    Attributes
    ----------
    num_samples
        Number of samples of the store.
    source
        Path of the store.
    open
        Opens it, and returns what can be looked up of its samples.
    """

    num_samples: int
    source: str | Path
    open: Callable[[str | Path], Coordinates]

    def read(self, name: str, dims: tuple[str, ...]) -> Coordinate:  # noqa: ARG002 - as of StoreCoordinates
        """Return the coordinate of a name, decoded."""
        return self.open(self.source).read_known(name)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The coordinates of samples, looked up by their names.

    Attributes
    ----------
    dims
        The names of the sample dimension: of the arrays that have names of dimensions, each name once; of most data
        sets, one. The first is that of the first array.
    other_dims
        The names of all other dimensions of the arrays.
    stores
        The coordinates of one store, or of many stores, in the order of their samples.
    chosen
        The items that samples have along other dimensions, by name. A dimension without an entry is whole.
    split
        The dimensions whose labels lie in other places in other stores, so that arrays know their labels themselves.
    """

    dims: tuple[str, ...]
    other_dims: tuple[str, ...]
    stores: tuple[StoreCoordinates | UnopenedCoordinates, ...]
    chosen: Mapping[str, Positions] = field(default_factory=dict)
    split: frozenset[str] = frozenset()
    _read: dict[str, Coordinate] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        arrays: Sequence[zarr.Array[Any]],
        sample_axes: Sequence[int],
        known: Mapping[str, zarr.Array[Any]],
        num_samples: int,
        *,
        dimensions: Sequence[tuple[str | None, ...] | None] | None = None,
        of_matrices: Sequence[zarr.Array[Any]] = (),
        access: StoreAccess,
        may_grow: bool = False,
        grid: Mapping[str, int] | None = None,
    ) -> Coordinates:
        """Return the coordinates of stored arrays.

        Parameters
        ----------
        arrays, sample_axes
            The arrays of the samples that are stored, and the sample axis of each.
        known
            Arrays by name, of which those with one axis may be coordinates.
        num_samples
            Number of samples.
        dimensions
            Names of the axes of each array. None: those that it has itself.
        of_matrices
            An array of each sparse matrix of the samples, in whose groups above columns are looked for.
        access
            The access to the store.
        may_grow
            If True, a coordinate may be longer, since a writer is at work.
        grid
            The sample dimensions and their lengths, where there are several. The last one, along which windows lie,
            is the first of `dims`.
        """
        grid = grid or {}
        dims: dict[str, None] = dict.fromkeys(reversed(list(grid)))
        others: dict[str, None] = {}
        for named, axis in zip(dimensions or map(dimension_names, arrays), sample_axes, strict=True):
            for i, name in enumerate(named or ()):
                if name is not None:
                    (dims if i == axis else others)[name] = None
        having_one = {name: one for name, one in known.items() if 1 <= len(one.shape) <= max(1, len(grid))}
        in_folder: dict[str, zarr.Array[Any]] = {}  # one array is enough to find what lies beside it
        for array in (*arrays, *of_matrices):
            in_folder.setdefault(str(sibling(array, "")), array)
        store = StoreCoordinates(num_samples, having_one, tuple(in_folder.values()), access, may_grow, grid=grid)
        return cls(tuple(dims), tuple(name for name in others if name not in dims), (store,))

    @classmethod
    def concat(cls, parts: Sequence[Coordinates]) -> Coordinates:
        """Return the coordinates of the samples of several, one after the other."""
        dims = tuple(dict.fromkeys(name for one in parts for name in one.dims))
        others = tuple(dict.fromkeys(name for one in parts for name in one.other_dims))
        return cls(dims, others, tuple(store for one in parts for store in one.stores), parts[0].chosen)

    @classmethod
    def joined(cls, coordinate: Coordinate, parts: Sequence[Coordinates]) -> Coordinates:
        """Return the coordinates of samples that were joined by one: that one alone."""
        others = tuple(dict.fromkeys(name for one in parts for name in one.other_dims))
        store = StoreCoordinates(len(coordinate.values), {coordinate.name: coordinate.values})
        return cls((coordinate.name,), tuple(name for name in others if name != coordinate.name), (store,))

    def with_known(self, known: Mapping[str, npt.NDArray[Any]]) -> Coordinates:
        """Return them with values in memory for some names; only of arrays in one store."""
        (store,) = self.stores
        assert isinstance(store, StoreCoordinates)
        return replace(self, stores=(replace(store, known={**store.known, **known}),), _read={})

    @property
    def grids(self) -> tuple[Mapping[str, int], ...]:
        """The sample dimensions and their lengths in each store, where there are several dimensions; else empty."""
        return tuple(one.grid for one in self.stores if isinstance(one, StoreCoordinates) and one.grid)

    @property
    def sample_dims(self) -> tuple[str, ...]:
        """The names of the sample dimensions: several, the last one of which runs fastest, or those of `dims`."""
        grids = self.grids
        return tuple(grids[0]) if grids else self.dims

    def along_dimension(self, name: str) -> GridCoordinate:
        """Return a coordinate along some of several sample dimensions.

        Raises
        ------
        ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
            As in `read`.
        """
        try:
            return self._first.read_along(name)
        except NoCoordinateError as error:
            raise ConfigError(*error.args) from error.__cause__

    def has_along(self, name: str) -> bool:
        """Return whether a coordinate of a name lies along some of several sample dimensions."""
        try:
            return name in self.dims or self.along_dimension(name) is not None
        except (ConfigError, UnsupportedError):  # there is none, or it is no coordinate
            return False

    @property
    def may_grow(self) -> bool:
        """True if a writer may append to them."""
        return any(isinstance(store, StoreCoordinates) and store.may_grow for store in self.stores)

    def at(self, num_samples: int) -> Coordinates:
        """Return them for a later version of the only store, which has so many samples; values are read anew."""
        (store,) = self.stores
        assert isinstance(store, StoreCoordinates)
        grown = replace(store, num_samples=num_samples, may_grow=True, reopens=True)
        return replace(self, stores=(grown,), _read={})

    @property
    def _first(self) -> StoreCoordinates:
        """The first store that was opened: of many stores, it is one that others were described by."""
        return next(store for store in self.stores if isinstance(store, StoreCoordinates))

    @property
    def num_samples(self) -> int:
        """Number of samples that they are of."""
        return sum(store.num_samples for store in self.stores)

    def read(self, name: str | None = None, *, remedy: str = GIVE_COORDS) -> Coordinate:
        """Return a coordinate, decoded by the CF conventions; None: that of the sample dimension.

        `remedy` is what the caller can do if there is none, for the message.

        Raises
        ------
        ConfigError
            If there is none, or the number of its values is not that of the samples; or if its attributes cannot be
            decoded.
        UnsupportedError
            If its calendar needs cftime, which is not installed.
        StoreReadError, CorruptChunkError
            If it cannot be read.
        """
        if name is None:
            if not self.dims:
                raise ConfigError("the arrays have no names of dimensions: name the coordinate")
            name = self.dims[0]
        try:
            return self.read_known(name)
        except NoCoordinateError as error:
            raise ConfigError(f"{error.text}; {remedy}{error.hint}") from error.__cause__

    def read_known(self, name: str) -> Coordinate:
        """Like `read`, but raise NoCoordinateError where a store has no coordinate of that name."""
        if name not in self._read:
            parts = list(side_by_side(lambda store: store.read(name, self.dims), self.stores, SharedAccess()))
            self._read[name] = concatenated(name, parts)
        return self._read[name]

    def labels(self, dim: str) -> npt.NDArray[Any] | None:
        """Return the values along a dimension of samples, such as "level"; None where none are stored.

        The first store's, where there are many.

        Raises
        ------
        StoreReadError, CorruptChunkError
            If they cannot be read.
        """
        found = self.stored_labels(dim)
        if found is None or dim not in self.chosen:
            return None if found is None else found.values
        positions = np.asarray(self.chosen[dim], dtype=np.int64)
        return found.values[positions] if positions.max() < len(found.values) else None

    def stored_labels(self, dim: str) -> Coordinate | None:
        """Return the values along all of a dimension of the stored arrays, chosen or not; else as in `labels`."""
        try:
            found = self._first.find(dim)
            where = f"coordinate {dim!r}"
            if isinstance(found, np.ndarray):
                return Coordinate(dim, found, where) if found.ndim == 1 else None
            where = node_name(found)
            return Coordinate(dim, read_coordinate(found, self.access), where)
        except (ConfigError, UnsupportedError, StopIteration):  # there is none, or it is no coordinate
            return None
        except StoreReadError as error:
            if error.errno in (errno.EACCES, errno.EPERM):  # so some servers say that there is none
                return None
            raise

    def of_stores(self) -> list[Coordinates]:
        """Return the coordinates of each store, which is opened now if it was not."""
        return [
            one.open(one.source) if isinstance(one, UnopenedCoordinates) else replace(self, stores=(one,), _read={})
            for one in self.stores
        ]

    def choosing(self, dim: str, positions: Positions) -> Coordinates:
        """Choose fewer items along another dimension: those at some positions among the items chosen before."""
        before = self.chosen.get(dim)
        return replace(self, chosen={**self.chosen, dim: positions if before is None else compose(before, positions)})

    @property
    def access(self) -> StoreAccess:
        """The access to the store."""
        return self._first.access

    def array_beside(self, name: str) -> tuple[zarr.Array[Any], StoreAccess]:
        """Return the array called `name` beside those of the samples, with any axes; with many stores, the first one.

        Raises
        ------
        ConfigError
            If there is none.
        StoreReadError
            If it cannot be read.
        """
        return self._first.array_beside(name), self._first.access

    def given(self, name: str, values: Any) -> Coordinate:
        """Return a coordinate whose values a user gives: a list, an array, a path, or a `zarr.Array`.

        Raises
        ------
        ConfigError
            If it has not one value a sample.
        """
        where = f"coords of {name!r}"
        access = self._first.access
        source = open_source(values, access) if isinstance(values, str | Path) else values
        if isinstance(source, zarr.Array):
            where = node_name(source)
            source = _stored_values(source, where, access)
        return Coordinate(name, checked_values(np.asarray(source), self.num_samples, where), where)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": {}}


def read_coordinate(array: zarr.Array[Any], access: StoreAccess) -> npt.NDArray[Any]:
    """Read an array with one axis, decoded as xarray decodes it.

    Raises
    ------
    ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
        As in `Coordinates.read`.
    """
    return _stored_values(array, node_name(array), access)


def _stored_values(array: zarr.Array[Any], where: str, access: StoreAccess, axes: int = 1) -> npt.NDArray[Any]:
    """Read an array with one axis, or with some of several axes of samples, and decode it as xarray does."""
    if not 1 <= len(array.shape) <= axes or math.prod(array.shape) > MOST_VALUES:
        raise ConfigError(
            f"{where}: has the shape {array.shape}, a coordinate has one axis{' or more' * (axes > 1)}, of at most "
            f"{MOST_VALUES}"
        )
    values = read_whole(array, where, access)
    if dimension_names(array) == (array.basename,):  # the index of a dimension, which has no value twice
        refuse_repeated_fill(array, values)
    return decode_values(values, coordinate_attributes(array), where)


def _units_of(found: zarr.Array[Any] | npt.NDArray[Any], values: npt.NDArray[Any]) -> str | None:
    """Return the unit of numbers that were decoded; None for what has its unit in its dtype, or none."""
    if isinstance(found, np.ndarray) or values.dtype.kind not in "iuf":
        return None
    units: str | None = meaning_of(coordinate_attributes(found), found.dtype, decoded=True).get("units")
    return units


def _one_of(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
