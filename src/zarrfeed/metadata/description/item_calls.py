"""The methods of `Data` for items and tensors: cast, normalize, static, stack, time_features, decode, dense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from dataclasses import field as argument
from typing import Any

import numpy.typing as npt

from zarrfeed.base.errors import ConfigError, ZarrfeedError
from zarrfeed.base.optional_pillow import check_pillow
from zarrfeed.base.validate import check_choice
from zarrfeed.metadata.array.conversion import by_field, left_unconverted, parse_dtype
from zarrfeed.metadata.array.described import Described
from zarrfeed.metadata.array.requested_step import RequestedStep, check_axis
from zarrfeed.metadata.description.method_call import MethodCall, applied_only, frozen_by
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.chosen_columns import DECODED, encoded_columns, sparse_columns
from zarrfeed.metadata.group.coordinates import Coordinates, read_coordinate
from zarrfeed.metadata.group.source_names import name_source
from zarrfeed.metadata.group.stacking import channel_axes, make_stack, side_by_side
from zarrfeed.metadata.group.static_channels import make_channel, named_in
from zarrfeed.metadata.group.time_features import NAME as TIME_FEATURES
from zarrfeed.metadata.group.time_features import check_features, make_field
from zarrfeed.spec.description.freeze import FrozenMapping, freeze, freeze_names, freeze_pairs
from zarrfeed.spec.fields.field import Field, StoredField
from zarrfeed.spec.fields.images import Crop, Images
from zarrfeed.spec.fields.static import StaticField


def _freeze_dtypes(dtype: Any) -> Any:
    """Return the name of a dtype, or a frozen mapping of keys to names of dtypes."""
    if not isinstance(dtype, Mapping):
        return freeze(parse_dtype("dtype", dtype))
    return freeze({key: None if one is None else parse_dtype("dtype", one) for key, one in dtype.items()})


def _freeze_pair(numbers: Any) -> Any:
    """Return numbers, or one of them, in the one way in which an expression writes them."""
    return freeze(tuple(numbers) if isinstance(numbers, list) else numbers)


@dataclass(frozen=True)
class CastCall(MethodCall):
    """`.cast(dtype)`."""

    function = ".cast"

    dtype: Any = argument(metadata=frozen_by(_freeze_dtypes))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Convert items to a dtype; a later cast of a field replaces an earlier one."""
        if self.dtype is None:
            raise ConfigError("dtype = None, must be a dtype, or a mapping of names to dtypes")
        items = resolved.items
        dtypes = by_field("dtype", self.dtype, items)
        return resolved.mapped(_with_dtype, dtypes, left_unconverted("dtype", self.dtype, items))


def _with_dtype(column: Column, dtype: Any, is_left: bool) -> Column:
    """Return a column with another dtype, or with the one that it has; `is_left`: a coordinate that stays as it is."""
    if dtype is not None:
        return column.requesting(dtype=dtype)
    return column.leaving("cast") if is_left else column


@dataclass(frozen=True)
class NormalizeCall(MethodCall):
    """`.normalize(mean_std, axis=..., stats=..., sides=...)`; `pairs` are the numbers that were found for it."""

    function = ".normalize"

    mean_std: Any = argument(metadata=frozen_by(freeze_pairs))
    axis: Any = None
    #: where statistics are kept, not what they are
    stats: Any = argument(default=None, compare=False, metadata=frozen_by(lambda path: path and str(path)))
    sides: tuple[str, ...] = ("samples",)
    pairs: Any = argument(kw_only=True, repr=False, compare=False, metadata=frozen_by(applied_only))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Subtract a mean and divide by a standard deviation."""
        pairs, axis = self.pairs, None if isinstance(self.mean_std, str) else self.axis
        if pairs is None:
            raise ConfigError("mean_std = None, must be (mean, std), or a mapping of names to such pairs")
        check_axis(axis)
        items = resolved.items

        def normalized(column: Column, pair: Any, is_left: bool) -> Column:
            if pair is not None:
                return column.stepped(RequestedStep("normalize", pair, axis))
            return column.leaving("normalize") if is_left else column

        named = by_field("normalize", pairs, items)
        return resolved.mapped(normalized, named, left_unconverted("normalize", pairs, items))


@dataclass(frozen=True)
class StaticCall(MethodCall):
    """`.static(name, ..., name=array, ...)`; `fields` are the arrays, which were opened once."""

    function = ".static"

    names: tuple[str, ...] = argument(metadata=frozen_by(tuple))
    arrays: Any = argument(
        metadata=frozen_by(lambda given: FrozenMapping(tuple((name, name_source(one)) for name, one in given.items())))
    )
    fields: tuple[StaticField, ...] | None = argument(
        kw_only=True, repr=False, compare=False, metadata=frozen_by(applied_only)
    )

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Add arrays that are the same for all samples."""
        assert self.fields is not None
        for one in self.fields:
            if one.name in resolved.taken_names():
                raise ConfigError(f"static {one.name!r}: the samples already have an array of this name")
        return replace(resolved, statics=(*resolved.statics, *self.fields))

    def _arguments(self) -> Iterator[str]:
        yield from map(repr, self.names)
        yield from (f"{name}={source!r}" for name, source in self.arrays.items)


