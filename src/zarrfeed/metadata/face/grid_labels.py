"""`Data.sel` and `Data.isel` with several sample dimensions: they drop samples, and keep the order of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.coordinates import Coordinates
from zarrfeed.metadata.group.grid_coordinates import GridCoordinate
from zarrfeed.plan.samples.labels import LabelIndex, Method
from zarrfeed.plan.samples.selection import Int64, as_range, select_samples

#: Returns the indices that are named along some of the dimensions, and which of the dimensions these are.
Find = Callable[[str], tuple[Any, tuple[str, ...]]]


def grid_of(resolved: ResolvedData) -> Mapping[str, int]:
    """Return the sample dimensions and their lengths, where there are several; else nothing."""
    known = resolved.origin.coordinates
    return {} if known is None else known.grid


def samples_at(method: str, resolved: ResolvedData, positions: Mapping[str, Any]) -> slice | Int64:
    """Return which of the chosen samples lie at some positions along sample dimensions, as indices among those.

    Raises
    ------
    ConfigError
        If a position is out of range, or no chosen sample has all of them.
    """
    grid = grid_of(resolved)

    def find(name: str) -> tuple[Any, tuple[str, ...]]:
        said = positions[name]
        if not isinstance(said, slice):
            said = np.asarray([said] if np.ndim(said) == 0 else said)
        return np.asarray(select_samples(said, grid[name])), (name,)

    return _filtered(method, resolved, list(positions), find)


def samples_with(
    resolved: ResolvedData, labels: Mapping[str, Any], method: Method | None, coords: Any
) -> slice | Int64:
    """Return the chosen samples that have some labels, by their positions among the chosen.

    Raises
    ------
    ConfigError
        As `Data.sel` does.
    """
    known = resolved.origin.coordinates
    assert known is not None

    def find(name: str) -> tuple[Any, tuple[str, ...]]:
        given = coords.get(name) if isinstance(coords, Mapping) else coords
        along = known.along_dimension(name) if given is None else _given(known, name, given)
        return LabelIndex(along.coordinate).find(labels[name], method), along.dims

    return _filtered("sel", resolved, list(labels), find)


def _given(known: Coordinates, name: str, values: Any) -> GridCoordinate:
    """Return a coordinate whose values a user gives: one for each index of its dimension, or for each sample."""
    values = np.asarray(values)
    if name in known.grid and values.shape == (known.grid[name],):
        return GridCoordinate.of(name, values, (name,), f"coords of {name!r}", known.grid)
    return GridCoordinate(known.given(name, values), tuple(known.grid))


def _filtered(method: str, resolved: ResolvedData, names: list[str], find: Find) -> slice | Int64:
    resolved.choice.check_rows_are_open(method)
    grid = grid_of(resolved)
    samples = np.asarray(resolved.choice.listed())
    index = dict(zip(grid, np.unravel_index(samples, tuple(grid.values())), strict=True))
    chosen: npt.NDArray[np.bool_] = np.ones(len(samples), dtype=np.bool_)
    for name in names:
        found, dims = find(name)
        has_label = np.zeros([grid[dim] for dim in dims], dtype=np.bool_)
        has_label.reshape(-1)[found] = True
        chosen &= has_label[tuple(index[dim] for dim in dims)]
    positions = np.flatnonzero(chosen)
    if not len(positions):
        raise ConfigError(f"{method}: no chosen sample has the labels that {', '.join(map(repr, names))} name")
    evenly = as_range(positions)
    return slice(evenly.start, evenly.stop, evenly.step) if isinstance(evenly, range) else positions
