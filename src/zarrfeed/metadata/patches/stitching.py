"""`Canvas`: what a model predicts for the patches of a volume, put together in a Zarr array.

Invariants:

- A voxel is the mean of what the patches that have it predict, weighted by where it lies in each.
- Patches are all combinations of tiles along each dimension, and the weight of a voxel is a product over dimensions. So
  the sum of all weights at a voxel is a product, too, and is known before a patch comes: each patch is added with its
  final weight, in any order.
- Chunks that patches are added to are kept in memory, the last used ones of all volumes, up to a limit. Others are in
  the store.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import ConfigError
from zarrfeed.plan.patches.tiling import TileGrid
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.fields.field import StoredField

#: "flat": all voxels of a patch count alike. "hann": those near its faces count less, as sin**2 along each dimension.
StitchWeights: TypeAlias = Literal["flat", "hann"]
STITCH_WEIGHTS: tuple[StitchWeights, ...] = get_args(StitchWeights)

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Span:
    """Voxels of a patch along one dimension that lie side by side in the volume."""

    patch: slice
    volume: slice
    weight: Floats


class _Axis:
    """One dimension: the share that each voxel of a patch has in the voxel of the volume."""

    def __init__(self, starts: Int64, size: int, extent: int, *, wraps: bool, weights: StitchWeights) -> None:
        self.size, self.extent, self._wraps = size, extent, wraps
        middles = (np.arange(size) + 0.5) / size
        self._window = np.ones(size) if weights == "flat" else np.sin(np.pi * middles) ** 2
        self._sum = np.zeros(extent)
        for start in starts.tolist():
            for patch, volume in self._slices(start):
                self._sum[volume] += self._window[patch]

    def is_covered(self, volume: slice) -> npt.NDArray[np.bool_]:
        """Return True for each voxel that has a patch."""
        covered: npt.NDArray[np.bool_] = self._sum[volume] > 0
        return covered

    def spans(self, start: int) -> list[_Span]:
        """Return the spans of a patch that lie in the volume, one after another, with their weights."""
        return [_Span(p, v, self._window[p] / self._sum[v]) for p, v in self._slices(start)]

    def _slices(self, start: int) -> list[tuple[slice, slice]]:
        turns = range(start // self.extent, (start + self.size - 1) // self.extent + 1) if self._wraps else (0,)
        found = []
        for turn in turns:
            begin = max(start, turn * self.extent)
            end = min(start + self.size, (turn + 1) * self.extent)
            if begin < end:
                volume = slice(begin - turn * self.extent, end - turn * self.extent)
                found.append((slice(begin - start, end - start), volume))
        return found


class BlockMemory:
    """Chunks of canvases that are not written yet: those that were used last, up to a limit of bytes, but at least one.

    Parameters
    ----------
    limit
        Bytes that blocks may take together.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._blocks: OrderedDict[tuple[Canvas, tuple[int, ...]], Floats] = OrderedDict()

    def block(self, canvas: Canvas, index: tuple[int, ...]) -> Floats:
        """Return a chunk of a canvas, which may be written to; it is then the last used one."""
        block = self._blocks.pop((canvas, index), None)
        if block is None:
            while self._blocks and self._used + canvas.block_bytes > self._limit:
                self._write(next(iter(self._blocks)))
            block = canvas.load(index)
            self._used += block.nbytes
        self._blocks[canvas, index] = block
        return block

    def flush(self, canvas: Canvas) -> None:
        """Write all chunks of a canvas."""
        for key in [key for key in self._blocks if key[0] is canvas]:
            self._write(key)

    def _write(self, key: tuple[Canvas, tuple[int, ...]]) -> None:
        canvas, index = key
        block = self._blocks.pop(key)
        self._used -= block.nbytes
        canvas.write(index, block)


