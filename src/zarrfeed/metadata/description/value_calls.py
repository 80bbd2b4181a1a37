"""The methods of `Data` for values: log1p, log, sqrt, exp, clip, minmax, normalize_total, fill_nan, drop_missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import field as argument
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.base.validate import check_flags
from zarrfeed.metadata.array.conversion import by_field, left_unconverted
from zarrfeed.metadata.array.requested_step import RequestedStep, channel_axis, check_axis
from zarrfeed.metadata.description.method_call import MethodCall, frozen_by
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.group.batch_columns import Column
from zarrfeed.metadata.group.stacking import side_by_side
from zarrfeed.spec.description.freeze import freeze, freeze_names, freeze_rows
from zarrfeed.spec.fields.sparse import CsrField


def _freeze_number(number: Any) -> Any:
    return number if number is None or isinstance(number, int | float) else freeze(np.asarray(number))


def _freeze_index(index: Any) -> Any:
    is_rows = index is None or isinstance(index, slice) or np.ndim(index) > 0
    return freeze_rows(index) if is_rows else freeze(index)


@dataclass(frozen=True)
class DropMissingCall(MethodCall):
    """`.drop_missing(field=..., max_share=...)`; the positions that were found take part in comparisons."""

    function = ".drop_missing"

    field: Any = argument(default=None, metadata=frozen_by(freeze_names))
    max_share: Any = 0.0
    samples: Any = argument(kw_only=True, repr=False, metadata=frozen_by(freeze_rows))

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Leave out samples with more missing values."""
        resolved.check_choice("drop_missing")
        share = f"more than {self.max_share:.0%} of their values" if self.max_share else "some of their values"
        return replace(resolved, choice=resolved.choice.keeping(self.samples, f"{share} are missing"))

    def check_may_grow(self) -> None:
        """Refuse every one."""
        raise ConfigError("drop_missing() cannot follow open(..., refresh='epoch'): later samples are not counted")


