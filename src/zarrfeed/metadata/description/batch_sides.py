"""Sides of the batches of a description, the keys of their dicts, and the tensors under them."""

from __future__ import annotations

from itertools import chain
from typing import Protocol

from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.stacking import Stacked, channels_of
from zarrfeed.plan.samples.sample_choice import SampleChoice
from zarrfeed.plan.samples.windows import lead_of
from zarrfeed.spec.batch_tensors import tensors_of
from zarrfeed.spec.expression import COORDS, FieldInfo
from zarrfeed.spec.field import Field
from zarrfeed.spec.static import StaticField
from zarrfeed.spec.window_fields import LeadField, LengthField, PadMaskField


class _Described(Protocol):
    """The attributes of a description on which batches depend; `ResolvedData` has them."""

    @property
    def columns(self) -> tuple[Column, ...]: ...
    @property
    def choice(self) -> SampleChoice: ...
    @property
    def fields(self) -> tuple[Field, ...]: ...
    @property
    def masks(self) -> bool: ...
    @property
    def has_lengths(self) -> bool: ...
    @property
    def statics(self) -> tuple[StaticField, ...]: ...
    @property
    def stacks(self) -> tuple[Stacked, ...]: ...


def field_infos(data: _Described) -> tuple[FieldInfo, ...]:
    """Describe each tensor of a batch: that of an array, or of several that are stacked."""
    infos = []
    for tensor in tensors_of(data.fields):
        f, column = tensor.field, data.columns[tensor.members[0]]
        stack = stack_with(data, column)
        named = [channels_of(data.fields[n], data.columns[n]) for n in tensor.members] if stack else []
        channels, side = tuple(chain.from_iterable(named)), column.items.side
        infos.append(FieldInfo(_name_of(column, stack), side, f.shape, f.described_dtype, channels=channels))
    for side, masks in window_fields(data).items():
        behind = max(number for number, info in enumerate(infos) if info.part == side) + 1
        infos[behind:behind] = [FieldInfo(f.name, side, f.shape, f.described_dtype) for f in masks]
    return (*infos, *(FieldInfo(one.name, "samples", one.shape, one.dtype, is_static=True) for one in data.statics))


def window_fields(data: _Described) -> dict[str, list[PadMaskField | LeadField]]:
    """Return the fields that describe windows, by side: the padded rows, the length, and the drawn distance."""
    masks: dict[str, list[PadMaskField | LeadField]] = {}
    for column in data.columns:
        window, side = column.window, column.items.side
        if data.masks and window is not None and window.pad is not None:
            called, made = _name_of(column, stack_with(data, column)), masks.setdefault(side, [])
            before = [one for one in made if one.name == f"{called}_is_pad"]  # of another array of the same stack
            if any(one.window == window for one in before):
                continue
            name = f"{column.items.key if before else called}_is_pad"
            made.append(PadMaskField(data.choice.num_samples, window, name))
    if data.has_lengths:
        padded = next(one.window for one in data.columns if one.window is not None)
        masks.setdefault("samples", []).append(LengthField(data.choice.num_samples, padded))
    lead = lead_of([one.window for one in data.columns])
    if lead is not None:
        masks.setdefault("samples", []).append(LeadField(data.choice.num_samples, lead))
    return masks


def keys_of_sides(data: _Described) -> list[tuple[str, ...] | None]:
    """Return the keys of the dict of each side of a batch; None for a bare tensor."""
    sides: list[tuple[str, ...] | None] = []
    for side in ("samples", "targets", COORDS):
        columns = [one for one in data.columns if one.items.side == side]
        if not columns:
            continue
        stacks = [stack_with(data, one) for one in columns]
        keys = tuple(dict.fromkeys(map(_name_of, columns, stacks)))
        is_whole_side = stacks[0] is not None and stacks[0].name is None
        is_bare = is_whole_side if any(stacks) else columns[0].items.key is None
        sides.append(None if is_bare and len(keys) == 1 else keys)
    if data.statics and sides[0] is None:
        sides[0] = ("samples",)  # a single array becomes an entry of the dict that static fields are put into
    return sides


def stack_with(data: _Described, column: Column) -> Stacked | None:
    """Return the tensor that a column shares with others; None if it has one for itself."""
    return next((one for one in data.stacks if one.has(column)), None)


def _name_of(column: Column, stack: Stacked | None) -> str:
    """Return the name of the tensor that has a column."""
    return column.items.key or column.items.side if stack is None else stack.tensor_name