class Canvas:
    """A Zarr array that outputs for patches of one volume are added to.

    Parameters
    ----------
    create
        Makes the array; takes `shape`, `chunks`, `dtype` and `fill_value` as `zarr.create_array` does.
    grid, volume
        The patches, and those of which volume.
    dims
        The dimensions that the axes of an output are along, behind its channels. Other dimensions have patches of one
        voxel, and are the first axes of the array.
    channels
        Shape of the axes of an output before those.
    chunk
        Length of a chunk along each dimension.
    dtype
        Dtype of the array.
    weights
        The weight of each voxel of a patch.
    memory
        Keeps the chunks that are not written yet.
    """

    def __init__(
        self,
        create: Callable[..., zarr.Array[Any]],
        grid: TileGrid,
        volume: int,
        *,
        dims: Sequence[int],
        channels: Sequence[int],
        chunk: Sequence[int],
        dtype: str,
        weights: StitchWeights,
        memory: BlockMemory,
    ) -> None:
        count = len(grid.size)
        self._dims = [*(d for d in range(count) if d not in dims), *dims]  # in the order of the array's axes
        self._first = count - len(dims)
        self._channels = tuple(channels)
        self._axes = [
            _Axis(
                grid.starts_along(volume, d),
                int(grid.size[d]),
                int(grid.extents[volume, d]),
                wraps=grid.wraps[d],
                weights=weights,
            )
            for d in self._dims
        ]
        lengths = [axis.extent for axis in self._axes]
        chunks = [min(chunk[d], length) for d, length in zip(self._dims, lengths, strict=True)]
        self._array = create(
            shape=self._with_channels(lengths, self._channels),
            chunks=self._with_channels(chunks, self._channels),
            dtype=dtype,
            fill_value=np.nan,
        )
        self._chunks = chunks
        #: Bytes of a whole chunk in memory.
        self.block_bytes = math.prod((*self._channels, *chunks)) * 8
        self._memory = memory
        self._written: set[tuple[int, ...]] = set()

    def add(self, start: Int64, output: npt.NDArray[Any]) -> None:
        """Add the output for the patch that begins at `start`, shape (D,)."""
        whole = output.reshape((1,) * self._first + output.shape).astype(np.float64)
        spans = [axis.spans(int(start[d])) for axis, d in zip(self._axes, self._dims, strict=True)]
        for combination in itertools.product(*spans):
            values = whole[self._with_all_channels([span.patch for span in combination])]
            for number, span in enumerate(combination):
                shape = [1] * values.ndim
                shape[self._axis_of(number)] = -1
                values = values * span.weight.reshape(shape)
            self._add([span.volume for span in combination], values)

    def close(self) -> zarr.Array[Any]:
        """Write what is in memory, and return the array."""
        self._memory.flush(self)
        return self._array

    def _add(self, volume: Sequence[slice], values: Floats) -> None:
        """Add values to a box of the array."""
        ranges = [range(v.start // c, (v.stop - 1) // c + 1) for v, c in zip(volume, self._chunks, strict=True)]
        for index in itertools.product(*ranges):
            block = self._memory.block(self, index)
            inside, outside = [], []
            for i, v, c in zip(index, volume, self._chunks, strict=True):
                begin, end = max(v.start, i * c), min(v.stop, (i + 1) * c)
                inside.append(slice(begin - i * c, end - i * c))
                outside.append(slice(begin - v.start, end - v.start))
            block[self._with_all_channels(inside)] += values[self._with_all_channels(outside)]

    def load(self, index: tuple[int, ...]) -> Floats:
        """Return a chunk that is not in memory: as it was written, or empty."""
        return self._stored(index) if index in self._written else self._empty(index)

    def write(self, index: tuple[int, ...], block: Floats) -> None:
        """Write a chunk to the store."""
        self._array[self._with_all_channels(self._box(index))] = block.astype(self._array.dtype)
        self._written.add(index)

    def _stored(self, index: tuple[int, ...]) -> Floats:
        return np.asarray(self._array[self._with_all_channels(self._box(index))], dtype=np.float64)

    def _empty(self, index: tuple[int, ...]) -> Floats:
        """Return a chunk to which nothing was added: 0 where there will be something."""
        box = self._box(index)
        covered = np.ones((1,) * len(box), dtype=bool)
        for number, (axis, along) in enumerate(zip(self._axes, box, strict=True)):
            covered = covered & axis.is_covered(along).reshape([-1 if n == number else 1 for n in range(len(box))])
        shape = self._with_channels(covered.shape, self._channels)
        spread = np.broadcast_to(covered.reshape(self._with_channels(covered.shape, (1,) * len(self._channels))), shape)
        return np.where(spread, 0.0, np.nan)

    def _box(self, index: tuple[int, ...]) -> list[slice]:
        """Return the box of the array that a chunk has, without channels."""
        return [
            slice(i * c, min((i + 1) * c, axis.extent))
            for i, c, axis in zip(index, self._chunks, self._axes, strict=True)
        ]

    def _axis_of(self, number: int) -> int:
        """Return the axis of the array that belongs to the dimension `_dims[number]`."""
        return number if number < self._first else number + len(self._channels)

    def _with_all_channels(self, along: Sequence[slice]) -> tuple[slice, ...]:
        return self._with_channels(along, [slice(None)] * len(self._channels))

    def _with_channels(self, values: Sequence[Any], channels: Sequence[Any]) -> tuple[Any, ...]:
        return (*values[: self._first], *channels, *values[self._first :])


class Canvases:
    """A canvas for each volume, from its first patch to its last one.

    Parameters
    ----------
    store
        The store of the only volume's array, or of the group of several arrays, as `zarr.create_array` takes it.
    grid
        The patches.
    field
        The array whose axes and chunks the arrays have.
    weights, dtype
        The arguments of `Canvas`.
    memory
        Bytes for chunks that are not written yet.
    overwrite
        The argument of `zarr.create_array`.
    """

    def __init__(
        self,
        store: Any,
        grid: TileGrid,
        field: StoredField,
        *,
        weights: StitchWeights,
        dtype: str,
        memory: int,
        overwrite: bool,
    ) -> None:
        self._grid = grid
        assert field.patch is not None
        axes = field.patch.axes
        self._dims = [axis.dim for axis in axes if axis.dim is not None and not axis.dropped]
        chunk = {axis.dim: length for axis, length in zip(axes, field.spec.chunk_shape, strict=True)}
        self._options: dict[str, Any] = {
            "dims": self._dims,
            "chunk": [chunk[d] for d in range(len(self._grid.size))],
            "dtype": dtype,
            "weights": weights,
            "memory": BlockMemory(memory),
        }
        self._store, self._overwrite = store, overwrite
        self._left = self._grid.count.prod(axis=1)  # patches of each volume that have not come
        self._output_shape: tuple[int, ...] | None = None
        self._open: dict[int, Canvas] = {}
        #: The array, or the group; None before the first outputs come.
        self.made: Any = None

    def check(self, values: npt.NDArray[Any]) -> None:
        """Raise ConfigError unless outputs have the shape of patches, and that of those before."""
        spatial = tuple(int(self._grid.size[d]) for d in self._dims)
        _check_output(values.shape[1:], spatial)
        if self._output_shape not in (None, values.shape[1:]):
            raise ConfigError(f"outputs have the shape {values.shape[1:]} for a patch, had {self._output_shape} before")
        self._output_shape = values.shape[1:]
        self._options["channels"] = values.shape[1 : values.ndim - len(spatial)]

    def add(self, volumes: Int64, starts: Int64, values: npt.NDArray[Any]) -> None:
        """Add the outputs for patches that begin somewhere."""
        for volume, start, output in zip(volumes.tolist(), starts, values, strict=True):
            if volume not in self._open:
                self._open[volume] = Canvas(self._creator(volume), self._grid, volume, **self._options)
            self._open[volume].add(start, output)
            self._left[volume] -= 1
            if not self._left[volume]:
                array = self._open.pop(volume).close()
                self.made = array if self.made is None else self.made

    def _creator(self, volume: int) -> Callable[..., Any]:
        """Return the function that makes the array of a volume."""
        if len(self._left) == 1:
            return partial(zarr.create_array, self._store, overwrite=self._overwrite)
        if self.made is None:
            self.made = zarr.create_group(self._store, overwrite=self._overwrite)
        return partial(self.made.create_array, str(volume))


def _check_output(output: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise ConfigError unless the outputs for a batch have the right shape behind the batch, but for channels."""
    if output[len(output) - len(wanted) :] != wanted or len(output) < len(wanted):
        raise ConfigError(f"outputs have the shape {output} for a patch, must end with {wanted}")
