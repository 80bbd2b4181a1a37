"""Patches that are drawn anew in each epoch: uniformly, or with the weights of the voxels in their middle.

Invariants:

- **Keys.** Patch i of an epoch is a function of (seed, epoch, i) and of the volumes alone, so it is the same for any
  number of ranks.
- **Uniform.** Without weights, all positions are equally likely. With border "drop" these are the ones where a patch
  lies inside of its volume; with "pad" those where it has a voxel of it; with "wrap" all voxels.
- **Weights.** With weights, the voxel `start + size // 2` is drawn with the probability of its weight, among the voxels
  of volumes ("pad", "wrap"), or among those where the patch lies inside ("drop").
- **Parts.** Of several sources that were put together, one of them with weights, each has its own number of patches in
  every epoch, drawn by its own weights: weights of different sources have no common scale.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.plan.order.keyed_random import below, keys_of
from zarrfeed.plan.patches.tiling import Border
from zarrfeed.plan.patches.weight_table import Ranges, WeightTable
from zarrfeed.plan.samples.selection import Int64

_DRAW = 0x64726177


@dataclass(frozen=True, eq=False)
class RandomPositions:
    """Patches that are drawn.

    Attributes
    ----------
    extents
        Voxels of each volume, shape (V, D).
    size, border
        Size of patches, and their border, for each dimension; no border is "shift".
    num_samples
        Patches of an epoch.
    weights
        Weights of voxels, counted from the first sample of the first store. None: all positions are equally likely.
    first
        With weights: the first sample of each volume, shape (V,).
    """

    extents: Int64
    size: tuple[int, ...]
    border: tuple[Border, ...]
    num_samples: int
    weights: WeightTable | None = None
    first: Int64 | None = None

    @property
    def changes(self) -> bool:
        """True if epochs have different patches: always."""
        return True

    @property
    def parts(self) -> tuple[RandomPositions, ...]:
        """The sources that draw by themselves: this one."""
        return (self,)

    def at(self, seed: int, epoch: int, first: int = 0) -> tuple[Int64, Int64]:
        """Return the volume of each patch, shape (n,), and its first voxel there, shape (n, D).

        The patches are patches `first` to `first + n` of the epoch.
        """
        number, sizes = first + np.arange(self.num_samples), np.array(self.size)
        words = [keys_of(_DRAW, seed, epoch, number, d) for d in range(1 + len(self.size))]
        if self.weights is None:
            num_starts, least = self._starts()
            # floats, since there may be more positions than integers
            of_volume = np.cumsum(num_starts.astype(np.float64).prod(axis=1))
            part = (words[0] >> np.uint64(11)).astype(np.float64) * 2.0**-53
            volume = np.minimum(np.searchsorted(of_volume, part * of_volume[-1], side="right"), len(of_volume) - 1)
            start = np.stack([below(words[1 + d], num_starts[volume, d]) for d in range(len(sizes))], axis=1)
            return volume, start + least
        assert self.first is not None
        start = self.weights.draw(words) - sizes // 2
        volume = np.searchsorted(self.first, start[:, 0] + sizes[0] // 2, side="right") - 1
        start[:, 0] -= self.first[volume]
        wraps = np.array(self.border) == "wrap"
        return volume, np.where(wraps, start % self.extents[volume], start)

    def describe(self) -> dict[str, Any]:
        """Return the number of drawn patches, and a hash of the weights."""
        if self.weights is None:
            return {"n": self.num_samples}
        first = np.ascontiguousarray(np.asarray(self.first).astype("<i8"))
        digest = hashlib.sha256(self.weights.digest.encode() + first.tobytes()).hexdigest()
        return {"n": self.num_samples, "weights": digest[:16]}

    def concat(self, parts: Sequence[tuple[Any, int]]) -> RandomPositions | PositionsOfParts:
        """Return the patches of several descriptions, as many as all of them have.

        With weights, each has its own number of patches. Without any, they are drawn from all volumes alike.
        """
        return joined_draws([part for one, _ in parts for part in one.parts])

    def _starts(self) -> tuple[Int64, Int64]:
        """Return the number of voxels at which patches may begin along each dimension, and the first of these voxels.

        Returns
        -------
        Arrays of shape (V, D) and (D,).
        """
        sizes, border = np.array(self.size), np.array(self.border)
        num_starts = np.where(border == "drop", self.extents - sizes + 1, self.extents)
        num_starts = np.where(border == "pad", self.extents + sizes - 1, num_starts)
        return num_starts, np.where(border == "pad", 1 - sizes, 0)


@dataclass(frozen=True, eq=False)
class PositionsOfParts:
    """Patches of several sources, each of which draws its own number of them from its own volumes.

    Attributes
    ----------
    parts
        The sources, in the order of their volumes.
    """

    parts: tuple[RandomPositions, ...]

    @cached_property
    def num_samples(self) -> int:
        """Patches of an epoch."""
        return sum(one.num_samples for one in self.parts)

    @property
    def changes(self) -> bool:
        """True if epochs have different patches: always."""
        return True

    def at(self, seed: int, epoch: int) -> tuple[Int64, Int64]:
        """Return the volume of each patch, shape (n,), and its first voxel there, shape (n, D)."""
        volumes, starts = [], []
        first_volume = first = 0
        for one in self.parts:
            volume, start = one.at(seed, epoch, first)
            volumes.append(first_volume + volume)
            starts.append(start)
            first_volume += len(one.extents)
            first += one.num_samples
        return np.concatenate(volumes), np.concatenate(starts)

    def describe(self) -> dict[str, Any]:
        """Return the number of drawn patches, and a hash of the numbers and the weights of all sources."""
        described = json.dumps([one.describe() for one in self.parts])
        return {"n": self.num_samples, "weights": hashlib.sha256(described.encode()).hexdigest()[:16]}

    def concat(self, parts: Sequence[tuple[Any, int]]) -> RandomPositions | PositionsOfParts:
        """Return the patches of several descriptions, as many as all of them have."""
        return joined_draws([part for one, _ in parts for part in one.parts])


def joined_draws(parts: Sequence[RandomPositions]) -> RandomPositions | PositionsOfParts:
    """Return the patches of several sources: each draws by itself if one of them has weights."""
    if any(one.weights is not None for one in parts):
        return PositionsOfParts(tuple(parts))
    extents = np.concatenate([one.extents for one in parts])
    return RandomPositions(extents, parts[0].size, parts[0].border, sum(one.num_samples for one in parts))


def middles(first: Int64, extents: Int64, size: tuple[int, ...], border: tuple[Border, ...]) -> tuple[Ranges, ...]:
    """Return the voxels that patches may have in their middle, given the first sample of each volume.

    Along the sample axis they are counted from the first sample of the first store. Along other dimensions all volumes
    have the same extents.
    """
    found = []
    for d, (one, of_dimension) in enumerate(zip(size, border, strict=True)):
        begin, end = (first, first + extents[:, 0]) if d == 0 else (np.zeros(1, dtype=np.int64), extents[:1, d])
        if of_dimension == "drop":
            begin, end = begin + one // 2, end - one + one // 2 + 1
        found.append(Ranges(begin, end))
    return tuple(found)
