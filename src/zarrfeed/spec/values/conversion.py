"""The conversion of the items of one array on their way into a batch."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfeed.base.native import core
from zarrfeed.spec.values.value_step import Numbers, ValueStep

#: No means, and no standard deviations.
_NONE = Numbers.of().array


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
    steps
        The steps that decoded values take, in this order.
    """

    items: str
    result: str
    decoding: Decoding | None = None
    steps: tuple[ValueStep, ...] = ()

    def to_core(self) -> core.ConversionSpec:
        """Return the conversion in the form that the engine takes."""
        decoding = self.decoding
        steps = [one.to_core() for one in self.steps]
        mean, std, channel_items = _NONE, _NONE, 1
        if len(steps) == 1 and steps[0][0] == "normalize":
            (_, mean, std, channel_items), *steps = steps
        return core.ConversionSpec(
            items=self.items,
            result=self.result,
            decode_in_double=decoding is not None and decoding.in_double,
            fills=[] if decoding is None else [float(value) for value in decoding.fills],
            scale=None if decoding is None else decoding.scale,
            offset=None if decoding is None else decoding.offset,
            mean=mean,
            std=std,
            channel_items=channel_items,
            steps=steps,
        )

    @property
    def tells_missing(self) -> bool:
        """True if items become flags that say whether values are missing."""
        return bool(self.steps) and self.steps[-1].kind == "is_nan"

    def __str__(self) -> str:
        """Return one line for people."""
        steps = [f"{self.items} -> {self.result}"]
        if self.decoding is not None:
            fills, scale, offset = self.decoding.fills, self.decoding.scale, self.decoding.offset
            steps += [f"{', '.join(f'{value:g}' for value in fills)} is NaN"] if fills else []
            steps += [f"scale {scale:g}"] if scale is not None else []
            steps += [f"offset {offset:g}"] if offset is not None else []
        return ", ".join([*steps, *([self.describe_steps()] if self.steps else [])])

    def describe_steps(self) -> str:
        """Return the steps for people: "log1p, clip 0 to 5"; "" if there are none."""
        return ", ".join(map(str, self.steps))
