"""`Data.stack`: fields whose rows lie side by side in one tensor, as channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.base.validate import check_int
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.described import check_same_coordinates
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.spec.fields.field import Field
from zarrfeed.spec.fields.stack import StackSlice
from zarrfeed.spec.values.dtypes import item_bytes


@dataclass(frozen=True)
class Stacked:
    """The arguments of one call of `stack`.

    Attributes
    ----------
    name
        Name of the tensor. None: that of its side of the batch.
    side
        "samples" or "targets".
    keys
        The arrays in it, in the order of the channels.
    spatial_axes
        Number of trailing axes of the arrays that are no channels. None: those of patches; else two, or as many as the
        array with the fewest has.
    """

    name: str | None
    side: str
    keys: tuple[str, ...]
    spatial_axes: int | None

    @property
    def tensor_name(self) -> str:
        """The name of the tensor, or that of its side."""
        return self.name or self.side

    def with_mask(self, mask: Column, of: Column) -> Stacked:
        """Return the stack with a mask as its last channels, if the array that it is of is in the stack."""
        return replace(self, keys=(*self.keys, str(mask.items.key))) if self.has(of) else self

    def has(self, column: Column) -> bool:
        """Return whether an array is in it."""
        return column.items.side == self.side and column.items.key in self.keys


def make_stack(
    items: Sequence[Items],
    names: Sequence[str],
    name: str | None,
    spatial_axes: int | None,
    *,
    taken: Sequence[str],
    statics: Sequence[str] = (),
) -> Stacked:
    """Check the arguments of `stack`, and return them.

    Parameters
    ----------
    items
        The arrays that there are.
    names
        Names of the arrays to stack.
    name
        Name of the tensor.
    spatial_axes
        The attribute of `Stacked`.
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
        raise ConfigError(f"stack: names = {names!r}, must be a list of names, as in stack(['u', 'v'], name='wind')")
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


def side_by_side(columns: Sequence[Column], stack: Stacked) -> tuple[Column, ...]:
    """Return columns in an order in which those of a stack are the last of their side, in the order of the channels."""
    members = sorted(filter(stack.has, columns), key=lambda one: stack.keys.index(str(one.items.key)))
    others = [one for one in columns if not stack.has(one)]
    at = sum(one.items.side == "samples" or stack.side == "targets" for one in others)
    return (*others[:at], *members, *others[at:])


def with_stack_slices(
    fields: Sequence[Field], columns: Sequence[Column], stacks: Sequence[Stacked]
) -> tuple[Field, ...]:
    """Return the fields of columns with their slices of the tensors of stacks.

    Raises
    ------
    ConfigError
        If the rows of some fields cannot lie side by side; the message names the field.
    """
    made = list(fields)
    for stack in stacks:
        numbers = [n for n, one in enumerate(columns) if stack.has(one)]
        whole = _common(stack, [fields[n] for n in numbers])
        channel, size = 0, item_bytes(fields[numbers[0]].dtype_name)
        plane = math.prod(whole[1:]) * size
        for n in numbers:
            field = fields[n]
            count = math.prod(field.row_shape[: len(field.row_shape) - len(whole) + 1])
            stack_slice = StackSlice(stack.tensor_name, whole, whole[0] * plane, channel * plane, channel, count)
            made[n] = field.with_stack(stack_slice)
            channel += count
    return tuple(made)


def typed_masks(columns: Sequence[Column], made: Sequence[Field], stacks: Sequence[Stacked]) -> dict[int, Column]:
    """Return the masks of missing values that are in a stack, by their numbers, with the dtype of the arrays there.

    Masks that are cast, and those of stacks of masks alone, are left out.
    """
    found = {}
    for stack in stacks:
        members = [n for n, one in enumerate(columns) if stack.has(one)]
        others = [n for n in members if not columns[n].items.is_mask and made[n].has_numbers]
        masks = [n for n in members if columns[n].items.is_mask and made[n].dtype_name == "bool"]
        found.update({n: columns[n].requesting(dtype=made[others[0]].dtype_name) for n in masks if others})
    return found


