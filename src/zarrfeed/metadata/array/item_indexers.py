"""Indexers of the items along an axis, as NumPy and xarray have them: an integer, a slice, a list, a mask."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.spec.arrays.item_choice import Positions, positions_of
from zarrfeed.spec.description.freeze import FrozenSlice

#: An integer, without the axis in samples; a slice; or a list of integers or of flags.
Indexer: TypeAlias = int | FrozenSlice | tuple[int, ...]


def parse_indexer(method: str, dim: str | int, value: Any) -> Indexer:
    """Return an indexer that a user gives.

    Parameters
    ----------
    method
        The method of `Data` that it is for, for messages.
    dim
        The name of a dimension, or the number of an axis.
    value
        The indexer.

    Raises
    ------
    ConfigError
        If it is none.
    """
    if isinstance(value, slice):
        return FrozenSlice(value.start, value.stop, value.step)
    try:
        listed = np.asarray(value)
    except ValueError:  # lists of different lengths
        listed = np.asarray(None)
    if listed.ndim > 1 or listed.dtype.kind not in "iub" or listed.size == 0 or (listed.ndim == 0 and value is True):
        raise ConfigError(f"{method} of {dim!r} = {value!r}, must be an integer, a slice, or a list of integers")
    if listed.ndim == 0:
        return int(listed)
    return tuple(listed.tolist())


def find_positions(method: str, dim: str | int, indexer: Indexer, length: int, name: str) -> Positions:
    """Return the items of an axis that an indexer chooses, as NumPy does.

    Parameters
    ----------
    method, dim
        The arguments of `parse_indexer`.
    indexer
        The result of `parse_indexer`.
    length
        Items along the axis.
    name
        The array, for messages.

    Raises
    ------
    ConfigError
        If an integer is out of range, a mask has another length, or nothing is chosen.
    """
    if isinstance(indexer, FrozenSlice):
        index: Any = slice(indexer.start, indexer.stop, indexer.step)
    else:
        index = np.asarray(indexer)
    try:
        chosen = np.arange(length)[index]
    except (IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"{method} of {dim!r} = {indexer!r}: {name} has {length} items along it: {error}") from error
    if chosen.size == 0:
        raise ConfigError(f"{method} of {dim!r} = {indexer!r}: chooses none of the {length} items of {name}")
    return positions_of(np.atleast_1d(chosen))
