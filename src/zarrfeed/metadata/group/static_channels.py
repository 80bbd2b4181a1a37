"""Static arrays as channels of a stack: fields in memory whose only row all samples have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from zarrfeed.base.errors import ConfigError
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.metadata.array.requested_conversion import RequestedConversion
from zarrfeed.metadata.group.fields import OpenedField, with_options
from zarrfeed.metadata.group.stacking import Stacked
from zarrfeed.spec.field import Field, HostRows, ResidentField, StoredField, dtype_name, window_of
from zarrfeed.spec.row_map import OneRow
from zarrfeed.spec.static import StaticField, UnreadRows, is_channel


def make_channel(static: StaticField, num_samples: int) -> tuple[ResidentField, Items]:
    """Return a static array as a field of the samples, and what is known of its items.

    Stored values are not read yet.
    """
    source, decoding = static.source, None
    rows: HostRows
    name = f"samples[{static.name!r}]"
    if isinstance(source, StoredField):
        dtype, item_bytes = source.spec.dtype.name, source.spec.dtype.itemsize
        decoding = None if source.conversion is None else source.conversion.decoding
        rows = UnreadRows(replace(source, conversion=None))
    else:
        dtype, item_bytes = source.dtype, source.item_bytes
        rows = HostRows(source.rows.array.reshape(1, -1), source.rows.owner)
    field = ResidentField(name, rows, dtype, static.shape, item_bytes, row_map=OneRow(num_samples))
    dimensions = None if static.dimensions is None else (None, *static.dimensions)
    shape = (num_samples, *static.shape)
    items = Items("samples", static.name, dtype, shape, 0, dimensions, decoding, is_coordinate=True)
    return field, items


def named_in(names: object, statics: Sequence[StaticField]) -> list[StaticField]:
    """Return the static arrays that a list of names has."""
    listed = list(names) if isinstance(names, Sequence) and not isinstance(names, str) else []
    return [one for one in statics if one.name in listed]


def templates_of(fields: Sequence[OpenedField], items: Sequence[Items], stacks: Sequence[Stacked]) -> dict[int, int]:
    """Return the template of each static array in a stack: the first array there that has a row for each sample.

    Raises
    ------
    ConfigError
        If a stack has no such array.
    """
    found = {}
    for stack in stacks:
        members = [n for n, one in enumerate(items) if one.side == stack.side and one.key in stack.keys]
        others = [n for n in members if not is_channel(fields[n])]
        if not others:
            named = ", ".join(map(repr, stack.keys))
            raise ConfigError(f"stack of {named}: each is the same for all samples; name an array with samples, too")
        found.update({n: others[0] for n in members if n not in others})
    return found


def channel_like(field: OpenedField, items: Items, request: RequestedConversion, template: Field) -> Field:
    """Return a static array as a channel of a stack, with the dtype and the windows of its template.

    The rows of windows that are padded have it, too.
    """
    if request.dtype is None and isinstance(template, StoredField | ResidentField) and template.record is None:
        request = replace(request, dtype=dtype_name(template))
    window = window_of(template)
    if window is not None and window.pad is not None:
        window = replace(window, pad=replace(window.pad, mode="edge", value=None))
    return with_options(field, [request.conversion(items)], window, request.left_unconverted)


def check_not_named(offsets: object, items: Sequence[Items], fields: Sequence[OpenedField]) -> None:
    """Raise ConfigError if offsets of windows are given for a static array by its name."""
    if not isinstance(offsets, Mapping):
        return
    for one, field in zip(items, fields, strict=True):
        if is_channel(field) and (one.key in offsets or one.name in offsets):
            raise ConfigError(f"offsets of {one.name}: is the same for all samples, and has the windows of its stack")
