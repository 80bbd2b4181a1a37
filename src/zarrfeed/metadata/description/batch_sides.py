"""Sides of the batches of a description, the keys of their dicts, and the tensors under them."""

from __future__ import annotations

from typing import Protocol

from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.group.fields import OpenedFields
from zarrfeed.metadata.group.stacking import Stacked, channels_of
from zarrfeed.plan.samples.sample_choice import SampleChoice
from zarrfeed.plan.samples.windows import lead_of
from zarrfeed.spec.batch_tensors import tensors_of
from zarrfeed.spec.expression import FieldInfo
from zarrfeed.spec.field import Field, described_dtype, dtype_name, shape_of
from zarrfeed.spec.static import StaticField
from zarrfeed.spec.window import Window
from zarrfeed.spec.window_fields import LeadField, PadMaskField


class _Described(Protocol):
    """What a batch depends on; `ResolvedData` has it."""

    @property
    def opened(self) -> OpenedFields: ...
    @property
    def choice(self) -> SampleChoice: ...
    @property
    def fields(self) -> tuple[Field, ...]: ...
    @property
    def windows(self) -> tuple[Window | None, ...]: ...
    @property
    def masks(self) -> bool: ...
    @property
    def statics(self) -> tuple[StaticField, ...]: ...
    @property
    def stacks(self) -> tuple[Stacked, ...]: ...


def field_infos(data: _Described) -> tuple[FieldInfo, ...]:
    """Return what a batch has of each array, or of several that are stacked."""
    infos = []
    for tensor in tensors_of(data.fields):
        f, items = tensor.field, data.opened.items[tensor.members[0]]
        stack = stack_with(data, items)
        name = items.key or items.side if stack is None else stack.name or stack.side
        channels = () if stack is None else channels_of(data.fields, data.opened.items, stack)
        infos.append(FieldInfo(name, items.side, shape_of(f), described_dtype(f), channels=channels))
    for side, masks in window_fields(data).items():
        behind = max(number for number, info in enumerate(infos) if info.part == side) + 1
        infos[behind:behind] = [FieldInfo(f.name, side, f.sample_shape, dtype_name(f)) for f in masks]
    return (*infos, *(FieldInfo(one.name, "samples", one.shape, one.dtype, is_static=True) for one in data.statics))


def window_fields(data: _Described) -> dict[str, list[PadMaskField | LeadField]]:
    """Return what a batch says of its windows, by the side that has it: padded rows, and the drawn distance."""
    masks: dict[str, list[PadMaskField | LeadField]] = {}
    for items, window in zip(data.opened.items, data.windows, strict=True):
        if data.masks and window is not None and window.pad is not None:
            stack, made = stack_with(data, items), masks.setdefault(items.side, [])
            called = items.key or items.side if stack is None else stack.name or stack.side
            before = [one for one in made if one.name == f"{called}_is_pad"]  # of another array of the same stack
            if any(isinstance(one, PadMaskField) and one.window == window for one in before):
                continue
            name = f"{items.key if before else called}_is_pad"
            made.append(PadMaskField(data.choice.num_samples, window, name))
    lead = lead_of(data.windows)
    if lead is not None:
        masks.setdefault("samples", []).append(LeadField(data.choice.num_samples, lead))
    return masks


def keys_of_sides(data: _Described) -> list[tuple[str, ...] | None]:
    """Return the keys of the dict of each side of a batch; None for a bare tensor."""
    sides: list[tuple[str, ...] | None] = []
    for side, keys in zip(("samples", "targets"), data.opened.sides, strict=False):
        items = [one for one in data.opened.items if one.side == side]
        stacks = [stack_with(data, one) for one in items]
        if any(stacks) and keys is not None:
            names = [one.key if of is None else of.name or side for one, of in zip(items, stacks, strict=True)]
            keys = tuple(dict.fromkeys(map(str, names)))
            if len(keys) == 1 and stacks[0] is not None and stacks[0].name is None:
                keys = None
        sides.append(keys)
    if data.statics and sides[0] is None:
        sides[0] = ("samples",)  # a single array becomes an entry of the dict that static fields are put into
    return sides


def stack_with(data: _Described, items: Items) -> Stacked | None:
    """Return the tensor that an array shares with others; None if it has one for itself."""
    return next((one for one in data.stacks if one.side == items.side and items.key in one.keys), None)
