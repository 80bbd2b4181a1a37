"""Fewer items along another axis than that of samples: what `Data.sel` and `Data.isel` make of one part of a batch.

Invariant: a choice changes the array, and what is known of its items, in one step. So everything behind it, such as
normalisation, stacks and windows, sees an array that has these items alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.array.requested_step import RequestedStep
from zarrfeed.metadata.group.batch_columns import Column, OpenedField
from zarrfeed.spec.arrays.item_choice import AxisChoice, ItemChoice, Positions, take_items
from zarrfeed.spec.fields.field import HostRows, ResidentField
from zarrfeed.spec.fields.segment_text import SegmentTextField
from zarrfeed.spec.fields.sparse import CsrField
from zarrfeed.spec.fields.static import UnreadRows
from zarrfeed.spec.patches.level import LevelRows


def choose_items(column: Column, dim: str | int, found: Sequence[Positions], *, dropped: bool) -> Column:
    """Return a column with fewer items along an axis.

    Parameters
    ----------
    column
        The part of a batch, which has the axis. Its samples are no patches.
    dim
        The name of the dimension, or the number of the axis.
    found
        The positions of the items in each layout of the array.
    dropped
        If True, samples lose the axis, which has a single chosen item then.

    Raises
    ------
    ConfigError
        If the array is a level of an image pyramid, whose voxels along the axis are not those of the others.
    UnsupportedError
        If the array has no plain axes.
    """
    _check_is_no_level(column, dim)
    items = column.array.all_items
    axes = [axis for one in items if (axis := one.axis_of(dim)) is not None]
    each = list(zip(items, axes, found, strict=True))
    changed = [_choose(one, axis, positions, dropped=dropped) for one, axis, positions in each]
    field = _with_items(column.field, items, axes, found, dropped=dropped)
    array = replace(column.array, field=field, items=changed[0], other_items=tuple(changed[1:]))
    asked = [
        choose_numbers(request, one, axis, positions, dropped=dropped)
        for request, (one, axis, positions) in zip(column.conversions, each, strict=True)
    ]
    if not column.before and len(asked) == 1:
        return replace(column, array=array, requested=asked[0])
    return replace(column, array=array, requested=RequestedConversion(), before=tuple(asked))


def _check_is_no_level(column: Column, dim: str | int) -> None:
    """Raise ConfigError for a level of a pyramid that has fewer voxels along an axis than the first one."""
    rows, axis = column.field.row_map, column.items.axis_of(dim)
    if not isinstance(rows, LevelRows) or axis is None or not column.field.layouts:
        return
    choice = column.field.layouts[0].spec.choice
    stored = axis if choice is None else choice.axis_of(axis)
    if rows.level.scale[stored] != 1:
        raise ConfigError(
            f"{column.items.name}: a voxel along {dim!r} is as long as {rows.level.scale[stored]} of the first level, "
            "so indices differ; choose from one level, or cut patches: Data.patch"
        )


def _choose(items: Items, axis: int, positions: Positions, *, dropped: bool) -> Items:
    """Describe the items of an array with fewer items along an axis."""
    described = items.described
    dim = None if items.dimensions is None or axis >= len(items.dimensions) else items.dimensions[axis]
    if described is not None and dim is not None:
        described = described.choosing(dim, positions)
    shape = (*items.shape[:axis], *(() if dropped else (len(positions),)), *items.shape[axis + 1 :])
    dimensions, sample_axis = items.dimensions, items.sample_axis
    if dropped:
        sample_axis -= axis < sample_axis
        if dimensions is not None:
            dimensions = dimensions[:axis] + dimensions[axis + 1 :]
    return replace(items, shape=shape, dimensions=dimensions, sample_axis=sample_axis, described=described)


def _with_items(
    field: OpenedField, items: Sequence[Items], axes: Sequence[int], found: Sequence[Positions], *, dropped: bool
) -> OpenedField:
    """Return a field with fewer items along an axis, which has a number in each layout."""
    if isinstance(field, CsrField | SegmentTextField):
        raise UnsupportedError(
            f"{field.name}: is {field.described_items}, whose columns are not chosen; choose them in a transform"
        )
    if isinstance(field, ResidentField):
        return _chosen_in_memory(field, axes[0] - (axes[0] > items[0].sample_axis), found[0], dropped=dropped)
    specs = [
        layout.spec.choosing(axis, positions, dropped=dropped)
        for layout, axis, positions in zip(field.layouts, axes, found, strict=True)
    ]
    others = tuple(replace(one, spec=spec) for one, spec in zip(field.others, specs[1:], strict=True))
    return replace(field, spec=specs[0], others=others)


def _chosen_in_memory(field: ResidentField, row_axis: int, positions: Positions, *, dropped: bool) -> ResidentField:
    """Return an array in memory with a copy of the chosen items of its rows, of whose axes one has a number."""
    shape = field.row_shape
    row_shape = (*shape[:row_axis], *(() if dropped else (len(positions),)), *shape[row_axis + 1 :])
    rows = field.rows
    if isinstance(rows, UnreadRows):
        stored = rows.source.spec.shape
        before = rows.choice or ItemChoice.of_all(len(stored))
        number = before.axis_of(row_axis)
        choice = before.then(number, positions, dropped=dropped, length=stored[number])
        return replace(field, rows=UnreadRows(rows.source, choice), row_shape=row_shape)
    axes = [None] * (row_axis + 1), [AxisChoice(positions, dropped)], [None] * (len(shape) - row_axis - 1)
    choice = ItemChoice((*axes[0], *axes[1], *axes[2]))
    taken = take_items(rows.array, (len(rows.array), *shape), field.item_bytes, choice)
    return replace(field, rows=HostRows(taken), row_shape=row_shape)


def choose_numbers(
    requested: RequestedConversion, items: Items, axis: int, positions: Positions, *, dropped: bool
) -> RequestedConversion:
    """Return a requested conversion whose steps have the numbers, such as means, of the chosen items alone.

    Parameters
    ----------
    requested
        The conversion that was requested before the choice.
    items, axis
        The array before the choice, and the axis.
    positions, dropped
        The choice.
    """
    return replace(
        requested,
        steps=tuple(_choose_of_step(one, items, axis, positions, dropped=dropped) for one in requested.steps),
    )


def _choose_of_step(
    step: RequestedStep, items: Items, axis: int, positions: Positions, *, dropped: bool
) -> RequestedStep:
    first, second = np.broadcast_arrays(*(np.asarray(one, dtype=np.float64) for one in step.pair))
    if first.ndim == 0:
        return step
    of_axis: int | str | None = step.axis
    if of_axis is not None:
        number = items.axis_of(of_axis)
        assert number is not None
        if number != axis:
            renumbered = number - (dropped and axis < number)
            return replace(step, axis=of_axis if isinstance(of_axis, str) else renumbered)
        chosen = [one.take(np.asarray(positions), 0) for one in (first, second)]
        if dropped:
            return replace(step, pair=(float(chosen[0][0]), float(chosen[1][0])), axis=None)
        return replace(step, pair=tuple(chosen))
    in_sample = axis - (axis > items.sample_axis)
    num_axes = len(items.shape) - 1
    own = []
    for one in (first, second):
        spread = one.reshape(((1,) * max(0, num_axes - one.ndim)) + one.shape[max(0, one.ndim - num_axes) :])
        if spread.shape[in_sample] > 1:
            spread = spread.take(np.asarray(positions), in_sample)
        spread = spread.squeeze(in_sample) if dropped else spread
        own.append(spread.reshape((1, *spread.shape)) if spread.ndim else spread)
    return replace(step, pair=tuple(own))
