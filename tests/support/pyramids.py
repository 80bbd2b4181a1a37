"""OME-Zarr images whose voxels say where they are, and what patches of their levels must be, by NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr

from tests.support.patches import Voxels, volume

#: How the lengths of a level are rounded.
ROUNDINGS = {"down": lambda n, f: max(1, n // f), "up": lambda n, f: -(-n // f)}


def put_pyramid(
    group: zarr.Group,
    shape: Sequence[int],
    factors: Sequence[Sequence[int]],
    *,
    chunks: Sequence[Sequence[int]],
    translated: bool = True,
    rounded: str = "down",
    axes: str = "zyx",
    voxel: float = 0.325,
    first: int = 1,
) -> list[Voxels]:
    """Write an image of OME-Zarr, 0.4 in Zarr v2 and 0.5 in v3; return its levels.

    Parameters
    ----------
    group
        Where to write it.
    shape
        Of level 0.
    factors
        Voxels of level 0 for each voxel, of each level and along each axis.
    chunks
        Of each level.
    translated
        Whether the image says that voxel 0 of a level begins where that of level 0 does. Else it says that their
        middles are at the same position.
    rounded
        How lengths are rounded: one of `ROUNDINGS`.
    axes
        Their names.
    voxel
        The length of a voxel of level 0.
    first
        The value of the first voxel of each level.
    """
    datasets, levels = [], []
    for number, (of_level, chunk) in enumerate(zip(factors, chunks, strict=True)):
        lengths = [ROUNDINGS[rounded](n, f) for n, f in zip(shape, of_level, strict=True)]
        levels.append(volume(lengths, first))
        group.create_array(str(number), data=levels[-1], chunks=tuple(chunk))
        transformations: list[dict[str, Any]] = [{"type": "scale", "scale": [voxel * f for f in of_level]}]
        if translated:
            transformations.append({"type": "translation", "translation": [voxel * (f - 1) / 2 for f in of_level]})
        datasets.append({"path": str(number), "coordinateTransformations": transformations})
    kinds = {"t": "time", "c": "channel"}
    named = [{"name": name, "type": kinds.get(name, "space")} for name in axes]
    put_ome(group, {"multiscales": [{"axes": named, "datasets": datasets, "version": "0.4"}]})
    return levels


def put_ome(group: zarr.Group, attributes: Mapping[str, Any]) -> None:
    """Write the attributes of an image where its version has them."""
    if group.metadata.zarr_format == 3:
        group.attrs["ome"] = {"version": "0.5", **attributes}
    else:
        group.attrs.update(dict(attributes))


def begin_at_level(start: Voxels, factor: Sequence[int], *, translated: bool = True) -> Voxels:
    """Return the voxel of a level in which the first face of a voxel of level 0 lies."""
    f = np.array(factor)
    translation = (f - 1) / 2 if translated else np.zeros(len(f))
    face = start - 0.5  # in voxels of level 0, of which voxel 0 has its middle at 0
    first_face = translation - f / 2
    found: Voxels = np.floor((face - first_face) / f + 1e-9).astype(np.int64)
    return found


def level_patch(
    level: Voxels,
    start: Voxels,
    size: Sequence[int],
    factor: Sequence[int],
    context: Sequence[int] | None = None,
    *,
    translated: bool = True,
    pad: Any = 0,
    wraps: Sequence[int] = (),
) -> Voxels:
    """Return what a patch that begins at a voxel of level 0 has of a level, by np.pad."""
    inside = [math.ceil(p / f) for p, f in zip(size, factor, strict=True)]
    context = inside if context is None else context
    begin = begin_at_level(start, factor, translated=translated)
    begin -= np.array([(q - p) // 2 for q, p in zip(context, inside, strict=True)])
    # np.pad of the indices along each axis, by as much as a patch reaches beyond and by one more patch
    around = max(itertools.chain(context, np.abs(begin), begin + context)) + max(context)
    indices = []
    for axis, (first, length) in enumerate(zip(begin, context, strict=True)):
        line = np.arange(level.shape[axis])
        if axis in wraps:
            line = np.pad(line, around, mode="wrap")
        elif isinstance(pad, str):
            line = np.pad(line, around, mode=pad)  # type: ignore[call-overload]
        else:
            line = np.pad(line, around, constant_values=-1)
        indices.append(line[first + around : first + around + length])
    found: Voxels = level[np.ix_(*indices)]
    if not isinstance(pad, str):
        found[(np.array(np.meshgrid(*indices, indexing="ij")) < 0).any(axis=0)] = pad
    return found
