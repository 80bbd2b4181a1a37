"""Positions of patches that lie on no grid, which a user lists, located in the volumes of a description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.patches.position_blocks import ListedPositions
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.patches.patch import Volumes


def checked_positions(positions: Any) -> Int64:
    """Return positions as a user gives them, shape (n, D) or (n, 1 + D).

    Raises
    ------
    ConfigError
        If they are no integers of such a shape.
    """
    try:
        given = np.asarray(positions)
    except ValueError as error:  # rows of different lengths
        raise ConfigError(f"positions: {error}; must be an array of integers, shape (n, dimensions)") from error
    if given.ndim != 2 or given.dtype.kind not in "iu" or not given.size:
        raise ConfigError(
            f"positions has the shape {given.shape} and dtype {given.dtype}, must be integers of shape "
            "(n, dimensions), n at least 1: the first voxel of each patch, the sample axis first"
        )
    if given.dtype.kind == "u" and given.max() >= 2**63:
        raise ConfigError(f"positions has the value {given.max()}, must be below 2**63")
    return given.astype(np.int64)


def locate_positions(
    positions: Int64,
    names: Sequence[str | int],
    sizes: Sequence[int],
    wraps: Sequence[bool],
    extents: Int64,
    volumes: Volumes,
    first_of_store: Int64,
) -> ListedPositions:
    """Find the volume of each patch, and its first voxel there.

    Parameters
    ----------
    positions
        The user's positions.
    names, sizes, wraps
        For each dimension, the sample axis first: its name, the voxels of a patch, and whether it is periodic.
    extents
        Voxels of each volume along each dimension, shape (volumes, D).
    volumes
        Runs of samples.
    first_of_store
        The first sample of each store, and the number of all samples at the end, shape (stores + 1,).

    Raises
    ------
    ConfigError
        If a patch has no voxel of any volume, or its store is missing or unknown.
    """
    dimensions, stores = len(names), len(first_of_store) - 1
    named = list(names)
    if positions.shape[1] not in (dimensions, dimensions + 1) or (stores > 1 and positions.shape[1] == dimensions):
        wanted = f"(n, {1 + dimensions}): the number of the store, then" if stores > 1 else f"(n, {dimensions}):"
        raise ConfigError(f"positions has the shape {positions.shape}, must be {wanted} the first voxel along {named}")
    store = positions[:, 0] if positions.shape[1] > dimensions else np.zeros(len(positions), dtype=np.int64)
    _refuse(
        (store < 0) | (store >= stores),
        lambda row: f"positions[{row}] is of store {store[row]}, must be in [0, {stores - 1}]",
    )
    start = positions[:, -dimensions:].copy()
    # A patch belongs to the volume that has the row in its middle, or else the row of its volume's store nearest to it.
    begin, end = volumes.begin, volumes.end
    of_store = np.searchsorted(first_of_store, begin, side="right") - 1
    middle = first_of_store[store] + np.clip(start[:, 0] + sizes[0] // 2, -(2**40), 2**40)
    low, high = np.searchsorted(of_store, store), np.searchsorted(of_store, store, side="right")
    _refuse(low == high, lambda row: f"positions[{row}] is of store {store[row]}, of which no sample is selected")
    volume = np.clip(np.searchsorted(begin, middle, side="right") - 1, low, high - 1)
    after = np.minimum(volume + 1, high - 1)
    nearer = (begin[after] - middle < middle - end[volume] + 1) & (middle >= end[volume])
    volume = np.where(nearer, after, volume)
    start[:, 0] += first_of_store[store] - begin[volume]
    for d in range(dimensions):
        here = start[:, d]
        _refuse(
            (here <= -sizes[d]) | (here >= extents[volume, d]),
            lambda row, d=d: (
                f"positions[{row}] = {positions[row].tolist()}: a patch of {sizes[d]} along {named[d]!r} that begins "
                f"there has no voxel of a volume, which has {extents[volume[row], d]}"
            ),
        )
        if wraps[d]:
            start[:, d] = here % extents[volume, d]
    return ListedPositions(volume, start)


def _refuse(wrong: Any, message: Any) -> None:
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise ConfigError(message(int(rows[0])))
