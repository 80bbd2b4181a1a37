"""The items that `Data.sel` and `Data.isel` choose along other axes than that of samples: found once, for every array.

Invariant: positions are found per array, by the length or the labels that this array has along the dimension. So
arrays of several inputs of a join, each with levels of its own, are chosen from by label in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.coordinate_values import checked_values
from zarrfeed.metadata.array.item_indexers import find_positions, parse_indexer
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.coordinates import read_coordinate
from zarrfeed.metadata.group.item_choices import choose_items
from zarrfeed.metadata.patches.patching import Patching
from zarrfeed.plan.choice.labels import LabelIndex, Method
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.arrays.item_choice import Positions, positions_of
from zarrfeed.spec.fields.static import StaticField
from zarrfeed.spec.samples.coordinate import Coordinate
from zarrfeed.storage.access.checked_nodes import node_name

#: Finds the positions along a dimension, given its number of items, what is known of the array, and its name.
_Find = Callable[[int, Items | None, str], Positions]


@dataclass(frozen=True)
class ChosenItems:
    """The items of one dimension that a call chooses.

    Attributes
    ----------
    dim
        The name of the dimension, or the number of the axis.
    of_columns
        For each column the positions in each layout of its array; empty for a column without the dimension.
    of_statics
        The positions in each static array; None for one without the dimension.
    dropped
        True if samples lose the axis.
    """

    dim: str | int
    of_columns: tuple[tuple[Positions, ...], ...]
    of_statics: tuple[Positions | None, ...]
    dropped: bool

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Return the description with these items alone.

        Raises
        ------
        ConfigError
            If samples are patches, and are cut along the dimension.
        """
        if resolved.patching is not None:
            resolved = self._of_patches(resolved, resolved.patching)
            return replace(resolved, statics=self._statics(resolved))
        columns = [
            choose_items(column, self.dim, positions, dropped=self.dropped) if positions else column
            for column, positions in zip(resolved.columns, self.of_columns, strict=True)
        ]
        every = (*(one for column in self.of_columns for one in column), *self.of_statics)
        first = next((one for one in every if one is not None), None)
        origin = resolved.origin
        if origin.coordinates is not None and isinstance(self.dim, str) and first is not None:
            origin = replace(origin, coordinates=origin.coordinates.choosing(self.dim, first))
        return replace(resolved, columns=tuple(columns), statics=self._statics(resolved), origin=origin)

    def _statics(self, resolved: ResolvedData) -> tuple[StaticField, ...]:
        return tuple(
            one if positions is None else one.choosing(_static_axis(one, self.dim), positions, dropped=self.dropped)
            for one, positions in zip(resolved.statics, self.of_statics, strict=True)
        )

    def _of_patches(self, resolved: ResolvedData, patching: Patching) -> ResolvedData:
        """Return patches that have these items alone, as `patch(isel=)` chooses them."""
        request = patching.request
        if self.dim in patching.dims:
            raise ConfigError(f"{self.dim!r}: patches are cut along it; choose its items by sel or isel before patch()")
        if self.dim in dict(request.isel):
            raise ConfigError(
                f"{self.dim!r}: patch(isel=) has chosen items of this dimension before; choose them in one place"
            )
        found = {one for column in self.of_columns for one in column}
        if not found:
            return resolved
        if len(found) > 1:
            raise ConfigError(
                f"{self.dim!r}: the items lie at different positions in the arrays; choose them before patch()"
            )
        (positions,) = found
        indexer = positions[0] if self.dropped else tuple(positions)
        return resolved.cut(replace(request, isel=(*request.isel, (self.dim, indexer))))


def item_dims(resolved: ResolvedData) -> list[str]:
    """Return the names of the dimensions that samples or static arrays have, without that of the sample dimension."""
    known = resolved.origin.coordinates
    along = () if known is None else known.dims
    of_columns = [
        dim
        for one in resolved.items
        for axis, dim in enumerate(one.dimensions or ())
        if dim is not None and axis != one.sample_axis
    ]
    of_statics = [dim for one in resolved.statics for dim in one.dimensions or () if dim is not None]
    return [dim for dim in dict.fromkeys((*of_columns, *of_statics)) if dim not in along]


def choose_positions(resolved: ResolvedData, dim: str | int, indexer: Any) -> ChosenItems:
    """Return the items that an indexer of `Data.isel` chooses along a dimension.

    Raises
    ------
    ConfigError
        If it is no indexer, out of range, or chooses nothing.
    """
    parsed = parse_indexer("isel", dim, indexer)

    def find(length: int, items: Items | None, name: str) -> Positions:  # noqa: ARG001 (of labels)
        return find_positions("isel", dim, parsed, length, name)

    return _chosen(resolved, dim, find, dropped=isinstance(parsed, int))


def choose_labels(
    resolved: ResolvedData, dim: str, label: Any, method: Method | None, given: Any = None
) -> ChosenItems:
    """Return the items that labels of `Data.sel` choose along a dimension.

    Parameters
    ----------
    resolved
        The samples.
    dim
        The dimension.
    label
        A label, a slice or a list of labels, or a mask.
    method
        The argument of `Data.sel`.
    given
        The labels of the dimension, one for each item, stored or chosen. None: they are stored.

    Raises
    ------
    ConfigError
        If there are no labels, a label is missing, or stores have the labels in other places.
    """
    found: dict[int, Positions] = {}
    indexes: dict[Any, Coordinate] = {}

    def find(length: int, items: Items | None, name: str) -> Positions:
        coordinate = _coordinate_of(resolved, dim, items, length, name, given, indexes)
        if id(coordinate) not in found:
            found[id(coordinate)] = positions_of_labels(coordinate, label, method)
        return found[id(coordinate)]

    is_scalar = not isinstance(label, slice) and np.ndim(label) == 0
    made = _chosen(resolved, dim, find, dropped=is_scalar)
    every = [one for column in made.of_columns for one in column] + [one for one in made.of_statics if one is not None]
    return replace(made, dropped=is_scalar and all(len(one) == 1 for one in every))


