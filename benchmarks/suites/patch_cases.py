"""The arrays that patches are cut out of, for benchmarks/suites/patches.py: their shapes, chunks, codecs and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, ZstdCodec

Voxels = npt.NDArray[Any]
Shape = tuple[int, int, int]

#: At the small scale, extents are divided by the first number, chunks and patches by the second one.
_SMALLER, _FINER = 16, 8


@dataclass(frozen=True)
class Case:
    """An array, and the patches that it is cut into.

    Attributes
    ----------
    shape, chunks, shards
        Of the array; None: it has no shards.
    patch
        Voxels of a patch along each axis.
    batch
        Patches of a batch.
    lanes
        With which the goal for `most_decodes` is measured.
    most_decodes
        The goal: how often a chunk is decoded in an epoch, at most; None: there is none.
    dtype, codec
        "u1", "u2" or "f4"; "lz4" (Blosc with bit shuffle of bytes, with shuffle of others) or "zstd".
    drawn
        Patches that an epoch draws; None: patches are tiles.
    is_weighted
        Whether patches are drawn of the foreground alone.
    holds_index
        Whether a voxel is its own index in C order, instead of a smooth field with noise.
    """

    shape: Shape
    chunks: Shape
    patch: Shape
    batch: int
    lanes: int
    most_decodes: float | None
    dtype: str = "u1"
    codec: str = "lz4"
    shards: Shape | None = None
    drawn: int | None = None
    is_weighted: bool = False
    holds_index: bool = False

    @property
    def decoded_bytes(self) -> int:
        """Decoded bytes of the whole array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def small(self) -> Case:
        """Return a small case of the same kind, whose voxels are their own indices."""
        return replace(
            self,
            shape=_divided(self.shape, _SMALLER),
            chunks=_divided(self.chunks, _FINER),
            patch=_divided(self.patch, _FINER),
            shards=None if self.shards is None else _divided(self.shards, _FINER),
            dtype=self.dtype if self.dtype == "f4" else "u4",
            drawn=None if self.drawn is None else self.drawn * _FINER**3 // _SMALLER**3,
            holds_index=True,
        )


