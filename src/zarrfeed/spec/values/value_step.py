"""`ValueStep`: one of the steps that make a number in a batch of a decoded value, in the closed list of the engine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

#: Kinds of steps that are functions of a value alone.
FUNCTIONS = ("log1p", "log", "sqrt", "exp")
#: The kind of the step that divides each row of a sparse matrix, which its reader does.
ROW_TOTAL = "normalize_total"
#: Kinds of steps that lose the values they change, so that nothing gets these back.
LOSSY = ("clip", "fill_nan", ROW_TOTAL)


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers of a conversion, float64 of shape (n,): there may be one for each item of a sample."""

    array: npt.NDArray[np.float64]

    @classmethod
    def of(cls, values: Any = ()) -> Numbers:
        """Return a copy of some numbers."""
        array = np.array(values, dtype=np.float64).reshape(-1)
        array.flags.writeable = False
        return cls(array)

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(self.array.tobytes()).digest()

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbers) and np.array_equal(self.array, other.array, equal_nan=True)

    def __hash__(self) -> int:
        return hash(self._digest)


@dataclass(frozen=True)
class ValueStep:
    """One step; `cpp/spec/conversion_spec.h` defines each kind but "minmax", which is a "normalize" by other numbers.

    Attributes
    ----------
    kind
        "normalize", "minmax", "clip", "fill_nan", "is_nan", ROW_TOTAL, or one of FUNCTIONS.
    first, second
        Mean and standard deviation, least and largest value, or what takes the place of NaN and no second number: one
        for all items, or one a channel. Of functions: 1 for the channels that they are for, 0 for others.
    channel_items
        Items of a sample that follow each other in one channel. Behind the last channel comes the first one again.
    shape
        Shape of the numbers; broadcasts against the last axes of a sample.
    by_shape
        If arrays were given that broadcast against a sample: their shape. Else empty.
    """

    kind: str
    first: Numbers
    second: Numbers
    channel_items: int = 1
    shape: tuple[int, ...] = ()
    by_shape: tuple[int, ...] = ()

    def to_core(self) -> tuple[str, npt.NDArray[np.float64], npt.NDArray[np.float64], int]:
        """Return the step in the form that the engine takes."""
        if self.kind == "minmax":
            return "normalize", self.first.array, self.second.array - self.first.array, self.channel_items
        return self.kind, self.first.array, self.second.array, self.channel_items

    @property
    def keeps_zeros(self) -> bool:
        """True if 0 stays 0, and items need not be told apart by their positions."""
        least, most = self.first.array, self.second.array
        is_kept = self.kind in ("log1p", "sqrt", "fill_nan", ROW_TOTAL) or (
            self.kind == "clip" and least[0] <= 0 <= most[0]
        )
        return is_kept and len(self.first) == 1

    def describe(self) -> list[Any]:
        """Return plain values that identify the step."""
        digests = [hashlib.sha256(one.array.tobytes()).hexdigest() for one in (self.first, self.second)]
        return [self.kind, *digests, self.channel_items]

    def inverse(self, values: Any) -> Any:
        """Return the values before the step, of a tensor or an array whose last axes are those of a sample.

        Lossy steps leave values as they are. The tensor's own methods calculate, so that gradients flow through.
        """
        if self.kind in LOSSY:
            return values
        if self.kind in FUNCTIONS:
            if self.first.array.all():
                return _INVERSES[self.kind](values)
            applied = self._like(self.first, values)
            # Other channels are 1 to the function, which gives no NaN, and so none in their gradients.
            inverted = _INVERSES[self.kind](_where(applied == 1, values, applied * 0 + 1))
            return _where(applied == 1, inverted, values)
        first, second = (self._like(numbers, values) for numbers in (self.first, self.second))
        return values * (second - first if self.kind == "minmax" else second) + first

    def _like(self, numbers: Numbers, values: Any) -> Any:
        """Return numbers of the step as an array or tensor like `values`, on the same device."""
        array = numbers.array.reshape(self.shape)
        return values.new_tensor(array.tolist()) if hasattr(values, "new_tensor") else array.astype(values.dtype)

    def __str__(self) -> str:
        """Return the step for people: "log1p", "clip 0 to 5", "normalised, 3 channels"."""
        return self.called + self._numbers()

    @property
    def called(self) -> str:
        """The kind for people, such as "normalised"."""
        return _CALLED.get(self.kind, self.kind)

    def _numbers(self) -> str:
        channels = len(self.first)
        if self.kind in FUNCTIONS:
            applied = int(self.first.array.sum())
            return "" if applied == channels else f" of {applied} of {channels} channels"
        if self.by_shape:
            return f" by arrays of shape {self.by_shape}"
        if channels > 1:
            return f", {channels} channels"
        if self.kind in ("normalize", "is_nan"):
            return ""
        first, second = self.first.array[0], self.second.array[0]
        if self.kind == ROW_TOTAL:
            return f" of {first:g}"
        return f" with {first:g}" if self.kind == "fill_nan" else f" {first:g} to {second:g}"


def _where(condition: Any, values: Any, others: Any) -> Any:
    return values.where(condition, others) if hasattr(values, "where") else np.where(condition, values, others)


#: Kind -> what people call it, where that is not the kind.
_CALLED = {
    ROW_TOTAL: "rows divided to a total",
    "normalize": "normalised",
    "minmax": "min-max",
    "fill_nan": "NaN filled",
    "is_nan": "whether it is NaN",
}
#: Kind of a function -> its inverse, of a tensor by its method, of an array by NumPy.
_INVERSES: dict[str, Any] = {
    "log1p": lambda x: x.expm1() if hasattr(x, "expm1") else np.expm1(x),
    "log": lambda x: x.exp() if hasattr(x, "exp") else np.exp(x),
    "sqrt": lambda x: x * x,
    "exp": lambda x: x.log() if hasattr(x, "log") else np.log(x),
}