def _common(stack: Stacked, members: Sequence[Field]) -> tuple[int, ...]:
    """Return the shape of a row of a stack."""
    first = members[0]
    for one in members:
        if not one.has_numbers:
            raise ConfigError(f"stack: {one.name} has no numbers")
    rows = [one.row_shape for one in members]
    fewest = min(len(row) for one, row in zip(members, rows, strict=True) if not one.has_one_row)
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
        if one.dtype_name != first.dtype_name:
            raise ConfigError(
                f"stack: {one.name} is {one.dtype_name}, {first.name} is {first.dtype_name}: cast() them to one "
                "dtype before"
            )
        ours, theirs = one.window, first.window
        if (None if ours is None else len(ours.offsets)) != (None if theirs is None else len(theirs.offsets)):
            raise ConfigError(f"stack: windows of {one.name} and {first.name} have different lengths")
    if math.prod(shape) == 0:
        raise ConfigError(f"stack: samples of {first.name} have no elements")
    return (sum(math.prod(row[: len(row) - axes]) for row in rows), *shape)


def _usual_axes(field: Field) -> int:
    """Return the number of trailing axes of samples that are no channels, if nobody says it."""
    if field.patch is None:
        return 2
    cut = [axis.dim is not None and not axis.offsets for axis in field.patch.axes if not axis.dropped]
    if cut != sorted(cut):
        raise ConfigError(
            f"stack: {field.name} has channels behind axes that patches are cut along, must have them before; or say "
            "spatial_axes"
        )
    return sum(cut)


def channel_axes(field: Field, column: Column) -> list[int]:
    """Return the axes of an array in a stack that become channels, counted as those of its items."""
    assert field.stack is not None
    count = len(field.row_shape) - len(field.stack.row_shape) + 1
    cut = None if column.patch_axes is None else column.patch_axes.axes
    axes = [
        axis
        for axis in range(len(column.items.shape))
        if (axis != column.items.sample_axis if cut is None else not cut[axis].dropped)
    ]
    return axes[:count]


def channels_of(field: Field, column: Column) -> tuple[str, ...]:
    """Return the names of the channels of an array in a stack: its key alone, or with what tells its channels apart.

    That is the label along the dimension, as in "z500", if it was read and is a number; else labels or indices, as in
    "x[red]" and "t[3]".
    """
    key, named = column.items.key, [_labels_along(column, axis) for axis in channel_axes(field, column)]
    if not named:
        return (str(key),)
    if len(named) == 1 and named[0].are_numbers:
        return tuple(f"{key}{label}" for label in named[0].texts)
    return tuple(f"{key}[{', '.join(labels)}]" for labels in itertools.product(*(one.texts for one in named)))


@dataclass(frozen=True)
class _ChannelLabels:
    texts: list[str]
    are_numbers: bool


def _labels_along(column: Column, axis: int) -> _ChannelLabels:
    """Return the labels of the items that samples have along an axis; their indices where no labels were read."""
    items, cut = column.items, None if column.patch_axes is None else column.patch_axes.axes[axis]
    offsets = () if cut is None or cut.dim is not None else cut.offsets
    dim = None if items.dimensions is None or axis >= len(items.dimensions) else items.dimensions[axis]
    if items.described is None or dim is None or dim not in items.described.labels:
        return _ChannelLabels([str(i) for i in range(len(offsets) or items.shape[axis])], are_numbers=False)
    values = items.described.values_along(dim)
    values = values[list(offsets)] if offsets else values
    texts = [f"{one:g}" if isinstance(one, float) else str(one) for one in values.tolist()]
    are_numbers = values.dtype.kind in "iuf" and len(set(texts)) == len(set(values.tolist()))
    return _ChannelLabels(texts, are_numbers)
