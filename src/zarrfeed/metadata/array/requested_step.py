"""`RequestedStep`: a step that a method such as `Data.normalize` or `Data.clip` requested, as its arguments say it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.suggestions import did_you_mean
from zarrfeed.metadata.array.conversion import Items
from zarrfeed.spec.values.value_step import FUNCTIONS, ROW_TOTAL, Numbers, ValueStep

_Pair = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]
#: Kind -> what messages call its two numbers.
_NUMBERS = {"normalize": ("mean", "std"), "fill_nan": ("value", "value"), ROW_TOTAL: ("target_sum", "target_sum")}


@dataclass(frozen=True)
class RequestedStep:
    """A step of the values of one field.

    Attributes
    ----------
    kind
        The kind of a `ValueStep`.
    pair
        Its two numbers, or arrays with one a channel, or arrays that broadcast against a sample.
    axis
        The axis of the array, or dimension, that arrays with one axis are along.
    """

    kind: str
    pair: Any = (1.0, 1.0)
    axis: int | str | None = None

    def made_for(self, field: Items) -> ValueStep:
        """Return the step for the items of a field.

        Raises
        ------
        ConfigError
            If numbers are impossible, or do not fit its axes; the message names the field.
        """
        first, second = self._parsed(field.name)
        made = ValueStep(self.kind, Numbers.of(first), Numbers.of(second))
        axis = field.channel_axis if self.axis is None and first.ndim == 1 else self.axis
        # Statistics of samples with one axis are arrays with one number; of `normalize`, mean_std() made it a number.
        if first.ndim == 0 or (first.shape == (1,) and axis is None and self.kind != "normalize"):
            return made
        if self.axis is None and first.ndim > 1:
            return self._by_item(field, first, second)
        if first.ndim > 1:
            raise ConfigError(
                f"{self.kind} of {field.name}: got arrays of shape {first.shape} with axis = {self.axis!r}, must have "
                "one axis, or broadcast against a sample without axis="
            )
        number = channel_axis(self.kind, field, len(first), axis)
        if len(first) != field.shape[number]:
            raise ConfigError(
                f"{self.kind} of {field.name}: {len(first)} values, axis {number} has length {field.shape[number]} "
                f"(shape {field.shape})"
            )
        after = [n for a, n in enumerate(field.shape) if a > number and a != field.sample_axis]
        return replace(made, channel_items=max(1, math.prod(after)), shape=(len(first), *(1 for _ in after)))

    def with_axis_before(self) -> RequestedStep:
        """Move the step to items with one more axis before the others."""
        return replace(self, axis=self.axis + 1) if isinstance(self.axis, int) and self.axis >= 0 else self

    def _by_item(self, field: Items, first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> ValueStep:
        """Return the step with arrays that broadcast against a sample, of shape () or with more axes of length 1."""
        given = first.shape
        sample = tuple(n for a, n in enumerate(field.shape) if a != field.sample_axis)
        own = given[max(0, len(given) - len(sample)) :]
        own = (1,) * (len(sample) - len(own)) + own
        fits = math.prod(given) == math.prod(own) and all(n in (1, m) for n, m in zip(own, sample, strict=True))
        if not fits:
            raise ConfigError(
                f"{self.kind} of {field.name}: shape {given} does not broadcast against a sample, shape {sample}"
            )
        spread = [a for a, n in enumerate(own) if n > 1]
        if not spread:
            return ValueStep(self.kind, Numbers.of(first), Numbers.of(second), by_shape=given)
        # Between the first and the last axis with numbers of its own, each index has numbers; before, they repeat.
        begin, end = spread[0], spread[-1] + 1
        first, second = (np.broadcast_to(one.reshape(own[begin:end]), sample[begin:end]) for one in (first, second))
        after = sample[end:]
        return ValueStep(
            self.kind,
            Numbers.of(first),
            Numbers.of(second),
            max(1, math.prod(after)),
            shape=(*sample[begin:end], *(1 for _ in after)),
            by_shape=given,
        )

    def _parsed(self, name: str) -> _Pair:
        """Return both numbers, of one shape."""
        what = " and ".join(dict.fromkeys(_NUMBERS.get(self.kind, ("lo", "hi"))))
        try:
            first, second = (np.asarray(one, dtype=np.float64) for one in self.pair)
            first, second = np.broadcast_arrays(first, second)
        except (TypeError, ValueError, RuntimeError) as error:
            if self.kind == "normalize":
                what = "(mean, std)"
            raise ConfigError(
                f"{self.kind} of {name}: must be {what}, two numbers or arrays of one shape: {error}"
            ) from error
        if self.kind not in FUNCTIONS:
            _CHECKS[self.kind](f"{self.kind} of {name}", first, second)
        return first, second


def check_axis(axis: Any) -> None:
    """Raise ConfigError if an argument names no axis."""
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int | np.integer | str)):
        raise ConfigError(f"axis = {axis!r}, must be an axis or the name of a dimension")


def channel_axis(method: str, field: Items, count: int, named: int | str | None) -> int:
    """Return the axis of an array that a method names for arrays with one axis, and `count` values.

    Raises
    ------
    ConfigError
        If there is no such axis, or it is that of the samples.
    """
    axis, ndim = named, len(field.shape)
    if axis is None:
        raise ConfigError(
            f"{method} of {field.name}: {count} values: axis must say along which axis; or give arrays with the "
            f"axes of a sample, such as of shape {(count, *(1,) * max(1, ndim - 2))}"
        )
    if isinstance(axis, str):
        if field.dimensions is None:
            raise ConfigError(f"axis = {axis!r}: {field.name} has no dimension names, give a number")
        if axis not in field.dimensions:
            raise ConfigError(
                f"axis = {axis!r}: {field.name} has the dimensions {field.dimensions}"
                f"{did_you_mean(axis, field.dimensions)}"
            )
        axis = field.dimensions.index(axis)
    if not -ndim <= axis < ndim:
        raise ConfigError(f"axis = {axis}: {field.name} has {ndim} axes, shape {field.shape}")
    axis = int(axis) % ndim
    if axis == field.sample_axis:
        raise ConfigError(f"axis = {named!r}: is the sample axis of {field.name}")
    return axis


def _check_normalize(what: str, mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64]) -> None:
    if not np.isfinite(mean).all():
        raise ConfigError(f"{what}: mean = {mean}, must be finite")
    if not (np.isfinite(std) & (std > 0)).all():
        raise ConfigError(f"{what}: std = {std}, must be finite and above 0")


def _check_minmax(what: str, lo: npt.NDArray[np.float64], hi: npt.NDArray[np.float64]) -> None:
    if not (np.isfinite(lo) & np.isfinite(hi) & np.isfinite(hi - lo) & (hi > lo)).all():
        raise ConfigError(f"{what}: lo = {lo}, hi = {hi}, must be finite, and lo below hi")


def _check_clip(what: str, lo: npt.NDArray[np.float64], hi: npt.NDArray[np.float64]) -> None:
    if not (lo <= hi).all():
        raise ConfigError(f"{what}: lo = {lo}, hi = {hi}, must be numbers, and lo at most hi")


def _check_fill(what: str, value: npt.NDArray[np.float64], _: npt.NDArray[np.float64]) -> None:
    if np.isnan(value).all():
        raise ConfigError(f"{what}: value = {value}, must be a number")


def _check_total(what: str, total: npt.NDArray[np.float64], _: npt.NDArray[np.float64]) -> None:
    if total.shape or not (np.isfinite(total) and total > 0):
        raise ConfigError(f"{what}: target_sum = {total}, must be a number above 0, such as 1e4")


_CHECKS = {
    "normalize": _check_normalize,
    "minmax": _check_minmax,
    "clip": _check_clip,
    "fill_nan": _check_fill,
    "is_nan": lambda *_: None,
    ROW_TOTAL: _check_total,
}