def _divided(shape: Sequence[int], by: int) -> Shape:
    z, y, x = (max(1, length // by) for length in shape)
    return z, y, x


_VOLUME, _PATCH = (768, 768, 768), (64, 64, 64)
_FIELD: Shape = (192, 721, 1440)
#: What random patches are drawn of. An epoch has as many voxels as the volume.
_SCAN: Shape = (512, 768, 768)

CASES = {
    "chunks 128, lz4": Case((1024, 1024, 1024), (128, 128, 128), _PATCH, 8, 8, 1.5),
    "chunks 64, lz4": Case(_VOLUME, _PATCH, _PATCH, 8, 8, 1.25),
    "chunks 64, zstd": Case(_VOLUME, _PATCH, _PATCH, 8, 8, 1.25, codec="zstd"),
    "chunks 64, shards 256": Case(_VOLUME, _PATCH, _PATCH, 8, 8, 1.25, shards=(256, 256, 256)),
    "hours, chunks of a day": Case(_FIELD, (24, 256, 256), (1, 128, 128), 64, 4, 1.05, dtype="f4"),
    "hours, chunks of an hour": Case(_FIELD, (1, 721, 1440), (1, 128, 128), 64, 4, 1.05, dtype="f4"),
    "hours, 256 x 256": Case(_FIELD, (24, 256, 256), (1, 256, 256), 16, 4, 1.05, dtype="f4"),
    "crops 64 x 64 x 8": Case(_VOLUME, _PATCH, (64, 64, 8), 64, 8, 1.25),
    "crops 8 x 64 x 64": Case(_VOLUME, _PATCH, (8, 64, 64), 64, 8, 1.25),
    "random 64": Case(_SCAN, _PATCH, _PATCH, 8, 8, None, dtype="u2", drawn=1152),
    "random 64 of foreground": Case(_SCAN, _PATCH, _PATCH, 8, 8, None, dtype="u2", drawn=1152, is_weighted=True),
    "random 8 x 64 x 64": Case(_SCAN, _PATCH, (8, 64, 64), 64, 8, None, dtype="u2", drawn=9216),
}

#: Arrays of the size that the goals are about. They are not written: `explain()` counts what an epoch would decode.
PLANNED = {
    "chunks 128, uint8": Case((2048, 2048, 2048), (128, 128, 128), _PATCH, 8, 8, 1.5),
    "chunks 128, float32": Case((2048, 2048, 2048), (128, 128, 128), _PATCH, 8, 4, 1.6, dtype="f4"),
    "chunks 64, uint8": Case((2048, 2048, 2048), _PATCH, _PATCH, 8, 8, 1.25),
    "chunks of a day": Case((1920, 721, 1440), (24, 512, 512), (1, 128, 128), 64, 4, 1.05, dtype="f4"),
    "chunks of an hour": Case((1920, 721, 1440), (1, 721, 1440), (1, 128, 128), 64, 4, 1.05, dtype="f4"),
}


def create(path: Path, case: Case) -> Any:
    """Create the array of a case, without values."""
    compressor: Any = ZstdCodec(level=3)
    if case.codec == "lz4":
        compressor = BloscCodec(cname="lz4", clevel=5, shuffle="bitshuffle" if case.dtype == "u1" else "shuffle")
    return zarr.create_array(
        path,
        shape=case.shape,
        chunks=case.chunks,
        shards=case.shards,
        dtype=case.dtype,
        compressors=compressor,
        dimension_names=("z", "y", "x"),
    )


def write(path: Path, case: Case) -> None:
    """Write the array of a case, a layer of chunks or shards at a time."""
    array = create(path, case)
    rng = np.random.default_rng(0)
    step = (case.shards or case.chunks)[0]
    step = max(step, min(case.shape[0], 16))
    for begin in range(0, case.shape[0], step):
        end = min(begin + step, case.shape[0])
        array[begin:end] = _layer(case, begin, end, rng)


def _layer(case: Case, begin: int, end: int, rng: np.random.Generator) -> Voxels:
    """Return the voxels [begin, end) along the first axis."""
    shape = (end - begin, *case.shape[1:])
    if case.holds_index:
        first = begin * math.prod(case.shape[1:])
        return np.arange(first, first + math.prod(shape)).astype(case.dtype).reshape(shape)
    smooth = _waves(case.shape, [np.arange(begin, end), *map(np.arange, case.shape[1:])])
    noise = np.frombuffer(rng.bytes(math.prod(shape)), dtype="u1").reshape(shape)
    if case.dtype == "u1":
        levels = ((smooth + 3) * 5).astype("u1")  # 0 to 30
        voxels: Voxels = (levels << 3) | (noise & 7)
        return voxels
    if case.dtype == "u2":
        counts: Voxels = ((smooth + 3) * 500).astype("u2") + (noise & 31)  # of a detector with 12 bits
        return counts
    field = (280 + 10 * smooth).astype("f4") + noise.astype("f4") / 256
    rounded: Voxels = (field.view("u4") & np.uint32(0xFFFFF800)).view("f4")  # mantissas of 12 bits
    return rounded


def foreground(case: Case) -> Voxels:
    """Return where a smooth field is high, on a grid of an eighth of a chunk; uint8."""
    step = [max(1, chunk // 8) for chunk in case.chunks]
    middles = [np.arange(length // by) * by + by // 2 for length, by in zip(case.shape, step, strict=True)]
    mask: Voxels = (_waves(case.shape, middles) > 1.2).astype("u1")
    return mask


def _waves(shape: Shape, indices: Sequence[Voxels]) -> Voxels:
    """Return a wave along each axis, and their sum on a grid of indices; float32, from -3 to 3."""
    each = enumerate(zip(indices, shape, strict=True))
    z, y, x = (np.sin(at * 2 * np.pi * (2 + axis) / length) for axis, (at, length) in each)
    total: Voxels = z[:, None, None].astype("f4") + (y[:, None] + x).astype("f4")
    return total