def _labels_along(
    dim: str, axis: int, described: Described, known: Coordinates, field: Field
) -> npt.NDArray[Any] | None:
    """Return the values along all of a dimension: of its coordinate, or of one that lies beside an array by itself."""
    if dim in described.coordinates:
        return read_coordinate(described.coordinates[dim], known.access)
    if len(known.stores) > 1 or not isinstance(field, StoredField):
        return None
    found, choice = known.stored_labels(dim), field.spec.choice
    length = field.spec.shape[axis if choice is None else choice.axis_of(axis)]
    return None if found is None or len(found.values) != length else found.values


@dataclass(frozen=True)
class StackCall(MethodCall):
    """`.stack(names, name=..., spatial_axes=...)`."""

    function = ".stack"

    names: Sequence[str] = argument(metadata=frozen_by(freeze_names))
    name: str | None = None
    spatial_axes: int | None = None
    labels: Any = argument(kw_only=True, default=None, repr=False, compare=False, metadata=frozen_by(applied_only))

    def with_labels(self, resolved: ResolvedData) -> StackCall:
        """Return the call with the labels of the channels, such as pressures of levels, which are read now."""
        made = self.apply(resolved)
        stack = made.stacks[-1]
        labels: dict[str, dict[str, Any]] = {}
        for field, column in zip(made.fields, made.columns, strict=True):
            described, dims = column.items.described, column.items.dimensions or ()
            if not stack.has(column) or described is None or column.items.key is None:
                continue
            named = [(axis, dims[axis]) for axis in channel_axes(field, column) if axis < len(dims)]
            known = made.origin.coordinates
            for axis, dim in named:
                if dim is None or known is None:
                    continue
                with suppress(ZarrfeedError):  # names of channels are indices then, and reading goes on
                    read = _labels_along(dim, axis, described, known, field)
                    if read is not None:
                        labels.setdefault(column.items.key, {})[dim] = read
        return replace(self, labels=labels)

    def _labelled(self, column: Column) -> Column:
        read, described = (self.labels or {}).get(column.items.key), column.items.described
        if read is None or described is None:
            return column
        items = replace(column.items, described=replace(described, labels={**described.labels, **read}))
        return replace(column, array=replace(column.array, items=items))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Write some arrays side by side into one tensor."""
        for one in named_in(self.names, resolved.statics):
            others = tuple(static for static in resolved.statics if static is not one)
            channel = make_channel(one, resolved.choice.num_samples)
            return self.apply(replace(resolved, statics=others).with_array(channel))
        items, statics = resolved.items, [one.name for one in resolved.statics]
        taken = [key for one in resolved.stacks for key in one.keys]
        made = make_stack(items, self.names, self.name, self.spatial_axes, taken=taken, statics=statics)
        others_of_side = [*statics] if made.side == "samples" else []
        others_of_side += [one.tensor_name for one in resolved.stacks if one.side == made.side]
        if made.tensor_name in others_of_side:
            raise ConfigError(f"stack: {made.side} have an array {made.tensor_name!r}; give the tensor another name")
        columns = [self._labelled(one) if made.has(one) else one for one in resolved.columns]
        return replace(resolved, columns=side_by_side(columns, made), stacks=(*resolved.stacks, made))


@dataclass(frozen=True)
class TimeFeaturesCall(MethodCall):
    """`.time_features(feature, ..., coords=...)`."""

    function = ".time_features"

    features: tuple[str, ...] = argument(metadata=frozen_by(tuple))
    coords: Any = argument(default=None, metadata=frozen_by(name_source))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Add the time features of each sample as one more array in memory."""
        check_features(self.features)
        coordinate = resolved.coordinate() if self.coords is None else resolved.coordinate("time", self.coords)
        if TIME_FEATURES in resolved.taken_names():
            raise ConfigError(f"{TIME_FEATURES}: the samples already have an array of this name")
        return resolved.with_array(make_field(coordinate, self.features))

    def check_may_grow(self) -> None:
        """Refuse every one."""
        raise ConfigError("time_features() cannot follow open(..., refresh='epoch'): new samples have other times")

    def _arguments(self) -> Iterator[str]:
        _, *others = super()._arguments()
        yield from (*map(repr, self.features), *others)


@dataclass(frozen=True)
class DecodeCall(MethodCall):
    """`.decode(what, field=..., size=..., mode=..., crop=..., scale=..., ratio=..., flip=...)`."""

    function = ".decode"

    what: str
    field: Any = argument(default=None, metadata=frozen_by(freeze_names))
    size: Any = argument(default=None, metadata=frozen_by(_freeze_pair))
    mode: Any = "RGB"
    crop: Any = None
    scale: Any = argument(default=None, metadata=frozen_by(_freeze_pair))
    ratio: Any = argument(default=None, metadata=frozen_by(_freeze_pair))
    flip: Any = 0.0

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Decode encoded images on the way into the batch."""
        check_choice("what", self.what, DECODED)
        crop = Crop.parse(self.crop, self.scale, self.ratio)
        images = Images.parse(self.mode, self.size, crop, self.flip)
        check_pillow(f"decode({self.what!r})")
        chosen = encoded_columns(self.field, resolved.columns)
        for one in chosen:
            if one.conversions[0].images is not None:
                raise ConfigError(f"decode of {one.items.name}: it was decoded before")
        return resolved.changed(chosen, lambda one: one.decoding(images))


@dataclass(frozen=True)
class DenseCall(MethodCall):
    """`.dense(field=...)`."""

    function = ".dense"

    field: Any = argument(default=None, metadata=frozen_by(freeze_names))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Let batches have dense tensors of sparse matrices."""
        chosen = sparse_columns(self.field, resolved.columns)
        return resolved.changed(chosen, lambda one: one.requesting(dense=True))
