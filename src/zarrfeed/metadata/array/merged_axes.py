"""Several axes of a stored array as its one axis of samples, such as member and time.

Invariant: the rows of the merged axis are those of `SampleGrid`: all rows of a chunk follow each other, in the order
in which the chunk stores them. So a decoded chunk is the same bytes with fewer axes, and nothing is copied or moved for
it. The rows that pad a chunk at an edge of the array are rows of no sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.spec.arrays.array import ArraySpec, MergedAxes
from zarrfeed.spec.samples.row_map import GridRows
from zarrfeed.spec.samples.sample_grid import SampleGrid


def merge_axes(
    spec: ArraySpec, dims: Sequence[str], axes: Sequence[int | None], lengths: Sequence[int]
) -> tuple[ArraySpec, GridRows]:
    """Return an array whose sample axis stands for several axes, and the row of each sample.

    Parameters
    ----------
    spec
        The array with all of its axes.
    dims, axes, lengths
        The dimensions that number the samples, the last one fastest: their names, the axis that each is in the array,
        or None where the array lacks it, and their lengths.

    Raises
    ------
    UnsupportedError
        If a chunk has several indices along two of the dimensions, and stores another axis between them.
    """
    chunks = [None if axis is None else spec.chunk_shape[axis] for axis in axes]
    along = {axis: number for number, axis in enumerate(axes) if axis is not None}
    inside = [along[axis] for axis in spec.storage_order if axis in along]
    lacking = [number for number, axis in enumerate(axes) if axis is None]
    grid = SampleGrid.of(lengths, chunks, (*lacking, *inside))
    shards = (1,) * len(spec.shape) if spec.shard is None else spec.shard.chunks
    box = [
        n if axis is None else min(n, spec.chunk_shape[axis] * shards[axis])
        for n, axis in zip(lengths, axes, strict=True)
    ]
    rows = GridRows(grid, SampleGrid.of(lengths, box))
    if len(along) == 1:
        return replace(spec, sample_axis=next(iter(along))), rows
    kept = _kept_axis(spec, dims, list(along))
    left = [axis for axis in range(len(spec.shape)) if axis == kept or axis not in along]
    at = {axis: left.index(kept if axis in along else axis) for axis in range(len(spec.shape))}
    counts = [-(-n // chunk) for n, chunk in zip(spec.shape, spec.chunk_shape, strict=True)]
    rows_of_chunk = math.prod(spec.chunk_shape[axis] for axis in along)
    steps = [grid.chunk_steps[along[axis]] // rows_of_chunk if axis in along else 1 for axis in range(len(counts))]
    num_rows = rows_of_chunk * math.prod(counts[axis] for axis in along)
    merged = replace(
        spec,
        shape=tuple(num_rows if axis == kept else spec.shape[axis] for axis in left),
        chunk_shape=tuple(rows_of_chunk if axis == kept else spec.chunk_shape[axis] for axis in left),
        storage_order=tuple(at[axis] for axis in spec.storage_order if axis in left),
        sample_axis=at[kept],
        num_key_axes=spec.num_key_axes - len(along) + 1,
        merged=MergedAxes(spec, tuple((at[axis], steps[axis], counts[axis]) for axis in range(spec.num_key_axes))),
    )
    return merged, rows


def _kept_axis(spec: ArraySpec, dims: Sequence[str], axes: Sequence[int]) -> int:
    """Return the axis in whose place the merged axis is: the outermost one of which a chunk has several indices."""
    wide = [axis for axis in spec.storage_order if spec.chunk_shape[axis] > 1]
    found = [number for number, axis in enumerate(wide) if axis in axes]
    if not found:
        return min(axes)
    between = [axis for axis in wide[found[0] : found[-1]] if axis not in axes]
    if between:
        raise UnsupportedError(
            f"{spec.name}: sample_dim = {tuple(dims)!r}: a chunk of {spec.chunk_shape} has several indices along more "
            f"than one of these, and stores axis {between[0]} between them; at most one of the dimensions may have "
            "several, or they must be side by side"
        )
    return wide[found[0]]
