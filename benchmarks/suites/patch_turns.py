"""Patches that are flipped and rotated, for benchmarks/suites/patches.py: which ones, and how they lie in the array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mode

import numpy as np
import torch

from benchmarks.suites.patch_cases import Voxels
from zarrfeed.metadata.patches.patching import Patching

Dims = list[str | int]

#: A side -> the arguments of `Data.patch` that turn its patches.
TURNED = {"flipped": ("flip",), "rotated": ("rotate",), "flipped and rotated": ("flip", "rotate")}


def turned_dims(size: Mapping[str | int, int], turned: Sequence[str]) -> tuple[Dims, Dims]:
    """Return the dimensions to flip, which are all, and those to rotate, which have the size that most have.

    >>> turned_dims({"z": 64, "y": 64, "x": 8}, ("flip", "rotate"))
    (['z', 'y', 'x'], ['z', 'y'])
    """
    side = mode(size.values())
    return list(size) if "flip" in turned else [], [d for d in size if size[d] == side] if "rotate" in turned else []


def turned_back(
    batches: Iterable[tuple[torch.Tensor, torch.Tensor]], patching: Patching | None, size: Sequence[int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return the batches of the first epoch, of seed 0, with each patch as it lies in the array."""
    turns = None if patching is None else patching.turns
    for batch, index in batches:
        if turns is None:
            yield batch, index
            continue
        of_batch = zip(batch.numpy(), turns.at(0, 0, index.numpy()), strict=True)
        yield torch.from_numpy(np.stack([_turned_back(one.reshape(size), turn) for one, turn in of_batch])), index


def _turned_back(patch: Voxels, orientation: Voxels) -> Voxels:
    """Return the box that a patch was made of, whose dimension d runs along dimension o of the box, or back along ~o.

    >>> _turned_back(np.array([[2, 4], [1, 3]]), np.array([~1, 0]))
    array([[1, 2],
           [3, 4]])
    """
    forwards = np.flip(patch, tuple(np.flatnonzero(orientation < 0).tolist()))
    return np.transpose(forwards, np.argsort(np.where(orientation < 0, ~orientation, orientation)))
