"""`Data.sel` and `Data.isel` with several sample dimensions: they drop samples, and keep the order of the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.coordinate_values import concatenated
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.coordinates import Coordinates
from zarrfeed.metadata.group.grid_coordinates import GridCoordinate
from zarrfeed.plan.choice.labels import LabelIndex, Method
from zarrfeed.plan.samples.sample_set import as_index
from zarrfeed.plan.samples.selection import Int64, as_range, select_samples
from zarrfeed.spec.samples.coordinate import Coordinate

#: For each store, the indices that are named along some of the dimensions, and which of the dimensions these are.
Found = Sequence[tuple[Any, tuple[str, ...]]]


def grids_of(resolved: ResolvedData) -> Sequence[Mapping[str, int]]:
    """Return the sample dimensions of each store and their lengths, where there are several; else nothing."""
    known = resolved.origin.coordinates
    return () if known is None else known.grids


def samples_at(method: str, resolved: ResolvedData, positions: Mapping[str, Any]) -> slice | Int64:
    """Return which of the chosen samples lie at some positions along sample dimensions, as indices among those.

    Raises
    ------
    ConfigError
        If a position is out of range, or no chosen sample has all of them; or of several stores.
    """
    grids = grids_of(resolved)
    if len(grids) > 1:
        raise ConfigError(
            f"{method}: each of {len(grids)} stores has positions of its own along {', '.join(map(repr, positions))}; "
            f"sel() takes labels, select() takes samples, and {method}() of each comes before zarrfeed.concat"
        )

    def find(name: str) -> Found:
        said = positions[name]
        if not isinstance(said, slice):
            said = np.asarray([said] if np.ndim(said) == 0 else said)
        return [(np.asarray(select_samples(said, grids[0][name])), (name,))]

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

    def find(name: str) -> Found:
        given = coords.get(name) if isinstance(coords, Mapping) else coords
        along = _along(known, name, given)
        found = _found([one.coordinate for one in along], labels[name], method)
        return [(indices, one.dims) for indices, one in zip(found, along, strict=True)]

    return _filtered("sel", resolved, list(labels), find)


def _along(known: Coordinates, name: str, given: Any) -> list[GridCoordinate]:
    """Return a coordinate of each store, along the sample dimensions that it has there."""
    if given is None:
        return [one.along_dimension(name) for one in known.of_stores()]
    values = np.asarray(given)
    if len(known.grids) == 1 and name in known.grids[0] and values.shape == (known.grids[0][name],):
        return [GridCoordinate.of(name, values, (name,), f"coords of {name!r}", known.grids[0])]
    whole = known.given(name, values)
    ends = np.cumsum([store.num_samples for store in known.stores])[:-1]
    dims = known.sample_dims
    return [GridCoordinate(replace(whole, values=values), dims) for values in np.split(whole.values, ends)]


def _found(along: Sequence[Coordinate], label: Any, method: Method | None) -> list[Any]:
    """Return the indices that have a label among the values of each store.

    Several stores have some labels in common. So a label is looked up among the different values of all of them, and
    names all samples that have it.
    """
    if len(along) == 1:
        return [LabelIndex(along[0]).find(label, method)]
    whole = concatenated(along[0].name, along)
    if np.ndim(label) == 1 and np.asarray(label).dtype.kind == "b" and whole.values.dtype.kind != "b":
        raise ConfigError(
            f"sel: {whole.name} is a mask, and {len(along)} stores have coordinates of their own; select() takes a "
            "mask of all samples"
        )
    distinct, number = np.unique(whole.values, return_inverse=True)
    first = along[0].values
    if len(first) > 1 and first[-1] < first[0]:  # a slice goes the way that the coordinate goes
        distinct, number = distinct[::-1], len(distinct) - 1 - number
    has_label = np.zeros(len(distinct), dtype=np.bool_)
    has_label[LabelIndex(replace(whole, values=distinct)).find(label, method)] = True
    ends = np.cumsum([len(one.values) for one in along])[:-1]
    return [np.flatnonzero(flags) for flags in np.split(has_label[number], ends)]


def _filtered(method: str, resolved: ResolvedData, names: list[str], find: Callable[[str], Found]) -> slice | Int64:
    resolved.choice.check_rows_are_open(method)
    chosen: npt.NDArray[np.bool_] = np.ones(resolved.choice.num_samples, dtype=np.bool_)
    for name in names:
        of_stores = zip(find(name), grids_of(resolved), strict=True)
        chosen &= np.concatenate([_with_label(*found, grid) for found, grid in of_stores])
    positions = np.flatnonzero(chosen[as_index(resolved.choice.listed())])
    if not len(positions):
        raise ConfigError(f"{method}: no chosen sample has the labels that {', '.join(map(repr, names))} name")
    evenly = as_range(positions)
    return slice(evenly.start, evenly.stop, evenly.step) if isinstance(evenly, range) else positions


def _with_label(found: Any, dims: tuple[str, ...], grid: Mapping[str, int]) -> npt.NDArray[np.bool_]:
    """Return a flag for each sample of a store: whether its indices along some dimensions were found."""
    flags = np.zeros([length if dim in dims else 1 for dim, length in grid.items()], dtype=np.bool_)
    flags.reshape(-1)[found] = True
    return np.broadcast_to(flags, tuple(grid.values())).reshape(-1)
