"""The turns of patches: flips, and rotations by 90 degrees, drawn for each patch of an epoch.

Invariants, which tests check:

- **A turn is a signed permutation.** An orientation has a number for each dimension of patches: dimension d of a
  turned patch runs along dimension `o[d]` of the volume, or backwards along `~o[d]` if `o[d]` is negative. The turned
  patch is `np.flip(np.transpose(patch, axes), reversed)`: the rotation comes first, then the flips.
- **A function of (seed, epoch, patch).** The key is SplitMix64 of (purpose, seed, epoch, number of the patch). The
  number says where the patch begins. Neither ranks, workers, resuming nor the memory budget change it, nor the position
  of the patch in the epoch order. Patches that begin at the same voxel are turned alike in an epoch.
- **Uniform.** All flips of the dimensions to flip are combined with all rotations of the dimensions to rotate, and one
  of the combinations is drawn. So each dimension is flipped with probability 1/2, whatever the others do, and each
  rotation is equally likely. Some combinations may be the same orientation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.plan.order.keyed_random import below, keys_of
from zarrfeed.plan.samples.selection import Int64

_ORIENTATION = 0x6F7269656E74


@dataclass(frozen=True)
class Turns:
    """The orientations that patches may have.

    Attributes
    ----------
    num_dims
        D, dimensions of patches.
    flip
        The dimensions that may be reversed.
    rotate
        The dimensions that are rotated among each other: none, two or three, of the same size.

    Examples
    --------
    >>> turns = Turns(3, flip=(2,), rotate=(1, 2))
    >>> len(turns.table)
    8
    >>> turns.at(seed=0, epoch=1, numbers=np.array([17, 4711])).tolist()
    [[0, -3, -2], [0, -3, 1]]
    """

    num_dims: int
    flip: tuple[int, ...] = ()
    rotate: tuple[int, ...] = ()

    @cached_property
    def table(self) -> Int64:
        """All combinations of a rotation with flips, each equally likely, shape (combinations, D)."""
        found = []
        for rotation in _rotations(len(self.rotate)):
            rotated = np.arange(self.num_dims)
            for d, source in zip(self.rotate, rotation, strict=True):
                rotated[d] = self.rotate[source] if source >= 0 else ~self.rotate[~source]
            for flips in itertools.product((False, True), repeat=len(self.flip)):
                turned = rotated.copy()
                reversed_ = [d for d, is_reversed in zip(self.flip, flips, strict=True) if is_reversed]
                turned[reversed_] = ~turned[reversed_]
                found.append(turned)
        return np.array(found, dtype=np.int64)

    def at(self, seed: int, epoch: int, numbers: Int64) -> Int64:
        """Return the orientations of patches in an epoch, given their numbers, shape (n,): shape (n, D)."""
        drawn = below(keys_of(_ORIENTATION, seed, epoch, numbers), np.full(len(numbers), len(self.table)))
        found: Int64 = self.table[drawn]
        return found

    def describe(self) -> dict[str, Any]:
        """Return the dimensions that may be flipped or rotated, as JSON."""
        return {"flip": list(self.flip), "rotate": list(self.rotate)}


def _rotations(dimensions: int) -> list[list[int]]:
    """Return the rotations by multiples of 90 degrees: the signed permutations whose determinant is 1."""
    permutations = itertools.permutations(range(dimensions))
    signed = itertools.product(permutations, itertools.product((0, 1), repeat=dimensions))
    return [
        [~axis if sign else axis for axis, sign in zip(axes, signs, strict=True)]
        for axes, signs in signed
        if (sum(a > b for a, b in itertools.combinations(axes, 2)) + sum(signs)) % 2 == 0
    ]
