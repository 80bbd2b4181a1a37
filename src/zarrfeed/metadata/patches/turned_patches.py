"""`Data.patch(flip=, rotate=)`: which dimensions of patches may be flipped and rotated, and which arrays allow it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.patches.patch_turns import Turns
from zarrfeed.spec.patches.patch import PatchAxis
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.spec.values.value_step import ValueStep


def parse_turned(name: str, value: Any, size: Mapping[str | int, int]) -> tuple[str | int, ...]:
    """Return the dimensions that `flip` or `rotate` names, given what `size` names.

    Raises
    ------
    ConfigError
        If they are no dimensions of patches, or one is named twice, or they cannot be rotated.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} = {value!r}, must be a list of dimensions that size names: {list(size)}")
    for dim in value:
        if isinstance(dim, bool) or not isinstance(dim, str | int) or dim not in size:
            raise ConfigError(f"{name} names {dim!r}, must name a dimension that size names: {list(size)}")
    if len(set(value)) < len(value):
        raise ConfigError(f"{name} = {list(value)} names a dimension twice")
    if name == "rotate" and value:
        if len(value) not in (2, 3):
            raise ConfigError(f"rotate = {list(value)}, must name two dimensions, which span a plane, or three")
        sizes = {dim: size[dim] for dim in value}
        if len(set(sizes.values())) > 1:
            raise ConfigError(
                f"rotate: patches have the sizes {sizes}, must have the same along dimensions that rotate"
            )
    return tuple(value)


def check_turns(turns: Turns, dims: Sequence[str | int], name: str, axes: Sequence[PatchAxis]) -> None:
    """Refuse an array whose samples have other sizes along dimensions that rotate."""
    sizes = {dims[axis.dim]: axis.size for axis in axes if axis.dim is not None and axis.dim in turns.rotate}
    if len(set(sizes.values())) > 1:
        raise ConfigError(f"rotate: patches of {name} have the sizes {sizes}, must have the same along all of these")


def check_conversion(
    turns: Turns, dims: Sequence[str | int], name: str, axes: Sequence[PatchAxis], of: Conversion
) -> None:
    """Refuse numbers, such as means, that differ from voxel to voxel along dimensions that are turned.

    They would be those of a voxel of the volume before the turn, and of a voxel of the batch after it.
    """
    for step in of.steps:
        _check_step(turns, dims, name, axes, step)


def _check_step(turns: Turns, dims: Sequence[str | int], name: str, axes: Sequence[PatchAxis], of: ValueStep) -> None:
    count = len(of.first)
    if count <= 1:
        return
    # Numbers belong to each index of some neighbouring axes; `before` is the number of items behind these.
    shape = [axis.size for axis in axes]
    items = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    spread = [
        a for a, n in enumerate(shape) if items[a] >= of.channel_items and items[a] * n <= of.channel_items * count
    ]
    for numbers in (of.first.array, of.second.array):
        by_axis = numbers.reshape([shape[a] for a in spread])
        for number, a in enumerate(spread):
            dim = axes[a].dim
            if dim in (*turns.flip, *turns.rotate) and np.ptp(by_axis, axis=number).any():
                assert dim is not None
                raise ConfigError(
                    f"{of.kind} of {name}: arrays of shape {of.by_shape or (count,)} differ along {dims[dim]!r}, which "
                    "is flipped or rotated; must be the same for all voxels along it"
                )
