"""The expression that makes a `Data`: the opened sources, and the methods that were called on them, as plain values.

Invariant: an expression has no arrays, stores or secrets in it, so that it compares, hashes, pickles and prints. Two
expressions are equal if they would describe the same samples of the same sources. Sources in memory are told apart by
their shapes and dtypes alone: `Data` compares their contents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from zarrfeed.spec.description.freeze import PRINTED_NUMBERS, FrozenMapping, Secrets

#: The side of a batch with coordinates of its samples.
COORDS = "coords"


@dataclass(frozen=True)
class FieldInfo:
    """One array in a batch: its name, side, shape and dtype.

    Attributes
    ----------
    name
        The key in the dict of the batch, such as "t2m"; "samples" or "targets" for a single array.
    part
        The side of the batch: "samples", "targets", or "coords" for coordinates that a dataset returns.
    shape
        Shape of one sample. A window has its rows along the first axis. Text, and images that differ in size, have the
        lengths of nested lists.
    dtype
        The name of torch's dtype, such as "float32"; "str" or "bytes" for text; "uint8 images" for images that differ
        in size; for records, their members.
    is_static
        True if all samples have the same values: an array of `Data.static`.
    channels
        Names of the channels of a tensor of `Data.stack`, such as ("t2m", "t[0]", "t[1]").
    """

    name: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    is_static: bool = False
    channels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """A call of the expression: arguments without a default are printed by position, others where they differ.

    Attributes
    ----------
    function
        The name that is printed, such as ".select"; each class has its own.
    """

    function: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.function}({', '.join(self._arguments())})"

    def _arguments(self) -> Iterator[str]:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not field.repr:
                continue
            if field.default is dataclasses.MISSING:
                yield repr(value)
            elif value != field.default:
                yield f"{field.name}={value!r}"


@dataclass(frozen=True)
class OpenCall(Call):
    """`zarrfeed.open(...)`."""

    function = "zarrfeed.open"

    samples: Hashable
    targets: Hashable = None
    sample_axis: int = 0
    sample_dim: str | tuple[str, ...] | None = None
    variables: Hashable = None
    multiscale: Hashable = None
    decode_cf: bool = True
    storage_options: Secrets | None = None
    zarr_format: int | None = None
    refresh: str | None = None
    complete: str | None = None
    window: int | str | None = None
    evict: bool = False
    cache: Hashable = dataclasses.field(default=None, compare=False)  # where bytes are kept, not what they are
    depth: int = 0


@dataclass(frozen=True)
class FromXarrayCall(OpenCall):
    """`zarrfeed.from_xarray(...)`."""

    function = "zarrfeed.from_xarray"


@dataclass(frozen=True)
class ConcatCall(Call):
    """`zarrfeed.concat([...])`."""

    function = "zarrfeed.concat"

    data: tuple[Expression, ...]
    contiguous: bool = False

    def _arguments(self) -> Iterator[str]:
        shown = [str(one) for one in self.data]
        if len(shown) > PRINTED_NUMBERS:
            shown = [shown[0], f"<{len(shown) - 2} more>", shown[-1]]
        yield f"[{', '.join(shown)}]"
        if self.contiguous:
            yield "contiguous=True"


@dataclass(frozen=True)
class MixCall(Call):
    """`zarrfeed.mix([...], weights, stop=..., batching=...)`."""

    function = "zarrfeed.mix"

    data: tuple[Expression, ...]
    weights: Hashable
    stop: str | int = "first"
    batching: str = "per_sample"

    def _arguments(self) -> Iterator[str]:
        _, *others = super()._arguments()
        yield f"[{', '.join(map(str, self.data))}]"
        yield from others


@dataclass(frozen=True)
class JoinCall(Call):
    """`zarrfeed.join({name: expression, ...}, on=..., how=..., missing=..., coords=...)`."""

    function = "zarrfeed.join"

    inputs: FrozenMapping
    on: str | None = None
    how: str = "inner"
    missing: str = "drop"
    coords: Hashable = None


@dataclass(frozen=True, repr=False)
class Expression:
    """The data that were opened or combined, and the methods that were called on them, in order."""

    opened: Call
    calls: tuple[Call, ...] = ()

    def source_name(self) -> str:
        """Return the name of the data in messages: the source that was opened."""
        opened = self.opened
        return str(opened.samples) if isinstance(opened, OpenCall) else str(opened)

    def then(self, call: Call) -> Expression:
        """Return the expression with one more call."""
        return Expression(self.opened, (*self.calls, call))

    def lines(self) -> list[str]:
        """Return one line for each call."""
        return [str(self.opened), *map(str, self.calls)]

    def __str__(self) -> str:
        return "".join(self.lines())

    def __repr__(self) -> str:
        return str(self)
