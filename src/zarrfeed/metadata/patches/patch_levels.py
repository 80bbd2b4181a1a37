"""Patches of several resolutions: what each patch has of a level of a pyramid, and of arrays with a context.

Invariants, along each axis of an array with 1 voxel for f of the first array:

- **Box.** A patch that begins at voxel s of the first array has the box of `ceil(size / f)` voxels that begins at the
  voxel which the first face of voxel s lies in, `(s - origin) // f`.
- **Context.** With a context of q voxels, that box is in the middle of what the patch has: `(q - ceil(size / f)) // 2`
  voxels come before it. The rest comes behind it.
- **Borders** are those of the first array. What a level lacks of a patch is beyond its own ends, and is padded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_int
from zarrfeed.metadata.array.conversion import Items, by_field
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.patches.level import Level, LevelRows
from zarrfeed.spec.patches.patch import PatchAxis, Volumes

#: Sizes by array, as they are kept: ((name, ((dimension, voxels), ...)), ...).
Context = tuple[tuple[str, tuple[tuple[str | int, int], ...]], ...]


@dataclass(frozen=True, eq=False)
class LevelVolumes:
    """The volumes in an array with other voxels than the first one.

    Attributes
    ----------
    volumes
        The rows of each volume in the array.
    extents
        Voxels of the array in each volume along each dimension, shape (volumes, D).
    num_rows
        Rows of the array.
    """

    volumes: Volumes
    extents: Int64
    num_rows: int

    @classmethod
    def concat(cls, parts: Sequence[LevelVolumes]) -> LevelVolumes:
        """Put together the volumes of several descriptions whose rows follow each other."""
        base = np.cumsum([0, *(one.num_rows for one in parts)])
        begin, end = (
            np.concatenate([getattr(one.volumes, side) + first for one, first in zip(parts, base[:-1], strict=True)])
            for side in ("begin", "end")
        )
        return cls(Volumes(begin, end), np.concatenate([one.extents for one in parts]), int(base[-1]))


def has_levels(field: Field) -> bool:
    """Return whether the voxels of a field are those of a level of a pyramid, of which another field is the first."""
    return isinstance(field.row_map, LevelRows)


def parse_context(context: Any, named: Mapping[str | int, int]) -> Context | None:
    """Parse the argument `context` of `Data.patch`.

    Raises
    ------
    ConfigError
        If it is no mapping of names to mappings of some of the dimensions that `size` names.
    """
    if context is None:
        return None
    if not isinstance(context, Mapping) or not context:
        raise ConfigError(
            f"context = {context!r}, must be a mapping of names of arrays to voxels: {{'2': {{'y': 64, 'x': 64}}}}"
        )
    made = []
    for name, size in context.items():
        if not isinstance(size, Mapping) or not size:
            raise ConfigError(f"context of {name!r} = {size!r}, must be a mapping of dimensions to voxels")
        for dim, voxels in size.items():
            if dim not in named:
                raise ConfigError(
                    f"context of {name!r} names {dim!r}, must name dimensions that size names: {list(named)}"
                )
            check_int(f"context of {name!r} along {dim!r}", voxels, 1, 2**31)
        made.append((name, tuple((dim, int(voxels)) for dim, voxels in size.items())))
    return tuple(made)


def contexts_by_field(context: Context | None, items: Sequence[Items]) -> list[dict[str | int, int]]:
    """Return for each field the voxels along dimensions that `context` names."""
    if context is None:
        return [{} for _ in items]
    found = by_field("context", dict(context), items, of_rows=True)
    return [dict(one or ()) for one in found]


def level_axes(
    axes: Sequence[PatchAxis],
    field: Field,
    name: str,
    dims: Sequence[str | int],
    sizes: Sequence[int],
    context: Mapping[str | int, int],
) -> tuple[PatchAxis, ...]:
    """Return the patch axes of an array: `axes`, scaled to its level of the pyramid and widened by its context."""
    level = field.row_map.level if isinstance(field.row_map, LevelRows) else None
    choice = field.layouts[0].spec.choice
    made = []
    for number, axis in enumerate(axes):
        if axis.dim is None:
            made.append(axis)
            continue
        stored = number if choice is None else choice.axis_of(number)
        scale, origin = (1, 0) if level is None else (level.scale[stored], level.origin[stored])
        if axis.offsets:
            if (scale, origin) != (1, 0):
                raise ConfigError(
                    f"{name}: windows are along {dims[0]!r}, where its voxels are not those of the others"
                )
            made.append(axis)
            continue
        inside = -(-sizes[axis.dim] // scale)
        size = inside if axis.dropped else context.get(dims[axis.dim], inside)
        made.append(replace(axis, size=size, scale=scale, origin=origin, shift=-((size - inside) // 2)))
    return tuple(made)


def level_volumes(
    axes: Sequence[PatchAxis],
    field: Field,
    items: Items,
    dims: Sequence[str | int],
    volumes: Volumes,
    extents: Int64,
    store_ends: Int64,
) -> LevelVolumes:
    """Locate the volumes in an array, whose axes are those of `level_axes`.

    Parameters
    ----------
    axes, field, items
        The patch axes, the field and the items of the array.
    dims, volumes, extents
        Dimensions, volumes and extents of the patches; extents are those of the first array, shape (volumes, D).
    store_ends
        The first sample of each store, and the number of samples; empty for a single store.

    Raises
    ------
    ConfigError
        If the extents contradict the scale, or a volume begins inside of a voxel.
    """
    rows = field.row_map
    if not isinstance(rows, LevelRows):
        return LevelVolumes(volumes, extents, field.num_samples)
    of = np.array(rows.lengths)  # (stores, 2): samples, rows
    first_row, first_sample = (np.concatenate([[0], np.cumsum(of[:, column])]) for column in (1, 0))
    if len(store_ends):
        assert np.array_equal(first_sample, store_ends)
    store = np.searchsorted(first_sample, volumes.begin, side="right") - 1
    scale, origin = rows.level.scale[rows.sample_axis], rows.level.origin[rows.sample_axis]
    begin, end = volumes.begin - first_sample[store], volumes.end - first_sample[store]
    wrong = np.flatnonzero(begin % scale)
    if len(wrong):
        raise ConfigError(
            f"{items.name}: samples are selected from {begin[wrong[0]]} on, must be from a multiple of {scale} on, "
            f"since this level has 1 voxel for {scale} along {dims[0]!r}"
        )
    whole = end == of[store, 0]
    last = np.where(whole, of[store, 1], np.clip((end - origin) // scale, 0, of[store, 1]))
    inside = Volumes(first_row[store] + begin // scale, first_row[store] + last)
    found = extents.copy()
    found[:, 0] = inside.end - inside.begin
    for number, axis in enumerate(axes):
        if axis.dim is not None and axis.dim > 0:
            found[:, axis.dim] = items.shape[number]
    if found[:, 0].min() < 1:
        raise ConfigError(f"{items.name}: {end.min()} samples are selected, must be {scale} at least, a voxel of it")
    for axis in axes:
        if axis.dim is not None:
            has_all = whole if axis.dim == 0 else np.ones_like(whole)
            _check_extents(axis, items.name, dims[axis.dim], extents[has_all], found[has_all])
    return LevelVolumes(inside, found, int(first_row[-1]))


def check_extent(name: str, dim: str | int, scale: int, voxels: int, of_first: int) -> None:
    """Raise ConfigError unless a number of voxels is what rounding makes of a part of those of the first array."""
    if abs(of_first - scale * voxels) >= scale:
        raise ConfigError(
            f"{name}: has {voxels} voxels along {dim!r} at a scale of {scale}, the first array has {of_first}; must be "
            f"{of_first // scale} or {-(-of_first // scale)}"
        )


def _check_extents(axis: PatchAxis, name: str, dim: str | int, of_first: Int64, found: Int64) -> None:
    assert axis.dim is not None
    for voxels, here in zip(found[:, axis.dim].tolist(), of_first[:, axis.dim].tolist(), strict=True):
        check_extent(name, dim, axis.scale, voxels, here)
        if axis.border == "wrap" and voxels * axis.scale != here:
            raise ConfigError(
                f'border = "wrap" of {dim!r}: {name} has {voxels} voxels at a scale of {axis.scale}, the first array '
                f"has {here}; must be as many times as much, to go on at the other end"
            )


def level_of(
    scale: Sequence[float], before: Sequence[float], names: Sequence[str], name: str, shape: Sequence[int]
) -> Level:
    """Return the level whose voxels are `scale` times as long as those of the first array, along named axes.

    Writers that scale an odd number of voxels may divide the lengths, so a scale may differ from a whole number by what
    makes a voxel over the whole length.

    Raises
    ------
    ConfigError
        If a scale is no whole number, or is below 1.
    """
    whole = [max(1, round(one)) for one in scale]
    for axis, given, taken, length in zip(names, scale, whole, shape, strict=True):
        if abs(given - taken) * length > taken * (1 + 1e-6):
            raise ConfigError(
                f"{name}: a voxel is {given:.6g} times as long along {axis!r} as one of the first array, must be a "
                "whole number of times, at least 1: name the finest level first, or open levels by themselves"
            )
    return Level.of(whole, before)
