"""The arrays of a `Data` that have statistics, the axes along which they have them, and a test that statistics fit.

Statistics are of values as they are decoded, before `cast` and `normalize`, and of each sample's own row: a window adds
no rows, or those that several windows share would count several times.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.conversion import Items, by_field, is_number
from zarrfeed.metadata.array.meaning import has_nat
from zarrfeed.metadata.description.normalize_by import SIDES, pairs_of
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.values.missing import NO_CATEGORY, is_missing_number
from zarrfeed.spec.values.statistics import FieldStatistics, Statistics

#: The axes along which each index has statistics of its own: an axis of the array, a dimension, or several of these.
Axis: TypeAlias = "int | str | Sequence[int | str] | None"


_log = logging.getLogger("zarrfeed")


@dataclass(frozen=True)
class MeasuredField:
    """An array that statistics are taken of.

    Attributes
    ----------
    name
        Its key; `samples['t2m']` where samples and targets have the same one.
    axes
        The axes along which each index has statistics of its own, as people call them.
    batch_axes
        The numbers of these axes in a batch, ascending: 0 is the sample axis.
    shape
        Shape of the statistics, which broadcast against a sample.
    fingerprint, side, steps
        The attributes of `FieldStatistics`.
    is_codes
        True if items are codes of categories, of which `NO_CATEGORY` is missing.
    mask
        The number of the measured array that is true where an item is missing. None: there is none.
    is_time
        True if items are integers that stand for times or time differences, of which the least int64 is missing.
    """

    name: str
    axes: tuple[str | int, ...]
    batch_axes: tuple[int, ...]
    shape: tuple[int, ...]
    fingerprint: str
    side: str
    is_codes: bool = False
    mask: int | None = None
    is_time: bool = False
    steps: str = ""

    def without_missing(self, batch: Sequence[npt.NDArray[Any]], number: int) -> npt.NDArray[Any]:
        """Return the items of this array, the one of a number in a batch, with NaN where one is missing."""
        items = batch[number]
        if not self.is_codes and self.mask is None and not self.is_time:
            return items  # floats, whose missing items are NaN, or integers without any
        lacks = items == NO_CATEGORY if self.is_codes else is_missing_number(items, is_time=self.is_time)
        if self.mask is not None:
            lacks = lacks | batch[self.mask]
        return np.where(lacks, np.nan, items)


def measured(
    resolved: ResolvedData, axis: Axis, sides: tuple[str, ...] = SIDES
) -> tuple[ResolvedData, tuple[MeasuredField, ...]]:
    """Return the arrays that statistics are taken of, as they are decoded, and what is measured of each.

    Parameters
    ----------
    resolved
        The samples.
    axis
        The argument of `zarrfeed.stats`.
    sides
        Sides whose arrays count: "samples", "targets".

    Raises
    ------
    ConfigError
        If no array has numbers, or none has an axis.
    """
    resolved = resolved.without_patches()  # of all voxels, whichever patches they come in
    numbers = _measurable(resolved, sides)
    plain, items = resolved.plain(numbers), [resolved.items[n] for n in numbers]
    names = _names(items, resolved.items)
    axes = _axes(axis, items)
    selected = samples_digest(plain)
    made = []
    for name, field, one, named in zip(names, plain.fields, items, axes, strict=True):
        batch_axes = tuple(sorted({_row_axis(one, a) for a in named}))
        shape = tuple(n if a + 1 in batch_axes else 1 for a, n in enumerate(field.row_shape))
        called = tuple(_called(one, a) for a in batch_axes)
        is_codes, mask = one.key in resolved.origin.categories, _mask_of(one, items)
        is_time = one.dtype == "int64" and one.described is not None and has_nat(one.described.meaning)
        lacks = [is_codes, mask is not None, *([is_time] if is_time else ())]
        fingerprint = layout_fingerprint(field, one, batch_axes, selected, lacks=lacks)
        steps = "" if field.conversion is None else field.conversion.describe_steps()
        told = one.side, is_codes, mask, is_time, steps
        made.append(MeasuredField(name, called, batch_axes, shape, fingerprint, *told))
    return plain, tuple(made)


def sparse_names(resolved: ResolvedData) -> list[str]:
    """Return the names of the sparse matrices, of which no statistics are taken."""
    return [items.name for items, field in zip(resolved.items, resolved.fields, strict=True) if field.is_sparse]


def _mask_of(items: Items, others: Sequence[Items]) -> int | None:
    """Return the number of the array that is the mask of a nullable column of AnnData: its name ends in "/mask"."""
    named = (items.side, f"{items.key}/mask", "bool")
    return next((n for n, one in enumerate(others) if (one.side, one.key, one.dtype) == named), None)


def _measurable(resolved: ResolvedData, sides: tuple[str, ...]) -> list[int]:
    """Return the numbers of the fields of some sides that have means.

    Raises
    ------
    ConfigError
        If there is none.
    """
    items = resolved.items
    numbers = [n for n in _wanted(items, sides) if is_number(items[n]) and _has_axes(resolved.fields[n], items[n])]
    if not numbers:
        sparse = sparse_names(resolved)
        more = f" ({', '.join(sparse)}: a sparse matrix has none)" if sparse else ""
        raise ConfigError(f"there are no arrays of numbers in {' or '.join(sides)} to take statistics of{more}")
    return numbers


def by_statistics(resolved: ResolvedData, statistics: Statistics, sides: tuple[str, ...]) -> Mapping[str, Any]:
    """Return (mean, std) by the names of the arrays that `Data.normalize` is for, from statistics of any samples.

    Raises
    ------
    ConfigError
        If the statistics are not of these arrays; names the array.
    """
    check_normalizable(resolved, sides)
    numbers, items = _measurable(resolved.without_patches(), sides), resolved.items
    return pairs_of(resolved, statistics, numbers, _names([items[n] for n in numbers], items))


def check_normalizable(resolved: ResolvedData, sides: tuple[str, ...]) -> None:
    """Raise ConfigError if an array that `normalize("auto")` is for was normalised before."""
    for n in _wanted(resolved.items, sides):
        one = resolved.columns[n]
        if one.requested.is_normalized:
            raise ConfigError(f"normalize of {one.items.name}: it was normalised before; give mean and std once")


def automatic(
    data: Any, mean_std: object, axis: Axis, path: str | Path | None, sides: tuple[str, ...]
) -> Mapping[str, Any]:
    """Return the numbers of `Data.normalize("auto")`: (mean, std) by the names of arrays.

    Raises
    ------
    ConfigError
        If it is not "auto", if the file has statistics of other samples, or a value is infinite.
    """
    if mean_std != "auto":
        if path is not None:
            raise ConfigError(f"stats = {path!r} is for normalize('auto')")
        raise ConfigError(f"mean_std = {mean_std!r}, must be (mean, std), a mapping of names to such pairs, or 'auto'")
    check_normalizable(data.resolved, sides)
    _, fields = measured(data.resolved, axis, sides)
    if path is not None and Path(path).exists():
        statistics = Statistics.load(path)
        why = fits(statistics.fields, fields)
        if why:
            raise ConfigError(
                f"stats = {str(path)!r} does not fit: {why}; to normalise by them all the same, write "
                "normalize(zarrfeed.Statistics.load(path)); to measure these samples, name another file"
            )
        _log.info("normalize('auto'): by %s", path)
    else:
        where = "stats='FILE' would keep the result" if path is None else f"the result goes to {path}"
        _log.log(
            logging.WARNING if path is None else logging.INFO,
            "normalize('auto'): measures %d samples now; %s",
            len(data),
            where,
        )
        # The public name, as what reads arrays lies in a layer above this one.
        statistics = import_module("zarrfeed").stats(data, axis=axis, output=path, sides=sides)
    return by_statistics(data.resolved, statistics, sides)


def fits(statistics: Mapping[str, FieldStatistics], fields: Sequence[MeasuredField]) -> str:
    """Return why statistics are not those of some fields; "" if they are."""
    for field in fields:
        found = statistics.get(field.name)
        if found is None:
            return f"they lack {field.name}"
        if found.axes != field.axes:
            return f"those of {field.name} are along {found.axes}, not {field.axes}"
        if found.fingerprint != field.fingerprint or found.mean.shape != field.shape:
            return f"those of {field.name} are of other samples, or of another layout"
    return ""


def _wanted(items: Sequence[Items], sides: tuple[str, ...]) -> list[int]:
    """Return the numbers of the arrays of some sides that hold what is measured, and not coordinates, text or records.

    It is what an argument without names is for, of each side.
    """
    wanted: list[int] = []
    for side in sides:
        members = [n for n, one in enumerate(items) if one.side == side]
        wanted += compress(members, by_field("stats", True, [replace(items[n], side="samples") for n in members]))
    return sorted(wanted)


def _has_axes(field: Field, items: Items) -> bool:
    """Return whether a row has the axes of the array, and no further one over the bytes of text of fixed length."""
    return field.has_rows and not field.has_one_row and len(field.row_shape) == len(items.shape) - 1


def _names(chosen: Sequence[Items], items: Sequence[Items]) -> list[str]:
    count = Counter(one.key or one.side for one in items)
    short = [one.key or one.side for one in chosen]
    return [name if count[name] == 1 else one.name for name, one in zip(short, chosen, strict=True)]


def _axes(axis: Axis, every: Sequence[Items]) -> list[list[int]]:
    """Return, for each array, the axes that it has among those that were named."""
    if axis is None:
        return [[] for _ in every]
    named = [axis] if isinstance(axis, int | np.integer | str) else axis
    if isinstance(axis, bool) or not isinstance(named, Sequence) or not len(named):
        raise ConfigError(f"axis = {axis!r}, must be an axis, the name of a dimension, or several of these")
    found: list[list[int]] = [[] for _ in every]
    for one in named:
        if isinstance(one, bool) or not isinstance(one, int | np.integer | str):
            raise ConfigError(f"axis = {one!r}, must be an axis or the name of a dimension")
        for axes, items in zip(found, every, strict=True):
            number = items.axis_of(one)
            if number == items.sample_axis:
                raise ConfigError(f"axis = {one!r}: is the sample axis of {items.name}")
            axes += [] if number is None else [number]
        if not any(items.axis_of(one) is not None for items in every):
            raise ConfigError(f"axis = {one!r}: {_why_none(one, every)}")
    return found


def _why_none(axis: int | str, items: Sequence[Items]) -> str:
    if not isinstance(axis, str):
        return f"{items[0].name} has {len(items[0].shape)} axes, shape {items[0].shape}"
    known = list(dict.fromkeys(name for one in items for name in one.dimensions or () if name is not None))
    if not known:
        return "no array has dimension names, give a number"
    return f"must be one of the dimensions {', '.join(map(repr, known))}{did_you_mean(axis, known)}"


def _row_axis(items: Items, axis: int) -> int:
    """Return the axis of a batch that an axis of the array becomes."""
    return axis + 1 if axis < items.sample_axis else axis


def _called(items: Items, batch_axis: int) -> str | int:
    """Return the name of an axis of a batch, or its number in the array."""
    axis = batch_axis - 1 if batch_axis <= items.sample_axis else batch_axis
    name = None if items.dimensions is None else items.dimensions[axis]
    return axis if name is None else name


def samples_digest(plain: ResolvedData) -> str:
    """Return a hash of the positions of the samples."""
    samples = plain.choice.ascending()
    if isinstance(samples, range):
        return repr(samples)
    hashed = hashlib.sha256()
    for piece in samples.pieces():
        hashed.update(np.ascontiguousarray(piece, "<i8").tobytes())
    return hashed.hexdigest()


def layout_fingerprint(
    field: FieldKind,
    items: Items,
    batch_axes: tuple[int, ...],
    samples: str,
    *,
    lacks: Sequence[bool] = (),
) -> str:
    """Return a hash of what statistics depend on, but for the stored values; `lacks` says how items may be missing."""
    described: dict[str, Any] = {
        "samples": samples,
        "kept": batch_axes,
        "shape": items.shape,
        "sample_axis": items.sample_axis,
        "dtype": items.dtype,
        "decoding": repr(items.decoding),
    }
    if any(lacks):  # others keep the fingerprints that files of earlier versions have
        described["missing"] = list(lacks)
    if field.chosen_items:
        described["items"] = field.chosen_items
    if field.conversion is not None and field.conversion.steps:
        described["steps"] = [one.describe() for one in field.conversion.steps]
    described["rows"] = None if field.row_map is None else field.row_map.digest
    described |= field.describe_values()
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
