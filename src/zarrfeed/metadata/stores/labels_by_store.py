"""Labels that lie at other positions in other stores: their arrays become layouts of their own, chosen from by label.

Invariant: samples of all stores have the same labels in the same order, or `Data.sel` refuses, and names the store.
The samples, and the stores that they are in, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.coordinate_values import checked_values, listed_values
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.description.chosen_items import positions_of_labels
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.coordinates import Coordinates
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.metadata.stores.store_parts import LayoutParts, locations_in
from zarrfeed.plan.choice.labels import Method
from zarrfeed.spec.arrays.item_choice import Positions
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field import StoredField, VlenField
from zarrfeed.spec.samples.coordinate import Coordinate


@dataclass(frozen=True, eq=False)
class _StoreLabels:
    """The positions of the labels in one store, and all labels of the stored dimension."""

    positions: Positions
    stored: npt.NDArray[Any]
    where: str


def split_by_labels(resolved: ResolvedData, labels: Mapping[str, Any], method: Method | None) -> ResolvedData:
    """Return the description with a layout for each way in which labels lie in the stores; as it is if there is one.

    Parameters
    ----------
    resolved
        The samples.
    labels
        The labels that are chosen, by their dimensions.
    method
        The argument of `Data.sel`.

    Raises
    ------
    ConfigError
        If a store lacks a label, or chooses others; or if an array that lies in memory would have to be split.
    """
    known, table = resolved.origin.coordinates, resolved.origin.stores
    if known is None or table is None or len(known.stores) != len(table.names):
        return resolved
    stores = known.of_stores()
    found = {
        dim: _of_stores(stores, dim, label, method, known) for dim, label in labels.items() if dim not in known.split
    }
    differing = {dim: each for dim, each in found.items() if len({one.positions for one in each}) > 1}
    if not differing:
        return resolved
    numbers: dict[tuple[Positions, ...], int] = {}
    kinds = [
        numbers.setdefault(tuple(each[store].positions for each in differing.values()), len(numbers))
        for store in range(len(stores))
    ]
    columns = tuple(_split(column, differing, np.array(kinds), table) for column in resolved.columns)
    coordinates = replace(known, split=known.split | set(differing))
    return replace(resolved, columns=columns, origin=replace(resolved.origin, coordinates=coordinates))


def _of_stores(
    stores: Sequence[Coordinates], dim: str, label: Any, method: Method | None, known: Coordinates
) -> list[_StoreLabels]:
    """Find the positions of labels in each store; nothing if a store has no labels."""
    made: list[_StoreLabels] = []
    first: list[Any] = []
    for store in stores:
        found = store.stored_labels(dim)
        if found is None:
            return []
        stored = checked_values(found.values, len(found.values), found.where)
        values = stored[np.asarray(known.chosen[dim], dtype=np.int64)] if dim in known.chosen else stored
        positions = positions_of_labels(Coordinate(dim, values, found.where), label, method)
        chosen = values[np.asarray(positions, dtype=np.int64)].tolist()
        if made and chosen != first:
            shown, first_shown = (listed_values(one, repr) for one in (chosen, first))
            raise ConfigError(
                f"sel: {dim} = {label!r}: {found.where} has {shown}, {made[0].where} has {first_shown}; "
                "samples of all stores must have the same labels"
            )
        first = chosen
        made.append(_StoreLabels(positions, stored, found.where))
    return made


def _split(
    column: Column, of_dims: Mapping[str, Sequence[_StoreLabels]], kinds: npt.NDArray[np.int64], table: StoreTable
) -> Column:
    """Return a column with a layout for each kind of store, if its array has one of the dimensions."""
    dims = [dim for dim in of_dims if column.items.axis_of(dim) is not None]
    if not dims:
        return column
    field = column.field
    if (
        not isinstance(field, StoredField | VlenField)
        or field.row_map is not None
        or any(layout.parts is None for layout in field.layouts)
    ):
        stores = of_dims[dims[0]]
        raise ConfigError(
            f"sel: {dims[0]!r} of {column.items.name}: the labels lie at other positions in some stores, such as "
            f"{next(one.where for one in stores if one.positions != stores[0].positions)}; choose in each store before "
            "they are joined: zarrfeed.concat([zarrfeed.open(one).sel(...) for one in stores])"
        )
    made: list[tuple[Layout, Items, RequestedConversion]] = []
    for layout, items, request in zip(field.layouts, column.array.all_items, column.conversions, strict=True):
        assert layout.parts is not None
        store, _ = table.locate(layout.parts.begin)
        located = locations_in(layout)
        for kind in dict.fromkeys(kinds[store].tolist()):
            members = np.flatnonzero(kinds[store] == kind).tolist()
            parts = LayoutParts(layout, items, request)
            for number in members:
                parts.add(int(layout.parts.begin[number]), int(layout.parts.end[number]), *located[number])
            joined = replace(parts.joined(layout.spec.num_samples), conversion=None)
            made.append((joined, _labelled(items, {dim: of_dims[dim][store[members[0]]] for dim in dims}), request))
    (first, items, _), *others = made
    array = replace(
        column.array,
        field=replace(field, spec=first.spec, parts=first.parts, others=tuple(layout for layout, _, _ in others)),
        items=items,
        other_items=tuple(one for _, one, _ in others),
    )
    if not column.before:
        return replace(column, array=array)
    return replace(column, array=array, requested=RequestedConversion(), before=tuple(one for _, _, one in made))


def _labelled(items: Items, of_dims: Mapping[str, _StoreLabels]) -> Items:
    """Add the labels of its own store to the description of an array."""
    described = items.described
    if described is None:
        return items
    labels = {dim: one.stored for dim, one in of_dims.items()}
    return replace(items, described=replace(described, labels={**described.labels, **labels}))
