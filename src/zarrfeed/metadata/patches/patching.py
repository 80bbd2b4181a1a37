"""`Data.patch`: which axes of which arrays patches are cut along, and which patches there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
from zarrfeed.spec.field import Field, StoredField, with_path
from zarrfeed.spec.patch import AxisBorder, FieldPatch, PatchAxis, Volumes
from zarrfeed.spec.window import Window


@dataclass(frozen=True, eq=False)
class Patching:
    """Patches of some fields.

    Attributes
    ----------
    request
        What the user says.
    dims
        The dimensions of patches; the first one is along the sample axis.
    sizes, strides, borders
        Of each dimension.
    extents
        Of each volume along all dimensions but the first, shape (volumes, D - 1).
    axes
        For each field, the axes of its array.
    volumes
        Runs of samples that patches do not leave.
    source
        Where patches begin that lie on no grid. None: they lie on one.
    levels
        For each field where the volumes lie in its array, if that has other voxels than the first one, or a context.
    """

    request: PatchRequest
    dims: tuple[Dim, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    borders: tuple[Border, ...]
    extents: Int64
    axes: tuple[tuple[PatchAxis, ...], ...]
    volumes: Volumes
    source: PatchPositions | None = None
    levels: tuple[LevelVolumes | None, ...] = ()

    @classmethod
    def of(
        cls,
        request: PatchRequest,
        fields: Sequence[Field],
        items: Sequence[Items],
        samples: range | Int64,
        store_ends: Sequence[int] | Int64,
        windows: Sequence[Window | None],
    ) -> Patching:
        """Find the axes of patches in all arrays, whose samples may be windows.

        Raises
        ------
        ConfigError, UnsupportedError
            If an array lacks a dimension, or arrays have different lengths along one, or cannot be cut.
        """
        size, first = dict(request.size), items[0]
        for f in fields:
            if not isinstance(f, StoredField) or f.record is not None:
                raise UnsupportedError(f"{with_path(f)}: patches are cut out of stored arrays of numbers")
            if f.rows is not None and not has_levels(f):
                raise UnsupportedError(f"{with_path(f)}: patches are not cut out of joined arrays")
        for one, window in zip(items, windows, strict=True):
            if window is not None and (window.pad is not None or window.lead is not None):
                raise UnsupportedError(f"{one.name}: windows of patches are neither padded nor drawn")
        of_axes = [_dims_of_axes(one, size) for one in items]
        named_first = of_axes[0][first.sample_axis]
        along_samples = _sample_dim(first) if named_first is None else named_first
        if named_first is not None and any(windows):
            raise ConfigError(
                f"size names {named_first!r}, which windows are along; patches are then of other dimensions"
            )
        dims = (along_samples, *(dim for dim in size if dim != along_samples))
        extents: dict[Dim, int] = {}
        for named, one, f in zip(of_axes, items, fields, strict=True):
            if named[one.sample_axis] not in (None, along_samples):
                raise ConfigError(f"{one.name}: its samples lie along {named[one.sample_axis]!r}, not {dims[0]!r}")
            for dim, length in zip(named, one.shape, strict=True):
                if dim in (None, along_samples) or (f is not fields[0] and has_levels(f)):
                    continue
                if extents.setdefault(dim, length) != length:
                    raise ConfigError(
                        f"{one.name} has {length} items along {dim!r}, {first.name} has {extents[dim]}: arrays that "
                        "are cut into patches must have the same length"
                    )
        borders = tuple(request.border_of(dim) if dim in size else "drop" for dim in dims)
        strides = dict(request.stride or ())
        sizes = tuple(size.get(dim, 1) for dim in dims)
        volumes = Volumes.of(samples, store_ends)
        others = np.array([extents[dim] for dim in dims[1:]], dtype=np.int64)
        made = cls(
            request,
            dims,
            sizes,
            tuple(strides.get(dim, of_dim) for dim, of_dim in zip(dims, sizes, strict=True)),
            borders,
            np.tile(others, (len(volumes), 1)),
            tuple(
                tuple(
                    _axis(dims, sizes, borders, along_samples if a == one.sample_axis else dim, length, size, request)
                    if window is None or a != one.sample_axis
                    else PatchAxis(0, len(window.offsets), dropped=not window.stacked, offsets=window.offsets)
                    for a, (dim, length) in enumerate(zip(named, one.shape, strict=True))
                )
                for named, one, window in zip(of_axes, items, windows, strict=True)
            ),
            volumes,
        )
        return made._with_items(fields, items, store_ends)

    def _with_items(
        self, fields: Sequence[Field], items: Sequence[Items], store_ends: Sequence[int] | Int64
    ) -> Patching:
        """Return the same with the selected items, for several resolutions or with a context, and with positions."""
        contexts = contexts_by_field(self.request.context, items)
        check_isel_is_of_an_array(self.request.isel, items)
        all_axes, levels = [], []
        for axes, f, one, context in zip(self.axes, fields, items, contexts, strict=True):
            assert isinstance(f, StoredField)
            axes = select_items(axes, one, self.request.isel)
            level = None
            if context or has_levels(f):
                axes = level_axes(axes, f, one.name, self.dims, self.sizes, context)
                ends = np.asarray(store_ends, dtype=np.int64)
                level = level_volumes(axes, f, one, self.dims, self.volumes, self.all_extents, ends)
            all_axes.append(axes)
            levels.append(level)
        made = replace(self, axes=tuple(all_axes), levels=tuple(levels))
        return made.with_source(store_ends, items[0].shape[items[0].sample_axis])

    def with_source(self, store_ends: Sequence[int] | Int64, num_samples: int) -> Patching:
        """Return the same with the positions that the request has, or draws."""
        if self.request.sampling not in ("positions", "random"):
            return self
        self.tiling(0)  # says what is too large
        if self.request.n is not None:
            shape = (num_samples, *self.extents[0].tolist())
            n, weights = self.request.n, self.request.weights
            first = self.volumes.begin
            stored_order = [0, *(a.dim for a in self.axes[0] if a.dim)]
            drawn = draw_positions(
                self.all_extents, self.sizes, self.borders, n, weights, first, shape, self.dims, stored_order
            )
            return replace(self, source=drawn)
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
        return replace(self, source=listed)

    @property
    def turns(self) -> Turns | None:
        """How patches may be turned; None if they are not."""
        flip, rotate = (tuple(map(self.dims.index, one)) for one in (self.request.flip, self.request.rotate))
        return Turns(len(self.dims), flip, rotate) if flip or rotate else None

    @property
    def wraps(self) -> tuple[bool, ...]:
        """Whether each dimension is periodic."""
        return tuple(one == "wrap" for one in self.borders)

    @property
    def typical_length(self) -> int:
        """How many patches a typical epoch has."""
        return self.tiling(0).typical().num_tiles if self.source is None else self.source.num_samples

    @classmethod
    def concat(cls, parts: Sequence[Patching], bases: Sequence[int], names: Sequence[str]) -> Patching:
        """Return the patches of several descriptions, whose first samples become samples `bases`.

        Raises
        ------
        ConfigError
            If they are not cut alike.
        """
        first = parts[0]
        for other, name in zip(parts, names, strict=True):
            if (other.request, other.dims, other.axes) != (first.request, first.dims, first.axes):
                raise ConfigError(f"{name}: is cut into other patches than {names[0]}")
        volumes = Volumes(
            np.concatenate([one.volumes.begin + base for one, base in zip(parts, bases, strict=True)]),
            np.concatenate([one.volumes.end + base for one, base in zip(parts, bases, strict=True)]),
        )
        source = (
            None if first.source is None else first.source.concat([(one.source, len(one.volumes)) for one in parts])
        )
        levels = [
            None if None in of_parts else LevelVolumes.concat([one for one in of_parts if one is not None])
            for of_parts in zip(*(one.levels for one in parts), strict=True)
        ]
        extents = np.concatenate([one.extents for one in parts])
        return replace(first, extents=extents, volumes=volumes, source=source, levels=tuple(levels))

    def __str__(self) -> str:
        """Return what people are shown."""
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
            raise ConfigError("each epoch flips and rotates patches otherwise, must not for patches by index")
        if self.request.sampling == "grid":
            return TileRequests(self.tiling(0).at(0))
        if not isinstance(self.source, ListedPositions):
            raise ConfigError(
                f'sampling = "{self.request.sampling}" has other patches in each epoch, must be "grid" or "positions" '
                "for patches by index"
            )
        volume, start = self.source.at(0, 0)
        # any grid has the volumes and the size of a patch
        grid = Tiling(self.all_extents, self.sizes, "grid", tuple("wrap" if one else "pad" for one in self.wraps)).at(0)
        return ListedRequests(grid, volume, start)

    def cut(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields with samples that are patches."""
        pad = self.request.pad
        fill = float("nan") if pad == "nan" else 0.0 if isinstance(pad, str) else float(pad)
        turns = self.turns
        made = []
        for f, axes, level in zip(fields, self.axes, self.levels, strict=True):
            assert isinstance(f, StoredField)
            if turns is not None:
                check_turns(turns, self.dims, with_path(f), axes)
                if f.conversion is not None:
                    check_conversion(turns, self.dims, with_path(f), axes, f.conversion)
            if level is None:
                patch = FieldPatch(axes, self.volumes, fill)
            else:
                patch = FieldPatch(axes, level.volumes, fill, level.extents)
            made.append(replace(f, resident=False, rows=None, patch=patch))
        return tuple(made)

    def locate(self, numbers: Any, stores: StoreTable | None) -> tuple[Any, Any]:
        """Return which store patches lie in, and where they begin in it; numbers for a number, arrays for arrays.

        Raises
        ------
        ConfigError, IndexError
            If `numbers` are no numbers of patches.
        """
        wanted = np.asarray(numbers)
        numbering = Numbering.of(self.all_extents, np.array(self.sizes))
        if wanted.dtype.kind not in "iu":
            raise ConfigError(f"index of dtype {wanted.dtype}, must be an integer, or an array of integers")
        flat = wanted.ravel().astype(np.int64)
        if len(flat) and (flat.min() < 0 or flat.max() >= numbering.first[-1]):
            raise IndexError(
                f"index {flat.min()} to {flat.max()}: the numbers of patches are below {numbering.first[-1]}"
            )
        volume, start = numbering.locate(flat)
        first = self.volumes.begin[volume]
        store, first_in_store = (np.zeros_like(first), first) if stores is None else stores.locate(first)
        start[:, 0] += first_in_store
        if wanted.ndim == 0:
            return int(store[0]), start[0]
        return store.reshape(wanted.shape), start.reshape(*wanted.shape, len(self.sizes))

    @property
    def all_extents(self) -> Int64:
        """Voxels of each volume along each dimension, shape (volumes, D)."""
        return np.concatenate([(self.volumes.end - self.volumes.begin)[:, None], self.extents], axis=1)

    def items(self, items: Items, number: int) -> Items:
        """Return what is known of the items of a field, with the shape of a patch behind an axis over patches."""
        axes, dimensions = self.axes[number], items.dimensions
        return replace(
            items,
            shape=(1, *(axis.size for axis in axes)),
            sample_axis=0,
            dimensions=None if dimensions is None else (None, *dimensions),
        )


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


def _axis(
    dims: Sequence[Dim],
    sizes: Sequence[int],
    borders: Sequence[Border],
    dim: Dim | None,
    length: int,
    size: Mapping[Dim, int],
    request: PatchRequest,
) -> PatchAxis:
    if dim is None:
        return PatchAxis(None, length)
    number = dims.index(dim)
    border: AxisBorder = "fill"
    if borders[number] == "wrap":
        border = "wrap"
    elif request.pad == "edge":
        border = "edge"
    elif request.pad == "reflect":
        border = "reflect"
    return PatchAxis(number, sizes[number], border, dropped=dim not in size)
