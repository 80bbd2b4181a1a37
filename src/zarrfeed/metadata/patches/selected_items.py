"""`Data.patch(isel=)`: which items of axes that patches are not cut along, such as channels, samples have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.item_indexers import Indexer, find_positions, parse_indexer
from zarrfeed.spec.patches.patch import PatchAxis

#: Indexers by the name of a dimension, or the number of an axis.
Indexers: TypeAlias = tuple[tuple[str | int, Indexer], ...]


def parse_isel(isel: Any, size: Mapping[str | int, int]) -> Indexers:
    """Parse the argument `isel`, given the dimensions that `size` names.

    Raises
    ------
    ConfigError
        If it is no mapping, names a dimension that patches are cut along, or an indexer is none.
    """
    if isel is None:
        return ()
    if not isinstance(isel, Mapping):
        raise ConfigError(f"isel = {isel!r}, must be a mapping of dimensions, or axes, to indices: {{'c': [0, 2]}}")
    made: list[tuple[str | int, Indexer]] = []
    for dim, value in isel.items():
        if isinstance(dim, bool) or not isinstance(dim, str | int):
            raise ConfigError(f"isel names {dim!r}, must name a dimension, or the number of an axis")
        if dim in size:
            raise ConfigError(f"isel names {dim!r}, along which patches are cut; name another dimension")
        made.append((dim, parse_indexer("isel", dim, value)))
    return tuple(made)


def select_items(axes: Sequence[PatchAxis], items: Items, isel: Indexers) -> tuple[PatchAxis, ...]:
    """Return the axes of patches of an array with the selected items; dimensions that it lacks do not count.

    Raises
    ------
    ConfigError
        If an index is out of range, or the axis is the one that samples lie along, or patches.
    """
    made = list(axes)
    for dim, indexer in isel:
        axis = items.axis_of(dim)
        if axis is None:
            continue
        if axis == items.sample_axis:
            raise ConfigError(
                f"isel of {dim!r}: samples of {items.name} lie along it; choose them by Data.isel or Data.select, or "
                "name another sample axis: zarrfeed.open(..., sample_dim=)"
            )
        if axes[axis].dim is not None:
            raise ConfigError(f"isel of {dim!r}: patches of {items.name} are cut along it; name another axis")
        chosen = tuple(find_positions("isel", dim, indexer, items.shape[axis], items.name))
        made[axis] = PatchAxis(None, len(chosen), dropped=isinstance(indexer, int), offsets=chosen)
    return tuple(made)


def check_isel_is_of_an_array(isel: Indexers, items: Sequence[Items]) -> None:
    """Raise ConfigError for a dimension that no array has."""
    for dim, _ in isel:
        if all(one.axis_of(dim) is None for one in items):
            known = sorted({name for one in items for name in one.dimensions or () if name is not None})
            suggestion = did_you_mean(dim, known) if isinstance(dim, str) else ""
            raise ConfigError(f"isel of {dim!r}: no array has this dimension; there are {known}{suggestion}")
