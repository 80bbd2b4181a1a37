"""Statistics that were measured before -> the mean and the standard deviation of each array of a `Data`.

Invariant: an array is normalised by figures of its own name and side, along axes of the same names and lengths, with
the same labels; anything else is refused, and the message names the array and what differs. `Statistics.mean_std()` is
a mapping without these checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.patches.patching import Patching
from zarrfeed.spec.values.statistics import FieldStatistics, Labels, Statistics

#: Sides of a batch: "samples", "targets", or both in a list.
Sides: TypeAlias = "str | Sequence[str]"

SIDES = ("samples", "targets")
#: Longer dimensions have no labels in statistics.
_MOST_LABELS = 1 << 16
#: Labels are the same if they differ by this part of the largest one: float32 holds them less exactly than float64.
_TOLERANCE = 1e-6
#: The arrays of `FieldStatistics`.
_ARRAYS = ("mean", "std", "min", "max", "missing")
_FORCED = "normalize(statistics.mean_std()) normalises by them all the same"


def parse_sides(sides: Sides) -> tuple[str, ...]:
    """Return the sides that an argument names.

    Raises
    ------
    ConfigError
        If it names another one, or none.
    """
    named = (sides,) if isinstance(sides, str) else tuple(sides) if isinstance(sides, Sequence) else ()
    if not named or any(side not in SIDES for side in named) or len(set(named)) < len(named):
        raise ConfigError(f"sides = {sides!r}, must be 'samples', 'targets', or both in a list")
    return named


def labels_of(resolved: ResolvedData, items: Sequence[Items]) -> dict[str, Labels]:
    """Return the labels of the dimensions that samples have, such as the pressures of "level", where they are stored.

    Raises
    ------
    StoreReadError, CorruptChunkError
        If they cannot be read.
    """
    known = resolved.origin.coordinates
    found: dict[str, Labels] = {}
    for dim in dict.fromkeys(dim for one in items for dim in _dimensions(one)):
        values = None if known is None else known.labels(dim)
        if values is not None and len(values) <= _MOST_LABELS:
            found[dim] = tuple((values.astype(str) if values.dtype.kind in "mM" else values).tolist())
    return found


def units_of(items: Sequence[Items], dims: Iterable[str]) -> dict[str, str]:
    """Return the units of the labels of some dimensions, such as "hPa" of "level", where the first store has them."""
    described = [one.described for one in items if one.described is not None]
    found = {dim: next(filter(None, (one.unit_along(dim) for one in described)), "") for dim in dims}
    return {dim: unit for dim, unit in found.items() if unit}


def pairs_of(
    resolved: ResolvedData, statistics: Statistics, numbers: Sequence[int], names: Sequence[str]
) -> dict[str, tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
    """Return (mean, std) of some fields, by their names in messages and calls.

    Parameters
    ----------
    resolved
        The samples.
    statistics
        Figures of these samples, or of others.
    numbers, names
        The fields that are normalised, and their names.

    Raises
    ------
    ConfigError
        If the statistics lack one of the fields, or are of other axes, lengths or labels.
    """
    items = [resolved.items[n] for n in numbers]
    ours = labels_of(resolved, [one for one in items if set(_dimensions(one)) & set(statistics.labels)])
    pairs = {}
    for n, one, name in zip(numbers, items, names, strict=True):
        chosen = _chosen_labels(resolved, one, statistics.labels)
        _check_steps(_entry_of(statistics, one, name), resolved.columns[n])
        found, theirs = _of_chosen(_entry_of(statistics, one, name), statistics.labels, one, chosen)
        _check_axes(found, one)
        _check_labels(theirs, ours, one)
        pairs[name] = _selected(found, resolved.columns[n], resolved.patching).mean_std()
        if not all(np.isfinite(array).all() for array in pairs[name]):
            raise ConfigError(f"normalize of {name}: it has infinite values, so mean and std are not finite")
    return pairs


def _chosen_labels(
    resolved: ResolvedData, item: Items, labels: Mapping[str, Labels]
) -> dict[str, npt.NDArray[Any] | None]:
    """Return the labels of the items that were chosen of an array, by the dimensions that statistics have labels of."""
    known, described = resolved.origin.coordinates, item.described
    of_array = (
        {}
        if described is None
        else {
            dim: described.values_along(dim)
            for dim in described.chosen
            if dim in labels and dim in described.coordinates
        }
    )
    of_samples = (
        {}
        if known is None
        else {dim: known.labels(dim) for dim in known.chosen if dim in labels and dim not in of_array}
    )
    return {**of_samples, **of_array}


def _of_chosen(
    found: FieldStatistics, labels: Mapping[str, Labels], item: Items, chosen: Mapping[str, npt.NDArray[Any] | None]
) -> tuple[FieldStatistics, Mapping[str, Labels]]:
    """Return the figures of the items that were chosen by `sel` or `isel`, and their labels, found by label.

    Parameters
    ----------
    found, labels
        Figures of an array, and the labels along dimensions that they were measured with.
    item
        The array that is normalised.
    chosen
        The labels of the chosen items, by dimension; None where there are none.

    Raises
    ------
    ConfigError
        If the figures lack a label.
    """
    of_chosen = dict(labels)
    for dim, ours in chosen.items():
        theirs = labels[dim]
        if ours is None:
            continue
        ours = ours.astype(str) if ours.dtype.kind in "mM" else ours
        if dim in (item.dimensions or ()) and _are_same(tuple(ours.tolist()), theirs):
            continue
        positions = _positions_of(tuple(ours.tolist()), theirs)
        if dim not in found.axes:  # they are over all of it, of which this is a part
            of_chosen[dim] = theirs if positions is None else tuple(theirs[i] for i in positions)
            continue
        if positions is None:
            raise ConfigError(
                f"normalize of {item.name}: the statistics lack some of {dim!r} = {ours.tolist()}, they have "
                f"{list(theirs)}; measure these samples (zarrfeed.stats)"
            )
        spread = [axis for axis, n in enumerate(found.mean.shape) if n == len(theirs)]
        named = [axis for axis, n in enumerate(found.mean.shape) if n > 1]
        if len(named) == len(found.axes):
            spread = [named[found.axes.index(dim)]]
        if not spread:
            continue
        arrays: dict[str, Any] = {one: np.take(getattr(found, one), positions, spread[0]) for one in _ARRAYS}
        axes = found.axes
        if dim not in (item.dimensions or ()):
            arrays = {one: np.squeeze(array, spread[0]) for one, array in arrays.items()}
            axes = tuple(one for one in axes if one != dim)
        found = replace(found, axes=axes, **arrays)
        of_chosen[dim] = tuple(theirs[i] for i in positions)
    return found, of_chosen


def _positions_of(ours: Labels, theirs: Labels) -> list[int] | None:
    """Return the position of each of some labels among others; None if the others lack one of them."""
    positions = []
    for label in ours:
        at = next((i for i, one in enumerate(theirs) if _are_same((label,), (one,), scale=theirs)), None)
        if at is None:
            return None
        positions.append(at)
    return positions


def _entry_of(statistics: Statistics, item: Items, name: str) -> FieldStatistics:
    """Return the figures of an array; `name` is its key, or its full name where both sides have that key."""
    key = item.key or item.side
    by_key = statistics.fields.get(key)
    if by_key is not None and by_key.side != item.side and (by_key.side or name != key):
        by_key = None  # of the array with this key on the other side
    found = statistics.fields.get(item.name, by_key)
    if found is None:
        others = [
            one if field.side in ("", item.side) or "[" in one else f"{one} in {field.side}"
            for one, field in statistics.fields.items()
        ]
        raise ConfigError(
            f"normalize of {item.name}: the statistics have no figures of it, only of {', '.join(others)}; "
            "measure samples that have it (zarrfeed.stats), or give pairs by name: normalize({name: (mean, std)})"
        )
    return found


def _check_steps(found: FieldStatistics, column: Column) -> None:
    """Raise ConfigError if statistics are of other values than `normalize` gets."""
    conversion = column.made_conversions()[0]
    ours = "" if conversion is None else conversion.describe_steps()
    if ours != found.steps:
        wanted, measured = ours or "values as they are decoded", found.steps or "values as they are decoded"
        raise ConfigError(
            f"normalize of {column.items.name}: normalises values after {wanted}, the statistics are of those after "
            f"{measured}: measure what normalize gets, zarrfeed.stats(data) before this call; {_FORCED}"
        )


def _check_axes(found: FieldStatistics, item: Items) -> None:
    if found.mean.size == 1:
        return
    rows = [a for a in range(len(item.shape)) if a != item.sample_axis]
    axes = {one: item.axis_of(one) for one in found.axes}
    lacking = [one for one, axis in axes.items() if axis is None or axis == item.sample_axis]
    if lacking or found.mean.ndim != len(rows):
        what = f"along {lacking[0]!r}, which it lacks" if lacking else f"of samples with {found.mean.ndim} axes"
        raise ConfigError(f"normalize of {item.name}: the statistics are {what}; its shape is {item.shape}; {_FORCED}")
    for axis, count in zip(rows, found.mean.shape, strict=True):
        wanted = item.shape[axis] if axis in axes.values() else 1
        if count != wanted:
            name = _name(item, axis)
            raise ConfigError(
                f"normalize of {item.name}: the statistics have {count} along {name!r}, it has {item.shape[axis]}, and "
                f"they are along {found.axes}; measure these samples (zarrfeed.stats)"
            )


def _check_labels(theirs: Mapping[str, Labels], ours: Mapping[str, Labels], item: Items) -> None:
    for dim in _dimensions(item):
        a, b = ours.get(dim), theirs.get(dim)
        if a is None or b is None or _are_same(a, b):
            continue
        if len(a) != len(b):
            what = f"it has {len(a)} of {dim!r}, the statistics are of {len(b)}"
        else:
            at = next(i for i in range(len(a)) if not _are_same(a[i : i + 1], b[i : i + 1], scale=a))
            what = f"{dim!r} {at} is {a[at]!r}, in the statistics {b[at]!r}"
        raise ConfigError(f"normalize of {item.name}: the statistics are of other labels: {what}; {_FORCED}")


def _are_same(a: Labels, b: Labels, scale: Labels | None = None) -> bool:
    if len(a) != len(b):
        return False
    try:
        ours, theirs = (np.array(one, np.float64) for one in (a, b))
    except ValueError:
        return a == b
    largest = np.nanmax(np.abs(np.array(scale, np.float64) if scale else ours), initial=0.0)
    return bool(np.allclose(ours, theirs, rtol=0, atol=_TOLERANCE * largest, equal_nan=True))


def _selected(found: FieldStatistics, column: Column, patching: Patching | None) -> FieldStatistics:
    """Return the figures of what patches have of an array: those of the items that `patch(isel=)` chooses."""
    item = column.items
    if patching is None or column.patch_axes is None:
        return found
    for dim, _ in patching.request.isel:
        axis = item.axis_of(dim)
        if axis is None:
            continue
        chosen = list(column.patch_axes.axes[axis].offsets)
        if chosen == list(range(item.shape[axis])):
            continue
        axis_in_sample = axis if axis < item.sample_axis else axis - 1
        if found.mean.ndim <= axis_in_sample or found.mean.shape[axis_in_sample] != item.shape[axis]:
            raise ConfigError(
                f"normalize of {item.name}: the statistics are of all {item.shape[axis]} of {dim!r}, patch(isel=) "
                f"chooses {len(chosen)}; give each figures of its own (axis={dim!r}), or pairs by name"
            )
        arrays: dict[str, Any] = {one: np.take(getattr(found, one), chosen, axis_in_sample) for one in _ARRAYS}
        found = replace(found, **arrays)
    return found


def _dimensions(item: Items) -> list[str]:
    """Return the names of the dimensions of a sample."""
    return [dim for a, dim in enumerate(item.dimensions or ()) if dim is not None and a != item.sample_axis]


def of_sides(mean_std: Any, sides: tuple[str, ...]) -> Any:
    """Give a pair of `Data.normalize` without names to each of the sides.

    Raises
    ------
    ConfigError
        If sides are named beside a mapping, which has names itself.
    """
    if sides == ("samples",):
        return mean_std
    if isinstance(mean_std, Mapping):
        raise ConfigError(
            f"sides = {list(sides)!r} is for pairs without names; name the arrays of both sides in mean_std"
        )
    return dict.fromkeys(sides, mean_std)


def _name(item: Items, axis: int) -> Any:
    name = None if item.dimensions is None else item.dimensions[axis]
    return axis if name is None else name
