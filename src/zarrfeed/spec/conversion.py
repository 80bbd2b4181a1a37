"""The conversion of the items of one array on their way into a batch."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from zarrfeed.base.native import core


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
        return isinstance(other, Numbers) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash(self._digest)


_NONE = Numbers.of()


@dataclass(frozen=True)
class Decoding:
    """The conversion of stored items to values.

    Attributes
    ----------
    items
        The dtype that stored items are taken for: the stored one, or its signed or unsigned twin.
    result
        The dtype of values, unless the user names one: float32 for packed data and for integers with a fill value,
        but float64 if that is stored; floats without packing keep theirs.
    fills
        Values that become NaN, compared before scale and offset.
    scale, offset
        value = item * scale + offset. None: not given.
    in_double
        True if xarray calculates in float64.
    """

    items: str
    result: str
    fills: tuple[float, ...] = ()
    scale: float | None = None
    offset: float | None = None
    in_double: bool = False


@dataclass(frozen=True)
class Conversion:
    """The conversion of the items of one field; `cpp/spec/conversion_spec.h` gives its order and precision.

    Attributes
    ----------
    items, result
        Names of the dtypes before and after.
    decoding
        The conversion that the attributes ask for; None: they ask for none.
    mean, std
        One for all items, or one a channel, in the order of channels; empty: not normalised.
    channel_items
        Items of a sample that follow each other in one channel. Behind the last channel comes the first one again.
    by_shape
        If arrays were given that broadcast against a sample: their shape. Else empty.
    """

    items: str
    result: str
    decoding: Decoding | None = None
    mean: Numbers = _NONE
    std: Numbers = _NONE
    channel_items: int = 1
    by_shape: tuple[int, ...] = ()

    def to_core(self) -> core.ConversionSpec:
        """Return the conversion in the form that the engine takes."""
        decoding = self.decoding
        return core.ConversionSpec(
            items=self.items,
            result=self.result,
            decode_in_double=decoding is not None and decoding.in_double,
            fills=[] if decoding is None else [float(value) for value in decoding.fills],
            scale=None if decoding is None else decoding.scale,
            offset=None if decoding is None else decoding.offset,
            mean=self.mean.array,
            std=self.std.array,
            channel_items=self.channel_items,
        )

    def __str__(self) -> str:
        """Return one line for people."""
        steps = [f"{self.items} -> {self.result}"]
        if self.decoding is not None:
            fills, scale, offset = self.decoding.fills, self.decoding.scale, self.decoding.offset
            steps += [f"{', '.join(f'{value:g}' for value in fills)} is NaN"] if fills else []
            steps += [f"scale {scale:g}"] if scale is not None else []
            steps += [f"offset {offset:g}"] if offset is not None else []
        if self.by_shape:
            steps.append(f"normalised by arrays of shape {self.by_shape}")
        elif len(self.mean):
            steps.append(f"normalised, {len(self.mean)} channels" if len(self.mean) > 1 else "normalised")
        return ", ".join(steps)
