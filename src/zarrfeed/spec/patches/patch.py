"""`FieldPatch`: the patches that an array is cut into, boxes of it that are samples.

Patches lie on a grid of dimensions that all fields share. cpp/spec/patch_spec.h says what the engine makes of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from zarrfeed.base.native import core
from zarrfeed.spec.arrays.array_parts import ArrayParts, Int64
from zarrfeed.spec.values.dtypes import encode_item

#: The items of a patch beyond the ends of a volume: a number, the last item inside, items in reverse order, or items
#: from the other end.
AxisBorder: TypeAlias = Literal["fill", "edge", "reflect", "wrap"]


@dataclass(frozen=True)
class PatchAxis:
    """One axis of an array.

    Attributes
    ----------
    dim
        Number of the dimension of patches that the axis belongs to. None: it belongs to none; samples have the whole
        axis, or the items that `offsets` lists.
    size
        Items of a sample along the axis.
    border
        The items that a patch has beyond the ends of a volume.
    dropped
        True if samples lack the axis, since patches have one item along it.
    offsets
        With a dimension: the rows of a window, as distances from the row of the sample. Without one: indices of items.
        Empty: items side by side.
    scale, origin, shift
        A patch that begins at voxel s of the volume begins at item `(s - origin)

        scale + shift` of the axis.
    """

    dim: int | None
    size: int
    border: AxisBorder = "fill"
    dropped: bool = False
    offsets: tuple[int, ...] = ()
    scale: int = 1
    origin: int = 0
    shift: int = 0


@dataclass(frozen=True, eq=False)
class Volumes:
    """Runs of samples of the arrays that patches do not leave.

    Attributes
    ----------
    begin, end
        The samples of each, shape (volumes,) both. Each lies in one store.
    """

    begin: Int64
    end: Int64

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Volumes)
            and np.array_equal(self.begin, other.begin)
            and np.array_equal(self.end, other.end)
        )

    def __hash__(self) -> int:
        return hash((self.begin.tobytes(), self.end.tobytes()))

    def __len__(self) -> int:
        return len(self.begin)

    @classmethod
    def of(cls, samples: range | Int64, store_ends: Sequence[int] | Int64) -> Volumes:
        """Return the runs of ascending samples that have no gap and lie in one store."""
        if isinstance(samples, range) and samples.step == 1:
            begin, end = np.array([samples.start]), np.array([samples.stop])
        else:
            listed = np.asarray(samples)
            first = np.flatnonzero(np.diff(listed, prepend=listed[0] - 2) != 1)
            begin, end = listed[first], listed[np.append(first[1:], len(listed)) - 1] + 1
        cuts = np.asarray(store_ends, dtype=np.int64)
        inside = [cuts[(cuts > a) & (cuts < b)] for a, b in zip(begin, end, strict=True)]
        begins = np.concatenate([np.append(a, c) for a, c in zip(begin, inside, strict=True)])
        ends = np.concatenate([np.append(c, b) for b, c in zip(end, inside, strict=True)])
        return cls(begins.astype(np.int64), ends.astype(np.int64))

    def rows_of(self, parts: ArrayParts | None, offsets: Sequence[int] = ()) -> Int64:
        """Return the first chunk, begin and end of each volume in an array; 0 where the array lacks the volume's store.

        With the offsets of windows, these are the rows that the windows of its samples have.
        """
        before, behind = min(offsets, default=0), max(offsets, default=0)
        if parts is None:
            return np.stack([np.zeros_like(self.begin), self.begin + before, self.end + behind], axis=1)
        part = parts.part_of(self.begin)
        first_row = np.where(part < 0, self.begin, parts.begin[part])
        first_chunk = np.where(part < 0, 0, parts.chunk_of(first_row))
        rows = np.stack([first_chunk, self.begin + before - first_row, self.end + behind - first_row], axis=1)
        rows[part < 0] = 0
        return rows


@dataclass(frozen=True)
class FieldPatch:
    """The boxes that the samples of a field are cut out of its array as.

    Attributes
    ----------
    axes
        One entry for each axis of the array.
    volumes
        The volumes along the sample axis, which patches do not leave.
    fill
        Value in a batch of items beyond a volume, where the border of an axis is "fill".
    extents
        Items of each volume along each dimension, shape (volumes, D). None: as many as the voxels of the volume, and a
        patch has as many items as voxels.
    """

    axes: tuple[PatchAxis, ...]
    volumes: Volumes = field(repr=False)
    fill: float = 0
    extents: Int64 | None = field(default=None, repr=False, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        return tuple(axis.size for axis in self.axes if not axis.dropped)

    def to_core(self, dtype: str, parts: ArrayParts | None) -> core.PatchSpec:
        """Convert to the form that the engine takes, for batches of a dtype and an array with some of the stores."""
        offsets = [offset for axis in self.axes if axis.dim is not None for offset in axis.offsets]
        return core.PatchSpec(
            axes=[
                (
                    -1 if a.dim is None else a.dim,
                    a.size,
                    a.origin,
                    a.scale,
                    a.shift - min(a.offsets, default=0),
                    a.border,
                    a.offsets,
                )
                for a in self.axes
            ],
            volumes=self.volumes.rows_of(parts, offsets),
            fill=encode_item(dtype, self.fill),
        )

    def __str__(self) -> str:
        """Describe the patches for people."""
        cut = [axis for axis in self.axes if axis.dim is not None]
        scale = " x ".join(str(axis.scale) for axis in cut)
        of_level = f", each voxel of which is {scale} of the first array" if any(axis.scale > 1 for axis in cut) else ""
        chosen = [f", {a.size} items of axis {n}" for n, a in enumerate(self.axes) if a.dim is None and a.offsets]
        return f"patches of {' x '.join(str(axis.size) for axis in cut)}{of_level}{''.join(chosen)}"
