"""Weights of the voxels that drawn patches have in their middle: numbers, or an array of Zarr that has them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.array import open_array
from zarrfeed.metadata.values import read_values
from zarrfeed.plan.random_positions import RandomPositions, middles
from zarrfeed.plan.selection import Int64
from zarrfeed.plan.tiling import Border
from zarrfeed.plan.weight_table import WeightTable
from zarrfeed.spec.freeze import PRINTED_NUMBERS, FrozenArray

#: What `weights=` of `Data.patch` may be: numbers, an array of Zarr, or the path of one.
PatchWeights: TypeAlias = "npt.ArrayLike | zarr.Array[Any] | str | Path"

#: Weights are kept in memory.
_MOST_BYTES = 256 << 20
#: Weights that are checked at once.
_CHECKED_AT_ONCE = 1 << 22


def read_weights(named: PatchWeights | None) -> npt.NDArray[Any] | None:
    """Return weights, read from where they are named, all chunks of an array at once.

    Raises
    ------
    ConfigError
        If they are no numbers, one is negative or not finite, or they are too many.
    StoreReadError
        If they cannot be read.
    """
    if named is None:
        return None
    if isinstance(named, str | Path):
        named = open_array(named)
    if isinstance(named, zarr.Array):
        _check_bytes(named.shape, named.dtype.itemsize)
        given = read_values(named)
    else:
        given = np.asarray(named)
        _check_bytes(given.shape, given.dtype.itemsize)
    if given.dtype.kind not in "biuf":
        raise ConfigError(f"weights of dtype {given.dtype}, must be numbers, or a mask")
    given = np.ascontiguousarray(given)
    if given.dtype.kind in "if":
        flat = given.reshape(-1)
        for begin in range(0, len(flat), _CHECKED_AT_ONCE):
            some = flat[begin : begin + _CHECKED_AT_ONCE]
            wrong = np.flatnonzero(~((some >= 0) & np.isfinite(some)))
            if len(wrong):
                raise ConfigError(f"weights has the value {some[wrong[0]]}, must be finite numbers of at least 0")
    return given


def frozen_weights(weights: npt.NDArray[Any] | None) -> FrozenArray | None:
    """Return what an expression has of weights: a hash."""
    if weights is None or weights.size <= PRINTED_NUMBERS:
        return None if weights is None else FrozenArray.of(weights)
    digest = hashlib.sha256(weights.dtype.str.encode() + weights.tobytes()).hexdigest()
    shape = "x".join(map(str, weights.shape))
    return FrozenArray(weights.shape, digest, f"<{shape} {weights.dtype.name}, sha256 {digest[:12]}>")


def draw_positions(
    extents: Int64,
    size: tuple[int, ...],
    border: tuple[Border, ...],
    n: int,
    weights: npt.NDArray[Any] | None,
    first: Int64,
    shape: Sequence[int],
) -> RandomPositions:
    """Return patches that are drawn.

    Parameters
    ----------
    extents, size, border, n, weights
        As of `RandomPositions`; weights as the user gives them.
    first
        The first sample of each volume, counted from that of the first store.
    shape
        Samples of all stores, then the voxels along the other dimensions.

    Raises
    ------
    ConfigError
        If the weights lie on no grid that divides the shape, or all of them are 0 where patches may lie.
    """
    if weights is None:
        return RandomPositions(extents, size, border, n)
    if len(weights.shape) != len(shape) or any(
        cells == 0 or length % cells for length, cells in zip(shape, weights.shape, strict=True)
    ):
        raise ConfigError(
            f"weights has the shape {weights.shape}, must be {tuple(shape)}, all samples first, or divide each of these"
        )
    cell = tuple(length // cells for length, cells in zip(shape, weights.shape, strict=True))
    table = WeightTable(weights.reshape(-1), weights.shape, cell, middles(first, extents, size, border))
    return RandomPositions(extents, size, border, n, table, first)


def _check_bytes(shape: Sequence[int], item_bytes: int) -> None:
    wanted = int(np.prod(shape, dtype=object)) * item_bytes
    if wanted > _MOST_BYTES:
        raise ConfigError(
            f"weights of shape {tuple(shape)} have {format_bytes(wanted)}, must have at most "
            f"{format_bytes(_MOST_BYTES)}, as they are kept in memory: take the sums, or the largest ones, of boxes"
        )
