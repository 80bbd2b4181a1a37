"""What a `Data` stands for: opened arrays, what becomes of their items, and which samples are chosen.

What holds: all metadata were read by `open_fields`; nothing here reads a store. Each method returns another description
or refuses what cannot work, so that a dataset has nothing left to refuse but what concerns feeding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.optional_pillow import check_pillow
from zarrfeed.base.validate import check_choice
from zarrfeed.metadata.array.conversion import ConversionOptions, Items, by_field
from zarrfeed.metadata.array.host_memory import holds_same
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.description.batch_sides import field_infos, keys_of_sides, window_fields
from zarrfeed.metadata.group.anndata import check_dense
from zarrfeed.metadata.group.encoded import DECODED, fields_to_decode
from zarrfeed.metadata.group.fields import OpenedFields, with_options
from zarrfeed.metadata.group.stacking import (
    Stacked,
    make_stack,
    order_of,
    reordered,
    with_sample_field,
    with_stack_slices,
)
from zarrfeed.metadata.group.static_channels import channel_like, check_not_named, make_channel, named_in, templates_of
from zarrfeed.metadata.group.time_features import NAME as TIME_FEATURES
from zarrfeed.metadata.group.time_features import check_features, make_field
from zarrfeed.metadata.patches.patch_request import PatchRequest
from zarrfeed.metadata.patches.patching import Patching
from zarrfeed.plan.mixture.mixed_order import Blend
from zarrfeed.plan.samples.blocks import plan_blocks
from zarrfeed.plan.samples.field_rows import check_gaps_can_be_nan
from zarrfeed.plan.samples.sample_choice import SampleChoice
from zarrfeed.plan.samples.selection import Select, Selection
from zarrfeed.plan.samples.split import By
from zarrfeed.plan.samples.window_rows import WindowRows
from zarrfeed.plan.samples.windows import lead_of, parse_pad, parse_window, with_borders
from zarrfeed.spec.coordinate import Coordinate
from zarrfeed.spec.expression import FieldInfo
from zarrfeed.spec.field import (
    BLOCK_KINDS,
    BlockKind,
    Field,
    FieldSet,
    IndexField,
    ResidentField,
    StoredField,
    VlenField,
    check_pad,
)
from zarrfeed.spec.images import Images
from zarrfeed.spec.static import StaticField, is_channel
from zarrfeed.spec.window import Window

#: Bytes for fields that are kept in memory, where no dataset says how much memory it has: that of the usual budget.
_USUAL_ROOM = 64 << 20


@dataclass(frozen=True, eq=False)
class _Windowing:
    """How windows were made: the choice of samples before that, and the arguments beside the offsets."""

    choice: SampleChoice
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class ResolvedData:
    """The samples of a `Data`, in index space.

    Attributes
    ----------
    opened
        The arrays, as they were opened.
    choice
        Which samples are chosen.
    requested
        For each field, the conversion that was requested for its items.
    windows
        For each field, the rows of a sample; None: its own row.
    requested_per_layout
        Where descriptions were joined to one: the conversions that were requested before, for each field and each of
        its layouts. Empty: none.
    masks
        Whether a batch has, for each field whose windows are padded, which rows are.
    windowing
        How the windows were made. None: there are none, or samples were dealt since then.
    statics
        Arrays that are the same for all samples.
    stacks
        Which fields share a tensor.
    blend
        Of a mixture: its sources, and how they are mixed.
    patching
        Of samples that are patches: how they are cut.
    """

    opened: OpenedFields
    choice: SampleChoice
    requested: tuple[RequestedConversion, ...]
    windows: tuple[Window | None, ...]
    requested_per_layout: tuple[tuple[RequestedConversion, ...], ...] = ()
    masks: bool = False
    windowing: _Windowing | None = None
    statics: tuple[StaticField, ...] = ()
    stacks: tuple[Stacked, ...] = ()
    blend: Blend | None = None
    patching: Patching | None = None

    @classmethod
    def of(cls, opened: OpenedFields) -> Self:
        """Return all samples of what was opened, as they are stored or decoded."""
        count = len(opened.fields)
        choice = SampleChoice.all_of(opened.fields[0].num_samples)
        if opened.segment_ends is not None:
            choice = choice.with_segments(np.concatenate(([0], opened.segment_ends)))
        return cls(opened, choice, (RequestedConversion(),) * count, (None,) * count)

    def __post_init__(self) -> None:
        assert self.fields  # a conversion or a window that cannot be is refused here

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The arrays with their conversions and windows."""
        made = []
        for number, (f, window) in enumerate(zip(self.opened.fields, self.windows, strict=True)):
            items, requested = self.opened.items_of(number), self.requested_of(number)
            if self.patching is not None:
                window = None  # it is a part of the patch
                items = tuple(self.patching.items(one, number) for one in items)
                requested = tuple(request.with_axis_before() for request in requested)
            conversions = [request.conversion(i) for i, request in zip(items, requested, strict=True)]
            first = requested[0]
            made.append(with_options(f, conversions, window, first.left_unconverted, first.images, first.dense))
        if self.patching is not None:
            made = list(self.patching.cut(made))
        for number, template in templates_of(self.opened.fields, self.opened.items, self.stacks).items():
            request = self.requested_of(number)[0]
            made[number] = channel_like(self.opened.fields[number], self.opened.items[number], request, made[template])
        return with_stack_slices(made, self.opened.items, self.stacks)

    @property
    def length(self) -> int:
        """How many samples are chosen; of patches, how many a typical epoch has."""
        return self.choice.length if self.patching is None else self.patching.typical_length

    def requested_of(self, number: int) -> tuple[RequestedConversion, ...]:
        """Return the conversions that were requested for a field, one for each of its layouts."""
        request = self.requested[number]
        if not self.requested_per_layout:
            return (request,) * len(self.opened.items_of(number))
        return tuple(first.then(request, self.opened.items[number].name) for first in self.requested_per_layout[number])

    def infos(self) -> tuple[FieldInfo, ...]:
        """Return what a batch has of each array, or of several that are stacked."""
        return field_infos(self)

    def stack(self, names: Sequence[str], name: str | None, spatial_axes: int | None) -> Self:
        """Write some arrays side by side into one tensor."""
        for one in named_in(names, self.statics):
            others = tuple(static for static in self.statics if static is not one)
            field, items = make_channel(one, self.choice.num_samples)
            return replace(self, statics=others).with_field(field, items).stack(names, name, spatial_axes)
        taken, statics = [key for one in self.stacks for key in one.keys], [one.name for one in self.statics]
        made = make_stack(self.opened.items, names, name, spatial_axes, taken=taken, statics=statics)
        names_of_others = [one.name for one in self.statics] if made.side == "samples" else []
        names_of_others += [one.name or one.side for one in self.stacks if one.side == made.side]
        if (made.name or made.side) in names_of_others:
            raise ConfigError(
                f"stack: {made.side} have an array {made.name or made.side!r}; give the tensor another name"
            )
        order = order_of(self.opened.items, made)
        return replace(
            self,
            opened=reordered(self.opened, order),
            requested=tuple(self.requested[n] for n in order),
            windows=tuple(self.windows[n] for n in order),
            requested_per_layout=self.requested_per_layout and tuple(self.requested_per_layout[n] for n in order),
            stacks=(*self.stacks, made),
        )

    def _taken(self) -> list[str]:
        """Return the names that arrays of the samples have, in a batch or before they are stacked."""
        named = [one.key or one.side for one in self.opened.items if one.side == "samples"]
        stacks = [one.name or one.side for one in self.stacks if one.side == "samples"]
        return [*named, *stacks, *(one.name for one in self.statics)]

    def static(self, fields: tuple[StaticField, ...]) -> Self:
        """Add arrays that are the same for all samples."""
        for one in fields:
            if one.name in self._taken():
                raise ConfigError(f"static {one.name!r}: the samples have an array of this name")
        return replace(self, statics=(*self.statics, *fields))

    def select(self, samples: Select) -> Self:
        """Choose samples by their positions among those that are chosen."""
        self._check_rows("select")
        return replace(self, choice=self.choice.select(samples))

    def coordinate(self, name: str | None = None, given: Any = None) -> Coordinate:
        """Return a coordinate of all samples of the arrays, chosen or not; it is read when it is first asked for.

        Parameters
        ----------
        name
            Such as "time". None: the coordinate of the sample dimension, which has the dimension's name.
        given
            Its values, of all samples of the arrays, or an array that has them. None: they are stored.

        Raises
        ------
        ConfigError, UnsupportedError, StoreReadError, CorruptChunkError
            As of `Coordinates.read`.
        """
        known = self.opened.coordinates
        if known is None:
            raise ConfigError(f"coordinate {name!r}: nothing is known of the coordinates of these samples")
        found = known.read(name) if given is None else known.given(name or "samples", given)
        if len(found.values) < self.choice.num_samples:
            raise ConfigError(
                f"{found.where}: had {len(found.values)} values when it was opened, there are "
                f"{self.choice.num_samples} samples by now"
            )
        return replace(found, values=found.values[: self.choice.num_samples])

    def blocks(self, blocks: npt.ArrayLike, of: BlockKind) -> Self:
        """Choose what of the samples lies in some chunks, or shards, along the sample axis."""
        check_choice("of", of, BLOCK_KINDS)
        self._check_rows("blocks")
        planned = plan_blocks(self.fields, self.opened.num_sample_fields, block=of, aligns=False)
        return replace(self, choice=self.choice.blocks(blocks, planned.rows, of, planned.edges))

    def window(
        self,
        offsets: Any,
        segment_ends: npt.ArrayLike | None,
        rows: WindowRows | None,
        pad: Any = None,
        mask: bool = False,
    ) -> Self:
        """Make each sample the rows at some offsets from its own."""
        self._check_rows("window")
        if self.choice.windowed:
            raise ConfigError("window() was called before: name the offsets of all arrays in one call")
        items = self.opened.items
        check_not_named(offsets, items, self.opened.fields)
        named = by_field("offsets", offsets, items, of_rows=True)
        windows = tuple(
            None if is_channel(f) else parse_window(i.name, of)
            for f, i, of in zip(self.opened.fields, items, named, strict=True)
        )
        if all(window is None for window in windows):
            raise ConfigError(f"offsets = {offsets!r}, must be an integer, a sequence of some, or a mapping of names")
        pads = by_field("pad", pad, items, of_rows=True)
        if mask and all(one is None for one in pads):
            raise ConfigError("mask = True marks rows that are padded: give pad, too")
        if not isinstance(pad, Mapping):  # for all windows, on both sides
            pads = [pad] * len(items)
        padded = [
            None if window is None else replace(window, pad=parse_pad(i.name, one))
            for i, window, one in zip(items, windows, pads, strict=True)
        ]
        if lead_of(padded) is not None and "lead" in self._taken():
            raise ConfigError("a batch has the drawn distance as 'lead', and the samples have an array of this name")
        choice, borders = self.choice.window(padded, segment_ends=segment_ends, rows=rows)
        made = replace(
            self,
            windows=tuple(with_borders(window, borders) for window in padded),
            masks=bool(mask),
            windowing=_Windowing(self.choice, (segment_ends, rows, pad, mask)),
        )
        if self.opened.drops_gaps:
            return replace(made, choice=choice.without_gaps(made.fields))
        check_gaps_can_be_nan(made.fields)
        return replace(made, choice=choice)

    def patch(self, request: PatchRequest) -> Self:
        """Make samples boxes of the arrays."""
        if self.patching is not None:
            raise ConfigError("patch() was called before: call it once, with the sizes of all dimensions")
        if self.stacks or self.blend is not None:
            raise ConfigError("patch: samples are stacked or mixed; call patch() before stack()")
        ends = np.zeros(0, dtype=np.int64) if self.opened.stores is None else self.opened.stores.first
        patching = Patching.of(
            request, self.fields, self.opened.items, self.choice.listed(), ends, windows=self.windows
        )
        return replace(self, patching=patching, windowing=None)

    def _check_rows(self, method: str) -> None:
        if self.patching is not None:
            raise ConfigError(f"{method}: samples are patches; call patch() last of what chooses samples")

    def with_offsets(self, offsets: Any) -> Self:
        """Make the windows of the samples anew, with other offsets and the other arguments of `window` as they were."""
        if self.windowing is None:
            raise ConfigError(
                "other offsets are for samples that are windows, and were not dealt by split() since then: call "
                "Data.window(), after split()"
            )
        before = replace(self, choice=self.windowing.choice, windows=(None,) * len(self.windows), windowing=None)
        return before.window(offsets, *self.windowing.arguments)

    def cast(self, dtype: Any) -> Self:
        """Convert items to a dtype; a later cast of a field replaces an earlier one."""
        if dtype is None:
            raise ConfigError("dtype = None, must be a dtype, or a mapping of names to dtypes")
        items = self.opened.items
        dtypes, unconverted = by_field("dtype", dtype, items), ConversionOptions(dtype=dtype).leaves_unconverted(items)
        return self._requesting(
            [
                replace(
                    request,
                    dtype=request.dtype if named is None else named,
                    unapplied_methods=request.unapplied_methods | ({"cast"} if is_unconverted else set()),
                )
                for request, named, is_unconverted in zip(self.requested, dtypes, unconverted, strict=True)
            ]
        )

    def normalize(self, mean_std: Any, axis: int | str | None) -> Self:
        """Subtract a mean and divide by a standard deviation."""
        if mean_std is None:
            raise ConfigError("mean_std = None, must be (mean, std), or a mapping of names to such pairs")
        if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int | np.integer | str)):
            raise ConfigError(f"axis = {axis!r}, must be an axis or the name of a dimension")
        items = self.opened.items
        pairs = by_field("normalize", mean_std, items)
        unconverted = ConversionOptions(normalize=mean_std).leaves_unconverted(items)
        requested = []
        for item, request, pair, is_unconverted in zip(items, self.requested, pairs, unconverted, strict=True):
            if pair is not None:
                if request.mean_std is not None:
                    raise ConfigError(f"normalize of {item.name}: it was normalised before; give mean and std once")
                request = replace(request, mean_std=pair, axis=axis)
            if is_unconverted:
                request = replace(request, unapplied_methods=request.unapplied_methods | {"normalize"})
            requested.append(request)
        return self._requesting(requested)

    def decode(self, what: Any, field: Any, size: Any, mode: Any) -> Self:
        """Decode encoded images on the way into the batch."""
        check_choice("what", what, DECODED)
        images = Images.parse(mode, size)
        check_pillow(f"decode({what!r})")
        requested = list(self.requested)
        for number in fields_to_decode(field, self.opened):
            if self.requested_of(number)[0].images is not None:
                raise ConfigError(f"decode of {self.opened.items[number].name}: it was decoded before")
            requested[number] = replace(requested[number], images=images)
        return self._requesting(requested)

    def dense(self, field: Any) -> Self:
        """Let batches have dense tensors of sparse matrices."""
        requested = list(self.requested)
        for number in check_dense(field, self.opened.fields, self.opened.items):
            requested[number] = replace(requested[number], dense=True)
        return self._requesting(requested)

    def split(self, parts: Sequence[float], *, by: By, seed: int, gap: int | None) -> tuple[Self, ...]:
        """Deal the samples to parts."""
        self._check_rows("split")
        field_set, _ = self.planned(block="shard" if by == "shard" else None, room=_USUAL_ROOM)
        kind: BlockKind | None = "shard" if by == "shard" else self.choice.kind
        choices = self.choice.split(parts, field_set, by=by, seed=seed, gap=gap)
        return tuple(replace(self, choice=replace(choice, kind=kind), windowing=None) for choice in choices)

    def planned(
        self,
        *,
        block: BlockKind | None = None,
        room: int = _USUAL_ROOM,
        aligns: bool = True,
        return_index: bool = False,
    ) -> tuple[FieldSet, Selection | None]:
        """Choose blocks for a reader: return the fields, and the chosen samples block by block.

        Parameters
        ----------
        block
            What blocks are made of. None: what the samples were chosen by, else chunks.
        room, aligns
            As of `plan_blocks`.
        return_index
            Whether the sample's index is the last field.

        Returns
        -------
        The fields, and the samples that are chosen; None for all.

        Raises
        ------
        ConfigError
            If shards are to make the blocks, and there are none.
        """
        if self.patching is not None:
            return self._planned_patches(return_index=return_index), None
        kind = block or self.choice.kind or "chunk"
        check_choice("block", kind, BLOCK_KINDS)
        aligns = aligns and self.choice.aligned
        blocks = plan_blocks(self.fields, self.opened.num_sample_fields, block=kind, room=room, aligns=aligns)
        fields, sides, primary = list(blocks.fields), keys_of_sides(self), blocks.primary
        for f in fields:
            check_pad(f)
        for side, masks in reversed(window_fields(self).items()):
            number = int(side == "targets")
            end = self.opened.num_sample_fields if side == "samples" else len(self.opened.fields)
            fields[end:end] = masks
            if primary is not None and primary >= end:
                primary += len(masks)
            keys = sides[number] or (side,)  # a single array becomes an entry of a dict, beside its mask
            sides[number] = (*keys, *(mask.name for mask in masks))
        if return_index:
            fields.append(IndexField(self.choice.num_samples))
            sides.append(None)
        edges = blocks.edges if self.blend is None else self.blend.edges(blocks.edges, blocks.rows)
        field_set = FieldSet(tuple(fields), tuple(sides), primary, blocks.rows, kind, edges)
        return field_set, self.choice.selection(blocks.rows, edges)

    def _planned_patches(self, *, return_index: bool) -> FieldSet:
        """Return the fields of patches, whose blocks an order of each epoch has."""
        fields, sides = list(self.fields), keys_of_sides(self)
        for f in fields:
            check_pad(f)
        if return_index:
            fields.append(IndexField(self.choice.num_samples))
            sides.append(None)
        return FieldSet(tuple(fields), tuple(sides), None, 1)

    def plain(self, numbers: Sequence[int]) -> Self:
        """Return the chosen samples of some of the fields, each its own row, decoded and not converted any further."""
        opened = self.opened
        stored = [n for n, f in enumerate(opened.fields) if isinstance(f, StoredField | VlenField)]
        arrays = [array for n, array in zip(stored, opened.arrays, strict=False) if n in numbers]
        chosen = replace(
            opened,
            fields=tuple(opened.fields[n] for n in numbers),
            items=tuple(opened.items[n] for n in numbers),
            sides=(tuple(str(n) for n in numbers),),
            num_sample_fields=len(numbers),
            arrays=tuple(arrays),
            other_items=tuple(opened.other_items[n] for n in numbers) if opened.other_items else (),
        )
        # stores whose dtypes differ have been converted to one before they were joined
        before = [self.requested_per_layout[n] for n in numbers] if self.requested_per_layout else []
        casts = tuple(tuple(RequestedConversion(request.dtype) for request in requested) for requested in before)
        return replace(
            self,
            opened=chosen,
            choice=self.choice.without_windows(),
            requested=(RequestedConversion(),) * len(numbers),
            windows=(None,) * len(numbers),
            requested_per_layout=casts,
            masks=False,
            statics=(),
            stacks=(),
            blend=None,
            patching=None,
        )

    def holds_same(self, other: ResolvedData) -> bool:
        """Return whether both stand for the same arrays: equal metadata, and in memory equal values."""
        ours, theirs = self._all_fields(), other._all_fields()
        return len(ours) == len(theirs) and all(map(holds_same, ours, theirs))

    def time_features(self, features: Sequence[str], coords: Any) -> Self:
        """Add the times of samples as one more array in memory."""
        check_features(features)
        coordinate = self.coordinate() if coords is None else self.coordinate("time", coords)
        if TIME_FEATURES in self._taken():
            raise ConfigError(f"{TIME_FEATURES}: the samples have an array of this name")
        return self.with_field(*make_field(coordinate, features))

    def with_field(self, field: ResidentField, items: Items) -> Self:
        """Add one more array in memory to the samples."""
        self._check_rows("other arrays in memory")
        at, first = self.opened.num_sample_fields, self.requested_per_layout
        return replace(
            self,
            opened=with_sample_field(self.opened, field, items),
            requested=(*self.requested[:at], RequestedConversion(), *self.requested[at:]),
            windows=(*self.windows[:at], None, *self.windows[at:]),
            requested_per_layout=(*first[:at], (RequestedConversion(),), *first[at:]) if first else (),
        )

    def _all_fields(self) -> list[Field]:
        return [*self.fields, *(one.source for one in self.statics)]

    def _requesting(self, requested: Sequence[RequestedConversion]) -> Self:
        return replace(self, requested=tuple(requested))