class _StepCall(MethodCall):
    """A call that adds a step to the values of the fields that it names, or of the samples' arrays.

    Attributes
    ----------
    field
        The names of fields. None: all arrays of the samples that `concerns`.
    axis
        The axis of `RequestedStep`.
    """

    field: Any
    axis: Any = None

    @property
    def kind(self) -> str:
        """The kind of the step, which has the method's name."""
        return self.function.removeprefix(".")

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Add the step to the values of the fields."""
        check_axis(self.axis)
        chosen = self._chosen(resolved)
        left = left_unconverted(self.kind, self._named(), resolved.items)

        def changed(column: Column, is_left: bool) -> Column:
            if column in chosen:
                return column.stepped(self._step(column))
            return column.leaving(self.kind) if is_left else column

        return resolved.mapped(changed, left)

    def _named(self) -> Any:
        if self.field is None:
            return True
        names = [self.field] if isinstance(self.field, str) else list(self.field)
        if not names:
            raise ConfigError(f"{self.kind}: field = {self.field!r}, must name a field")
        return dict.fromkeys(names, True)

    def _chosen(self, resolved: ResolvedData) -> Sequence[Column]:
        """Return the columns that get the step."""
        named = by_field(self.kind, self._named(), resolved.items)
        columns = [one for one, is_named in zip(resolved.columns, named, strict=True) if is_named]
        return columns if self.field is not None else list(filter(self._concerns, columns))

    def _concerns(self, column: Column) -> bool:  # noqa: ARG002 (of other steps)
        """Return whether a call without names is for a field of the samples."""
        return True

    def _step(self, column: Column) -> RequestedStep:
        raise NotImplementedError


@dataclass(frozen=True)
class _FunctionCall(_StepCall):
    """A call of a function of a value alone, for all channels or for those at some indices along an axis."""

    field: Any = argument(default=None, metadata=frozen_by(freeze_names))
    axis: Any = None
    index: Any = argument(default=None, metadata=frozen_by(_freeze_index))

    def _step(self, column: Column) -> RequestedStep:
        if (self.index is None) != (self.axis is None):
            raise ConfigError(
                f"{self.kind}: axis = {self.axis!r}, index = {self.index!r}: give both, for some channels along an "
                "axis, or none, for all values"
            )
        if self.axis is None:
            return RequestedStep(self.kind)
        items = column.items
        number = channel_axis(self.kind, items, 1, self.axis)
        chosen = np.zeros(items.shape[number])
        try:
            chosen[self.index if isinstance(self.index, slice) else np.asarray(self.index)] = 1
        except IndexError as error:
            raise ConfigError(
                f"{self.kind} of {items.name}: index = {self.index!r}, must be of axis {self.axis!r}, which has "
                f"{items.shape[number]} channels: {error}"
            ) from error
        return RequestedStep(self.kind, (chosen, np.ones_like(chosen)), self.axis)


class Log1pCall(_FunctionCall):
    """`.log1p(field=..., axis=..., index=...)`."""

    function = ".log1p"


class LogCall(_FunctionCall):
    """`.log(field=..., axis=..., index=...)`."""

    function = ".log"


class SqrtCall(_FunctionCall):
    """`.sqrt(field=..., axis=..., index=...)`."""

    function = ".sqrt"


class ExpCall(_FunctionCall):
    """`.exp(field=..., axis=..., index=...)`."""

    function = ".exp"


@dataclass(frozen=True)
class NormalizeTotalCall(_StepCall):
    """`.normalize_total(target_sum, field=...)`."""

    function = ".normalize_total"

    target_sum: Any = argument(metadata=frozen_by(_freeze_number))
    field: Any = argument(default=None, metadata=frozen_by(freeze_names))

    def _concerns(self, column: Column) -> bool:
        return isinstance(column.field, CsrField)

    def _chosen(self, resolved: ResolvedData) -> Sequence[Column]:
        chosen = super()._chosen(resolved)
        others = [one.items.name for one in chosen if not self._concerns(one)]
        if others or not chosen:
            what = f"{others[0]} is none" if others else "the samples have none"
            raise UnsupportedError(f"normalize_total: divides rows of sparse matrices (CSR), and {what}")
        return chosen

    def _step(self, column: Column) -> RequestedStep:  # noqa: ARG002 (of other steps)
        return RequestedStep(self.kind, (self.target_sum, self.target_sum))


@dataclass(frozen=True)
class ClipCall(_StepCall):
    """`.clip(lo, hi, field=..., axis=...)`."""

    function = ".clip"

    lo: Any = argument(default=None, metadata=frozen_by(_freeze_number))
    hi: Any = argument(default=None, metadata=frozen_by(_freeze_number))
    field: Any = argument(default=None, metadata=frozen_by(freeze_names))
    axis: Any = None

    def _step(self, column: Column) -> RequestedStep:
        if self.lo is None and self.hi is None:
            raise ConfigError(f"clip of {column.items.name}: lo = None, hi = None, must have one of them")
        bounds = -math.inf if self.lo is None else self.lo, math.inf if self.hi is None else self.hi
        return RequestedStep(self.kind, bounds, self.axis)


@dataclass(frozen=True)
class MinMaxCall(_StepCall):
    """`.minmax(lo, hi, field=..., axis=...)`."""

    function = ".minmax"

    lo: Any = argument(metadata=frozen_by(_freeze_number))
    hi: Any = argument(metadata=frozen_by(_freeze_number))
    field: Any = argument(default=None, metadata=frozen_by(freeze_names))
    axis: Any = None

    def _step(self, column: Column) -> RequestedStep:  # noqa: ARG002 (of other steps)
        return RequestedStep(self.kind, (self.lo, self.hi), self.axis)


@dataclass(frozen=True)
class FillNanCall(_StepCall):
    """`.fill_nan(value, field=..., axis=..., mask=...)`."""

    function = ".fill_nan"

    value: Any = argument(metadata=frozen_by(_freeze_number))
    field: Any = argument(default=None, metadata=frozen_by(freeze_names))
    axis: Any = None
    mask: bool = False

    def apply(self, resolved: ResolvedData) -> ResolvedData:
        """Fill values that are missing; with `mask`, add a column for each field that says which were."""
        check_flags(mask=self.mask)
        chosen = self._chosen(resolved)
        if not chosen:
            raise ConfigError("fill_nan: the samples have no array of floats, and so no NaN")
        for column in chosen:
            if not column.requested.has_floats(column.items):
                raise ConfigError(
                    f"fill_nan of {column.items.name}: it has items of {column.items.dtype} without a fill value, so "
                    "none is NaN"
                )
        filled = super().apply(resolved)
        if not self.mask:
            return filled
        columns, stacks = list[Column](), resolved.stacks
        for before, after in zip(resolved.columns, filled.columns, strict=True):
            columns.append(after)
            if before in chosen:
                mask = self._mask_of(before, resolved)
                columns.append(mask)
                stacks = tuple(stack.with_mask(mask, before) for stack in stacks)
        for stack in stacks:
            columns = list(side_by_side(columns, stack))
        return replace(filled, columns=tuple(columns), stacks=stacks)

    def _mask_of(self, column: Column, resolved: ResolvedData) -> Column:
        """Return the column that says which values were NaN before they are filled."""
        mask = column.nan_mask()
        if any((one.side, one.key) == (mask.items.side, mask.items.key) for one in resolved.items):
            raise ConfigError(f"fill_nan of {column.items.name}: {mask.items.side} have an array {mask.items.key!r}")
        return mask

    def _concerns(self, column: Column) -> bool:
        return column.requested.has_floats(column.items)

    def _step(self, column: Column) -> RequestedStep:  # noqa: ARG002 (of other steps)
        return RequestedStep(self.kind, (self.value, self.value), self.axis)
