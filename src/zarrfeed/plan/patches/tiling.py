"""Patches: the boxes of a volume that are samples, as a grid of tiles for each epoch.

Invariants, for each dimension of a volume with N voxels and patches of p:

- **One rule.** A tile starts at `origin + index * step`, but not before `first` and not after `last`. The tiles of a
  volume are all combinations of the tiles of its dimensions. So a grid is a few numbers for each volume, however many
  tiles it has.
- **Phase.** With "tiles", each epoch, volume and dimension draws its own origin (keyed by seed, epoch, volume,
  dimension). With "grid" the origin is 0.
- **Exactly once.** With "tiles" and border "pad", tiles start at j p - o, for all j whose tile touches the volume.
  They partition the integers, and products of partitions partition the volume: each voxel lies in exactly one tile.
- **Uniform.** The phase o is uniform on p values, so with "pad" each start has the probability 1 / p. With "drop", all
  starts in [0, N - p] are equally likely, and with "wrap" all N starts are. With "shift", a start at one of the ends is
  up to p times as likely as another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_choice, check_int
from zarrfeed.plan.order.keyed_random import below, keys_of
from zarrfeed.plan.samples.selection import Int64

#: "tiles": side by side, with a random phase in each epoch. "grid": from 0 on, `stride` apart, the same in each epoch.
Sampling: TypeAlias = Literal["tiles", "grid"]
SAMPLINGS: tuple[Sampling, ...] = get_args(Sampling)
#: The handling of a tile that does not lie inside of its volume. "pad": it is kept, its voxels outside are padding.
#: "wrap": voxels N, N + 1, ... are 0, 1, ... "drop": it is left out. "shift": it is moved inside.
Border: TypeAlias = Literal["pad", "wrap", "drop", "shift"]
BORDERS: tuple[Border, ...] = get_args(Border)

#: Patched dimensions, at most.
MOST_DIMENSIONS = 4

_PHASE = 0x7068617365
#: The phase of a typical epoch, as a part of the phases that there are.
_TYPICAL_PHASE = 0.618


@dataclass(frozen=True, eq=False)
class TileGrid:
    """The tiles of an epoch, in V volumes of D dimensions.

    Attributes
    ----------
    size
        Voxels of a tile, p, shape (D,).
    step
        Voxels from one tile to the next, shape (D,).
    extents
        Voxels of each volume, N, shape (V, D).
    origin
        Start of tile 0, before `first` and `last` are applied, shape (V, D). Negative where it begins in the padding.
    first, last
        The smallest and the largest start, shape (V, D). A tile starts at `clip(origin + index * step, first, last)`.
    count
        Tiles of each volume along each dimension, shape (V, D).
    wraps
        For each dimension: True if it is periodic. Then voxel x is voxel x mod N.
    """

    size: Int64
    step: Int64
    extents: Int64
    origin: Int64
    first: Int64
    last: Int64
    count: Int64
    wraps: tuple[bool, ...]

    @property
    def num_tiles(self) -> int:
        """Tiles of all volumes."""
        return int(self.count.prod(axis=1).sum())

    def tiles(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the volume of tiles, shape (n,), and their indices, (n, D), by their numbers: volume by volume."""
        of_volume = self.count.prod(axis=1)
        ends = np.cumsum(of_volume)
        volume = np.searchsorted(ends, numbers, side="right")
        return volume, unravel(numbers - (ends - of_volume)[volume], self.count[volume])

    def starts(self, volume: Int64, index: Int64) -> Int64:
        """Return the first voxel of tiles, before wrapping, shape (n, D), given the tiles' indices, shape (n, D)."""
        start: Int64 = self.origin[volume] + index * self.step
        clipped: Int64 = np.minimum(np.maximum(start, self.first[volume]), self.last[volume])
        return clipped

    def starts_along(self, volume: int, dimension: int, index: Int64 | None = None) -> Int64:
        """Return the first voxel along one dimension of tiles of a volume, shape (n,); without `index` of all tiles."""
        if index is None:
            index = np.arange(self.count[volume, dimension])
        start = self.origin[volume, dimension] + index * self.step[dimension]
        clipped: Int64 = np.clip(start, self.first[volume, dimension], self.last[volume, dimension])
        return clipped


