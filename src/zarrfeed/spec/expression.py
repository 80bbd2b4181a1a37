"""The expression that makes a `Data`: what was opened, and the methods that were called on it, as plain values.

What holds: an expression has no arrays, stores or secrets in it, so that it compares, hashes, pickles and prints. Two
expressions are equal if they would describe the same samples of the same sources. Sources in memory are told apart by
their shapes and dtypes alone: `Data` compares their contents.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from zarrfeed.spec.freeze import PRINTED_NUMBERS, FrozenMapping, Secrets


@dataclass(frozen=True)
class FieldInfo:
    """What a batch has of one array.

    Attributes
    ----------
    name
        The key in the dict of the batch, such as "t2m"; "samples" or "targets" for a single array.
    part
        The side of the batch: "samples" or "targets".
    shape
        Of one sample. A window has its rows along the first axis. Of text, and of images that differ in size: the
        lengths of nested lists.
    dtype
        The name of torch's dtype, such as "float32"; "str" or "bytes" for text; "uint8 images" for images that differ
        in size; for records, their members.
    is_static
        Whether it is the same for all samples: an array of `Data.static`.
    channels
        Of a tensor of `Data.stack`: the names of its channels, such as ("t2m", "t[0]", "t[1]").
    """

    name: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    is_static: bool = False
    channels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """A call of the expression: arguments without a default are printed by position, others where they differ."""

    def __str__(self) -> str:
        return f"{self.function()}({', '.join(self._arguments())})"

    def function(self) -> str:
        """Return what is called."""
        raise NotImplementedError

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
    """`zarrfeed.open(...)`, or with `is_xarray`, `zarrfeed.from_xarray(...)`."""

    samples: Hashable
    targets: Hashable = None
    sample_axis: int = 0
    sample_dim: str | None = None
    variables: Hashable = None
    multiscale: Hashable = None
    decode_cf: bool = True
    storage_options: Secrets | None = None
    zarr_format: int | None = None
    refresh: str | None = None
    complete: str | None = None
    window: int | str | None = None
    evict: bool = False
    cache: str | None = dataclasses.field(default=None, compare=False)  # where bytes are kept, not what they are
    is_xarray: bool = dataclasses.field(default=False, repr=False)

    def function(self) -> str:
        """Return what is called."""
        return "zarrfeed.from_xarray" if self.is_xarray else "zarrfeed.open"


@dataclass(frozen=True)
class ConcatCall(Call):
    """`zarrfeed.concat([...])`."""

    data: tuple[Expression, ...]
    contiguous: bool = False

    def function(self) -> str:
        """Return what is called."""
        return "zarrfeed.concat"

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

    data: tuple[Expression, ...]
    weights: Hashable
    stop: str | int = "first"
    batching: str = "per_sample"

    def function(self) -> str:
        """Return what is called."""
        return "zarrfeed.mix"

    def _arguments(self) -> Iterator[str]:
        _, *others = super()._arguments()
        yield f"[{', '.join(map(str, self.data))}]"
        yield from others


@dataclass(frozen=True)
class JoinCall(Call):
    """`zarrfeed.join({name: expression, ...}, on=..., how=..., missing=..., coords=...)`."""

    inputs: FrozenMapping
    on: str | None = None
    how: str = "inner"
    missing: str = "drop"
    coords: Hashable = None

    def function(self) -> str:
        """Return what is called."""
        return "zarrfeed.join"


@dataclass(frozen=True)
class SelectCall(Call):
    """`.select(samples)`."""

    samples: Hashable

    def function(self) -> str:
        """Return what is called."""
        return ".select"


@dataclass(frozen=True)
class SelCall(Call):
    """`.sel(time=label, method=..., coords=...)`, or with `by_position`, `.isel(time=position)`."""

    name: str
    label: Hashable
    method: str | None = None
    coords: Hashable = None
    by_position: bool = dataclasses.field(default=False, repr=False)

    def function(self) -> str:
        """Return what is called."""
        return ".isel" if self.by_position else ".sel"

    def _arguments(self) -> Iterator[str]:
        _, _, *others = super()._arguments()
        yield f"{self.name}={self.label!r}" if self.name.isidentifier() else f"{{{self.name!r}: {self.label!r}}}"
        yield from others


@dataclass(frozen=True)
class BlocksCall(Call):
    """`.blocks(blocks, of=...)`."""

    blocks: Hashable
    of: str = "chunk"

    def function(self) -> str:
        """Return what is called."""
        return ".blocks"


@dataclass(frozen=True)
class WindowCall(Call):
    """`.window(offsets, segment_ends=..., rows=..., pad=..., mask=...)`."""

    offsets: Hashable
    segment_ends: Hashable = None
    rows: Hashable = None
    pad: Hashable = None
    mask: bool = False

    def function(self) -> str:
        """Return what is called."""
        return ".window"


@dataclass(frozen=True)
class PatchCall(Call):
    """`.patch(size, context=..., sampling=..., border=..., stride=..., pad=..., ..., flip=..., isel=...)`."""

    size: Hashable
    context: Hashable = None
    sampling: str = "tiles"
    border: Hashable = "pad"
    stride: Hashable = None
    pad: Hashable = 0
    positions: Hashable = None
    n: Hashable = None
    weights: Hashable = None
    flip: tuple[str | int, ...] = ()
    rotate: tuple[str | int, ...] = ()
    isel: Hashable = None

    def function(self) -> str:
        """Return what is called."""
        return ".patch"


@dataclass(frozen=True)
class CastCall(Call):
    """`.cast(dtype)`, with the names of dtypes."""

    dtype: Hashable

    def function(self) -> str:
        """Return what is called."""
        return ".cast"


@dataclass(frozen=True)
class NormalizeCall(Call):
    """`.normalize(mean_std, axis=..., stats=..., sides=...)`."""

    mean_std: Hashable
    axis: Hashable = None
    stats: str | None = dataclasses.field(default=None, compare=False)  # where statistics are kept, not what they are
    sides: tuple[str, ...] = ("samples",)

    def function(self) -> str:
        """Return what is called."""
        return ".normalize"


@dataclass(frozen=True)
class StackCall(Call):
    """`.stack(names, name=..., spatial_axes=...)`."""

    names: Hashable
    name: str | None = None
    spatial_axes: int | None = None

    def function(self) -> str:
        """Return what is called."""
        return ".stack"


@dataclass(frozen=True)
class StaticCall(Call):
    """`.static(name, ..., name=array, ...)`."""

    names: tuple[str, ...]
    arrays: FrozenMapping

    def function(self) -> str:
        """Return what is called."""
        return ".static"

    def _arguments(self) -> Iterator[str]:
        yield from map(repr, self.names)
        yield from (f"{name}={source!r}" for name, source in self.arrays.items)


@dataclass(frozen=True)
class TimeFeaturesCall(Call):
    """`.time_features(feature, ..., coords=...)`."""

    features: tuple[str, ...]
    coords: Hashable = None

    def function(self) -> str:
        """Return what is called."""
        return ".time_features"

    def _arguments(self) -> Iterator[str]:
        yield from map(repr, self.features)
        if self.coords is not None:
            yield f"coords={self.coords!r}"


@dataclass(frozen=True)
class DecodeCall(Call):
    """`.decode(what, field=..., size=..., mode=...)`."""

    what: str
    field: Hashable = None
    size: tuple[int, int] | None = None
    mode: str | None = "RGB"

    def function(self) -> str:
        """Return what is called."""
        return ".decode"


@dataclass(frozen=True)
class DenseCall(Call):
    """`.dense(field=...)`."""

    field: Hashable = None

    def function(self) -> str:
        """Return what is called."""
        return ".dense"


@dataclass(frozen=True)
class SplitCall(Call):
    """`.split(parts, by=..., seed=..., gap=...)[part]`."""

    parts: Hashable
    by: str = "chunk"
    seed: int = 0
    gap: int | None = 0
    part: int = dataclasses.field(default=0, repr=False)

    def function(self) -> str:
        """Return what is called."""
        return ".split"

    def __str__(self) -> str:
        return f"{super().__str__()}[{self.part}]"


@dataclass(frozen=True, repr=False)
class Expression:
    """What was opened or combined, and what was called on it, in order."""

    opened: Call
    calls: tuple[Call, ...] = ()

    def source_name(self) -> str:
        """Return what messages call the data: what was opened."""
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
