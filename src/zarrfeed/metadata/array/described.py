"""`Described`: what a store says of an array's values and of the coordinates along its axes, to compare it with others.

Invariant: samples of several stores come in one tensor, so a value means the same and an index has the same
coordinate, whichever store it is of. Stores may lie elsewhere, as tiles of a map do. But where the same coordinates lie
the other way round, as latitudes that ascend in one store and descend in another, or where units differ, the stores are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.storage import LocalStore

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.cf import coordinate_attributes, dimension_names
from zarrfeed.metadata.array.cf_times import is_time_unit
from zarrfeed.metadata.array.code_names import code_names
from zarrfeed.metadata.array.coordinate_values import are_same_coordinates, decode_values, listed_values
from zarrfeed.metadata.array.meaning import difference, meaning_of
from zarrfeed.metadata.array.values import read_values
from zarrfeed.spec.arrays.item_choice import Positions, compose

#: A coordinate along an axis of samples is read whole; a longer one is not compared.
_MOST_COORDINATES = 1 << 16


@dataclass(frozen=True, eq=False)
class Described:
    """The meaning that a store gives to one of its arrays.

    Attributes
    ----------
    meaning
        The meaning of the values in a batch, as `meaning_of` returns it.
    coordinates
        The coordinates along the axes of the stored array but the sample axis, by the names of the dimensions.
    chosen
        The items of these axes that samples have, by the names of the dimensions. An axis without an entry is whole.
    labels
        Values of coordinates that were read already: of all items along the axis, chosen or not.
    names
        The name of each code, if items are codes that have names. None: they are not.
    """

    meaning: Mapping[str, Any] = field(default_factory=dict)
    coordinates: Mapping[str, zarr.Array[Any]] = field(default_factory=dict)
    chosen: Mapping[str, Positions] = field(default_factory=dict)
    labels: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    names: Mapping[int, str] | None = None

    @classmethod
    def of(
        cls, array: zarr.Array[Any], sample_axis: int, known: Mapping[str, zarr.Array[Any]], *, decodes: bool
    ) -> Described:
        """Describe a stored array.

        Parameters
        ----------
        array, sample_axis
            The array, and its axis of samples.
        known
            Arrays that lie beside it, by their names.
        decodes
            True if a batch has decoded values, and not the stored ones.
        """
        attributes = dict(array.metadata.attributes)
        try:
            meaning = meaning_of(attributes, np.dtype(array.dtype), decoded=decodes)
        except ConfigError:
            meaning = {}  # attributes that cannot be decoded, and are not
        if is_time_unit(attributes.get("units")):  # a batch has the numbers, and not the times
            meaning |= {"units": attributes["units"]}
        elif array.dtype.kind in "mM":
            meaning = {"dtype": array.dtype.name}  # such as datetime64[ns]
        dims = [dim for axis, dim in enumerate(dimension_names(array) or ()) if dim is not None and axis != sample_axis]
        coordinates = {dim: known[dim] for dim in dims if dim in known and len(known[dim].shape) == 1}
        names = code_names(attributes) if np.dtype(array.dtype).kind in "iu" else None
        return cls(meaning, coordinates, names=names)

    def choosing(self, dim: str, positions: Positions) -> Described:
        """Choose fewer items along a dimension: those at some positions among the items chosen before."""
        before = self.chosen.get(dim)
        return replace(self, chosen={**self.chosen, dim: positions if before is None else compose(before, positions)})

    def values_along(self, dim: str) -> npt.NDArray[Any]:
        """Return the coordinate of the items that samples have along a dimension; it is read now if it was not."""
        values = self.labels[dim] if dim in self.labels else _values_of(self.coordinates[dim])
        return values[np.asarray(self.chosen[dim], dtype=np.int64)] if dim in self.chosen else values

    def unit_along(self, dim: str) -> str:
        """Return the unit of the coordinate along a dimension, such as "hPa"; "" without one, and for times."""
        array = self.coordinates.get(dim)
        units = None if array is None else coordinate_attributes(array).get("units")
        return "" if units is None or is_time_unit(units) else str(units)


def check_same_values(name: str, store: str, other: Described, first_store: str, first: Described) -> None:
    """Raise ConfigError if values of an array mean something else in another store; both must say what they mean."""
    found = difference(other.meaning, first.meaning, unsaid=False)
    if found is None:
        return
    is_time = any("dtype" in one or is_time_unit(one.get("units")) for one in (other.meaning, first.meaning))
    remedy = (
        "choose arrays without it by `variables`; zarrfeed.pack counts the times of several stores alike"
        if is_time
        else "convert one of them before, as normalize((-273.15, 1.0)) makes K of degC"
    )
    raise ConfigError(
        f"{store}: {name} is stored {found.told(found.ours)}, in {first_store} {found.told(found.theirs)}, so equal "
        f"numbers of one tensor would mean several values: {remedy}"
    )


def check_same_direction(store: str, other: Described, first_store: str, first: Described) -> None:
    """Raise ConfigError if another store has the coordinates along an axis of its samples the other way round.

    Coordinates of far stores are not read.
    """
    for dim, theirs in first.coordinates.items():
        ours = other.coordinates.get(dim)
        if ours is None or ours.store_path == theirs.store_path or not (_is_near(ours) and _is_near(theirs)):
            continue
        if max(*ours.shape, *theirs.shape) > _MOST_COORDINATES:
            continue
        values, first_values = other.values_along(dim), first.values_along(dim)
        if dim in other.chosen or dim in first.chosen:
            if values.shape != first_values.shape or not are_same_coordinates(values, first_values):
                shown, first_shown = (listed_values(one.tolist(), str) for one in (values, first_values))
                raise ConfigError(
                    f"{store}: samples have {dim!r} = {shown}, in {first_store} {first_shown}, so "
                    "one index would mean two coordinates: choose the same labels in each, by Data.sel"
                )
            continue
        if values.shape != first_values.shape or len(values) < 2:
            continue
        if are_same_coordinates(values, first_values[::-1]) and not are_same_coordinates(values, first_values):
            raise ConfigError(
                f"{store}: {dim!r} goes from {values[0]} to {values[-1]}, in {first_store} from {first_values[0]} to "
                f"{first_values[-1]}, so one index would mean two coordinates: write one of them the other way round; "
                "to read them all the same, give their arrays without the coordinates, as a mapping of names to arrays"
            )


def check_same_coordinates(name: str, other: Described, first_name: str, first: Described) -> None:
    """Raise ConfigError if two arrays whose samples lie side by side have other coordinates along an axis.

    Coordinates count as others if they are more than half a step apart, so staggered grids are not.
    """
    for dim, theirs in first.coordinates.items():
        ours = other.coordinates.get(dim)
        if ours is None or ours.store_path == theirs.store_path or max(*ours.shape, *theirs.shape) > _MOST_COORDINATES:
            continue
        values, first_values = other.values_along(dim), first.values_along(dim)
        if values.shape != first_values.shape or len(values) < 2:
            continue
        if {values.dtype.kind, first_values.dtype.kind} <= set("iuf"):
            half = np.abs(np.diff(first_values.astype(np.float64))).max() / 2 * (1 + 1e-6)
            apart = np.abs(values.astype(np.float64) - first_values) > half
        else:
            apart = np.asarray(values != first_values)
        if apart.any():
            at = int(np.argmax(apart))
            raise ConfigError(
                f"stack: {name!r} has {dim!r} = {values[at]} at index {at}, {first_name!r} has {first_values[at]}, so "
                "one index would mean two coordinates: bring them to one grid; to stack them all the same, open "
                "their arrays without the coordinates, as a mapping of names to arrays"
            )


def _is_near(array: zarr.Array[Any]) -> bool:
    return isinstance(array.store_path.store, LocalStore)


def _values_of(array: zarr.Array[Any]) -> npt.NDArray[Any]:
    return decode_values(read_values(array), coordinate_attributes(array), str(array.store_path))
