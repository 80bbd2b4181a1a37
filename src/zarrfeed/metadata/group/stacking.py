"""`Data.stack`: fields whose rows lie side by side in one tensor, as channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_int
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.described import check_same_coordinates
from zarrfeed.metadata.group.fields import OpenedFields
from zarrfeed.spec.dtypes import item_bytes
from zarrfeed.spec.field import Field, ResidentField, StoredField, VlenField, dtype_name, window_of
from zarrfeed.spec.stack import StackSlice
from zarrfeed.spec.static import is_channel


@dataclass(frozen=True)
class Stacked:
    """What was asked for by one call of `stack`.

    Attributes
    ----------
    name
        Of the tensor. None: that of its side of the batch.
    side
        "samples" or "targets".
    keys
        The arrays in it, in the order of the channels.
    spatial_axes
        How many trailing axes of the arrays are no channels. None: those of patches; else two, or as many as the array
        with the fewest has.
    """

    name: str | None
    side: str
    keys: tuple[str, ...]
    spatial_axes: int | None


def make_stack(
    items: Sequence[Items],
    names: Sequence[str],
    name: str | None,
    spatial_axes: int | None,
    *,
    taken: Sequence[str],
    statics: Sequence[str] = (),
) -> Stacked:
    """Return what a user asks for.

    Parameters
    ----------
    items
        The arrays that there are.
    names
        Of those to stack.
    name
        Of the tensor.
    spatial_axes
        As of `Stacked`.
    taken
        Arrays that are stacked already.
    statics
        Other names that messages list: of arrays that are the same for all samples.

    Raises
    ------
    ConfigError
        If there is no such array, or an argument is wrong.
    """
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) == 0:
        raise ConfigError(f"stack: names = {names!r}, must be a list of names")
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"stack: name = {name!r}, must be a str")
    if spatial_axes is not None:
        check_int("spatial_axes", spatial_axes, 0)
    known = [one.key for one in items if one.key is not None]
    for key in names:
        if key not in known:
            every = [*known, *statics]
            listed = ", ".join(map(repr, every)) or "none, as they have no names"
            raise ConfigError(f"stack names {key!r}, must be one of {listed}{did_you_mean(key, every)}")
        if list(names).count(key) > 1 or key in taken:
            raise ConfigError(f"stack: {key!r} is named twice")
    sides = [side for side in ("samples", "targets") if set(names) <= {one.key for one in items if one.side == side}]
    if len(sides) != 1:
        where = "in samples and in targets" if sides else "not all in samples, or all in targets"
        raise ConfigError(f"stack: {', '.join(map(repr, names))} are {where}")
    _check_coordinates([one for one in items if one.side == sides[0] and one.key in names])
    others = {one.key for one in items if one.side == sides[0]} - set(names)
    if (name or sides[0]) in others:
        raise ConfigError(f"stack: {sides[0]} have an array {name or sides[0]!r}; give the tensor another name")
    return Stacked(name, sides[0], tuple(names), spatial_axes)


def _check_coordinates(members: Sequence[Items]) -> None:
    """Raise ConfigError if arrays of several stores have other coordinates."""
    first = next((one for one in members if one.described is not None), None)
    for one in members:
        if first is not None and one.described is not None and first.described is not None:
            check_same_coordinates(str(one.key), one.described, str(first.key), first.described)


def order_of(items: Sequence[Items], stack: Stacked) -> list[int]:
    """Return the numbers of arrays in an order in which those of a stack are the last of their side, side by side."""
    numbers = {one.key: n for n, one in enumerate(items) if one.side == stack.side}
    members = [numbers[key] for key in stack.keys]
    order = [n for n in range(len(items)) if n not in members]
    at = sum(items[n].side == "samples" or stack.side == "targets" for n in order)
    return [*order[:at], *members, *order[at:]]


def reordered(opened: OpenedFields, order: Sequence[int]) -> OpenedFields:
    """Return the same arrays in another order; each stays on its side."""
    stored = [n for n, f in enumerate(opened.fields) if isinstance(f, StoredField | VlenField)]
    array_of = dict(zip(stored, opened.arrays, strict=False))
    fields, items = tuple(opened.fields[n] for n in order), tuple(opened.items[n] for n in order)
    sides: list[tuple[str, ...] | None] = []
    for side, keys in zip(("samples", "targets"), opened.sides, strict=False):
        sides.append(None if keys is None else tuple(str(one.key) for one in items if one.side == side))
    arrays = tuple(array_of[n] for n in order if n in array_of)
    others = opened.other_items and tuple(opened.other_items[n] for n in order)
    return replace(opened, fields=fields, items=items, sides=tuple(sides), arrays=arrays, other_items=others)


def with_sample_field(opened: OpenedFields, field: ResidentField, items: Items) -> OpenedFields:
    """Return the arrays with one more behind those of `samples`, in memory."""
    count, others = opened.num_sample_fields, opened.other_items
    return replace(
        opened,
        fields=(*opened.fields[:count], field, *opened.fields[count:]),
        items=(*opened.items[:count], items, *opened.items[count:]),
        sides=((*(opened.sides[0] or ("samples",)), str(items.key)), *opened.sides[1:]),
        num_sample_fields=count + 1,
        other_items=(*others[:count], (), *others[count:]) if others else (),
    )


def with_stack_slices(fields: Sequence[Field], items: Sequence[Items], stacks: Sequence[Stacked]) -> tuple[Field, ...]:
    """Return fields with their slices of the tensors of stacks.

    Raises
    ------
    ConfigError
        If the rows of some fields cannot lie side by side; the message names the field.
    """
    made = list(fields)
    for stack in stacks:
        numbers = [n for n, one in enumerate(items) if one.side == stack.side and one.key in stack.keys]
        members = [fields[n] for n in numbers]
        whole = _common(stack, members)
        channel, size = 0, item_bytes(dtype_name(members[0]))
        plane = math.prod(whole[1:]) * size
        for n, field in zip(numbers, members, strict=True):
            assert isinstance(field, StoredField | ResidentField)
            count = math.prod(field.row_shape[: len(field.row_shape) - len(whole) + 1])
            stack_slice = StackSlice(stack.name or stack.side, whole, whole[0] * plane, channel * plane, channel, count)
            made[n] = replace(field, stack=stack_slice)
            channel += count
    return tuple(made)


def _common(stack: Stacked, members: Sequence[Field]) -> tuple[int, ...]:
    """Return the shape of a row of a stack."""
    first = members[0]
    for one in members:
        if not isinstance(one, StoredField | ResidentField) or one.record is not None:
            raise ConfigError(f"stack: {one.name} has no numbers")
    rows = [one.row_shape for one in members if isinstance(one, StoredField | ResidentField)]
    fewest = min(len(row) for one, row in zip(members, rows, strict=True) if not is_channel(one))
    axes = min(_usual_axes(first), fewest) if stack.spatial_axes is None else stack.spatial_axes
    if axes > fewest:
        raise ConfigError(f"stack: spatial_axes = {axes}, must be at most {fewest}, the axes of the smallest sample")
    shape = rows[0][len(rows[0]) - axes :]
    for one, row in zip(members, rows, strict=True):
        if row[len(row) - axes :] != shape:
            raise ConfigError(
                f"stack: a sample of {one.name} ends with the axes {row[len(row) - axes :]}, one of {first.name} with "
                f"{shape}: they must be equal, or spatial_axes (now {axes}) smaller"
            )
        if dtype_name(one) != dtype_name(first):
            raise ConfigError(
                f"stack: {one.name} is {dtype_name(one)}, {first.name} is {dtype_name(first)}: cast() them to one "
                "dtype before"
            )
        ours, theirs = window_of(one), window_of(first)
        if (None if ours is None else len(ours.offsets)) != (None if theirs is None else len(theirs.offsets)):
            raise ConfigError(f"stack: windows of {one.name} and {first.name} have different lengths")
    if math.prod(shape) == 0:
        raise ConfigError(f"stack: samples of {first.name} have no elements")
    return (sum(math.prod(row[: len(row) - axes]) for row in rows), *shape)


def _usual_axes(field: Field) -> int:
    """Return how many trailing axes of samples are no channels, if nobody says so."""
    if not isinstance(field, StoredField) or field.patch is None:
        return 2
    cut = [axis.dim is not None and not axis.offsets for axis in field.patch.axes if not axis.dropped]
    if cut != sorted(cut):
        raise ConfigError(
            f"stack: {field.name} has channels behind axes that patches are cut along, must have them before; or say "
            "spatial_axes"
        )
    return sum(cut)


def channels_of(fields: Sequence[Field], items: Sequence[Items], stack: Stacked) -> tuple[str, ...]:
    """Return the names of the channels: that of the array; with indices where it has several, such as "t[3]"."""
    names: list[str] = []
    for field, one in zip(fields, items, strict=True):
        if one.side != stack.side or one.key not in stack.keys:
            continue
        assert isinstance(field, StoredField | ResidentField)
        assert field.stack is not None
        leading = field.row_shape[: len(field.row_shape) - len(field.stack.row_shape) + 1]
        indices = [", ".join(map(str, index)) for index in np.ndindex(*leading)]
        names += [f"{one.key}[{index}]" for index in indices] if leading else [str(one.key)]
    return tuple(names)