@dataclass(frozen=True, eq=False)
class Tiling:
    """The tiles of all epochs.

    Attributes
    ----------
    extents
        Voxels of each volume, shape (V, D), D at most 4. A sample axis, such as time, is a dimension with patches of 1.
    size
        Voxels of a patch, for each dimension.
    sampling
        "tiles" for training: each epoch draws a phase; "grid" for validation: the same tiles in each epoch.
    border
        The handling of tiles that do not lie inside; for all dimensions, or one for each.
    stride
        With "grid": voxels from one tile to the next, for each dimension, at most `size`. None: `size`.
    seed
        Key of the phases, in [0, 2**64).

    Raises
    ------
    ConfigError
        If an argument is none of these, or a patch is larger than a volume where the border is not "pad".

    Examples
    --------
    >>> tiling = Tiling(np.array([[100, 100]]), size=(64, 32), border="pad", seed=0)
    >>> grid = tiling.at(0, phase=False)
    >>> grid.count
    array([[2, 4]])
    >>> grid.starts(np.array([0]), np.array([[1, 3]]))
    array([[64, 96]])
    """

    extents: Int64
    size: tuple[int, ...]
    sampling: Sampling = "tiles"
    border: Border | tuple[Border, ...] = "pad"
    stride: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("sampling", self.sampling, SAMPLINGS)
        object.__setattr__(self, "extents", _checked_extents(self.extents))
        object.__setattr__(self, "size", _checked_voxels("size", self.size, self.num_dimensions))
        borders = [self.border] * self.num_dimensions if isinstance(self.border, str) else self.border
        if not isinstance(borders, Sequence) or len(borders) != self.num_dimensions:
            raise ConfigError(f"border = {self.border!r}, must be one word, or one for each of {self.num_dimensions}")
        for one in borders:
            check_choice("border", one, BORDERS)
        object.__setattr__(self, "border", tuple(borders))
        if self.stride is not None:
            self._check_stride()
        check_int("seed", self.seed, 0, 2**64 - 1)
        self._check_fits()
        tiles = sum(math.prod(of_volume) for of_volume in self.most_tiles.tolist())
        if tiles >= 2**62:
            raise ConfigError(f"size = {self.size} makes {tiles} patches, must be less than {2**62}")

    @property
    def num_dimensions(self) -> int:
        """D."""
        return int(self.extents.shape[1])

    @property
    def num_volumes(self) -> int:
        """V."""
        return int(self.extents.shape[0])

    @property
    def longest(self) -> int:
        """Tiles of an epoch, at most."""
        return int(self.most_tiles.prod(axis=1).sum())

    @property
    def shortest(self) -> int:
        """Tiles of an epoch, at least."""
        return int(np.minimum(*self._extreme_counts).prod(axis=1).sum())

    def length(self, epoch: int, *, phase: bool = True) -> int:
        """Return the number of tiles of an epoch."""
        return self.at(epoch, phase=phase).num_tiles

    def at(self, epoch: int, *, phase: bool = True) -> TileGrid:
        """Return the tiles of an epoch; without `phase` as if the phase of each dimension were 0."""
        if not phase or self.sampling == "grid":
            return self._with_phase(np.zeros_like(self.extents))
        volume, dimension = np.arange(self.num_volumes)[:, None], np.arange(self.num_dimensions)
        return self._with_phase(below(keys_of(_PHASE, self.seed, epoch, volume, dimension), self.num_phases))

    def typical(self) -> TileGrid:
        """Return tiles with a phase that is neither 0 nor depends on the seed: those that plans are made for."""
        return self._with_phase((self.num_phases * _TYPICAL_PHASE).astype(np.int64))

    @property
    def num_phases(self) -> Int64:
        """Number of phases that each volume can draw along each dimension, shape (V, D)."""
        phases = np.ones_like(self.extents)
        if self.sampling == "grid":
            return phases
        for d, (size, border) in enumerate(zip(self.size, self.border, strict=True)):
            extent = self.extents[:, d]
            if size > 1:
                phases[:, d] = {"wrap": extent, "drop": np.minimum(size, extent - size + 1)}.get(border, size)
        return phases

    @property
    def step(self) -> tuple[int, ...]:
        """Voxels from one tile to the next, for each dimension."""
        return self.size if self.stride is None else self.stride

    @property
    def most_tiles(self) -> Int64:
        """Tiles of each volume along each dimension, at most, shape (V, D)."""
        return np.maximum(*self._extreme_counts)

    def _with_phase(self, phase: Int64) -> TileGrid:
        size, step, extents = np.array(self.size), np.array(self.step), self.extents
        border = np.array(self.border)
        wraps, drops, shifts = border == "wrap", border == "drop", border == "shift"
        origin = np.where(wraps | drops, phase, -phase)
        inside = (extents - origin - size) // step + 1
        # A grid ends with the first tile that reaches the end. Side by side, this is the tile that has the last voxel.
        covering = np.maximum(0, -(-(extents - origin - size) // step)) + 1
        count = np.where(drops, inside, np.where(wraps, -(-extents // step), covering))
        last = origin + (count - 1) * step
        return TileGrid(
            size=size,
            step=step,
            extents=extents,
            origin=origin,
            first=np.where(shifts, 0, origin),
            last=np.where(shifts, np.minimum(last, extents - size), last),
            count=count,
            wraps=tuple(wraps.tolist()),
        )

    @property
    def _extreme_counts(self) -> tuple[Int64, Int64]:
        """Tiles with the first phase and with the last one: no other phase has more than both, or fewer."""
        return self._with_phase(np.zeros_like(self.extents)).count, self._with_phase(self.num_phases - 1).count

    def _check_stride(self) -> None:
        if self.sampling != "grid":
            raise ConfigError(f'stride = {self.stride!r} with sampling = "tiles", must be None: tiles lie side by side')
        stride = _checked_voxels("stride", self.stride, self.num_dimensions)
        for d, (one, size) in enumerate(zip(stride, self.size, strict=True)):
            if one > size:
                raise ConfigError(f"stride = {one} in dimension {d}, must be at most the patch's size, {size}")
        object.__setattr__(self, "stride", stride)

    def _check_fits(self) -> None:
        for d, (size, border) in enumerate(zip(self.size, self.border, strict=True)):
            volume = int(self.extents[:, d].argmin())
            extent = int(self.extents[volume, d])
            if border != "pad" and size > extent:
                raise ConfigError(
                    f"size = {size} in dimension {d}, must be at most {extent}, the extent of volume {volume}, where "
                    f'border = "{border}"; border = "pad" allows a patch that is larger than its volume'
                )


def unravel(numbers: Int64, count: Int64) -> Int64:
    """Return the indices of tiles, shape (n, D), given their numbers in C order among `count` tiles, shape (n, D)."""
    index = np.empty_like(count)
    for d in reversed(range(count.shape[1])):
        numbers, index[:, d] = np.divmod(numbers, count[:, d])
    return index


def _checked_extents(extents: object) -> Int64:
    given: npt.NDArray[np.generic] = np.asarray(extents)
    if given.ndim != 2 or given.dtype.kind not in "iu":
        raise ConfigError(
            f"extents is an array of shape {given.shape} and dtype {given.dtype}, must have integers of shape "
            "(volumes, dimensions)"
        )
    volumes, dimensions = given.shape
    if not volumes or not 1 <= dimensions <= MOST_DIMENSIONS:
        raise ConfigError(
            f"extents has the shape {given.shape}, must have at least 1 volume and 1 to {MOST_DIMENSIONS} dimensions"
        )
    checked = given.astype(np.int64)
    if checked.min() < 1 or checked.max() >= 2**48:
        wrong = checked.min() if checked.min() < 1 else checked.max()
        raise ConfigError(f"extents has a dimension of {wrong}, must be in [1, {2**48 - 1}]")
    return checked


def _checked_voxels(name: str, value: object, dimensions: int) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != dimensions:
        raise ConfigError(f"{name} = {value!r}, must have one integer for each of {dimensions} dimensions")
    for one in value:
        check_int(name, one, 1, 2**48 - 1)
    return tuple(int(one) for one in value)
