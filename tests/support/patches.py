"""Volumes whose voxels say where they are, and what patches of them must be, by NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

import zarrfeed
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


def turned(box: Voxels, orientation: Sequence[int]) -> Voxels:
    """Return a box whose axis d runs along axis `orientation[d]`, or backwards along `~orientation[d]`, by NumPy."""
    axes = [~one if one < 0 else one for one in orientation]
    made: Voxels = np.flip(np.transpose(box, axes), tuple(d for d, one in enumerate(orientation) if one < 0))
    return made


def read(dataset: ZarrIterableDataset) -> Iterator[tuple[Any, int]]:
    """Return the samples of a pass, each with its number."""
    for samples, index in dataset:
        for slot, number in enumerate(index.tolist()):
            yield {k: t[slot] for k, t in samples.items()} if isinstance(samples, dict) else samples[slot], number


def check_ranks_and_resume(data: zarrfeed.Data, num_batches: int) -> list[int]:
    """Check that ranks share one order, and that a run on one rank, then three, then one again has all of it.

    Each of the three reads `num_batches` batches. Returns the lengths of the epochs that were read.
    """

    def made(rank: int, world_size: int, batch_size: int) -> ZarrIterableDataset:
        options: dict[str, Any] = {"rank": rank, "world_size": world_size, "even": "off", "return_index": True}
        return ZarrIterableDataset(data, batch_size=batch_size, shuffle=True, **options)

    lengths = []
    for epoch in (0, 3):
        whole = made(0, 1, 12).sample_order(epoch).tolist()
        lengths.append(len(whole))
        for world_size in (2, 3):
            ranks = [made(rank, world_size, 12 // world_size).sample_order(epoch) for rank in range(world_size)]
            dealt = [int(number) for one in itertools.zip_longest(*ranks) for number in one if number is not None]
            assert dealt == whole
        first = made(0, 1, 12)
        first.set_epoch(epoch)
        passing = iter(first)
        seen = [number for _ in range(3) for number in next(passing)[1].tolist()]
        state = first.state_dict()
        three = []
        for rank in range(3):
            dataset = made(rank, 3, 4)
            dataset.load_state_dict(state)
            passing = iter(dataset)
            three.append([next(passing)[1].tolist() for _ in range(num_batches)])
            later = dataset.state_dict()
        for batches in zip(*three, strict=True):
            seen += [number for one in zip(*batches, strict=True) for number in one]
        last = made(0, 1, 12)
        last.load_state_dict(later)
        seen += [number for _, number in read(last)]
        assert seen == whole
    return lengths
