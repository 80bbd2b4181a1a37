"""Numbers of patches: the number of a patch follows from the voxel where it begins, and is the same in every epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zarrfeed.plan.samples.selection import Int64


@dataclass(frozen=True, eq=False)
class Numbering:
    """Numbers of all patches that there can be.

    Attributes
    ----------
    margin
        Voxels that a patch may begin before a volume, for each dimension, shape (D,).
    stride
        Difference in number between neighbouring voxels along each dimension, shape (volumes, D).
    first
        The first number of each volume, and the first number that no patch has, shape (volumes + 1,).
    """

    margin: Int64
    stride: Int64
    first: Int64

    @classmethod
    def of(cls, extents: Int64, sizes: Int64) -> Numbering:
        """Return numbers for the patches of volumes, given their extents, shape (volumes, D), and those of a patch."""
        num_starts = extents + sizes
        stride = np.ones_like(num_starts)
        for d in reversed(range(num_starts.shape[1] - 1)):
            stride[:, d] = stride[:, d + 1] * num_starts[:, d + 1]
        return cls(sizes.astype(np.int64), stride, np.concatenate(([0], np.cumsum(stride[:, 0] * num_starts[:, 0]))))

    def locate(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the volume of patches, shape (n,), and their first voxel in it, shape (n, D)."""
        volume = np.searchsorted(self.first, numbers, side="right") - 1
        left = numbers - self.first[volume]
        start = np.empty((*numbers.shape, len(self.margin)), dtype=np.int64)
        for d in range(len(self.margin)):
            start[..., d], left = np.divmod(left, self.stride[volume, d])
        return volume, start - self.margin

    def number(self, volume: Int64, start: Int64) -> Int64:
        """Return the numbers of patches: what `locate` takes apart."""
        found: Int64 = self.first[volume] + ((start + self.margin) * self.stride[volume]).sum(axis=-1)
        return found
