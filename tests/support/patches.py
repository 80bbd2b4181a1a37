"""Volumes whose voxels say where they are, and what patches of them must be, by NumPy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed import ZarrIterableDataset

Voxels = npt.NDArray[Any]

SHAPE = (30, 26, 21)


def volume(shape: Sequence[int] = SHAPE, first: int = 1) -> Voxels:
    """Return an array whose voxels say where they are."""
    return np.arange(first, first + math.prod(shape), dtype="i4").reshape(shape)


def stored(path: Path, array: Voxels, **options: Any) -> str:
    zarr.create_array(path, data=array, **options)
    return str(path)


def patch_of(array: Voxels, start: Voxels, size: Sequence[int], pad: Any = 0, wraps: Sequence[int] = ()) -> Voxels:
    """Return what the patch that begins there has, by np.pad."""
    for axis, length in enumerate(size):
        around = [(0, 0)] * array.ndim
        around[axis] = (length, length)
        if axis in wraps:
            array = np.pad(array, around, mode="wrap")
        elif isinstance(pad, str) and pad != "nan":
            array = np.pad(array, around, mode=pad)  # type: ignore[call-overload]
        else:
            array = np.pad(array, around, constant_values=np.nan if pad == "nan" else pad)
    found: Voxels = array[tuple(slice(s + p, s + 2 * p) for s, p in zip(start, size, strict=True))]
    return found


def read(dataset: ZarrIterableDataset) -> Iterator[tuple[Any, int]]:
    """Return the samples of a pass, each with its number."""
    for samples, index in dataset:
        for place, number in enumerate(index.tolist()):
            yield {k: t[place] for k, t in samples.items()} if isinstance(samples, dict) else samples[place], number
