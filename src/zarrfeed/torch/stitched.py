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
from zarrfeed.metadata.patching import Patching
from zarrfeed.metadata.stitching import PATCH_WEIGHTS, Canvas, PatchWeights, check_output
from zarrfeed.plan.patch_numbers import Numbering
from zarrfeed.plan.selection import Int64
from zarrfeed.plan.swept_order import SweptOrder
from zarrfeed.spec.field import Field, StoredField

_DTYPES = ("float16", "float32", "float64")


def stitch(
    outputs: Iterable[Any],
    store: Any,
    *,
    patching: Patching,
    field: StoredField,
    order: SweptOrder,
    numbers: Int64,
    weights: PatchWeights,
    dtype: str,
    memory: int | str,
    overwrite: bool,
) -> Any:
    """Write outputs to a Zarr array; `numbers` are those of the patches in the order in which they are delivered.

    Raises
    ------
    ConfigError
        If there are several volumes, or outputs do not fit the patches in number or shape.
    """
    check_choice("weights", weights, PATCH_WEIGHTS)
    check_flags(overwrite=overwrite)
    limit = parse_bytes(memory, "memory")
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype = {dtype!r}, must be one of {', '.join(_DTYPES)}: voxels are means")
    grid = order.tiles.grid
    if len(grid.extents) > 1:
        raise ConfigError(f"stitch: the patches are of {len(grid.extents)} volumes; stitch each of them by itself")
    assert field.patch is not None
    shown = [(axis, chunk) for axis, chunk in zip(field.patch.axes, field.spec.chunk_shape, strict=True)]
    dims = [axis.dim for axis, _ in shown if axis.dim is not None and not axis.dropped]
    chunk = {axis.dim: length for axis, length in shown}
    numbering, canvas, done = Numbering.of(patching.all_extents, np.array(patching.sizes)), None, 0
    spatial = tuple(int(grid.size[d]) for d in dims)
    for one in outputs:
        made, of_batch = one if isinstance(one, tuple) else (one, None)
        values = _as_numpy(made)
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
        taken = numbers[done : done + len(values)] if of_batch is None else np.asarray(of_batch)
        if len(taken) != len(values):
            raise ConfigError(f"stitch: {done + len(values)} outputs, must be one for each of {len(numbers)} patches")
        if values.shape[1:] != canvas.output_shape:
            raise ConfigError(
                f"outputs have the shape {values.shape[1:]} for a patch, had {canvas.output_shape} before"
            )
        _, starts = numbering.locate(taken)
        for start, output in zip(starts, values, strict=True):
            canvas.add(start, output)
        done += len(values)
    if canvas is None or done != len(numbers):
        raise ConfigError(f"stitch: {done} outputs, must be one for each of {len(numbers)} patches")
    return canvas.close()


def first_patched(fields: Sequence[Field]) -> StoredField:
    """Return the array whose chunks and axes the stitched one has."""
    return next(f for f in fields if isinstance(f, StoredField) and f.patch is not None)


def _as_numpy(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)
