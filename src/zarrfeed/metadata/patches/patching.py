"""`Data.patch`: which axes of which arrays patches are cut along, and which patches there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.patches.patch_levels import (
    LevelVolumes,
    contexts_by_field,
    has_levels,
    level_axes,
    level_volumes,
)
from zarrfeed.metadata.patches.patch_positions import locate_positions
from zarrfeed.metadata.patches.patch_request import Dim, PatchRequest
from zarrfeed.metadata.patches.read_weights import draw_positions
from zarrfeed.metadata.patches.selected_items import check_isel_is_of_an_array, select_items
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.metadata.patches.turned_patches import check_conversion, check_turns
from zarrfeed.plan.patches.patch_numbers import Numbering
from zarrfeed.plan.patches.patch_turns import Turns
from zarrfeed.plan.patches.position_blocks import ListedPositions, PatchPositions
from zarrfeed.plan.patches.tiling import Border, Tiling
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.plan.schedule.batch_request import ListedRequests, Requests, TileRequests
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.patches.patch import AxisBorder, FieldPatch, PatchAxis, Volumes
from zarrfeed.spec.samples.row_map import GridRows
from zarrfeed.spec.samples.window import Window

#: The values beyond the ends of an axis, by the `pad` that is no number.
_BORDER_OF_PAD: dict[object, AxisBorder] = {"edge": "edge", "reflect": "reflect"}


class _Uncut(Protocol):
    """An array with the rows of its samples, before patches are cut out of it; `Column` has it."""

    @property
    def field(self) -> Field: ...
    @property
    def items(self) -> Items: ...
    @property
    def window(self) -> Window | None: ...


@dataclass(frozen=True, eq=False)
class PatchAxes:
    """The axes of one array that patches are cut along.

    Attributes
    ----------
    axes
        The patch axes of the array.
    level
        The volumes in the array, if it has other voxels than the first one, or a context. Else None.
    """

    axes: tuple[PatchAxis, ...]
    level: LevelVolumes | None = None

    @classmethod
    def concat(cls, parts: Sequence[PatchAxes]) -> PatchAxes:
        """Return the axes of the arrays of several descriptions, which are cut alike."""
        levels = [one.level for one in parts if one.level is not None]
        return cls(parts[0].axes, LevelVolumes.concat(levels) if len(levels) == len(parts) else None)

    def items(self, items: Items) -> Items:
        """Return the items of the array with the shape of a patch, behind an axis over patches."""
        return replace(
            items,
            shape=(1, *(axis.size for axis in self.axes)),
            sample_axis=0,
            dimensions=None if items.dimensions is None else (None, *items.dimensions),
        )


@dataclass(frozen=True, eq=False)
class Patching:
    """Patches of some arrays; `PatchAxes` says what each array has of its own.

    Attributes
    ----------
    request
        The user's arguments.
    dims
        The dimensions of patches; the first one is along the sample axis.
    sizes, strides, borders
        Size, stride and border along each dimension.
    extents
        Extent of each volume along all dimensions but the first, shape (volumes, D - 1).
    volumes
        Runs of samples that patches do not leave.
    positions
        The positions of patches that lie on no grid. None: they lie on one.
    sources
        In a mixture, the patches of each source alone. Empty: samples are no mixture.
    """

    request: PatchRequest
    dims: tuple[Dim, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    borders: tuple[Border, ...]
    extents: Int64
    volumes: Volumes
    positions: PatchPositions | None = None
    sources: tuple[Patching, ...] = ()

    @classmethod
    def of(
        cls,
        request: PatchRequest,
        arrays: Sequence[_Uncut],
        samples: range | Int64,
        store_ends: Sequence[int] | Int64,
    ) -> tuple[Patching, tuple[PatchAxes, ...]]:
        """Find the axes of patches in all arrays, whose samples may be windows.

        Raises
        ------
        ConfigError, UnsupportedError
            If an array lacks a dimension, or arrays have different lengths along one, or cannot be cut.
        """
        size, first = dict(request.size), arrays[0].items
        for one in arrays:
            _check_can_be_cut(one)
        named_first = _dims_of_axes(first, size)[first.sample_axis]
        along_samples = _sample_dim(first) if named_first is None else named_first
        if named_first is not None and any(one.window for one in arrays):
            raise ConfigError(
                f"size names {named_first!r}, which windows are along; patches are then of other dimensions"
            )
        dims = (along_samples, *(dim for dim in size if dim != along_samples))
        extents: dict[Dim, int] = {}
        for number, one in enumerate(arrays):
            named = _dims_of_axes(one.items, size)
            if named[one.items.sample_axis] not in (None, along_samples):
                raise ConfigError(
                    f"{one.items.name}: its samples lie along {named[one.items.sample_axis]!r}, not {dims[0]!r}"
                )
            for dim, length in zip(named, one.items.shape, strict=True):
                if dim in (None, along_samples) or (number and has_levels(one.field)):
                    continue
                if extents.setdefault(dim, length) != length:
                    raise ConfigError(
                        f"{one.items.name} has {length} items along {dim!r}, {first.name} has {extents[dim]}: arrays "
                        "that are cut into patches must have the same length"
                    )
        strides = dict(request.stride or ())
        volumes = Volumes.of(samples, store_ends)
        others = np.array([extents[dim] for dim in dims[1:]], dtype=np.int64)
        made = cls(
            request,
            dims,
            tuple(size.get(dim, 1) for dim in dims),
            tuple(strides.get(dim, size.get(dim, 1)) for dim in dims),
            tuple(request.border_of(dim) if dim in size else "drop" for dim in dims),
            np.tile(others, (len(volumes), 1)),
            volumes,
        )
        every = [one.items for one in arrays]
        contexts = contexts_by_field(request.context, every)
        check_isel_is_of_an_array(request.isel, every)
        axes = tuple(made._axes_of(one, of, store_ends) for one, of in zip(arrays, contexts, strict=True))
        return made._with_positions(axes[0], store_ends, first.shape[first.sample_axis]), axes

    def _axes_of(self, one: _Uncut, context: Mapping[Dim, int], store_ends: Sequence[int] | Int64) -> PatchAxes:
        """Return the axes of an array with the selected items, at its level and with its context."""
        items, window, field = one.items, one.window, one.field
        axes = []
        for number, (dim, length) in enumerate(
            zip(_dims_of_axes(items, dict(self.request.size)), items.shape, strict=True)
        ):
            if number != items.sample_axis:
                axes.append(self._axis(dim, length))
            elif window is None:
                axes.append(self._axis(self.dims[0], length))
            else:
                axes.append(PatchAxis(0, len(window.offsets), dropped=not window.stacked, offsets=window.offsets))
        chosen = select_items(axes, items, self.request.isel)
        if not context and not has_levels(field):
            return PatchAxes(chosen)
        chosen = level_axes(chosen, field, items.name, self.dims, self.sizes, context)
        ends = np.asarray(store_ends, dtype=np.int64)
        return PatchAxes(chosen, level_volumes(chosen, field, items, self.dims, self.volumes, self.all_extents, ends))

    def _axis(self, dim: Dim | None, length: int) -> PatchAxis:
        """Return the axis along a dimension; None for one that patches are not cut along."""
        if dim is None:
            return PatchAxis(None, length)
        number, border = self.dims.index(dim), _BORDER_OF_PAD.get(self.request.pad, "fill")
        if self.borders[number] == "wrap":
            border = "wrap"
        return PatchAxis(number, self.sizes[number], border, dropped=dim not in dict(self.request.size))

    def _with_positions(self, first: PatchAxes, store_ends: Sequence[int] | Int64, num_samples: int) -> Patching:
        """Add the positions that the request has, or draws; `first` is of the first array."""
        if self.request.sampling not in ("positions", "random"):
            return self
        self.tiling(0)  # says what is too large
        if self.request.n is not None:
            shape = (num_samples, *self.extents[0].tolist())
            n, weights = self.request.n, self.request.weights
            begin = self.volumes.begin
            stored_order = [0, *(a.dim for a in first.axes if a.dim)]
            drawn = draw_positions(
                self.all_extents, self.sizes, self.borders, n, weights, begin, shape, self.dims, stored_order
            )
            return replace(self, positions=drawn)
        assert self.request.positions is not None
        stores = np.asarray(store_ends, dtype=np.int64)
        listed = locate_positions(
            self.request.positions,
            self.dims,
            self.sizes,
            self.wraps,
            self.all_extents,
            self.volumes,
            stores if len(stores) else np.array([0, 2**62]),
        )
        return replace(self, positions=listed)

    @property
    def turns(self) -> Turns | None:
        """The turns that a patch may get; None if patches are not turned."""
        flip, rotate = (tuple(map(self.dims.index, one)) for one in (self.request.flip, self.request.rotate))
        return Turns(len(self.dims), flip, rotate) if flip or rotate else None

    @property
    def wraps(self) -> tuple[bool, ...]:
        """True for each dimension that is periodic."""
        return tuple(one == "wrap" for one in self.borders)

    @property
    def typical_length(self) -> int:
        """Number of patches of a typical epoch."""
        return self.tiling(0).typical().num_tiles if self.positions is None else self.positions.num_samples

    @classmethod
    def concat(cls, parts: Sequence[Patching], bases: Sequence[int]) -> Patching:
        """Return the patches of several descriptions that are cut alike, whose first samples become samples `bases`."""
        first = parts[0]
        weighted = (one.request for one in parts if one.request.weights is not None)
        volumes = Volumes(
            np.concatenate([one.volumes.begin + base for one, base in zip(parts, bases, strict=True)]),
            np.concatenate([one.volumes.end + base for one, base in zip(parts, bases, strict=True)]),
        )
        positions = (
            None
            if first.positions is None
            else first.positions.concat([(one.positions, len(one.volumes)) for one in parts])
        )
        return replace(
            first,
            request=next(weighted, first.request),
            extents=np.concatenate([one.extents for one in parts]),
            volumes=volumes,
            positions=positions,
        )

    @property
    def all_positions(self) -> PatchPositions:
        """The positions of the patches of a pass over a source of a mixture, also where they lie on a grid."""
        if self.positions is not None:
            return self.positions
        grid = self.tiling(0).at(0)
        volume, index = grid.tiles(np.arange(grid.num_tiles))
        return ListedPositions(volume, grid.starts(volume, index))

    def without_number(self) -> Patching:
        """Return the patches without their number, in which sources of a mixture may differ."""
        return replace(self, request=replace(self.request, n=None))

    def source_of(self, numbers: Any) -> Any:
        """Return the source of patches of a mixture by their numbers: a number for one, an array for an array.

        Raises
        ------
        ConfigError, IndexError
            As `locate`.
        """
        volume, _ = self._begins(np.asarray(numbers))
        ends = np.cumsum([len(one.volumes) for one in self.sources])
        found = np.searchsorted(ends, volume, side="right")
        return found.reshape(np.shape(numbers)) if np.ndim(numbers) else int(found[0])

    def is_cut_like(self, other: Patching) -> bool:
        """Return whether patches of two descriptions may be put together: with weights, each has its own number."""
        requests = [self.request, other.request]
        if any(one.weights is not None for one in requests):
            requests = [replace(one, n=None) for one in requests]
        return requests[0] == requests[1] and self.dims == other.dims

    def __str__(self) -> str:
        """Describe the patches for people."""
        size = " x ".join(map(str, self.sizes))
        count = len(self.volumes)
        return f"patches of {size} voxels" + f" of {count} volumes" * (count > 1)

    def tiling(self, seed: int) -> Tiling:
        """Return the patches of all epochs, if they lie on a grid.

        Raises
        ------
        ConfigError
            If a volume is smaller than a patch, and may not be.
        """
        return Tiling(
            self.all_extents,
            self.sizes,
            "grid" if self.request.sampling == "grid" else "tiles",
            self.borders,
            self.strides if self.request.sampling == "grid" else None,
            seed,
        )

    def requests(self) -> Requests:
        """Return the patches as they can be asked for by index.

        Raises
        ------
        ConfigError
            If each epoch has patches of its own, or turns them in a way of its own.
        """
        if self.turns is not None:
            raise ConfigError(
                "patches by index: each epoch flips and rotates patches anew; leave flip and rotate out of patch()"
            )
        if self.request.sampling == "grid":
            return TileRequests(self.tiling(0).at(0))
        if not isinstance(self.positions, ListedPositions):
            raise ConfigError(
                f'sampling = "{self.request.sampling}", must be "grid" or "positions" for patches by index: it has '
                "other patches in each epoch"
            )
        volume, start = self.positions.at(0, 0)
        # any grid has the volumes and the size of a patch
        grid = Tiling(self.all_extents, self.sizes, "grid", tuple("wrap" if one else "pad" for one in self.wraps)).at(0)
        return ListedRequests(grid, volume, start)

    def cut(self, field: Field, patch_axes: PatchAxes) -> Field:
        """Return a field with samples that are patches."""
        pad, turns, axes = self.request.pad, self.turns, patch_axes.axes
        choice = field.layouts[0].spec.choice
        fill = float("nan") if pad == "nan" else 0.0 if isinstance(pad, str) else float(pad)
        if turns is not None:
            check_turns(turns, self.dims, field.label, axes)
            if field.conversion is not None:
                check_conversion(turns, self.dims, field.label, axes, field.conversion)
        level = patch_axes.level
        if choice is not None:  # with the axes that samples lack, of which one item was chosen
            kept = iter(axes)
            lacking = PatchAxis(None, 1, dropped=True)
            axes = tuple(lacking if one is not None and one.dropped else next(kept) for one in choice.axes)
        patch = FieldPatch(axes, self.volumes, fill)
        if level is not None:
            patch = FieldPatch(axes, level.volumes, fill, level.extents)
        return field.with_patch(patch)

    def locate(self, numbers: Any, stores: StoreTable | None) -> tuple[Any, Any]:
        """Locate patches by their numbers: the store, and the first voxel in it; arrays for an array of numbers.

        Raises
        ------
        ConfigError, IndexError
            If `numbers` are no numbers of patches.
        """
        wanted = np.asarray(numbers)
        volume, start = self._begins(wanted)
        first = self.volumes.begin[volume]
        store, first_in_store = (np.zeros_like(first), first) if stores is None else stores.locate(first)
        start[:, 0] += first_in_store
        if wanted.ndim == 0:
            return int(store[0]), start[0]
        return store.reshape(wanted.shape), start.reshape(*wanted.shape, len(self.sizes))

    def _begins(self, wanted: npt.NDArray[Any]) -> tuple[Int64, Int64]:
        """Return the volume of patches, shape (n,), and their first voxel in it, shape (n, D), by their numbers."""
        numbering = Numbering.of(self.all_extents, np.array(self.sizes))
        if wanted.dtype.kind not in "iu":
            raise ConfigError(f"index has the dtype {wanted.dtype}, must be an integer, or an array of integers")
        flat = wanted.ravel().astype(np.int64)
        if len(flat) and (flat.min() < 0 or flat.max() >= numbering.first[-1]):
            raise IndexError(
                f"index {flat.min()} to {flat.max()}: the numbers of patches are below {numbering.first[-1]}"
            )
        return numbering.locate(flat)

    @property
    def all_extents(self) -> Int64:
        """Voxels of each volume along each dimension, shape (volumes, D)."""
        return np.concatenate([(self.volumes.end - self.volumes.begin)[:, None], self.extents], axis=1)


def _check_can_be_cut(one: _Uncut) -> None:
    """Raise UnsupportedError for an array that patches cannot be cut out of."""
    field, window = one.field, one.window
    if not (field.is_stored and field.has_numbers):
        raise UnsupportedError(f"{field.label}: patches are cut out of stored arrays of numbers")
    if isinstance(field.row_map, GridRows):
        raise UnsupportedError(
            f"{field.label}: patches are not cut where several dimensions "
            "number the samples: name one of them as sample_dim, and cut 1 along the other, patch({'member': 1, ...})"
        )
    if field.row_map is not None and not has_levels(field):
        raise UnsupportedError(f"{field.label}: patches are not cut out of joined arrays")
    if window is not None and (window.pad is not None or window.lead is not None):
        raise UnsupportedError(f"{one.items.name}: windows of patches are neither padded nor drawn")


def _dims_of_axes(items: Items, size: Mapping[Dim, int]) -> list[Dim | None]:
    """Return for each axis of an array which of the named dimensions it is."""
    named: list[Dim | None] = [None] * len(items.shape)
    for dim in size:
        if isinstance(dim, str):
            if items.dimensions is None:
                raise ConfigError(f"size of {dim!r}: {items.name} has no dimension names; give numbers of axes")
            if dim not in items.dimensions:
                known = did_you_mean(dim, [one for one in items.dimensions if one is not None])
                raise ConfigError(f"size of {dim!r}: {items.name} has the dimensions {items.dimensions}{known}")
            axis = items.dimensions.index(dim)
        else:
            if not -len(items.shape) <= dim < len(items.shape):
                raise ConfigError(f"size of axis {dim}: {items.name} has {len(items.shape)} axes, {items.shape}")
            axis = dim % len(items.shape)
        if named[axis] is not None:
            raise ConfigError(f"size names axis {axis} of {items.name} twice, by {named[axis]!r} and {dim!r}")
        named[axis] = dim
    return named


def _sample_dim(items: Items) -> Dim:
    name = None if items.dimensions is None else items.dimensions[items.sample_axis]
    return "sample" if name is None else name
