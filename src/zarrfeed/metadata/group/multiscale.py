"""OME-Zarr images: which arrays are their levels, what their axes are called, and where the voxels of a level lie.

Invariant: voxel i of a level has its middle at `scale i + translation`, by the transformations of the level and then
by those of the image. Nothing else is read of an image than `multiscales[0]`, which is its first representation.

Source: OME-Zarr 0.4 and 0.5, `multiscales`; 0.1 to 0.3 for images of which one level is read.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr

from zarrfeed.base.errors import ConfigError, UnsupportedError, printable
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.known_groups import attributes_of_ome, is_path, level_paths, member_of
from zarrfeed.metadata.group.batch_columns import Array
from zarrfeed.metadata.patches.patch_levels import check_extent, level_of
from zarrfeed.spec.patches.level import LevelRows
from zarrfeed.storage.access.checked_nodes import node_name

#: Kinds of axes along which the levels of an image need not be alike, and labels may have none.
_CHANNEL = "channel"
#: The kinds of axes that an image names, and says nothing of.
_USUAL_KINDS = {"c": _CHANNEL}


@dataclass(frozen=True, eq=False)
class ImageLevel:
    """One level of an image.

    Attributes
    ----------
    array
        The array that holds the voxels of the level.
    axes
        The names of the axes; empty if the image does not name them.
    kinds, units
        Kind and unit of each axis, as the image says; "" where it says nothing.
    scale, translation
        Size of a voxel, and middle of voxel 0, by axis. None: the image does not say it.
    """

    array: zarr.Array[Any]
    axes: tuple[str, ...]
    kinds: tuple[str, ...]
    units: tuple[str, ...]
    scale: tuple[float, ...] | None
    translation: tuple[float, ...] | None


def is_image(group: zarr.Group) -> bool:
    """Return whether a group is an image of OME-Zarr: it names a level by a plain path, or one that can be opened."""
    paths = level_paths(dict(group.attrs))
    return any(map(is_path, paths)) or any(
        isinstance(path, str) and isinstance(member_of(group, path), zarr.Array) for path in paths
    )


def first_level(group: zarr.Group) -> ImageLevel:
    """Return the level with the full resolution, whatever is said of where its voxels lie."""
    return _level(group, 0, with_transformations=False)


def levels_of(group: zarr.Group, wanted: Any) -> dict[str, ImageLevel]:
    """Return the levels that a user names, by the names of their fields.

    Parameters
    ----------
    group
        The group of the image.
    wanted
        Paths of levels, as `datasets[].path` of the image has them; numbers of levels; and paths of images in it, such
        as "labels/cells", or of their levels.

    Raises
    ------
    ConfigError, UnsupportedError
        If there is no such level, it is named twice, or nothing is known of where its voxels lie.
    """
    if not is_image(group):
        raise ConfigError(f"multiscale is for an OME-Zarr image; {node_name(group)} has no `multiscales`")
    if isinstance(wanted, str) or not isinstance(wanted, Sequence) or not wanted:
        raise ConfigError(f"multiscale = {wanted!r}, must be a list of levels: their paths, or their numbers")
    found: dict[str, ImageLevel] = {}
    for one in wanted:
        image, number, name = _find(group, one)
        if name in found:
            raise ConfigError(f"multiscale = {list(wanted)!r} names {name!r} twice")
        found[name] = _level(image, number, with_transformations=len(wanted) > 1)
    return found


def warn_of_channels(axes: Sequence[str | None], kind: str = "") -> None:
    """Warn if channels are the first axis of an image, along which samples lie unless somebody names another one.

    `kind` is that of the first axis, where the image says it; else the names say whether it is an image of channels.
    """
    if not axes or (kind or _USUAL_KINDS.get(str(axes[0]))) != _CHANNEL:
        return
    channels, *others = axes
    if not kind and not {"y", "x"} <= set(others):
        return
    advice = f"sample_dim={others[0]!r} would take another axis, " if others else ""
    warnings.warn(
        f"{channels!r} is the first axis of an image, so each channel is a sample: {advice}"
        f"sample_dim={channels!r} says that channels are meant",
        stacklevel=2,
    )


def with_levels(arrays: Sequence[Array], levels: Mapping[str, ImageLevel]) -> list[Array]:
    """Return the arrays of levels, each with the rows that samples of the first one have in it.

    Raises
    ------
    ConfigError, UnsupportedError
        If voxels of a level are no whole number of voxels of the first one, or its lengths contradict that.
    """
    first, *others = levels.values()
    finest = arrays[0].items
    made = [arrays[0]]
    for array, level in zip(arrays[1:], others, strict=True):
        field, one = array.field, array.items
        if not field.has_numbers:
            raise UnsupportedError(f"{one.name}: levels of an image are arrays of numbers")
        if finest.sample_axis >= len(first.axes) or one.sample_axis >= len(level.axes):
            raise ConfigError(f"{one.name}: has {len(one.shape)} axes, the image names {level.axes}")
        if level.axes[one.sample_axis] != first.axes[finest.sample_axis]:
            raise ConfigError(
                f"{one.name}: its samples lie along {level.axes[one.sample_axis]!r}, those of {finest.name} along "
                f"{first.axes[finest.sample_axis]!r}; sample_dim names the dimension of both"
            )
        scale, before = _relative(level, first, one, finest)
        exact = level_of(scale, before, level.axes, one.name, one.shape)
        for axis, (name, kind, factor) in enumerate(zip(level.axes, level.kinds, exact.scale, strict=True)):
            if name in first.axes and (kind != _CHANNEL or axis == one.sample_axis):
                check_extent(one.name, name, factor, one.shape[axis], finest.shape[first.axes.index(name)])
        lengths = [(arrays[0].field.num_samples, field.num_rows)]
        made.append(replace(array, field=field.with_row_map(LevelRows.of(exact, one.sample_axis, lengths))))
    return made


def _relative(level: ImageLevel, first: ImageLevel, items: Items, of_first: Items) -> tuple[list[float], list[float]]:
    """Return the size of a level's voxels, and how far voxel 0 begins before the first level's, in its voxels."""
    assert level.scale is not None
    assert level.translation is not None
    assert first.scale is not None
    assert first.translation is not None
    scale, before = [], []
    for axis, name in enumerate(level.axes):
        if name not in first.axes:
            scale.append(1.0)
            before.append(0.0)
            continue
        there = first.axes.index(name)
        if level.units[axis] and first.units[there] and level.units[axis] != first.units[there]:
            raise ConfigError(
                f"{items.name}: {name!r} is in {level.units[axis]}, in {of_first.name} in {first.units[there]}"
            )
        voxel = first.scale[there]
        factor = level.scale[axis] / voxel
        scale.append(factor)
        before.append((first.translation[there] - level.translation[axis]) / voxel + (factor - 1) / 2)
    return scale, before


def _find(group: zarr.Group, wanted: Any) -> tuple[zarr.Group, int, str]:
    """Return the image that has a level, the number of the level in it, and what its field is called."""
    paths = level_paths(dict(group.attrs))
    named = _named(paths)
    if isinstance(wanted, int | np.integer) and not isinstance(wanted, bool):
        if not -len(paths) <= wanted < len(paths):
            shown = ", ".join(map(str, paths))
            raise ConfigError(f"multiscale names level {wanted}, {node_name(group)} has {len(paths)}: {shown}")
        return group, int(wanted) % len(paths), str(paths[wanted])
    if not isinstance(wanted, str):
        raise ConfigError(f"multiscale names {wanted!r}, must be the path of a level, or its number")
    if wanted.strip("/") in named:
        return group, named.index(wanted.strip("/")), wanted
    parts = wanted.split("/")
    for end in range(len(parts), 0, -1):  # an image in the image, such as its labels
        member = member_of(group, "/".join(parts[:end]))
        if isinstance(member, zarr.Group) and is_image(member):
            inside, rest = _named(level_paths(dict(member.attrs))), "/".join(parts[end:]).strip("/")
            if not rest or rest in inside:
                return member, inside.index(rest) if rest else 0, wanted
            known = [f"{'/'.join(parts[:end])}/{path}" for path in inside]
            raise ConfigError(f"multiscale names {wanted!r}, must be one of {', '.join(map(repr, known))}")
    raise ConfigError(
        f"multiscale names {wanted!r}, must be one of the levels {', '.join(map(repr, paths))} of {node_name(group)}, "
        f"or the path of an image in it, such as 'labels/cells'{did_you_mean(wanted, paths)}"
    )


def _named(paths: Sequence[object]) -> list[object]:
    """Return paths of levels as users name them, each at its index."""
    return [path.strip("/") if isinstance(path, str) else path for path in paths]


def _level(group: zarr.Group, number: int, *, with_transformations: bool) -> ImageLevel:
    image = attributes_of_ome(dict(group.attrs))["multiscales"][0]
    dataset = image["datasets"][number]
    path = level_paths(dict(group.attrs))[number]
    if not isinstance(path, str) or not path.strip("/"):
        where = f"{node_name(group)}: multiscales[0].datasets[{number}]"
        raise ConfigError(f"{where} has the path {printable(repr(path))}, must be the path of an array in the image")
    array = member_of(group, path)
    name = f"{node_name(group)}/{path}"
    if not isinstance(array, zarr.Array):
        raise ConfigError(f"{name}: no array is there, though multiscales[0].datasets[{number}] names it")
    axes = _axes(image, array.ndim)
    names = tuple(str(one["name"]) for one in axes)
    kinds, units = (tuple(str(one.get(key) or "") for one in axes) for key in ("type", "unit"))
    if not with_transformations:
        return ImageLevel(array, names, kinds, units, None, None)
    if not axes:
        raise ConfigError(
            f"{name}: multiscales[0].axes does not name its {array.ndim} axes, so levels cannot be compared"
        )
    scale, translation = _transformations(name, dataset.get("coordinateTransformations"), array.ndim, needed=True)
    more, shift = _transformations(name, image.get("coordinateTransformations"), array.ndim, needed=False)
    moved = tuple(a * b + c for a, b, c in zip(translation, more, shift, strict=True))
    return ImageLevel(array, names, kinds, units, tuple(a * b for a, b in zip(scale, more, strict=True)), moved)


def _axes(image: Mapping[str, Any], ndim: int) -> list[dict[str, Any]]:
    """Return the axes of an image, as 0.4 has them; of 0.3 without kinds; none if they are not those of its arrays."""
    given = image.get("axes")
    axes = [{"name": one} if isinstance(one, str) else one for one in given] if isinstance(given, list) else []
    named = [one.get("name") if isinstance(one, dict) else None for one in axes]
    is_whole = len(named) == ndim and len(set(map(str, named))) == ndim and all(isinstance(one, str) for one in named)
    return axes if is_whole else []


def _transformations(
    name: str, given: object, ndim: int, *, needed: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the scale and the translation that a list of transformations makes, one after another."""
    scale, translation, has_scale = np.ones(ndim), np.zeros(ndim), False
    if given is not None and not isinstance(given, list):
        raise ConfigError(f"{name}: its coordinateTransformations are {printable(given)}, must be a list")
    for one in given or []:
        kind = one.get("type") if isinstance(one, dict) else None
        if kind == "identity":
            continue
        if kind not in ("scale", "translation"):
            raise UnsupportedError(f"{name}: has a transformation {kind!r}, must be 'scale' or 'translation'")
        numbers = one.get(kind)
        if numbers is None:
            raise UnsupportedError(f"{name}: its {kind} is stored in an array, must be a list of numbers")
        values = [_finite(v) for v in numbers] if isinstance(numbers, list) else []
        if len(values) != ndim or None in values or (kind == "scale" and any(v is None or v <= 0 for v in values)):
            raise ConfigError(
                f"{name}: its {kind} is {printable(numbers)}, must have {ndim} finite numbers, scales above 0"
            )
        factors = np.array(values, np.float64)
        if kind == "scale":
            scale, translation, has_scale = scale * factors, translation * factors, True
        else:
            translation = translation + factors
    if needed and not has_scale:
        raise ConfigError(
            f"{name}: multiscales[0].datasets has no scale among its coordinateTransformations, so nothing says how "
            "large its voxels are; open the level by itself"
        )
    return tuple(scale.tolist()), tuple(translation.tolist())


def _finite(value: object) -> float | None:
    """Return a number of JSON; None if it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)
