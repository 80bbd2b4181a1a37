"""Sides of the batches of a description, the keys of their dicts, and the tensors under them."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Protocol, TypeAlias

from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.stacking import Stacked, channels_of
from zarrfeed.plan.choice.packed_sequences import PackedSequences
from zarrfeed.plan.choice.sample_choice import SampleChoice
from zarrfeed.plan.windows.windows import lead_of
from zarrfeed.spec.description.expression import FieldInfo
from zarrfeed.spec.fields.batch_tensors import tensors_of
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.static import StaticField
from zarrfeed.spec.fields.window_fields import LeadField, LengthField, PackedNumbersField, PadMaskField
from zarrfeed.spec.samples.window import Window

WindowField: TypeAlias = PadMaskField | LeadField | PackedNumbersField


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
    def packed(self) -> PackedSequences | None: ...
    @property
    def next_targets(self) -> bool: ...
    @property
    def statics(self) -> tuple[StaticField, ...]: ...
    @property
    def stacks(self) -> tuple[Stacked, ...]: ...


def field_infos(data: _Described) -> tuple[FieldInfo, ...]:
    """Describe each tensor of a batch: that of an array, or of several that are stacked."""
    infos: list[tuple[Field, FieldInfo]] = []
    for tensor in tensors_of(data.fields):
        f, column = tensor.field, data.columns[tensor.members[0]]
        stack = stack_with(data, column)
        named = [channels_of(data.fields[n], data.columns[n]) for n in tensor.members] if stack else []
        channels, side = tuple(chain.from_iterable(named)), column.items.side
        info = FieldInfo(_name_of(column, stack), side, f.shape, f.described_dtype, channels=channels)
        infos.append((f, info))
    for side, masks in window_fields(data).items():
        behind = max(number for number, (_, info) in enumerate(infos) if info.part == side) + 1
        infos[behind:behind] = [(f, FieldInfo(f.name, side, f.shape, f.described_dtype)) for f in masks]
    made = [info for _, info in infos]
    if data.next_targets:
        made = [_without_row(info) if f.has_rows_axis else info for f, info in infos]
        targets = [replace(_without_row(info), part="targets") for f, info in infos if f.has_rows_axis]
        behind = [info.part for info in made].count("samples")
        made[behind:behind] = targets
    return (*made, *(FieldInfo(one.name, "samples", one.shape, one.dtype, is_static=True) for one in data.statics))


def _without_row(info: FieldInfo) -> FieldInfo:
    """Return the description of a tensor of windows with one row fewer."""
    return replace(info, shape=(info.shape[0] - 1, *info.shape[1:]))


def window_fields(data: _Described) -> dict[str, list[WindowField]]:
    """Return the fields that describe windows, by side: padded rows, the length, sequences, and the drawn distance."""
    masks: dict[str, list[WindowField]] = {}
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
    if data.packed is not None:
        window = Window(tuple(range(data.packed.length)))
        for name, rows in (("segment_ids", data.packed.segment_ids), ("positions", data.packed.positions)):
            masks.setdefault("samples", []).append(PackedNumbersField(data.choice.num_samples, name, window, rows))
    lead = lead_of([one.window for one in data.columns])
    if lead is not None:
        masks.setdefault("samples", []).append(LeadField(data.choice.num_samples, lead))
    return masks


def keys_of_sides(data: _Described) -> list[tuple[str, ...] | None]:
    """Return the keys of the dict of each side of a batch; None for a bare tensor."""
    of_sides: dict[str, list[Column]] = {}
    for one in data.columns:
        of_sides.setdefault(one.items.side, []).append(one)
    sides: list[tuple[str, ...] | None] = []
    for columns in of_sides.values():
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
