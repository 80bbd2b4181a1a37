"""`Array` and `Column`: an array as it was opened, and one part of a batch that is made of it.

Invariant: all that is known of a part of a batch is in its column. So columns can be reordered, added and left out
without anything else to keep in step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Any, Self, TypeAlias

import numpy.typing as npt
import zarr

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.array.requested_step import RequestedStep
from zarrfeed.metadata.group.anndata import Categories, with_conversion
from zarrfeed.metadata.group.coordinates import Coordinates
from zarrfeed.metadata.patches.patching import PatchAxes
from zarrfeed.metadata.patches.store_table import StoreTable
from zarrfeed.spec.arrays.layout import with_conversions
from zarrfeed.spec.fields.field import Field, ResidentField, StoredField, VlenField
from zarrfeed.spec.fields.images import Images
from zarrfeed.spec.fields.segment_text import SegmentTextField
from zarrfeed.spec.fields.sparse import CsrField
from zarrfeed.spec.samples.row_map import RowMap
from zarrfeed.spec.samples.segments import Segments
from zarrfeed.spec.samples.window import Window
from zarrfeed.spec.values.conversion import Conversion

#: A field as it was opened.
OpenedField: TypeAlias = "StoredField | ResidentField | VlenField | CsrField | SegmentTextField"


@dataclass(frozen=True, eq=False)
class Array:
    """An array, opened once: what is stored, before any conversion.

    Attributes
    ----------
    field
        The description of its storage, or of its place in memory.
    items
        The description of its items.
    other_items
        The descriptions of the items in its other layouts, if several stores have it.
    stored
        If its store may grow or is disposable: the opened array, in each store. Else empty.
    """

    field: OpenedField
    items: Items
    other_items: tuple[Items, ...] = ()
    stored: tuple[zarr.Array[Any], ...] = ()

    @property
    def all_items(self) -> tuple[Items, ...]:
        """The description of the items in each layout."""
        return (self.items, *self.other_items)


@dataclass(frozen=True, eq=False)
class Column:
    """One part of a batch.

    Attributes
    ----------
    array
        The array that it is made of.
    requested
        The conversion that was requested for its items.
    before
        The conversions that were requested before descriptions were joined to one, for each layout of the array. Empty:
        none.
    window
        The rows of a sample. None: its own row.
    patch_axes
        If samples are patches: the axes that they are cut along. Else None.
    """

    array: Array
    requested: RequestedConversion = field(default_factory=RequestedConversion)
    before: tuple[RequestedConversion, ...] = ()
    window: Window | None = None
    patch_axes: PatchAxes | None = None

    @property
    def field(self) -> OpenedField:
        """The array as it was opened."""
        return self.array.field

    @property
    def items(self) -> Items:
        """The description of its items, in the first layout of the array."""
        return self.array.items

    @property
    def conversions(self) -> tuple[RequestedConversion, ...]:
        """The conversions that were requested, one for each layout of the array."""
        if not self.before:
            return (self.requested,) * len(self.array.all_items)
        return tuple(first.then(self.requested, self.items.name) for first in self.before)

    def with_field(self, changed: OpenedField) -> Self:
        """Return the column with its array changed."""
        return replace(self, array=replace(self.array, field=changed))

    def with_patch_axes(self, axes: PatchAxes | None) -> Self:
        """Return the column with the axes that patches are cut along."""
        return replace(self, patch_axes=axes)

    def requesting(self, **changes: Any) -> Self:
        """Return the column with changes of the requested conversion."""
        return replace(self, requested=replace(self.requested, **changes))

    def decoding(self, images: Images) -> Self:
        """Return the column with decoded images in place of encoded ones."""
        items, *others = [replace(one, dtype=images.dtype) for one in self.array.all_items]
        array = replace(self.array, items=items, other_items=tuple(others))
        return replace(self, array=array).requesting(images=images)

    def stepped(self, step: RequestedStep) -> Self:
        """Return the column with one more step of its values."""
        return replace(self, requested=self.requested.stepped(step, self.items.name))

    def leaving(self, method: str) -> Self:
        """Return the column, a coordinate, which a method for all fields leaves as it is."""
        return self.requesting(unapplied_methods=self.requested.unapplied_methods | {method})

    def with_rows(self, rows: RowMap | None, window: Window | None) -> Self:
        """Return the column with other rows for its samples, and other windows of these."""
        return replace(self, array=replace(self.array, field=self.field.with_row_map(rows)), window=window)

    def nan_mask(self) -> Self:
        """Return a column of the same array that says of each value whether it is NaN.

        Raises
        ------
        UnsupportedError
            If the array is a sparse matrix.
        """
        if isinstance(self.field, CsrField):
            raise UnsupportedError(f"fill_nan of {self.field.name}: a sparse matrix has no mask")
        name = f"{self.items.key or self.items.side}_is_nan"
        items = [replace(one, key=name, is_mask=True) for one in self.array.all_items]
        field = replace(self.field, name=f"{self.field.name}_is_nan")
        return replace(
            self,
            array=replace(self.array, field=field, items=items[0], other_items=tuple(items[1:])),
            requested=replace(self.requested.stepped(RequestedStep("is_nan"), name), dtype="bool"),
        )

    def made_conversions(self) -> list[Conversion | None]:
        """Make the conversion of the items, for each layout of the array.

        Raises
        ------
        ConfigError
            If a conversion is impossible; the message names the field.
        """
        items, requested = self.array.all_items, self.conversions
        if self.patch_axes is not None:
            items = tuple(map(self.patch_axes.items, items))
            requested = tuple(one.with_axis_before() for one in requested)
        return [one.conversion(i) for one, i in zip(requested, items, strict=True)]

    def delivered(self) -> Field:
        """Return the field with the conversions of its items and the rows of its samples; patches are not cut yet.

        Raises
        ------
        ConfigError, UnsupportedError
            If the conversion is impossible, or samples that are no tensors are to be windows.
        """
        window = None if self.patch_axes is not None else self.window  # of patches, it is a part of the patch
        return _deliver(self.field, self.conversions[0], self.made_conversions(), window)


@singledispatch
def _deliver(
    opened: Any, requested: RequestedConversion, conversions: Sequence[Conversion | None], window: Window | None
) -> Field:
    """Return a field as batches have it, by its kind."""
    raise NotImplementedError


@_deliver.register
def _(
    opened: StoredField, requested: RequestedConversion, conversions: Sequence[Conversion | None], window: Window | None
) -> Field:
    others = with_conversions(opened.others, conversions[1:])
    spared = requested.left_unconverted
    return replace(opened, conversion=conversions[0], window=window, spared=spared, others=others)


@_deliver.register
def _(
    opened: ResidentField,
    requested: RequestedConversion,  # noqa: ARG001 (of other kinds)
    conversions: Sequence[Conversion | None],
    window: Window | None,
) -> Field:
    return replace(opened, conversion=conversions[0], window=window)


@_deliver.register
def _(
    opened: CsrField, requested: RequestedConversion, conversions: Sequence[Conversion | None], window: Window | None
) -> Field:
    return with_conversion(opened, conversions, window, dense=requested.dense)


@_deliver.register
def _(
    opened: VlenField, requested: RequestedConversion, conversions: Sequence[Conversion | None], window: Window | None
) -> Field:
    if any(one != conversions[0] for one in conversions):
        raise UnsupportedError(f"{opened.name}: images of several stores are converted alike, after zarrfeed.concat()")
    images = requested.images
    if window is not None and window.lead is not None:
        raise UnsupportedError(
            f"offsets of {opened.name}: zarrfeed.lead draws rows of tensors, and these are {opened.item_type}"
        )
    if window is not None and window.pad is not None and window.pad.mode == "fill" and not (images and images.shape):
        lists = "images of their own sizes" if images else opened.item_type
        raise UnsupportedError(f"pad of {opened.name}: samples are lists of {lists}; pad with 'edge'")
    return replace(opened, images=images, conversion=conversions[0], window=window)


@_deliver.register
def _(
    opened: SegmentTextField,
    requested: RequestedConversion,  # noqa: ARG001 (of other kinds)
    conversions: Sequence[Conversion | None],  # noqa: ARG001 (as above)
    window: Window | None,  # noqa: ARG001 (it has none)
) -> Field:
    return opened


@dataclass(frozen=True, eq=False)
class Origin:
    """The facts about samples that are not in their arrays: stores, segments, coordinates, categories.

    Attributes
    ----------
    stores
        The stores, where there are several. None: there is one.
    segments
        The segments that the store itself names, such as the episodes of a replay buffer, or that the user named. None:
        there are none.
    segment_values
        Values in memory by name, one for each segment, that segments can be chosen by.
    coordinates
        The coordinates of the samples, such as their times.
    drops_gaps
        If True, samples whose windows read a row that a row map lacks are left out; if False, such rows are NaN.
    categories
        The names of the categories of columns that are codes, by the key of the array.
    """

    stores: StoreTable | None = None
    segments: Segments | None = None
    segment_values: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    coordinates: Coordinates | None = None
    drops_gaps: bool = False
    categories: Categories = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Opened:
    """The arrays of a dataset as they were opened, those of `samples` first; all have the same number of samples."""

    arrays: tuple[Array, ...]
    origin: Origin
