"""Outputs of a model, batch by batch, for the patches of a dataset: where each one belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.units import parse_bytes
from zarrfeed.base.validate import check_choice, check_flags
from zarrfeed.metadata.stitching import PATCH_WEIGHTS, Canvas, PatchWeights, check_output
from zarrfeed.plan.swept_order import SweptOrder
from zarrfeed.spec.field import Field, StoredField

_DTYPES = ("float16", "float32", "float64")


def stitch(
    outputs: Iterable[tuple[Any, Any]],
    store: Any,
    *,
    field: StoredField,
    order: SweptOrder,
    weights: PatchWeights,
    dtype: str,
    memory: int | str,
    overwrite: bool,
) -> Any:
    """Write the outputs for the patches of an order, each with their numbers, to a Zarr array with the axes of a field.

    Raises
    ------
    ConfigError
        If there are several volumes, or epochs have other patches, or outputs do not fit the patches.
    """
    check_choice("weights", weights, PATCH_WEIGHTS)
    check_flags(overwrite=overwrite)
    limit = parse_bytes(memory, "memory")
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype = {dtype!r}, must be one of {', '.join(_DTYPES)}: voxels are means")
    if order.epochs.is_listed:
        raise ConfigError('stitch: the patches lie on no grid, must be of sampling = "grid" or "tiles"')
    grid = order.tiles.grid
    if len(grid.extents) > 1:
        raise ConfigError(f"stitch: the patches are of {len(grid.extents)} volumes; stitch each of them by itself")
    if order.epochs.changes:
        raise ConfigError('stitch: each epoch has other patches, must be those of a grid: patch(..., sampling="grid")')
    assert field.patch is not None
    shown = [(axis, chunk) for axis, chunk in zip(field.patch.axes, field.spec.chunk_shape, strict=True)]
    dims = [axis.dim for axis, _ in shown if axis.dim is not None and not axis.dropped]
    chunk = {axis.dim: length for axis, length in shown}
    numbers, canvas = np.sort(order.numbers(np.arange(order.length))), None
    is_done = np.zeros(len(numbers), dtype=bool)
    spatial = tuple(int(grid.size[d]) for d in dims)
    for one in outputs:
        if not isinstance(one, tuple) or len(one) != 2:
            raise ConfigError(f"stitch: got a {type(one).__name__}, must be pairs (outputs, index)")
        values, index = _as_numpy(one[0]), np.asarray(one[1])
        check_output(values.shape[1:], spatial)
        if canvas is None:
            canvas = Canvas(
                store,
                grid,
                dims=dims,
                channels=values.shape[1 : values.ndim - len(spatial)],
                chunk=[chunk[d] for d in range(len(grid.size))],
                dtype=dtype,
                weights=weights,
                memory=limit,
                overwrite=overwrite,
            )
        place = np.minimum(np.searchsorted(numbers, index), len(numbers) - 1)
        if index.shape != values.shape[:1] or (numbers[place] != index).any():
            raise ConfigError(
                f"stitch: index of shape {index.shape} for {len(values)} outputs, must be of these patches"
            )
        if is_done[place].any() or len(np.unique(place)) < len(place):
            raise ConfigError("stitch: an output for a patch came twice")
        is_done[place] = True
        if values.shape[1:] != canvas.output_shape:
            raise ConfigError(
                f"outputs have the shape {values.shape[1:]} for a patch, had {canvas.output_shape} before"
            )
        _, starts = order.numbering.locate(index)
        for start, output in zip(starts, values, strict=True):
            canvas.add(start, output)
    if canvas is None or not is_done.all():
        raise ConfigError(f"stitch: {is_done.sum()} outputs, must be one for each of {len(numbers)} patches")
    return canvas.close()


def first_patched(fields: Sequence[Field]) -> StoredField:
    """Return the array whose chunks and axes the stitched one has."""
    return next(f for f in fields if isinstance(f, StoredField) and f.patch is not None)


def _as_numpy(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)
