"""`Data.sel` and `Data.isel`: they turn labels into positions, along the sample dimension and along any other one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice
from zarrfeed.metadata.description.chosen_items import choose_labels, choose_positions, item_dims, known_dims
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.sample_calls import IselCall, SelCall
from zarrfeed.metadata.face.grid_labels import grids_of, samples_at, samples_with
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.metadata.stores.labels_by_store import split_by_labels
from zarrfeed.plan.choice.labels import METHODS, LabelIndex, Method
from zarrfeed.plan.samples.sample_set import as_index
from zarrfeed.plan.samples.selection import Int64


def select_labels(
    resolved: ResolvedData,
    indexers: Mapping[str, Any] | None,
    named: Mapping[str, Any],
    *,
    method: Method | None,
    coords: Any,
    growth: Growth | None,
) -> tuple[SelCall, ResolvedData]:
    """Return the call, with the samples and items that have some labels, and the description after it.

    Parameters
    ----------
    resolved
        The samples.
    indexers, named
        Name of the coordinate -> labels, given as a mapping or by keyword.
    method, coords
        The arguments of `Data.sel`.
    growth
        The growth of a store that grows; None for others.

    Raises
    ------
    ConfigError
        As `Data.sel` does.
    """
    if method is not None:
        check_choice("method", method, METHODS)
    both = _indexers("sel", indexers, named)
    dims = item_dims(resolved)
    given = dict(coords) if isinstance(coords, Mapping) else None
    if given is None and coords is not None and len(both) > 1:
        raise ConfigError(f"sel: coords = {coords!r}: several coordinates are named; give a mapping of names to values")
    of_samples = [name for name in both if name not in dims]
    samples = None
    if of_samples and grids_of(resolved):
        _check_of_samples("sel", of_samples, resolved, dims, any_coordinate=True)
        samples = samples_with(resolved, {str(name): both[name] for name in of_samples}, method, coords)
    elif of_samples:
        (name,) = _one_of_samples("sel", of_samples, resolved, dims, any_coordinate=True)
        of_name = coords if given is None else given.get(name)
        samples = _samples_with(resolved, str(name), both[name], method, of_name, growth)
    of_items = {str(name): label for name, label in both.items() if name in dims}
    if coords is None:
        resolved = split_by_labels(resolved, of_items, method)
    items = tuple(
        choose_labels(resolved, name, label, method, coords if given is None else given.get(name))
        for name, label in of_items.items()
    )
    call = SelCall(both, method, coords, samples=samples, items=items)
    return call, call.apply(resolved)


def _samples_with(
    resolved: ResolvedData, name: str, label: Any, method: Method | None, coords: Any, growth: Growth | None
) -> slice | Int64:
    """Return the positions of the samples that have some labels, among those that are chosen."""
    resolved.choice.check_rows_are_open("sel")
    if growth is not None:
        _check_stays(name, label, growth)
    coordinate = resolved.coordinate(name, coords)
    samples = resolved.choice.listed()
    if len(samples) == len(coordinate.values):
        index = LabelIndex(coordinate)
    else:
        index = LabelIndex(replace(coordinate, values=coordinate.values[as_index(samples)]), samples)
    found: slice | Int64 = index.find(label, method)
    if growth is None:
        return found
    if not isinstance(found, slice):
        raise ConfigError(
            f"sel: {name} = {label!r}: {coordinate.where} lacks the values of some samples behind that label, "
            "which a store that is opened with refresh='epoch' cannot leave out; select() takes positions"
        )
    return slice(found.start, None)


def select_positions(
    resolved: ResolvedData, indexers: Mapping[str | int, Any] | None, named: Mapping[str, Any]
) -> IselCall:
    """Return the call, with the samples and items at some positions; arguments are those of `Data.isel`.

    Raises
    ------
    ConfigError
        As `Data.isel` does.
    """
    both = _by_axis(resolved, _indexers("isel", indexers, named))
    dims = item_dims(resolved)
    of_items = [
        name for name in both if name in dims or (isinstance(name, int) and not _is_sample_axis(resolved, name))
    ]
    of_samples = [name for name in both if name not in of_items]
    samples: Any = None
    if of_samples and grids_of(resolved):
        _check_of_samples("isel", of_samples, resolved, dims, any_coordinate=False)
        samples = samples_at("isel", resolved, {str(name): both[name] for name in of_samples})
    elif of_samples:
        (name,) = _one_of_samples("isel", of_samples, resolved, dims, any_coordinate=False)
        resolved.choice.check_rows_are_open("isel")
        said = both[name]
        samples = said if isinstance(said, slice) else np.asarray([said] if np.ndim(said) == 0 else said)
    items = tuple(choose_positions(resolved, name, both[name]) for name in of_items)
    return IselCall(both, samples=samples, items=items)


def _indexers(method: str, indexers: Mapping[Any, Any] | None, named: Mapping[str, Any]) -> dict[str | int, Any]:
    """Merge the names that a mapping gives with those of keywords."""
    if indexers is not None and not isinstance(indexers, Mapping):
        raise ConfigError(
            f"{method}: got {indexers!r}, must be keywords such as {method}(time=...), or a mapping of names"
        )
    twice = [name for name in indexers or {} if name in named]
    if twice:
        raise ConfigError(f"{method}: {twice[0]!r} is named twice")
    given: dict[Any, Any] = dict(indexers or {})
    both: dict[str | int, Any] = given | dict(named)
    if not both:
        raise ConfigError(f"{method}: names nothing, must name a dimension, such as {method}(time=...)")
    for name in both:
        is_axis = method == "isel" and isinstance(name, int) and not isinstance(name, bool)
        if not isinstance(name, str) and not is_axis:
            raise ConfigError(f"{method}: got the name {name!r}, must be text")
    return both


def _by_axis(resolved: ResolvedData, indexers: dict[str | int, Any]) -> dict[str | int, Any]:
    """Return indexers with axes by number first, the last one first, so that a dropped axis moves no other."""
    numbered = {name: one for name, one in indexers.items() if isinstance(name, int)}
    if not numbered or len(indexers) == 1:
        return indexers
    counts = {len(one.shape) for one in resolved.items}
    if len(counts) > 1 and min(numbered) < 0:
        raise ConfigError(
            f"isel: axis {min(numbered)} counts from the end, and arrays have {min(counts)} to {max(counts)} axes; "
            "name it in a call of its own"
        )
    axes = [(axis % max(counts) if axis < 0 else axis, axis) for axis in numbered]
    if len({axis for axis, _ in axes}) < len(axes):
        raise ConfigError(f"isel: names an axis twice: {', '.join(map(str, numbered))}")
    ordered: dict[str | int, Any] = {axis: numbered[given] for axis, given in sorted(axes, reverse=True)}
    return ordered | {name: one for name, one in indexers.items() if name not in numbered}


def _is_sample_axis(resolved: ResolvedData, axis: int) -> bool:
    """Return whether an axis is that of samples in every array that has it."""
    axes = [(one.axis_of(axis), one.sample_axis) for one in resolved.items]
    if all(found is None for found, _ in axes):
        counts = sorted({len(one.shape) for one in resolved.items})
        raise ConfigError(f"isel: no array has the axis {axis}; they have {' or '.join(map(str, counts))} axes")
    return all(found in (None, of_samples) for found, of_samples in axes)


def _one_of_samples(
    method: str, names: Sequence[str | int], resolved: ResolvedData, others: Sequence[str], *, any_coordinate: bool
) -> Sequence[str | int]:
    """Return names that are no dimension of a sample, if that is one name, and of a coordinate of the samples."""
    _check_of_samples(method, names, resolved, others, any_coordinate=any_coordinate)
    if len(names) > 1:
        named = ", ".join(map(repr, names))
        raise ConfigError(
            f"{method}: {named} are all coordinates of the samples; name one of them a call, and call {method} again"
        )
    return names


def _check_of_samples(
    method: str, names: Sequence[str | int], resolved: ResolvedData, others: Sequence[str], *, any_coordinate: bool
) -> None:
    """Raise ConfigError for names that are neither dimensions of a sample nor coordinates of the samples."""
    known = resolved.origin.coordinates
    dims = () if known is None else known.dims
    for name in names:
        if isinstance(name, int) or name in dims:
            continue
        if known is not None and name in known.chosen:
            raise ConfigError(f"{method}: {name!r} was chosen to a single item before, so samples lack this dimension")
        if not any_coordinate or (others and not _is_coordinate(resolved, name)):
            if not dims and not others and not any_coordinate:
                raise ConfigError(f"{method}: {name!r}: the arrays have no names of dimensions; use select()")
            raise known_dims(method, name, others, dims)


def _is_coordinate(resolved: ResolvedData, name: str) -> bool:
    """Return whether a coordinate of this name may be stored with the samples, or is known otherwise."""
    known = resolved.origin.coordinates
    if known is not None and known.grids:
        return known.has_along(name)
    return known is not None and (name in known.dims or known.stored_labels(name) is not None)


def _check_stays(name: str, label: Any, growth: Growth) -> None:
    """Raise ConfigError for labels whose positions could differ in a later version of a store that grows."""
    is_open = isinstance(label, slice) and label.start is not None and label.stop is None and label.step is None
    if not is_open or growth.options.window is not None:
        raise ConfigError(
            f"sel: {name} = {label!r}: of a store that is opened with refresh='epoch', and without window=, samples "
            "are selected by slice(label, None): all from a label on"
        )
