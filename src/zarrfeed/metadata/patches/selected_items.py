"""`Data.patch(isel=)`: which items of axes that patches are not cut along, such as channels, samples have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.spec.freeze import FrozenSlice
from zarrfeed.spec.patch import PatchAxis

#: An integer, without the axis in samples; a slice; or a list of integers or of a mask.
Indexer: TypeAlias = int | FrozenSlice | tuple[int, ...]
#: Indexers by the name of a dimension, or the number of an axis.
Indexers: TypeAlias = tuple[tuple[str | int, Indexer], ...]


def parse_isel(isel: Any, size: Mapping[str | int, int]) -> Indexers:
    """Return what `isel` says, given what `size` names.

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
            raise ConfigError(f"isel of {dim!r}, must be of the name of a dimension, or the number of an axis")
        if dim in size:
            raise ConfigError(f"isel of {dim!r}, which patches are cut along, must be of another dimension")
        made.append((dim, _parse_indexer(dim, value)))
    return tuple(made)


def _parse_indexer(dim: str | int, value: Any) -> Indexer:
    if isinstance(value, slice):
        return FrozenSlice(value.start, value.stop, value.step)
    try:
        listed = np.asarray(value)
    except ValueError:  # lists of different lengths
        listed = np.asarray(None)
    if listed.ndim > 1 or listed.dtype.kind not in "iub" or listed.size == 0 or (listed.ndim == 0 and value is True):
        raise ConfigError(f"isel of {dim!r} = {value!r}, must be an integer, a slice, or a list of integers")
    if listed.ndim == 0:
        return int(listed)
    return tuple(listed.tolist())


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
            raise ConfigError(f"isel of {dim!r}: patches of {items.name} are cut along it, must be of another axis")
        chosen = _chosen_indices(dim, indexer, items, items.shape[axis])
        made[axis] = PatchAxis(None, len(chosen), dropped=isinstance(indexer, int), offsets=chosen)
    return tuple(made)


def check_isel_is_of_an_array(isel: Indexers, items: Sequence[Items]) -> None:
    """Raise ConfigError for a dimension that no array has."""
    for dim, _ in isel:
        if all(one.axis_of(dim) is None for one in items):
            known = sorted({name for one in items for name in one.dimensions or () if name is not None})
            suggestion = did_you_mean(dim, known) if isinstance(dim, str) else ""
            raise ConfigError(f"isel of {dim!r}: no array has this dimension; there are {known}{suggestion}")


def _chosen_indices(dim: str | int, indexer: Indexer, items: Items, length: int) -> tuple[int, ...]:
    """Return what an indexer chooses of an axis, as NumPy does."""
    if isinstance(indexer, FrozenSlice):
        index: Any = slice(indexer.start, indexer.stop, indexer.step)
    else:
        index = np.asarray(indexer)
    try:
        chosen = np.arange(length)[index]
    except (IndexError, TypeError, ValueError) as error:
        raise ConfigError(
            f"isel of {dim!r} = {indexer!r}: {items.name} has {length} items along it: {error}"
        ) from error
    if chosen.size == 0:
        raise ConfigError(f"isel of {dim!r} = {indexer!r}: chooses none of the {length} items of {items.name}")
    return tuple(np.atleast_1d(chosen).tolist())