def _chosen(resolved: ResolvedData, dim: str | int, find: _Find, *, dropped: bool) -> ChosenItems:
    of_columns = tuple(_of_column(column, dim, find) for column in resolved.columns)
    of_statics = tuple(_of_static(one, dim, find) for one in resolved.statics)
    return ChosenItems(dim, of_columns, of_statics, dropped)


def _of_column(column: Column, dim: str | int, find: _Find) -> tuple[Positions, ...]:
    axes = [one.axis_of(dim) for one in column.array.all_items]
    if axes[0] is None or axes[0] == column.items.sample_axis:
        return ()
    return tuple(
        find(one.shape[axis], one, one.name)
        for one, axis in zip(column.array.all_items, axes, strict=True)
        if axis is not None
    )


def _of_static(static: StaticField, dim: str | int, find: _Find) -> Positions | None:
    if static.dimensions is None or dim not in static.dimensions:
        return None
    return find(static.shape[_static_axis(static, dim)], None, f"static {static.name!r}")


def _static_axis(static: StaticField, dim: str | int) -> int:
    assert static.dimensions is not None
    return static.dimensions.index(dim)


def _coordinate_of(
    resolved: ResolvedData,
    dim: str,
    items: Items | None,
    length: int,
    name: str,
    given: Any,
    read: dict[Any, Coordinate],
) -> Coordinate:
    """Return the labels of the items that an array has along a dimension; `read` has those that were read before."""
    known, described = resolved.origin.coordinates, None if items is None else items.described
    chosen: Positions | None = None
    if given is not None:
        chosen = None if described is None else described.chosen.get(dim)
        if chosen is None and items is None and known is not None:
            chosen = known.chosen.get(dim)
        key: Any = ("given", chosen)
        if key not in read:
            values = np.asarray(given)
            if chosen is not None and values.shape != (length,) and values.ndim == 1:
                values = values[np.asarray(chosen)]
            read[key] = Coordinate(dim, checked_values(values, length, f"coords of {dim!r}"), f"coords of {dim!r}")
        return read[key]
    if described is not None and dim in described.labels:
        key = (id(described.labels[dim]), described.chosen.get(dim))
        if key not in read:
            array = described.coordinates.get(dim)
            where = f"coordinate {dim!r}" if array is None else node_name(array)
            read[key] = _checked(dim, described.labels[dim], where, described.chosen.get(dim), length, name)
        return read[key]
    if described is not None and dim in described.coordinates:
        array, chosen = described.coordinates[dim], described.chosen.get(dim)
        key = (str(array.store_path), chosen)
        if key not in read:
            assert known is not None
            read[key] = _checked(dim, read_coordinate(array, known.access), node_name(array), chosen, length, name)
        return read[key]
    stored = None if known is None else known.stored_labels(dim)
    if stored is None or known is None:
        raise ConfigError(
            f"sel: {dim!r}: no coordinate of this name is stored with {name}, so it has no labels; choose by position, "
            f"isel({dim}=...), or give the labels: coords=[...]"
        )
    chosen = known.chosen.get(dim)
    key = (None, chosen)
    if key not in read:
        read[key] = _checked(dim, stored.values, stored.where, chosen, length, name)
    return read[key]


def _checked(dim: str, values: Any, where: str, chosen: Positions | None, length: int, name: str) -> Coordinate:
    values = checked_values(values, len(values), where)
    if chosen is not None:
        values = values[np.asarray(chosen, dtype=np.int64)]
    if len(values) != length:
        raise ConfigError(f"sel: {where} has {len(values)} labels, {name} has {length} items along {dim!r}")
    return Coordinate(dim, values, where)


def positions_of_labels(coordinate: Coordinate, label: Any, method: Method | None) -> Positions:
    """Return the positions of labels along the coordinate of an axis, in the order of the labels.

    Raises
    ------
    ConfigError
        As in `LabelIndex.find`.
    """
    index = LabelIndex(coordinate, noun="item")
    if isinstance(label, slice) and isinstance(label.step, int) and label.step < 0:
        forward = np.arange(len(coordinate.values))[index.find(slice(label.stop, label.start), method)]
        return positions_of(forward[:: label.step])
    found: slice | Int64 = index.find(label, method)
    return positions_of(np.arange(len(coordinate.values))[found])


def known_dims(method: str, name: str | int, dims: Sequence[str], samples: Sequence[str]) -> ConfigError:
    """Return the error about a name that is none of the dimensions."""
    other = ", ".join(map(repr, dims)) or "none with a name"
    sample = f"along {', '.join(map(repr, samples))}" if samples else "along an axis without a name"
    return ConfigError(
        f"{method}: no array has the dimension {name!r}; dimensions of a sample are {other}; samples lie {sample}"
        f"{did_you_mean(name, [*dims, *samples])}"
    )
