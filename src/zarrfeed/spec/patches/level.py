"""`Level`: an array that has another one's voxels at a lower resolution, such as a level of a pyramid.

Source: OME-Zarr 0.4 and 0.5, `coordinateTransformations`: voxel i of level l has its middle at
scale[l] i + translation[l].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.spec.samples.row_map import RowMap

#: Part of a voxel of the first level that a translation may be off: writers round translations.
_ROUNDING = 0.01


@dataclass(frozen=True)
class Level:
    """The position of an array's voxels among those of the first level, along each axis of the array.

    Voxel x of the first level has its first face in voxel (x - origin) // scale of this array.

    Attributes
    ----------
    scale
        Voxels of the first level for each voxel, at least 1.
    origin
        The voxel of the first level whose first face is the first one in voxel 0, if the first level went on before its
        voxel 0. 0 where voxels 0 of both levels begin at the same place.
    """

    scale: tuple[int, ...]
    origin: tuple[int, ...]

    @classmethod
    def of(cls, scale: Sequence[int], before: Sequence[float]) -> Level:
        """Return the level whose voxel 0 begins `before` voxels of the first level before that level's voxel 0."""
        return cls(tuple(scale), tuple(-math.floor(one + _ROUNDING) for one in before))

    def __str__(self) -> str:
        """Return the level in words, for people."""
        return f"level with 1 voxel for {' x '.join(map(str, self.scale))} of the first"


@dataclass(frozen=True, eq=False)
class LevelRows(RowMap):
    """The rows of a level: each sample, an index of the first level along the sample axis, has the row that it lies in.

    Attributes
    ----------
    level
        The position of the level's voxels along all axes of the array.
    sample_axis
        Number of the sample axis of the array.
    lengths
        For each store the number of its samples, and of its rows.
    """

    level: Level = Level((), ())
    sample_axis: int = 0
    lengths: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, level: Level, sample_axis: int, lengths: Sequence[tuple[int, int]]) -> LevelRows:
        """Return the rows of the samples of some stores, which follow each other."""
        scale, origin = level.scale[sample_axis], level.origin[sample_axis]
        rows, base = [], 0
        for samples, of_store in lengths:
            rows.append(base + np.clip((np.arange(samples) - origin) // scale, 0, of_store - 1))
            base += of_store
        return cls(np.concatenate(rows), "", level, sample_axis, tuple(lengths))

    @classmethod
    def concat(cls, parts: Sequence[LevelRows]) -> LevelRows | None:
        """Return the rows of several runs of stores, one after another; None of none.

        Raises
        ------
        ConfigError
            If their voxels lie otherwise among those of the first level.
        """
        for one in parts[1:]:
            if (one.level, one.sample_axis) != (parts[0].level, parts[0].sample_axis):
                raise ConfigError(
                    f"a {one.level}, from {one.level.origin} on, cannot be one with a {parts[0].level}, from "
                    f"{parts[0].level.origin} on: stores must have the same levels"
                )
        if not parts:
            return None
        return cls.of(parts[0].level, parts[0].sample_axis, [of for one in parts for of in one.lengths])

    @property
    def num_rows(self) -> int:
        """Rows of all stores."""
        return sum(rows for _, rows in self.lengths)

    @property
    def digest(self) -> str:
        """A text that tells row maps apart."""
        return f"{self.level} from {self.level.origin}, axis {self.sample_axis}, {self.lengths}"

    def describe(self, num_rows: int) -> str:
        """Return one line for people."""
        del num_rows
        return str(self.level)
