"""Several dimensions that number the samples, `sample_dim=("member", "time")`: every combination is a sample.

Invariant: samples are numbered in C order, so the last dimension runs fastest, and windows lie along it. Each array
has at least one of the dimensions; an array that lacks one has the same values for all of its indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.array import check_counts
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.merged_axes import merge_axes
from zarrfeed.metadata.group.batch_columns import Array
from zarrfeed.spec.fields.field import StoredField

#: The forms that `sample_dim=` takes.
SampleDim: TypeAlias = "str | Sequence[str]"
#: The same as it is kept: one name, several, or None where an axis is given by its number.
ParsedDims: TypeAlias = "str | tuple[str, ...] | None"


def parse_sample_dim(sample_dim: SampleDim | None) -> ParsedDims:
    """Return the name of the dimension of samples, or the names of several.

    Raises
    ------
    ConfigError
        If it is neither text nor a sequence of distinct names.

    Examples
    --------
    >>> parse_sample_dim(["member", "time"]), parse_sample_dim(["time"])
    (('member', 'time'), 'time')
    """
    if sample_dim is None or isinstance(sample_dim, str):
        return sample_dim
    names = tuple(sample_dim) if isinstance(sample_dim, list | tuple) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(
            f"sample_dim = {sample_dim!r}, must be the name of a dimension, or several names, each once: "
            "('member', 'time')"
        )
    return names[0] if len(names) == 1 else names


def names_of(sample_dim: ParsedDims) -> tuple[str, ...]:
    """Return the names of the sample dimensions; none where it is an axis by its number."""
    return () if sample_dim is None else (sample_dim,) if isinstance(sample_dim, str) else sample_dim


def in_words(sample_dim: ParsedDims) -> str:
    """Return the end of a clause, " with the dimension 'time'"; "" where no dimension is named.

    Examples
    --------
    >>> in_words(("member", "time"))
    " with the dimensions 'member', 'time'"
    """
    names = names_of(sample_dim)
    return f" with the dimension{'s' * (len(names) > 1)} {', '.join(map(repr, names))}" if names else ""


def lengths_of(arrays: Sequence[Array], dims: Sequence[str]) -> dict[str, int]:
    """Return the lengths of the sample dimensions.

    Raises
    ------
    ConfigError
        If no array has one of them, or two arrays have other lengths of it.
    """
    found: dict[str, tuple[int, Items]] = {}
    for items in (one.items for one in arrays):
        for dim in dims:
            axis = items.axis_of(dim)
            if axis is None:
                continue
            length, first = found.setdefault(dim, (items.shape[axis], items))
            if length != items.shape[axis]:
                raise ConfigError(
                    f"{items.name} has {items.shape[axis]} indices of {dim!r}, {first.name} has {length}: they must be "
                    "equal"
                )
    lacking = [dim for dim in dims if dim not in found]
    if lacking:
        known = {name: None for one in arrays for name in one.items.dimensions or () if name is not None}
        raise ConfigError(
            f"sample_dim = {tuple(dims)!r}: no array that is read has the dimension {lacking[0]!r}; they have "
            f"{', '.join(map(repr, known))}{did_you_mean(lacking[0], known)}"
        )
    return {dim: found[dim][0] for dim in dims}


def with_sample_dims(arrays: Sequence[Array], lengths: dict[str, int]) -> list[Array]:
    """Return arrays with the sample dimensions as their one axis of samples; those in memory stay as they are.

    Raises
    ------
    ConfigError, UnsupportedError
        If an array has no numbers or records, or chunks that cannot be read so.
    """
    return [one if one.items.dimensions is None else _with_sample_dims(one, lengths) for one in arrays]


def _with_sample_dims(array: Array, lengths: dict[str, int]) -> Array:
    field, items = array.field, array.items
    if not isinstance(field, StoredField):
        raise UnsupportedError(
            f"{field.label}: is {field.described_items}; with several sample dimensions, arrays of numbers are read"
        )
    axes = [items.axis_of(dim) for dim in lengths]
    spec, rows = merge_axes(field.spec, tuple(lengths), axes, tuple(lengths.values()))
    check_counts(spec)
    own = [dim for dim, axis in zip(lengths, axes, strict=True) if axis is not None]
    others = [dim for axis, dim in enumerate(items.dimensions or ()) if axis not in axes]
    dimensions = (*others[: spec.sample_axis], own[-1], *others[spec.sample_axis :])
    described = items.described
    if described is not None:
        along = {dim: one for dim, one in described.coordinates.items() if dim not in lengths}
        described = replace(described, coordinates=along)
    items = replace(items, shape=spec.shape, sample_axis=spec.sample_axis, dimensions=dimensions, described=described)
    return replace(array, field=replace(field, spec=spec, rows=rows), items=items)
