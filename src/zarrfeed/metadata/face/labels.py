"""`Data.sel` and `Data.isel`: what is said of the sample dimension by its name, as positions for `Data.select`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_choice
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.source_names import name_source
from zarrfeed.metadata.stores.growth import Growth
from zarrfeed.plan.samples.labels import METHODS, LabelIndex, Method
from zarrfeed.plan.samples.selection import Int64, Select
from zarrfeed.spec.coordinate import Coordinate
from zarrfeed.spec.expression import SelCall
from zarrfeed.spec.freeze import freeze_labels, freeze_rows


def select_labels(
    resolved: ResolvedData,
    indexers: Mapping[str, Any] | None,
    named: Mapping[str, Any],
    *,
    method: Method | None,
    coords: Any,
    growth: Growth | None,
) -> tuple[SelCall, Select]:
    """Return what was called, and the samples that have some labels, by their positions among those that are chosen.

    Parameters
    ----------
    resolved
        The samples.
    indexers, named
        Name of the coordinate -> labels, given as a mapping or by keyword.
    method, coords
        As of `Data.sel`.
    growth
        Of a store that grows.

    Raises
    ------
    ConfigError
        As `Data.sel` does.
    """
    resolved.choice.check_rows_are_open("sel")
    name, label = _one_indexer("sel", indexers, named)
    if method is not None:
        check_choice("method", method, METHODS)
    _check_is_of_samples("sel", name, resolved, any_coordinate=True)
    if growth is not None:
        _check_stays(name, label, growth)
    coordinate = resolved.coordinate(name, coords)
    samples = resolved.choice.listed()
    if len(samples) == len(coordinate.values):
        index = LabelIndex(coordinate)
    else:
        chosen = slice(samples.start, samples.stop, samples.step) if isinstance(samples, range) else samples
        index = LabelIndex(Coordinate(name, coordinate.values[chosen], coordinate.where), samples)
    found: slice | Int64 = index.find(label, method)
    if growth is not None:
        if not isinstance(found, slice):
            raise ConfigError(
                f"sel: {name} = {label!r}: {coordinate.where} lacks the values of some samples behind that label, "
                "which a store that is opened with refresh='epoch' cannot leave out; select() takes positions"
            )
        found = slice(found.start, None)
    is_stored = coords is None or isinstance(coords, str | Path | zarr.Array)
    frozen = name_source(coords) if is_stored else freeze_labels(coords)
    return SelCall(name, freeze_labels(label), method, frozen), found


def select_positions(
    resolved: ResolvedData, indexers: Mapping[str, Any] | None, named: Mapping[str, Any]
) -> tuple[SelCall, Select]:
    """Return what was called, and the samples at some positions; arguments are those of `Data.isel`.

    Raises
    ------
    ConfigError
        As `Data.isel` does.
    """
    resolved.choice.check_rows_are_open("isel")
    name, said = _one_indexer("isel", indexers, named)
    _check_is_of_samples("isel", name, resolved, any_coordinate=False)
    call = SelCall(name, freeze_rows(said), by_position=True)
    if isinstance(said, slice):
        return call, said
    return call, np.asarray([said] if np.ndim(said) == 0 else said)


def _one_indexer(method: str, indexers: Mapping[str, Any] | None, named: Mapping[str, Any]) -> tuple[str, Any]:
    if indexers is not None and not isinstance(indexers, Mapping):
        raise ConfigError(f"{method}: got {indexers!r}, must be such as {method}(time=...), or a mapping of names")
    both = {**(indexers or {}), **named}
    if len(both) != 1 or (indexers and named):
        given = ", ".join(map(repr, both)) or "nothing"
        raise ConfigError(f"{method}: names {given}, must name one coordinate of the samples, such as time")
    ((name, value),) = both.items()
    if not isinstance(name, str):
        raise ConfigError(f"{method}: has the name {name!r}, must be text")
    return name, value


def _check_is_of_samples(method: str, name: str, resolved: ResolvedData, *, any_coordinate: bool) -> None:
    """Raise ConfigError for a name that is of no coordinate of the samples, or for `isel`, not their dimension."""
    known = resolved.opened.coordinates
    dims, others = ((), ()) if known is None else (known.dims, known.other_dims)
    if name in dims:
        return
    if name in others:
        raise ConfigError(
            f"{method}: {name!r} is a dimension of the samples themselves; {method} chooses samples, along "
            f"{', '.join(map(repr, dims)) or 'the sample axis'}. Data.patch cuts boxes out of samples, and its isel= "
            "selects channels"
        )
    if any_coordinate:
        return
    if not dims:
        raise ConfigError(f"{method}: {name!r}: the arrays have no names of dimensions; use select()")
    known_dims = ", ".join(map(repr, dims))
    raise ConfigError(
        f"{method}: {name!r} is not the sample dimension, which is {known_dims}{did_you_mean(name, dims)}"
    )


def _check_stays(name: str, label: Any, growth: Growth) -> None:
    """Raise ConfigError for labels whose positions could differ in a later version of a store that grows."""
    is_open = isinstance(label, slice) and label.start is not None and label.stop is None and label.step is None
    if not is_open or growth.options.window is not None:
        raise ConfigError(
            f"sel: {name} = {label!r}: of a store that is opened with refresh='epoch', and without window=, samples "
            "are selected by slice(label, None): all from a label on"
        )
