"""Outputs of a model, batch by batch, for the patches of a dataset, with the place of each output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_flags
from zarrfeed.metadata.patches.stitching import STITCH_WEIGHTS, Canvases, StitchWeights
from zarrfeed.plan.patches.swept_order import SweptOrder
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.fields.field import Field, StoredField

_DTYPES = ("float16", "float32", "float64")


def stitch(
    outputs: Iterable[tuple[Any, Any]],
    store: Any,
    *,
    field: StoredField,
    order: SweptOrder,
    weights: StitchWeights,
    dtype: str,
    memory: int | str,
    overwrite: bool,
) -> Any:
    """Write the outputs for the patches of an order, each with their numbers, to Zarr arrays with the axes of a field.

    Returns the array of the one volume, or the group of the arrays "0", "1", ... of several volumes, in their order.

    Raises
    ------
    ConfigError
        If epochs have other patches, or outputs do not fit the patches.
    """
    check_choice("weights", weights, STITCH_WEIGHTS)
    check_flags(overwrite=overwrite)
    limit = parse_bytes(memory, "memory")
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype = {dtype!r}, must be one of {', '.join(_DTYPES)}: voxels are means")
    if order.epochs.is_listed:
        raise ConfigError('stitch: the patches lie on no grid, must be of sampling = "grid" or "tiles"')
    if order.epochs.turns is not None:
        raise ConfigError(
            "stitch: the patches are flipped or rotated, must lie as in the volume: patch() without these"
        )
    if order.epochs.changes:
        raise ConfigError('stitch: each epoch has other patches, must be those of a grid: patch(..., sampling="grid")')
    canvases = Canvases(store, order.tiles.grid, field, weights=weights, dtype=dtype, memory=limit, overwrite=overwrite)
    left = _PatchesLeft(np.sort(order.numbers(np.arange(order.length))))
    for one in outputs:
        if not isinstance(one, tuple) or len(one) != 2:
            raise ConfigError(f"stitch: got a {type(one).__name__}, must be pairs (outputs, index)")
        values, index = _as_numpy(one[0]), np.asarray(one[1])
        canvases.check(values)
        left.take(index, len(values))
        canvases.add(*order.numbering.locate(index), values)
    left.check_none()
    return canvases.made


class _PatchesLeft:
    """The numbers of the patches whose outputs the caller has not handed in yet."""

    def __init__(self, numbers: Int64) -> None:
        self._numbers, self._is_done = numbers, np.zeros(len(numbers), dtype=bool)

    def take(self, index: npt.NDArray[Any], count: int) -> None:
        """Note that `count` outputs came, with these numbers."""
        found = np.minimum(np.searchsorted(self._numbers, index), len(self._numbers) - 1)
        if index.shape != (count,) or (self._numbers[found] != index).any():
            raise ConfigError(f"stitch: index of shape {index.shape} for {count} outputs, must be of these patches")
        if self._is_done[found].any() or len(np.unique(found)) < len(found):
            raise ConfigError("stitch: an output for a patch came twice")
        self._is_done[found] = True

    def check_none(self) -> None:
        """Raise ConfigError if there are any."""
        if not self._is_done.all():
            raise ConfigError(
                f"stitch: {self._is_done.sum()} outputs, must be one for each of {len(self._is_done)} patches"
            )


def first_patched(fields: Sequence[Field]) -> StoredField:
    """Return the array whose chunks and axes the stitched one has."""
    return next(f for f in fields if isinstance(f, StoredField) and f.patch is not None)


def _as_numpy(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)
