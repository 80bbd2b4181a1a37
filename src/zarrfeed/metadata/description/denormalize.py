"""`Data.denormalize`: values of a batch, or a model's predictions of them, as they were before the steps of a field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.description.batch_sides import stack_with
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.spec.fields.stack import StackSlice
from zarrfeed.spec.values.value_step import LOSSY, Numbers, ValueStep


def denormalized(resolved: ResolvedData, values: Any, field: str | None, *, lossy: bool) -> Any:
    """Return values of a field, as they were before its steps, in reverse order.

    Raises
    ------
    ConfigError
        If there is no such field, or one of its steps cannot be inverted.
    """
    is_float = values.is_floating_point() if hasattr(values, "is_floating_point") else values.dtype.kind == "f"
    if not is_float:
        raise ConfigError(f"denormalize: got values of {values.dtype}, must be floats")
    numbers = _members(resolved, field)
    if stack_with(resolved, resolved.columns[numbers[0]]) is None:
        return _inverted(values, _steps_of(resolved.columns[numbers[0]], lossy=lossy))
    out = values.clone() if hasattr(values, "clone") else values.copy()
    for number in numbers:
        stack = resolved.fields[number].stack
        assert stack is not None
        steps = [_of_stack(one, stack) for one in _steps_of(resolved.columns[number], lossy=lossy)]
        channels = slice(stack.first_channel, stack.first_channel + stack.num_channels)
        which = (..., channels, *(slice(None) for _ in stack.row_shape[1:]))
        out[which] = _inverted(values[which], steps)
    return out


def _members(resolved: ResolvedData, field: str | None) -> list[int]:
    """Return the numbers of the columns in the tensor of a name, or of the only tensor of numbers."""
    named: dict[str, list[int]] = {}
    for number, column in enumerate(resolved.columns):
        if column.items.is_mask or column.items.is_coordinate or column.items.dtype is None:
            continue
        stack, items = stack_with(resolved, column), column.items
        name = (items.key or items.side) if stack is None else stack.tensor_name
        full = items.name if stack is None else f"{items.side}[{name!r}]"
        for one in dict.fromkeys((name, full)):
            members = named.setdefault(one, [])
            if one == full or not members or resolved.columns[members[0]].items.side == items.side:
                members.append(number)
    found = named.get(field) if field is not None else None
    if field is None and len({tuple(members) for members in named.values()}) == 1:
        found = next(iter(named.values()))
    if found is None:
        listed = ", ".join(map(repr, named)) or "none"
        near = "" if field is None else did_you_mean(field, list(named))
        raise ConfigError(f"denormalize: field = {field!r}, must be one of {listed}{near}")
    return found


def _steps_of(column: Column, *, lossy: bool) -> Sequence[ValueStep]:
    conversions = column.made_conversions()
    of_layouts = [() if one is None else one.steps for one in conversions]
    if any(steps != of_layouts[0] for steps in of_layouts):
        raise ConfigError(
            f"denormalize: stores convert {column.items.name} by different steps, so no step can be inverted for all"
        )
    lost = [one for one in of_layouts[0] if one.kind in LOSSY]
    if lost and not lossy:
        raise ConfigError(
            f"denormalize: cannot invert {lost[0]} of {column.items.name}; lossy=True leaves its values as they are"
        )
    return of_layouts[0]


def _inverted(values: Any, steps: Sequence[ValueStep]) -> Any:
    for step in reversed(steps):
        values = step.inverse(values)
    return values


def _of_stack(step: ValueStep, stack: StackSlice) -> ValueStep:
    """Return a step whose numbers have the shape of the channels in a stack, to which other axes are flattened."""
    if len(step.first) == 1:
        return step
    shape = (stack.num_channels, *stack.row_shape[1:])
    channels = np.arange(math.prod(shape)) // step.channel_items % len(step.first)
    first, second = (Numbers.of(numbers.array[channels]) for numbers in (step.first, step.second))
    return replace(step, first=first, second=second, channel_items=1, shape=shape)
