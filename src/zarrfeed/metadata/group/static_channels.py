"""Static arrays as channels of a stack: fields in memory whose only row all samples have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.group.batch_columns import Array, Column
from zarrfeed.metadata.group.stacking import Stacked
from zarrfeed.spec.arrays.item_choice import take_items
from zarrfeed.spec.fields.field import Field, HostRows, ResidentField, StoredField
from zarrfeed.spec.fields.static import StaticField, UnreadRows
from zarrfeed.spec.samples.row_map import OneRow


def make_channel(static: StaticField, num_samples: int) -> Array:
    """Return a static array as an array of the samples.

    Stored values are not read yet.
    """
    source, decoding = static.source, None
    rows: HostRows
    name = f"samples[{static.name!r}]"
    if isinstance(source, StoredField):
        dtype, item_bytes = source.spec.dtype.name, source.spec.dtype.itemsize
        decoding = None if source.conversion is None else source.conversion.decoding
        rows = UnreadRows(replace(source, conversion=None), static.choice)
    else:
        dtype, item_bytes = source.dtype, source.item_bytes
        rows = HostRows(source.rows.array.reshape(1, -1), source.rows.owner)
        if static.choice is not None:
            taken = take_items(source.rows.array, static.stored_shape, item_bytes, static.choice)
            rows = HostRows(taken.reshape(1, -1))
    field = ResidentField(name, rows, dtype, static.shape, item_bytes, row_map=OneRow(num_samples))
    dimensions = None if static.dimensions is None else (None, *static.dimensions)
    shape = (num_samples, *static.shape)
    items = Items("samples", static.name, dtype, shape, 0, dimensions, decoding, is_coordinate=True)
    return Array(field, items)


def named_in(names: object, statics: Sequence[StaticField]) -> list[StaticField]:
    """Return the static arrays that a list of names has."""
    listed = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else []
    return [one for one in statics if one.name in listed]


def templates_of(columns: Sequence[Column], stacks: Sequence[Stacked]) -> dict[int, int]:
    """Return the template of each static array in a stack: the first array there that has a row for each sample.

    Raises
    ------
    ConfigError
        If a stack has no such array.
    """
    found = {}
    for stack in stacks:
        members = [n for n, one in enumerate(columns) if stack.has(one)]
        others = [n for n in members if not columns[n].field.has_one_row]
        if not others:
            named = ", ".join(map(repr, stack.keys))
            raise ConfigError(f"stack of {named}: each is the same for all samples; name an array with samples, too")
        found.update({n: others[0] for n in members if n not in others})
    return found


def channel_like(column: Column, template: Field) -> Field:
    """Return a static array as a channel of a stack, with the dtype and the windows of its template.

    The rows of windows that are padded have it, too.
    """
    if column.conversions[0].dtype is None and template.has_numbers:
        column = column.requesting(dtype=template.dtype_name)
    window = template.window
    if window is not None and window.pad is not None:
        window = replace(window, pad=replace(window.pad, mode="edge", value=None))
    return replace(column, window=window).delivered()


def check_not_named(offsets: object, columns: Sequence[Column]) -> None:
    """Raise ConfigError if offsets of windows are given for a static array, or one of segments, by its name."""
    if not isinstance(offsets, Mapping):
        return
    for one in columns:
        if one.items.key not in offsets and one.items.name not in offsets:
            continue
        if one.field.has_one_row:
            raise ConfigError(
                f"offsets of {one.items.name}: the array is the same for all samples, and has the windows of its stack"
            )
        if one.field.is_of_segments:
            raise ConfigError(f"offsets of {one.items.name}: is the same for all rows of a segment, so windows have it")
