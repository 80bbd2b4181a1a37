"""Weights of the voxels that drawn patches have in their middle: numbers, or an array of Zarr that has them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import format_bytes
from zarrfeed.metadata.array.array import open_array
from zarrfeed.metadata.array.values import read_values
from zarrfeed.plan.patches.random_positions import RandomPositions, middles
from zarrfeed.plan.patches.tiling import Border
from zarrfeed.plan.patches.weight_table import WeightTable
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.description.freeze import PRINTED_NUMBERS, FrozenArray
from zarrfeed.spec.patches.patch_weights import PatchWeights, check_weights

#: Types of `weights=` of `Data.patch`: the result of `zarrfeed.patch_weights`, or the file that it wrote; numbers, an
#: array of Zarr, or the path of one.
WeightsLike: TypeAlias = "PatchWeights | npt.ArrayLike | zarr.Array[Any] | str | Path"
#: The same when they were read.
ReadWeights: TypeAlias = "PatchWeights | npt.NDArray[Any]"

#: Weights are kept in memory.
_MOST_BYTES = 256 << 20


def read_weights(named: WeightsLike | None) -> ReadWeights | None:
    """Return weights, read from where they are named, all chunks of an array at once.

    Raises
    ------
    ConfigError
        If they are no numbers, one is negative or not finite, or they are too many.
    StoreReadError
        If they cannot be read.
    """
    if named is None or isinstance(named, PatchWeights):
        return named
    if isinstance(named, Mapping):
        raise ConfigError(
            f'weights = {named!r}, must be weights of voxels; shares of labels are balance={{"label": {{0: 1, 1: 3}}}}'
        )
    if isinstance(named, str | Path):
        if str(named).endswith(".npz"):
            return PatchWeights.load(named)
        named = open_array(named)
    if isinstance(named, zarr.Array):
        _check_bytes(named.shape, named.dtype.itemsize)
        given = read_values(named)
    else:
        given = np.asarray(named)
        _check_bytes(given.shape, given.dtype.itemsize)
    given = np.ascontiguousarray(given)
    check_weights(given)
    return given


def frozen_weights(weights: ReadWeights | None) -> FrozenArray | None:
    """Return the form of weights in an expression: a hash."""
    if isinstance(weights, PatchWeights):
        return FrozenArray(weights.values.shape, weights.digest, f"<{weights}, sha256 {weights.digest[:12]}>")
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
    weights: ReadWeights | None,
    first: Int64,
    shape: Sequence[int],
    dims: Sequence[str | int],
    stored_order: Sequence[int],
) -> RandomPositions:
    """Return patches that are drawn.

    Parameters
    ----------
    extents, size, border, n, weights
        The arguments of `RandomPositions`; weights are the user's.
    first
        The first sample of each volume, counted from that of the first store.
    shape
        Samples of all stores, then the voxels along the other dimensions.
    dims, stored_order
        The dimensions of patches, and their numbers in the order of the axes of the first array, the sample axis first.

    Raises
    ------
    ConfigError
        If the weights lie on no grid of the shape, or all of them are 0 where patches may lie.
    """
    if weights is None:
        return RandomPositions(extents, size, border, n)
    if isinstance(weights, PatchWeights):
        values, cell = _in_order(weights, shape, dims, stored_order)
    else:
        values = weights
        if len(values.shape) != len(shape) or any(
            cells == 0 or length % cells for length, cells in zip(shape, values.shape, strict=True)
        ):
            raise ConfigError(
                f"weights has the shape {values.shape}, must be {tuple(shape)}, all samples first, or divide each of "
                "these; zarrfeed.PatchWeights says the voxels of a cell"
            )
        cell = tuple(length // cells for length, cells in zip(shape, values.shape, strict=True))
    table = WeightTable(values.reshape(-1), values.shape, cell, middles(first, extents, size, border))
    return RandomPositions(extents, size, border, n, table, first)


def _in_order(
    weights: PatchWeights, shape: Sequence[int], dims: Sequence[str | int], stored_order: Sequence[int]
) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """Return weights and the voxels of a cell along the dimensions of patches."""
    order = [list(stored_order).index(d) for d in range(len(dims))]
    if weights.dims is not None and set(weights.dims) == set(dims):
        order = [weights.dims.index(str(dim)) for dim in dims]
    elif weights.dims is not None and all(isinstance(dim, str) for dim in dims):
        raise ConfigError(f"weights have the dimensions {weights.dims}, patches have {tuple(dims)}: must be the same")
    if len(weights.shape) != len(dims) or tuple(weights.shape[a] for a in order) != tuple(shape):
        raise ConfigError(
            f"weights cover {weights.shape} voxels, must cover {tuple(shape)} along {tuple(dims)}, all samples first"
        )
    values = np.ascontiguousarray(weights.values.transpose(order))
    return values, tuple(weights.cell[a] for a in order)


def _check_bytes(shape: Sequence[int], item_bytes: int) -> None:
    wanted = int(np.prod(shape, dtype=object)) * item_bytes
    if wanted > _MOST_BYTES:
        raise ConfigError(
            f"weights of shape {tuple(shape)} have {format_bytes(wanted)}, must have at most "
            f"{format_bytes(_MOST_BYTES)}, as they are kept in memory: zarrfeed.patch_weights takes the means of boxes "
            "of them, and keeps these in a file"
        )
